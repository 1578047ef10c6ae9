"""How this program writes: a line on the console, a file that is whole or not there, and a sentence where that fails."""

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tqdm import tqdm

from minirl.utils.errors import RunError


def is_main_process() -> bool:
    """Whether this is the first process of the run, from the launcher's environment; works before anything is started."""
    return os.environ.get("RANK", "0") == "0"


def say(message: str) -> None:
    """One line on the console that does not break a progress bar; characters that its encoding lacks are escaped.

    Where stdout cannot be written (a log on a full disk), stderr takes its place: the console is not the record of a run.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        tqdm.write(message.encode(encoding, "backslashreplace").decode(encoding), file=sys.stdout)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(2, 1)
        with suppress(OSError):  # then there is nowhere to say it
            tqdm.write(f"warning: stdout cannot be written ({error}): the run continues and prints to stderr", file=sys.stderr)


def finish_stdout(text: str = "") -> None:
    """Prints the last `text` of a command; where its reader has gone, as in `... | head`, the rest is dropped, no error."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def discard(path: Path) -> None:
    """Removes a folder or a file that is of no use any longer; where that fails, a warning is enough."""
    try:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        say(f"warning: {path} is old and could not be removed: {error}")


def replace_file(path: Path, content: str | bytes) -> None:
    """Writes a file that is either the old one or the whole new one, whenever this process is killed. Half of a surrogate pair,
    which UTF-8 cannot hold, is written as JSON escapes it."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_bytes(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def must_write(path: Path) -> Iterator[None]:
    """Around writing what a run cannot do without: when that fails, RunError with what to do."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror or error}; solve that and start the same command again, which resumes from "
            "the last checkpoint"
        ) from error


def append_line(path: Path, line: str) -> None:
    """Appends a whole line or nothing. RunError when it cannot be written."""
    # Without a buffer, which would write its rest when the file is closed.
    with must_write(path), path.open("ab", buffering=0) as file:
        length, left = file.tell(), f"{line}\n".encode()
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(length)
            raise
