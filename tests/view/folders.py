"""Run folders made by hand, with numbers that differ from step to step as a run's do."""

import json

import numpy as np
import yaml

from minirl.config.command_line import load
from minirl.config.options import as_tree

# What the diagnoses read, of a run without a fault.
SIZES = {"sampling/groups": 32.0, "sampling/batch_groups": 32.0, "optimizer/steps": 2.0, "optimizer/grad_norm": 1.0}
CALM = SIZES | dict.fromkeys(
    [
        "policy/approx_kl", "policy/clip_high", "policy/clip_low", "policy/rollout_logprob_diff_mean", "optimizer/nonfinite",
        "response/no_answer", "response/empty_answer", "response/truncated", "response/unlabelled", "response/tokens",
        "batch/informative", "verify/errors", "verify/timeouts",
    ],
    0.0,
)  # fmt: skip
HOSTILE = "</script><img src=x onerror='window.hacked = 1'><b>bold</b> & \u2028 \ud800 -->"


def response(rng, status, key, size, of, text="", length=7):
    base = round(rng.normal(), 5)
    row = {
        "response": text or f"\\boxed{{{key}}}", "status": status, "label": "" if status == "right" else key, "key": key,
        "reward": float(status == "right"), "advantage": base, "tokens": length, "finish": "stop", "version": 4, "detail": "",
        "before": {"dapo": base},
        "pieces": [*(text or f"\\boxed{{{key}}}")[: length - 1], "<eos>"],
    } | {name: rng.normal(size=length).round(4).tolist() for name in ("logprobs", "entropies", "log_ratio")}  # fmt: skip
    if status == "wrong":
        change = round(float(-0.12 * abs(base)), 5)
        row |= {"class_size": size, "class_of": of, "change": change, "clipped": False, "surprise": -0.31}
        row["before"]["dapo"] = -abs(base)
        row["advantage"] = round(-abs(base) + change, 5)
    return row


def group(rng, number, chosen, prompt=None, **extra):
    """Ten responses of one prompt: three right, five and two of two classes of wrong answers."""
    kinds = [("right", "56", 0)] * 3 + [("wrong", "58", 5)] * 5 + [("wrong", "65", 2)] * 2
    top = {"group": number, "prompt": prompt or f"<user>{number}*7=<assistant>", "gold": "56", "chosen": chosen, "branch": "C"}
    return [top | response(rng, status, key, size, 7) | extra for status, key, size in kinds]


def write(folder, steps, seed=0, groups=None, options=(), metrics=()):
    """A run folder of `steps` steps. groups: (rng, step) -> rows; three groups otherwise; metrics: the same at every step."""
    rng = np.random.default_rng(seed)
    (folder / "rollouts").mkdir(parents=True)
    (folder / "evaluations").mkdir()
    (folder / "config.yaml").write_text(yaml.safe_dump(as_tree(load([f"--run.steps={steps}", *options]))))
    names = [f"policy/metric{i}" for i in range(60)] + [
        "reward/accuracy",
        "reward/mean",
        "policy/entropy",
        "groups/informative",
    ]
    same = CALM | dict(metrics)
    lines = [{"step": s} | dict(zip(names, rng.random(len(names)).tolist(), strict=True)) | same for s in range(1, steps + 1)]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "evaluations" / "step000000.json").write_text(json.dumps({"metrics": {"pass@1": 0.25}, "problems": []}))

    def three(rng, step):
        kinds = ("changed", "unselected", "dropped")
        return [row for i, kind in enumerate(kinds) for row in group(rng, 3 * step + i, kind)]

    for step in range(1, steps + 1):
        rows = (groups or three)(rng, step)
        (folder / "rollouts" / f"step{step:06d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder
