"""Run by tests/run/test_checkpoint.py: prints bytes of a checkpoint's tensors and how far the process grew while it was saved
at once and in the background.

python memory_of_checkpoints.py FOLDER
"""

import json
import os
import sys
import threading
import time
from pathlib import Path

import torch

from benchmarks.common import random_model
from minirl.config.command_line import load
from minirl.policy.policy import Policy
from minirl.run.checkpoint import Checkpoints, State
from minirl.utils.distributed import Ranks


class Peak(threading.Thread):
    """The largest resident memory of this process since its start, bytes, looked at every two milliseconds."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.bytes, self.over = 0, False

    def run(self) -> None:
        while not self.over:
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            self.bytes = max(self.bytes, pages * os.sysconf("SC_PAGE_SIZE"))
            time.sleep(0.002)


def growth(folder: Path, policy: Policy, background: bool) -> int:
    """Bytes by which saving `policy` made this process larger, at most."""
    config = load([f"--run.save_in_background={str(background).lower()}", "--run.save_every=1"])
    folder.mkdir()
    (folder / "metrics.jsonl").touch()
    made = Checkpoints(config, policy.ranks, folder, {})
    made.after_step(policy, State(step=1), now=False)  # whatever is loaded at the first use
    made.settle()
    peak = Peak()
    peak.start()
    time.sleep(0.1)
    before = peak.bytes
    made.after_step(policy, State(step=2), now=False)
    made.settle()
    peak.over = True
    return peak.bytes - before


def main(folder: Path) -> None:
    random_model(folder / "model", "20m", "float32")
    policy = Policy(load([f"--model.path={folder / 'model'}"]), Ranks(), 151_936)
    for p in policy.model.parameters():
        p.grad = torch.zeros_like(p)
    policy.step(1e-4)
    tensors = 3 * 4 * sum(p.numel() for p in policy.model.parameters())
    at_once = growth(folder / "at_once", policy, background=False)  # first: it leaves no memory that the other could use again
    print(json.dumps({"tensors": tensors, "at_once": at_once, "background": growth(folder / "background", policy, True)}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
