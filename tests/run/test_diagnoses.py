"""Faults injected into short real runs, and what the diagnoses say of them."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest

import train
from minirl.config.command_line import load
from minirl.data import arithmetic
from minirl.rollout import hf
from minirl.run import lifecycle
from minirl.run.diagnoses import RULES, diagnose

RUN = [
    "--model.path=embedded-arithmetic", "--data.task=dataset", "--data.test_size=8", "--rollout.prompts=8",
    "--rollout.group_size=8", "--algorithm.mini_batch_prompts=4", "--rollout.max_generation_batches=2",
    "--optimizer.warmup_steps=0", "--optimizer.lr=3e-4", "--run.save_every=0", "--run.save_batches=0", "--run.save_rollouts=0",
    "--eval.every=0", "--eval.problems=2", "--eval.samples=2", "--eval.k=1", "--rollout.max_response_tokens=12",
    "--rollout.max_empty_steps=0",
]  # fmt: skip

CODE = """
from dataclasses import dataclass
import numpy as np
from minirl.advantages import Estimator


def everything(problem, response, rollout):
    return 1.0


def nothing(problem, response, rollout):
    return 0.0


def silent(problem, response, rollout):
    return {"status": "wrong", "label": "<no answer>"}


def slow(problem, response, rollout):
    return {"status": "wrong", "label": "<timeout>"}


def failing(problem, response, rollout):
    if rollout["group"] % 3 == 0:
        raise ValueError("a third")
    return float(problem.answer in response)


def unlabelled(problem, response, rollout):
    return float(problem.answer in response)


def zeros(problem, response, rollout):
    return response.count("0") / 3


def long(problem, response, rollout):
    return rollout["tokens"] / 4


def one_class(problem, responses, verdicts):
    return ["" if v.status == "right" else "other" for v in verdicts]


@dataclass(frozen=True)
class Zero(Estimator):
    def __call__(self, group):
        return np.zeros(len(group.rewards))
