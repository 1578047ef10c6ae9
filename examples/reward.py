"""A reward of your own, added to the verifier's: a term for responses that show their work.

    python train.py --verifier.rewards='[[examples/reward.py:shows_work, 0.1]]'

The verifier still says what is right and wrong; the terms are in the metrics (`reward/terms/...`) and on the page of the run.
"""

from collections.abc import Mapping
from typing import Any

from minirl.verify.types import Problem


def shows_work(problem: Problem, response: str, rollout: Mapping[str, Any]) -> float:
    """1 for a response with a step before its box, else 0. rollout: group, finish, tokens, prompt, raw."""
    return float("=" in response.partition("\\boxed")[0])
