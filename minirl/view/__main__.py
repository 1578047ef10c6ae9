"""Writes the page of a run, or of two side by side: one HTML file that opens anywhere, without server or network.

    python -m minirl.view runs/mine                          writes runs/mine/view.html
    python -m minirl.view runs/mine runs/other --out a.html  the same prompts in two runs

The run may still be going on: run the command again for its newest steps. See docs/view.md.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from minirl.utils.console import finish_stdout, replace_file, say
from minirl.utils.errors import ConfigError
from minirl.view.page import page
from minirl.view.read import read_run

GROUPS = 6_500_000  # characters of the page for groups, so that it stays below 10 MB with the library of charts and the curves


def main(argv: Sequence[str] | None = None) -> int:
    """Writes the page and returns the exit code: 0 done, 2 bad input."""
    parser = argparse.ArgumentParser(
        "python -m minirl.view", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("run", type=Path, help="run folder of train.py")
    parser.add_argument("run2", type=Path, nargs="?", help="a second one, shown beside it")
    parser.add_argument("--out", type=Path, metavar="FILE.html", help="the page; RUN/view.html otherwise")
    o = parser.parse_args(argv)
    try:
        folders = [folder.expanduser() for folder in (o.run, o.run2) if folder is not None]
        html = page([read_run(folder, GROUPS // len(folders)) for folder in folders])
        out = o.out or folders[0] / "view.html"
        try:
            replace_file(out, html)
        except OSError as error:
            raise ConfigError(f"cannot write {out}: {error.strerror or error}") from None
        say(f"{out}: {len(html) / 1e6:.1f} MB")
    except ConfigError as error:
        print(f"minirl.view: {error}", file=sys.stderr)
        return 2
    finally:
        finish_stdout()
    return 0


if __name__ == "__main__":
    sys.exit(main())