"""


def run(folder, options, steps=8, rows=None):
    """(the metrics of a run, its diagnoses); rows: its problems."""
    rows = rows or [{"problem": p.prompt, "answer": p.answer} for p in arithmetic.problems("train")[:88]]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "own.py").write_text(CODE)
    options = [option.replace("OWN", f"{folder}/own.py") for option in options]
    arguments = [*RUN, f"--run.steps={steps}", f"--data.train={folder}/rows.jsonl", "--run-dir", str(folder / "run"), *options]
    train.main(load(arguments))
    history = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return history, diagnose(history, load(arguments))


# ---- faults of the engine --------------------------------------------------------------------------------------------


def engines(monkeypatch, change):
    """Lets `change` spoil the engine that a run builds."""
    build = lifecycle.build_engine

    def spoiled(*arguments):
        engine = build(*arguments)
        change(engine)
        return engine

    monkeypatch.setattr(lifecycle, "build_engine", spoiled)


def apart(engine, taken):
    """Gives the engine weights of its own; a push brings it the tensors of the numbers that `taken` accepts."""
    engine.model = copy.deepcopy(engine.model)

    def sync(policy):
        for i, (mine, new) in enumerate(zip(engine.model.parameters(), policy.model.parameters(), strict=True)):
            if taken(i):
                mine.data.copy_(new.data)
        engine.version = policy.version

    engine.sync = sync


def with_params(engine, **changes):
    generate = engine.generate
    engine.generate = lambda prompts, params, *rest: generate(prompts, replace(params, **changes), *rest)


def without_end(engine):
    generate = engine.generate

    def cut(*arguments):
        for i, group in generate(*arguments):
            yield i, [replace(c, ids=c.ids[:-1], logprobs=c.logprobs[:-1]) for c in group]

    engine.generate = cut


def hot_and_silent(monkeypatch):
    draw = hf.draw

    def drawn(logits, uniform, params):
        token, _ = draw(logits, uniform, replace(params, temperature=1.6))
        return token, logits.log_softmax(-1).gather(-1, token[:, None])[:, 0]

    monkeypatch.setattr(hf, "draw", drawn)


def one_seed(monkeypatch):
    uniforms = hf.uniforms
    monkeypatch.setattr(hf, "uniforms", lambda seeds, n, tokens: np.repeat(uniforms(seeds, 1, tokens), n, 0))


def rewarded_certainty(monkeypatch):
    loss = train.policy_loss

    def spoiled(of, logprobs, entropy, micro, a):
        made = loss(of, logprobs, entropy, micro, a)
        return replace(made, loss=made.loss + 3.0 * entropy)

    monkeypatch.setattr(train, "policy_loss", spoiled)


def one_prompt(monkeypatch):
    draw = lifecycle.Order.draw
    monkeypatch.setattr(lifecycle.Order, "draw", lambda self, n: [(number, i // 4 * 4) for number, i in sorted(draw(self, n))])


def hard(share):
    """Problems of which a share has an answer that the model never gives."""
    problems = arithmetic.problems("train")[:88]
    return [{"problem": p.prompt, "answer": "1" if i % 100 < 100 * share else p.answer} for i, p in enumerate(problems)]


GRPO = "--algorithm.estimator=grpo"
FAULTS = {
    "verifier accepts everything": ([GRPO, "--verifier.name=OWN:everything"], None),
    "verifier accepts nothing": ([GRPO, "--verifier.name=OWN:nothing"], None),
    "no answer found": ([GRPO, "--verifier.name=OWN:silent"], None),
    "verifier fails": ([GRPO, "--verifier.name=OWN:failing"], None),
    "verifier times out": ([GRPO, "--verifier.name=OWN:slow"], None),
    "no error labels": (["--verifier.name=OWN:unlabelled"], None),
    "one error dominates": (["--verifier.labeller=OWN:one_class"], None),
    "end token ignored": ([], lambda m: engines(m, lambda e: setattr(e, "stop_ids", e.stop_ids * 0))),
    "end token missing": ([], lambda m: engines(m, without_end)),
    "same responses": ([GRPO], one_seed),
    "wrong temperature": ([], lambda m: engines(m, lambda e: with_params(e, temperature=1.6))),
    "stale weights": ([], lambda m: engines(m, lambda e: apart(e, lambda i: False))),
    "entropy collapse": ([], rewarded_certainty),
    "learning rate too high": (["--optimizer.lr=0.05", "--optimizer.max_grad_norm=100"], None),
    "no gradient": (["--algorithm.estimator=OWN:Zero"], None),
    "truncation": ([GRPO, "--rollout.max_response_tokens=5"], None),
    "length growth": ([GRPO, "--verifier.rewards=[[OWN:long, 2.0]]", "--optimizer.lr=1e-3", "--rollout.max_response_tokens=40"], None),
    "repeated prompts": ([], one_prompt),
    "reward hacking": ([GRPO, "--verifier.rewards=[[OWN:zeros, 2.0]]", "--optimizer.lr=6e-4"], None),
    "no signal": ([], None),
}  # fmt: skip
LONGER = {"length growth": 20, "reward hacking": 20, "entropy collapse": 16}
OTHERS = {
    "wrong temperature": {
        "cold": ([], lambda m: engines(m, lambda e: with_params(e, temperature=0.6))),
        "hot, with log-probs before the temperature": ([GRPO], hot_and_silent),
    },
    "stale weights": {"half of the tensors are pushed": ([], lambda m: engines(m, lambda e: apart(e, lambda i: i % 2 == 0)))},
}
CASES = [(name, "", *case) for name, case in FAULTS.items()]
CASES += [(name, how, *case) for name, cases in OTHERS.items() for how, case in cases.items()]


@pytest.mark.parametrize(("name", "how", "options", "inject"), CASES, ids=[f"{name} {how}".strip() for name, how, *_ in CASES])
def test_a_fault_is_named_within_20_steps(name, how, options, inject, tmp_path, capsys, monkeypatch):
    (inject or (lambda m: None))(monkeypatch)
    rows = hard(0.85) if name == "no signal" else None
    history, found = run(tmp_path, options, LONGER.get(name, 8), rows)
    print(name, how, [(d.step, d.name, d.text) for d in found], json.dumps(history[-1]))
    assert name in [d.name for d in found]
    assert next(d.step for d in found if d.name == name) <= 20
