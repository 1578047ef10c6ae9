"""The kernels that vLLM samples with on a GPU (model runner V2), run on a CPU by Triton's interpreter.

On a CPU vLLM is another program than on a GPU: its build for CPUs samples with torch. What minirl relies on must hold in both.
"""

import json
import os
import subprocess
import sys

import pytest

PROGRAM = """
import json, os
import torch, triton
import vllm.triton_utils as utils
# vLLM's build for CPUs puts a placeholder where it finds no driver; the interpreter needs none.
utils.triton, utils.tl = triton, triton.language
from vllm.v1.worker.gpu.sample.gumbel import apply_temperature, gumbel_sample
from vllm.v1.worker.gpu.sample.logprob import compute_token_logprobs

def sample(logits, temperature, seeds, positions):
    # as Sampler.sample does with logprobs_mode="processed_logprobs" and without top_k, top_p
    processed, rows = logits.float().clone(), torch.arange(len(logits), dtype=torch.int32)
    apply_temperature(processed, rows, torch.full((len(logits),), temperature))
    return draw(processed.expand(len(seeds), -1), temperature, seeds, positions)

def draw(processed, temperature, seeds, positions):
    rows = torch.arange(len(seeds), dtype=torch.int32)
    temperatures = torch.full((len(seeds),), temperature)
    ids = gumbel_sample(processed, rows, temperatures, seeds, positions, apply_temperature=False, is_drafting=False)
    return ids, compute_token_logprobs(processed, ids[:, None])[:, 0]

torch.manual_seed(0)
few = torch.tensor([1.0, 0.0, -1.0, 0.5, -torch.inf, 2.0])  # an id that minirl has masked
draws = 250
seeds = torch.arange(draws) * 104729 + 17
ids, _ = sample(few[None], 0.7, seeds, torch.full((draws,), 5))
many = torch.randn(6, 1500)
many[:, 1400:] = -torch.inf
many[3:] = many[:3]
seeds, positions = torch.tensor([1, 2, 2**40 + 3]).repeat(2), torch.tensor([9, 9, 100]).repeat(2)
sampled, logprobs = sample(many, 0.7, seeds, positions)
moved, _ = sample(many[:3], 0.7, seeds[:3], positions[:3] + 1)
print(json.dumps({
    "counts": torch.bincount(ids, minlength=6).tolist(),
    "expected": (draws * (few / 0.7).softmax(-1)).tolist(),
    "sampled": sampled.tolist(), "moved": moved.tolist(), "logprobs": logprobs.tolist(),
    "exact": (many.double() / 0.7).log_softmax(-1)[torch.arange(6), sampled].tolist(),
}))
"""


pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def found():
    for name in ("triton", "vllm"):
        pytest.importorskip(name)
    pytest.importorskip("vllm.v1.worker.gpu.sample.gumbel", reason="this vLLM has no model runner V2")
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_tokens_have_the_tempered_distribution(found):
    from scipy.stats import chisquare

    counts, expected = zip(*((c, e) for c, e in zip(found["counts"], found["expected"], strict=True) if e), strict=True)
    assert found["counts"][4] == 0, "a masked id is never sampled"
    assert chisquare(counts, expected).pvalue > 1e-3


def test_a_request_s_tokens_depend_on_its_seed_and_position_and_not_on_its_row(found):
    assert found["sampled"][:3] == found["sampled"][3:]
    assert found["moved"] != found["sampled"][:3]
    assert max(found["sampled"]) < 1400


def test_log_probs_are_those_of_the_distribution_that_was_sampled(found):
    assert found["logprobs"] == pytest.approx(found["exact"], abs=1e-5)
