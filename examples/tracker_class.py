"""A tracker of your own inside the run: a subclass of accelerate's GeneralTracker, here one line of text a step.

    python train.py --run.trackers=[examples/tracker_class.py:Lines]

It is told the options, each step's metrics and each evaluation (names eval/...), on the first rank only; a method
`log_table` also gets the saved groups. What raises is left out with a warning. tracker.py follows a run from outside instead.
"""

from pathlib import Path
from typing import Any

from accelerate.tracking import GeneralTracker


class Lines(GeneralTracker):
    """Appends to lines.txt in the run folder."""

    name = "lines"
    requires_logging_directory = True  # then the run folder is the second argument

    def __init__(self, project: str, folder: str) -> None:
        super().__init__()
        self.file = (Path(folder) / "lines.txt").open("a", encoding="utf-8")

    @property
    def tracker(self) -> Any:
        return self.file

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.file.write(f"{len(values)} options, seed {values['run.seed']}\n")

    def log(self, values: dict[str, Any], step: int | None = None, **_: Any) -> None:
        shown = {name: values[name] for name in ("reward/accuracy", "eval/pass@1") if name in values}
        self.file.write(f"{step}: {shown}\n")

    def finish(self) -> None:
        self.file.close()
