"""Run by tests/run/test_checkpoint.py: prints bytes of a checkpoint's tensors and how far the process grew while it was saved.

python memory_of_checkpoints.py FOLDER true|false                   the second: run.save_in_background
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


def main(folder: Path, background: str) -> None:
    random_model(folder / "model", "20m", "float32")
    config = load([f"--model.path={folder / 'model'}", f"--run.save_in_background={background}", "--run.save_every=1"])
    ranks = Ranks()
    policy = Policy(config, ranks, 151_936)
    for p in policy.model.parameters():
        p.grad = torch.zeros_like(p)
    policy.step(1e-4)
    (folder / "metrics.jsonl").touch()
    made = Checkpoints(config, ranks, folder, {})
    made.after_step(policy, State(step=1), now=False)  # whatever is loaded at the first use
    made.settle()
    peak = Peak()
    peak.start()
    time.sleep(0.1)
    before = peak.bytes
    made.after_step(policy, State(step=2), now=False)
    made.settle()
    peak.over = True
    tensors = 3 * 4 * sum(p.numel() for p in policy.model.parameters())
    print(json.dumps({"tensors": tensors, "growth": peak.bytes - before}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
