"""Mean accuracy and pass@k of the policy on held-out problems."""

from collections.abc import Sequence

import numpy as np

from minirl.advantages import diversity, rho
from minirl.config.options import EvalConfig
from minirl.data.prompts import Prompt
from minirl.rollout.sampler import EVALUATION, Sampler, as_group
from minirl.rollout.types import SamplingParams
from minirl.utils.errors import RunError
from minirl.verify.types import NO_ANSWER


def evaluate(sampler: Sampler, prompts: Sequence[Prompt], config: EvalConfig) -> dict[str, float]:
    """Metrics over `prompts`, with `config.samples` responses to each; the same seeds at every call.

    pass@1: mean accuracy; pass@k: unbiased, k = config.k; error_diversity: unique wrong / wrong, mean over problems with a
    wrong answer; no_answer, truncated: shares of responses; errors: responses without verdict, left out of the first three.
    """
    sampling = SamplingParams(config.samples, config.temperature, config.max_response_tokens or 0, config.top_p, config.top_k)
    groups = sampler.groups(prompts, range(len(prompts)), sampling, EVALUATION)
    graded = [as_group(g) for g in groups]
    rollouts = [r for g in groups for r in g]
    counts = [(int(g.valid.sum()), int((g.valid & g.correct).sum())) for g in graded if g.valid.any()]
    if not counts:
        raise RunError(f"no response has a verdict, so nothing can be learned: {rollouts[0].verdict.detail}")
    return {
        "pass@1": float(np.mean([c / n for n, c in counts])),
        "pass@k": float(np.mean([rho(n, c, min(config.k, n)) for n, c in counts])),
        "k": config.k,
        "error_diversity": diversity(graded)["error_diversity"],
        "no_answer": float(np.mean([r.verdict.label == NO_ANSWER for r in rollouts])),
        "truncated": float(np.mean([r.truncated for r in rollouts])),
        "mean_tokens": float(np.mean([r.length for r in rollouts])),
        "errors": sum(not v for g in graded for v in g.valid),
        "problems": len(prompts),
        "samples": config.samples,
    }
