"""Experiment trackers, by accelerate's own classes: configuration, metrics, evaluations, and groups where there are tables.

Everything they get is in the run folder too. They stay offline unless the environment says otherwise. One that fails is left
out with a warning: it never ends a run.
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from minirl.advantages.own import own_class
from minirl.config.options import Config, every_option
from minirl.utils.console import replace_file, say

PROJECT = "minirl"
TABLE = ("chosen", "prompt", "gold", "response", "status", "label", "reward", "advantage")  # columns of a table of groups


class Trackers:
    """The trackers that run.trackers names; none on ranks other than the first (folder None)."""

    def __init__(self, folder: Path | None, config: Config, step: int) -> None:
        """step: the last one that was done; a resumed run continues its tracked run, whose names are in trackers.json."""
        self.folder, self.open, self.names = folder, dict[str, Any](), dict[str, str]()
        if folder is None or not config.run.trackers:
            return
        path = folder / "trackers.json"
        known = read_names(path) if path.exists() and step else {}
        for name in config.run.trackers:
            self.attempt(name, "opened", lambda name=name: self.start(name, config, step, known))  # type: ignore[misc]
        try:
            replace_file(path, json.dumps(known | self.names) + "\n")
        except OSError as error:
            say(f"warning: {path} could not be written: {error}; a resumed run will begin new tracked runs")

    def start(self, name: str, config: Config, step: int, known: Mapping[str, str]) -> None:
        """Opens a tracker, and gives it the configuration of a new run."""
        from accelerate import tracking

        folder = self.folder or Path()
        title, run = folder.resolve().name, known.get(name)
        if name == "tensorboard":
            tracker: Any = tracking.TensorBoardTracker("tensorboard", folder, purge_step=step + 1 if step else None)
        elif name == "wandb":
            os.environ.setdefault("WANDB_MODE", "offline")
            tracker = tracking.WandBTracker(PROJECT, name=title, id=run, resume="allow", dir=str(folder))
        elif ".py:" in name:  # made as accelerate makes those of its users
            kind = own_class(name, tracking.GeneralTracker)
            tracker = kind(PROJECT, str(folder)) if kind.requires_logging_directory else kind(PROJECT)
        elif name == "trackio":
            tracker = tracking.TrackioTracker(PROJECT, name=run or title, resume="allow" if run else "never")
        else:
            os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{folder.resolve() / 'mlflow.db'}")
            tracker = tracking.MLflowTracker(
                PROJECT, logging_dir=f"file://{folder.resolve()}/mlflow", run_id=run, run_name=title
            )
        tracker.start()
        self.open[name] = tracker
        self.names[name] = identity(name, tracker)
        if run is None:
            options = {key: value for key, value, _ in every_option(config)}
            tracker.store_init_configuration({k: v if isinstance(v, int | float) else str(v) for k, v in options.items()})

    def attempt(self, name: str, what: str, call: Callable[[], Any]) -> None:
        """Calls, and leaves the tracker out from then on if that fails."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - other people's code and servers; the run goes on and says so
            self.open.pop(name, None)
            say(f"warning: run.trackers={name} could not be {what} and is left out: {type(error).__name__}: {error}")

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Metrics of a step, or of the evaluation after it."""
        for name, tracker in list(self.open.items()):
            self.attempt(name, "written", lambda tracker=tracker: tracker.log(dict(values), step=step))  # type: ignore[misc]

    def groups(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """The saved responses of a step, for trackers that have tables."""
        data = [[plain(row.get(column)) for column in TABLE] for row in rows]
        for name, tracker in list(self.open.items()):
            if data and hasattr(tracker, "log_table"):
                call = lambda t=tracker: t.log_table("groups", columns=list(TABLE), data=data, step=step)  # noqa: E731
                self.attempt(name, "written", call)

    def close(self) -> None:
        """Ends the tracked runs, which a resumed run opens again."""
        for name, tracker in list(self.open.items()):
            self.attempt(name, "closed", tracker.finish)
        self.open.clear()


def read_names(path: Path) -> dict[str, str]:
    """What `identity` said of each tracked run of a run to resume; of a damaged file nothing, and a warning."""
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(names, dict) or not all(isinstance(name, str) for name in names.values()):
            raise ValueError("it holds no names of tracked runs")
    except (OSError, ValueError) as error:
        say(f"warning: {path} cannot be read: {error}; the trackers begin new tracked runs")
        return {}
    return names


def identity(name: str, tracker: Any) -> str:
    """What names a tracked run, so that it can be continued; the tracker's own name where its place does."""
    if name == "tensorboard" or ".py:" in name:
        return name
    if name == "mlflow":
        return str(tracker.tracker.info.run_id)
    return str(tracker.tracker.id if name == "wandb" else tracker.tracker.name)


def plain(value: Any) -> Any:
    """A cell of a table: a number or a text."""
    return value if isinstance(value, int | float) else json.dumps(value) if isinstance(value, list | dict) else str(value)
