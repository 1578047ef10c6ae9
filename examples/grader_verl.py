"""The grader as a custom reward function of verl.

    python -m verl.trainer.main_ppo ... custom_reward_function.path=examples/grader_verl.py

(`reward.custom_reward_function.path` in verl 0.9; the older name still works there.) The gold answer is the column
`reward_model.ground_truth` of the parquet files, as in verl's own data sets.
"""

from collections.abc import Mapping
from typing import Any

from minirl.verify import ERROR, RIGHT, Problem, load_verifier

verify = load_verifier("math")


def compute_score(
    data_source: str, solution_str: str, ground_truth: str, extra_info: Mapping[str, Any] | None = None, **rest: Any
) -> dict[str, float]:
    """score: 1 for right and 0 for wrong; acc, the same, and answered, whether there was an answer, go to verl's metrics.

    ValueError where the grader itself failed: verl has no reward for "unknown", and a 0 would punish a response for it.
    """
    verdict = verify(Problem(str((extra_info or {}).get("index", "")), "", ground_truth), solution_str)
    if verdict.status == ERROR:
        raise ValueError(f"no verdict on the gold answer {ground_truth!r}: {verdict.detail}")
    right = float(verdict.status == RIGHT)
    return {"score": right, "acc": right, "answered": float(verdict.key is not None)}
