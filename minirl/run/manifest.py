"""Crash-safe checkpoint folders: manifest.json, written last, has size and SHA-256 of every other file.

A folder is written as stepNNNNNN.tmp, flushed to the disk, read back and renamed. So once there is a valid checkpoint there is
always one, even if the process is killed or the disk is full.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from minirl.utils.console import discard, must_write

FORMAT = 3
MANIFEST = "manifest.json"
NEEDED = ("state.json", "surplus.npz", "rank000.safetensors", "rank000.json")


def name_of(step: int) -> str:
    """The folder name of a step."""
    return f"step{step:06}"


def steps_of(root: Path) -> list[tuple[int, Path]]:
    """(step, folder) of the checkpoints, or of the saved batches, in `root`, the newest first; valid or not."""
    return sorted(((int(p.name[4:]), p) for p in root.glob("step*") if p.name[4:].isdigit()), reverse=True)


def write(folder: Path, files: Mapping[str, Iterable[bytes | memoryview]]) -> dict[str, list[Any]]:
    """Writes `files`, each in pieces, into `folder`, flushes them to the disk and reads them back; {name: [bytes, SHA-256]}.

    OSError when the disk is full, cannot be written, or returns other bytes than were written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    entries = {}
    for name, pieces in files.items():
        length, digest = 0, hashlib.sha256()
        with (folder / name).open("wb") as file:
            for piece in pieces:
                file.write(piece)
                digest.update(piece)
                length += len(piece)
            file.flush()
            os.fsync(file.fileno())
        entries[name] = [length, digest.hexdigest()]
        if digest_of(folder / name) != entries[name][1]:
            raise OSError(f"{folder / name} does not hold what was written to it")
    return entries


def publish(temporary: Path, entries: dict[str, list[Any]]) -> Path:
    """Writes the manifest of the folder NAME.tmp and renames it to NAME, which it returns. OSError when that fails."""
    final = temporary.with_suffix("")
    for name, (length, _) in entries.items():
        if not (temporary / name).exists() or (temporary / name).stat().st_size != length:
            raise OSError(f"the first rank does not see {temporary / name}: all ranks must have the same run folder")
    write(temporary, {MANIFEST: [json.dumps({"format": FORMAT, "files": entries}, indent=1).encode()]})
    flush(temporary)
    if final.exists():  # one of the two folders is valid at any time: see `recover`
        discard(old := final.with_suffix(".old.tmp"))
        final.rename(old)
        temporary.rename(final)
        discard(old)
    else:
        temporary.rename(final)
    flush(final.parent)
    return final


def recover(root: Path) -> None:
    """Renames complete checkpoints that a killed process had not renamed yet."""
    for temporary in sorted(root.glob("step*.tmp")):
        final = root / temporary.name.partition(".")[0]
        if not final.exists() and damage(temporary) is None:
            with must_write(final):
                temporary.rename(final)


def flush(path: Path) -> None:
    """fsync of a file or folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_of(path: Path) -> str:
    """SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def damage(folder: Path, rank: int = 0, size: int = 1) -> str | None:
    """What is wrong with a checkpoint, or None. Each of `size` ranks reads its share of the files."""
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT:
            return f"format {manifest['format']} is of another version of this program, which reads {FORMAT}"
        if missing := [name for name in NEEDED if name not in manifest["files"]]:
            return f"{MANIFEST} does not name {missing[0]}"
        for name, (length, digest) in list(manifest["files"].items())[rank::size]:
            if (found := (folder / name).stat().st_size) != length:
                return f"{name} has {found:,} bytes instead of {length:,}"
            if digest_of(folder / name) != digest:
                return f"{name} has changed since it was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except OSError as error:
        return f"it cannot be read: {error.strerror or error}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{MANIFEST} is damaged: {error}"
    return None
