"""What aborting the longest groups saves on a CPU: python -m benchmarks.abort_longest [--share S] [--json] [--results FILE]

The transformers engine with a 1M model, forced log-normal lengths (mean a quarter of the longest, sigma 1), off and on in
turns: means over three draws of lengths, the smallest of four turns. shared: how much of sigma the responses to a problem have
in common. Passes are the model's: where one costs the same for few rows as for many, as on a GPU, they are what is waited for.
"""

import argparse
import math
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from benchmarks.common import finish, random_model, result_options, table
from minirl.config.options import RolloutConfig
from minirl.rollout.hf import TransformersEngine
from minirl.rollout.types import SamplingParams

SAMPLES, VOCABULARY = 8, 22
WORK = [(16, 256, 0.8), (16, 256, 0.0), (64, 16, 0.8)]  # prompts, longest, shared


class Forced(TransformersEngine):
    """Gives responses the lengths it is told and counts the model's passes."""

    lengths: torch.Tensor
    passes = 0

    def limits(self, rows: int, params: SamplingParams) -> torch.Tensor:
        return self.lengths

    def _forward(self, *arguments: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        return super()._forward(*arguments)  # type: ignore[arg-type]


def sample(model: torch.nn.Module, prompts: int, longest: int, shared: float, share: float, seed: int) -> list[float]:
    """[processor seconds, passes, mean tokens] of sampling `prompts` groups."""
    drawn, rng = RolloutConfig(abort_longest=share).draws(prompts), np.random.default_rng(seed)
    noise = shared * rng.standard_normal((drawn, 1)) + (1 - shared**2) ** 0.5 * rng.standard_normal((drawn, SAMPLES))
    engine = Forced(model, [], VOCABULARY, drawn * SAMPLES)
    lengths = np.exp(math.log(longest / 4) - 0.5 + noise).round().clip(1, longest)
    engine.stop_ids, engine.lengths = torch.tensor([], dtype=torch.long), torch.from_numpy(lengths.reshape(-1)).long()
    begin = time.process_time()
    groups = list(engine.generate([[1, 2, 3, 4, 5, 6]] * drawn, SamplingParams(SAMPLES, 1.0, longest), range(drawn), prompts))
    seconds = time.process_time() - begin
    return [seconds, float(engine.passes), float(np.mean([len(s.ids) for _, group in groups for s in group]))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--share", type=float, default=0.2, help="rollout.abort_longest")
    result_options(parser)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        model = AutoModelForCausalLM.from_pretrained(random_model(Path(folder), "1m", "float32")).eval()
    rows = []
    for prompts, longest, shared in WORK:
        turns = [
            [
                np.mean([sample(model, prompts, longest, shared, share, seed) for seed in range(3)], 0)
                for share in (0, options.share)
            ]
            for _ in range(4)
        ]
        off, on = np.min(turns, 0).tolist()
        row = {"work": f"{prompts}x{SAMPLES}x{longest}", "shared": shared}
        for name, (seconds, passes, tokens) in (("off", off), ("on", on)):
            row |= {f"{name} cpu ms": 1e3 * seconds, f"{name} passes": passes, f"{name} tokens": tokens}
        rows.append(row)
    if not options.json:
        print(table(rows))
    finish("abort_longest", rows, options.results, options.json)


if __name__ == "__main__":
    main()
