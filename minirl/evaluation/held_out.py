"""Mean accuracy and pass@k of the policy on held-out problems, and each problem's counts.

A run folder keeps the counts of every evaluation in evaluations/stepNNNNNN.json, from which comparisons of runs are made.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from minirl.advantages import diversity, rho
from minirl.config.options import Config, EvalConfig
from minirl.data.prompts import Prompt
from minirl.rollout.sampler import EVALUATION, Sampler, as_group
from minirl.rollout.types import Rollout, SamplingParams
from minirl.run.checkpoint import STARTING_WEIGHTS
from minirl.run.folder import that_matter
from minirl.utils.console import must_write, replace_file, say
from minirl.utils.errors import ConfigError, RunError
from minirl.verify.types import NO_ANSWER, RIGHT, WRONG

# What an evaluation before the first step depends on: options of `eval`, other options and sections (run.folder.listed) but for
# the harmless ones, and of a run's fingerprint (run.checkpoint.fingerprint), besides the weights, these parts.
SAMPLING = ("samples", "k", "temperature", "top_p", "top_k", "max_response_tokens")
OPTIONS = ("verifier.", "rollout.engine", "rollout.stop", "model.dtype")
CONTENTS = ("held-out problems", "tokenizer", "model's config", "reward file")


@dataclass(frozen=True)
class Evaluation:
    """An evaluation. metrics: over all problems; problems: of each one {id, n: responses with a verdict, right, wrong: {error
    label: count}, tokens: mean length}, in the order evaluated."""

    metrics: dict[str, float]
    problems: list[dict[str, Any]]


def evaluate(sampler: Sampler, prompts: Sequence[Prompt], config: EvalConfig) -> Evaluation:
    """The evaluation of `prompts`, with `config.samples` responses to each; the same seeds at every call.

    pass@1: mean accuracy; pass@k: unbiased, k = config.k; error_diversity: unique wrong / wrong, mean over problems with a
    wrong answer; no_answer, truncated: shares of responses; errors: responses without verdict, left out of the first three.
    """
    sampling = SamplingParams(config.samples, config.temperature, config.max_response_tokens or 0, config.top_p, config.top_k)
    groups = sampler.groups(prompts, range(len(prompts)), sampling, EVALUATION)
    graded = [as_group(g) for g in groups]
    rollouts = [r for g in groups for r in g]
    problems = [counts(prompt.problem.id, group) for prompt, group in zip(prompts, groups, strict=True)]
    judged = [(p["n"], p["right"]) for p in problems if p["n"]]
    if not judged:
        raise RunError(f"no response has a verdict, so nothing can be learned: {rollouts[0].verdict.detail}")
    metrics = {
        "pass@1": float(np.mean([c / n for n, c in judged])),
        "pass@k": float(np.mean([rho(n, c, min(config.k, n)) for n, c in judged])),
        "k": config.k,
        "error_diversity": diversity(graded)["error_diversity"],
        "no_answer": float(np.mean([r.verdict.label == NO_ANSWER for r in rollouts])),
        "truncated": float(np.mean([r.truncated for r in rollouts])),
        "mean_tokens": float(np.mean([r.length for r in rollouts])),
        "errors": sum(not v for g in graded for v in g.valid),
        "problems": len(prompts),
        "samples": config.samples,
    }
    return Evaluation(metrics, problems)


def counts(problem: str, group: Sequence[Rollout]) -> dict[str, Any]:
    """A problem's entry of `Evaluation.problems`. Wrong responses without a label are counted under the empty one."""
    statuses = Counter(r.verdict.status for r in group)
    wrong = Counter(r.verdict.label or "" for r in group if r.verdict.status == WRONG)
    return {
        "id": problem, "n": statuses[RIGHT] + statuses[WRONG], "right": statuses[RIGHT],
        "wrong": dict(wrong.most_common()), "tokens": round(float(np.mean([r.length for r in group])), 6),
    }  # fmt: skip


def conditions(config: Config, fingerprint: Mapping[str, str]) -> dict[str, Any]:
    """What an evaluation before the first step depends on, as JSON keeps it. fingerprint: the run's, with the weights."""
    labeller = [f"file of {config.verifier.labeller}"]
    contents = {name: fingerprint[name] for name in (*CONTENTS, *labeller) if name in fingerprint}
    sampling = {name: getattr(config.eval, name) for name in SAMPLING}
    found = (
        {"weights": fingerprint[STARTING_WEIGHTS], "seed": config.run.seed}
        | sampling
        | that_matter(config, OPTIONS)
        | {"contents": contents}
    )
    return json.loads(json.dumps(found))


def write(folder: Path, step: int, evaluation: Evaluation, config: Config, fingerprint: Mapping[str, str]) -> None:
    """Writes an evaluation to the run folder's evaluations/stepNNNNNN.json. RunError when that fails."""
    content = {"step": step, "conditions": conditions(config, fingerprint), "metrics": evaluation.metrics}
    lines = ",\n".join(json.dumps(problem, ensure_ascii=False) for problem in evaluation.problems)
    with must_write(folder / "evaluations"):
        (folder / "evaluations").mkdir(exist_ok=True)
        text = f'{json.dumps(content, ensure_ascii=False)[:-1]}, "problems": [\n{lines}\n]}}\n'
        replace_file(folder / "evaluations" / f"step{step:06d}.json", text)


def read(path: Path | str) -> tuple[Evaluation, dict[str, Any]]:
    """(an evaluation that `write` wrote, its conditions). ConfigError when it cannot be read."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        return Evaluation(content["metrics"], content["problems"]), content["conditions"]
    except OSError as error:
        raise ConfigError(f"cannot read the evaluation {path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{path} is no evaluation of a run (evaluations/stepNNNNNN.json): {error!r}") from None


def recall(config: Config, prompts: Sequence[Prompt], fingerprint: Mapping[str, str]) -> Evaluation:
    """The evaluation that eval.before names. ConfigError unless it was made with the same weights, problems, verifier and
    options. What a file of an earlier version does not hold cannot be compared, which is said."""
    evaluation, made = read(str(config.eval.before))
    wanted = conditions(config, fingerprint)
    there, here = made.pop("contents", {}), wanted.pop("contents")
    unknown = [key for key in wanted if key not in made] + [key for key in here if key not in there]
    different = [f"{key}: {made[key]} there, {value} here" for key, value in wanted.items() if made.get(key, value) != value]
    different += [f"another {key} by content" for key, digest in here.items() if there.get(key, digest) != digest]
    if different:
        raise ConfigError(f"eval.before={config.eval.before} is of another run: {'; '.join(different)}; leave it out")
    if unknown:
        say(f"note: eval.before={config.eval.before} is of an earlier version and not compared in: {', '.join(unknown)}")
    if [p["id"] for p in evaluation.problems] != [prompt.problem.id for prompt in prompts]:
        raise ConfigError(f"eval.before={config.eval.before} has other held-out problems than this run: leave it out")
    return evaluation
