"""A tracker of your own: the numbers of a run as they come, here as CSV for a spreadsheet.

    python examples/tracker.py runs/mine reward/accuracy policy/entropy > mine.csv

The run folder is the record of a run, so a tracker needs no hook in the trainer: it may start late, fail and start again.
Groups are in rollouts/stepNNNNNN.jsonl, evaluations in evaluations/stepNNNNNN.json (docs/view.md). TensorBoard, wandb, trackio
and MLflow need no code: --run.trackers=[wandb].
"""

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path


def follow(run: Path, seconds: float = 2.0) -> Iterator[dict[str, float]]:
    """The metrics of each step of a run: of those that are there, then of each new one, until the run has finished.

    A resumed run does the steps after its last checkpoint again, with the same result; they are given once.
    """
    file, last = run / "metrics.jsonl", 0.0
    while True:
        finished = (run / "summary.json").exists()  # looked at first: nothing is written to the metrics after it
        for line in file.read_text(encoding="utf-8").splitlines(keepends=True) if file.exists() else []:
            if line.endswith("\n") and (row := json.loads(line))["step"] > last:
                last = row["step"]
                yield row
        if finished:
            return
        time.sleep(seconds)


def main(run: str, *names: str) -> None:
    """Prints a header and a line a step."""
    names = names or ("reward/accuracy", "policy/entropy")
    print("step", *names, sep=",", flush=True)
    for row in follow(Path(run)):
        print(int(row["step"]), *(row.get(name, "") for name in names), sep=",", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
