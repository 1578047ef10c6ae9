"""Console output, and writing files so that a crash leaves none of them half written."""

import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from tqdm import tqdm

from minirl.utils.errors import RunError


def is_main_process() -> bool:
    """Whether this is the first rank, from the launcher's environment; works before `Ranks` exists."""
    return os.environ.get("RANK", "0") == "0"


def say(message: str) -> None:
    """Prints a line above the progress bar; characters that the console's encoding lacks are escaped.

    If stdout cannot be written (a log on a full disk), stderr is used from then on; the run continues.
    """
    encoding = sys.stdout.encoding or "utf-8"
    try:
        tqdm.write(message.encode(encoding, "backslashreplace").decode(encoding), file=sys.stdout)
        sys.stdout.flush()
    except OSError as error:
        os.dup2(2, 1)
        with suppress(OSError):
            tqdm.write(f"warning: stdout cannot be written ({error}): the run continues and prints to stderr", file=sys.stderr)


class Activity:
    """Says what goes on while nothing else is printed: beside the progress bar on a terminal, else a line every `every`
    seconds.

    `begin` names the present work; `done`, `of` and `tokens` count it, where it can be counted. A thread of its own reads them.
    """

    def __init__(self, bar: tqdm, every: float = 30.0) -> None:
        self.bar, self.every = bar, every
        self.work, self.done, self.of, self.tokens = "", 0, 0, 0
        self.since = self.said = time.monotonic()
        self.closed = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def begin(self, work: str) -> None:
        """The present work, "" for none."""
        self.work, self.done, self.of, self.tokens = work, 0, 0, 0
        self.since = self.said = time.monotonic()

    def line(self) -> str:
        """The present work with its counts and seconds: sampling 120/320 responses, 3,210 tokens, 34 s."""
        counts = [f" {self.done}/{self.of} responses"] if self.of else [""]
        counts += [f"{self.tokens:,} tokens"] if self.tokens else []
        return f"{self.work}{', '.join(counts)}, {time.monotonic() - self.since:.0f} s"

    def _watch(self) -> None:
        while not self.closed.wait(0.2 if self.bar.disable else 0.5):
            if not self.bar.disable:
                self.bar.set_postfix_str(self.line() if self.work else "")
            elif self.work and time.monotonic() - self.said >= self.every:
                self.said = time.monotonic()
                say(f"... {self.line()}")

    def close(self) -> None:
        """Ends the thread and removes the bar, so that what is printed next begins at a line of its own."""
        self.closed.set()
        self.bar.close()


def finish_stdout(text: str = "") -> None:
    """Prints the last `text` of a command. If the reader has closed the pipe, as in `... | head`, that is no error."""
    try:
        print(text, end="", flush=True)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def leave(code: int) -> NoReturn:
    """Ends the process with an exit code. Where it has an engine or a process group it ends at once, since the threads, CUDA
    graphs and memory pools that are still there sometimes abort an interpreter that shuts down, after all work is done."""
    group = getattr(sys.modules.get("torch.distributed"), "is_initialized", lambda: False)
    if "vllm" not in sys.modules and not group():
        sys.exit(code)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError):  # a reader that is gone; what matters is in files
            stream.flush()
    os._exit(code)


def discard(path: Path) -> None:
    """Removes a folder or file that is no longer needed; warns when that fails."""
    try:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
    except OSError as error:
        say(f"warning: {path} is old and could not be removed: {error}")


def replace_file(path: Path, content: str | bytes) -> None:
    """Replaces a file atomically. Lone surrogates, which UTF-8 cannot encode, are written as JSON escapes."""
    temporary = path.with_name(f"{path.name}.tmp")
    try:
        temporary.write_bytes(content.encode(errors="backslashreplace") if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def must_write(path: Path) -> Iterator[None]:
    """A context that turns an OSError in writing essential files into a RunError with the remedy."""
    try:
        yield
    except OSError as error:
        raise RunError(
            f"cannot write {path}: {error.strerror or error}; solve that and start the same command again, which resumes from "
            "the last checkpoint"
        ) from error


def append_line(path: Path, line: str) -> None:
    """Appends a whole line or nothing. RunError when it cannot be written."""
    # Unbuffered: a buffer would write the rest of a failed line when the file is closed.
    with must_write(path), path.open("ab", buffering=0) as file:
        length, left = file.tell(), f"{line}\n".encode()
        try:
            while left:
                left = left[file.write(left) :]
        except OSError:
            file.truncate(length)
            raise
