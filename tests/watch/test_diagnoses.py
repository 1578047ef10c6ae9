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
from minirl.watch.diagnoses import RULES, diagnose
from tests.conftest import ROOT

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
    """An entropy bonus with the wrong sign. (Entropies have a gradient where algorithm.entropy_coef is above 0.)"""
    loss = train.policy_loss

    def spoiled(of, logprobs, entropy, micro, a):
        made = loss(of, logprobs, entropy, micro, a)
        return replace(made, loss=made.loss + 2.0 * entropy)

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
    "entropy collapse": ([GRPO, "--algorithm.entropy_coef=1e-6", "--optimizer.lr=1e-3"], rewarded_certainty),
    "learning rate too high": (["--optimizer.lr=0.05", "--optimizer.max_grad_norm=100"], None),
    "no gradient": (["--algorithm.estimator=OWN:Zero"], None),
    "truncation": ([GRPO, "--rollout.max_response_tokens=5"], None),
    "length growth": (
        [GRPO, "--verifier.rewards=[[OWN:long, 2.0]]", "--optimizer.lr=1e-3", "--rollout.max_response_tokens=40"], None,
    ),
    "repeated prompts": ([], one_prompt),
    "reward hacking": ([GRPO, "--verifier.rewards=[[OWN:zeros, 2.0]]", "--optimizer.lr=6e-4"], None),
    "no signal": ([], None),
}  # fmt: skip
LONGER = {"length growth": 20, "reward hacking": 20, "entropy collapse": 20}
OTHERS = {
    "wrong temperature": {
        "cold": ([], lambda m: engines(m, lambda e: with_params(e, temperature=0.6))),
        "hot, with log-probs before the temperature": ([GRPO], hot_and_silent),
    },
    "stale weights": {"half of the tensors are pushed": ([], lambda m: engines(m, lambda e: apart(e, lambda i: i % 2 == 0)))},
}
CASES = [(name, "", *case) for name, case in FAULTS.items()]
CASES += [(name, how, *case) for name, cases in OTHERS.items() for how, case in cases.items()]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "how", "options", "inject"), CASES, ids=[f"{name} {how}".strip() for name, how, *_ in CASES])
def test_a_fault_is_named_within_20_steps(name, how, options, inject, tmp_path, capsys, monkeypatch):
    (inject or (lambda m: None))(monkeypatch)
    history, found = run(tmp_path, options, LONGER.get(name, 8), hard(0.85) if name == "no signal" else None)
    assert name in [d.name for d in found], json.dumps([(d.step, d.name, d.text) for d in found] + list(history[-1].items()))
    diagnosis = next(d for d in found if d.name == name)
    assert diagnosis.step <= 20
    printed = capsys.readouterr().out
    assert printed.count(f"warning: step {diagnosis.step}, {diagnosis.name}: {diagnosis.text}") == 1, "in the console, once"
    report = tmp_path / "run" / "report.md"  # of a run that was not ended by the fault
    assert not report.exists() or f"step {diagnosis.step}, {name}: {diagnosis.text}" in report.read_text()


def test_every_fault_is_in_the_table_of_the_docs_and_most_are_injected():
    rows = [line.split(" | ")[0].removeprefix("| ") for line in (ROOT / "docs" / "diagnoses.md").read_text().splitlines()]
    assert set(RULES) <= set(rows)
    assert set(RULES) - set(FAULTS) == {"other weights", "not finite", "small batches"}, "those are tested below, or elsewhere"


# ---- sound runs ------------------------------------------------------------------------------------------------------

SOUND = [
    (("rules", "arithmetic")[seed % 2], estimator, seed)
    for seed, estimator in enumerate(
        ("dapo+edas", "grpo", "dapo", "rloo+edas", "pkpo", "maxrl", "dapo+entropy", "reinforce_pp", "ngrpo+edas", "gpg")
    )
]


@pytest.mark.slow
@pytest.mark.parametrize(("task", "estimator", "seed"), SOUND)
def test_a_sound_run_raises_no_alarm(task, estimator, seed, tmp_path):
    options = [
        f"--data.task={task}", f"--algorithm.estimator={estimator}", f"--run.seed={seed}", "--run.steps=30",
        "--rollout.prompts=16", "--rollout.group_size=8", "--algorithm.mini_batch_prompts=8",
        "--rollout.max_response_tokens=32", "--eval.problems=8", "--eval.samples=2", "--eval.k=2", "--eval.every=0",
        "--run.save_every=0", "--run.save_batches=0", "--estimator.pkpo.k=4", "--run-dir", str(tmp_path / "run"),
    ]  # fmt: skip
    assert train.main(load(options)) == 0
    history = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert diagnose(history, load(options)) == []


# ---- rules, on metrics alone -----------------------------------------------------------------------------------------


def row(step, **changes):
    """A step of a sound run; names with two underscores for the slash."""
    values = {
        "reward/mean": 0.4, "reward/std": 0.49, "reward/accuracy": 0.4, "response/tokens": 100.0, "response/truncated": 0.02,
        "response/no_answer": 0.01, "response/empty_answer": 0.0, "response/unlabelled": 0.0, "response/past_end": 0.0,
        "response/without_end": 0.0, "response/distinct": 1.0, "response/same_label": 0.05, "verify/timeouts": 0.0,
        "verify/errors": 0.0, "groups/informative": 0.7, "batch/informative": 1.0, "sampling/groups": 45.0,
        "sampling/batch_groups": 32.0, "sampling/repeated_prompts": 0.0, "data/repeated_prompts": 0.0, "policy/entropy": 0.4,
        "policy/approx_kl": 0.001, "policy/clip_high": 0.01, "policy/clip_low": 0.0, "policy/rollout_logprob_diff_mean": 1e-7,
        "policy/rollout_spread": 1.0, "policy/nll_excess": 0.05, "optimizer/grad_norm": 1.0, "optimizer/steps": 2.0,
        "optimizer/nonfinite": 0.0,
    }  # fmt: skip
    return {"step": step} | values | {key.replace("__", "/"): value for key, value in changes.items()}


def found(rows, *options):
    return [(d.step, d.name) for d in diagnose(rows, load(list(options)))]


def test_a_sound_history_is_silent_and_one_odd_step_is_no_fault():
    rows = [row(step) for step in range(1, 41)]
    assert found(rows) == []
    odd = row(20, policy__approx_kl=0.3, policy__entropy=0.01, response__truncated=0.9, groups__informative=0.0,
              response__tokens=900.0, response__no_answer=0.9, sampling__batch_groups=3.0, reward__accuracy=0.05,
              policy__rollout_logprob_diff_mean=0.04, response__same_label=0.9)  # fmt: skip
    assert found([*rows[:19], odd, *rows[20:]]) == []


def test_a_policy_that_one_step_breaks_is_named_in_that_step_with_its_own_share_of_clipped_tokens():
    """Before any consequence: the next batches have no group with signal and are skipped updates, which clip nothing."""
    empty = {"sampling__batch_groups": 0.0, "optimizer__steps": 0.0, "policy__approx_kl": 0.0, "policy__clip_high": 0.0}
    rows = [row(1, policy__approx_kl=1.3, policy__clip_low=0.2), row(2, **empty), row(3, **empty)]
    seen = diagnose(rows, load([]))
    assert [(d.step, d.name) for d in seen] == [(1, "learning rate too high"), (2, "small batches")]
    assert "moves by 1.3 nats a token within one batch, and 21% of the tokens are clipped" in seen[0].text
    small = [row(1, policy__approx_kl=0.1), row(2, **empty), row(3, policy__approx_kl=0.1, policy__clip_high=0.31)]
    assert "moves by 0.1 nats a token within one batch, and 16% of" in diagnose(small, load([]))[-1].text, "of the two updates"


def test_a_fault_is_named_once_at_its_first_step_and_however_much_of_the_run_is_read():
    rows = [row(step, groups__informative=0.1 if step > 28 else 0.7) for step in range(1, 61)]
    assert found(rows) == [(31, "no signal")], "three of five steps after 28"
    for end in (30, 31, 45):
        assert found(rows[:end]) == [(31, "no signal")] * (end >= 31)
    text = diagnose(rows, load([]))[0].text
    assert "90% of the groups carry no signal" in text
    assert "take easier problems" in text


def test_what_success_looks_like_is_no_fault():
    """Half of the problems were solved: little signal, little entropy; longer responses that are right more often."""
    rows = [row(s, reward__accuracy=min(0.9, 0.2 + s / 50), reward__mean=min(0.9, 0.2 + s / 50),
                groups__informative=max(0.1, 0.8 - s / 40), policy__entropy=0.4 * 0.97**s, response__tokens=100.0 + 3 * s)
            for s in range(1, 60)]  # fmt: skip
    assert found(rows) == []


def test_weights_of_another_precision_and_noise():
    """0.0075 nats, as measured in bfloat16, is no fault there; 0.1 is, and at once where it ends the run."""
    assert found([row(s, policy__rollout_logprob_diff_mean=0.0075) for s in range(1, 9)], "--model.dtype=bfloat16") == []
    assert found([row(s, policy__rollout_logprob_diff_mean=0.1) for s in range(1, 9)]) == [(3, "other weights")]
    assert found([row(1, policy__rollout_logprob_diff_mean=0.9)]) == [(1, "other weights")]
    old = {name: value for name, value in row(1).items() if not name.startswith("policy/rollout_")}
    late = [old, *(row(s, policy__rollout_logprob_diff_mean=0.1) for s in range(2, 9))]
    assert found(late) == [(4, "other weights")], "not measured in the first step"
    hot = [row(s, policy__rollout_logprob_diff_mean=0.2, policy__rollout_spread=0.5) for s in range(1, 4)]
    assert found(hot) == [(3, "wrong temperature")]
    assert "at a temperature of about 2" in diagnose(hot, load([]))[0].text


def test_a_withheld_push_ends_a_run_whose_batches_begin_with_carried_groups(tmp_path, monkeypatch, capsys):
    """With the sampler's log-probs only the first mini-batch can be compared, so it must not be one of older groups."""
    engines(monkeypatch, lambda engine: apart(engine, lambda i: False))
    options = [GRPO, "--algorithm.dynamic_sampling=true", "--rollout.carry_over=true", "--rollout.oversample=3"]
    options += ["--algorithm.old_logprobs=rollout", "--optimizer.lr=3e-3", "--rollout.logprob_diff_stop=0.02"]
    history, _ = run(tmp_path, options)
    assert len(history) < 8
    assert "the engine holds other weights" in capsys.readouterr().err
    assert history[-1]["sampling/carried_groups"] >= 4, "as many as a mini-batch has"


def test_batches_that_are_not_full_and_steps_that_are_not_finite():
    rows = [row(s, sampling__batch_groups=20.0 if s > 6 else 32.0) for s in range(1, 12)]
    assert found(rows) == [(9, "small batches")]
    assert found([row(1, sampling__batch_groups=0.0)]) == [(1, "small batches")], "at once"
    assert found([row(1), row(2, optimizer__nonfinite=1.0)]) == [(2, "not finite")]


def test_graded_rewards_and_hard_problems_are_not_a_verifier_that_accepts_nothing():
    assert found([row(s, reward__accuracy=0.0) for s in range(1, 4)]) == [], "the rewards differ"
    few = [row(s, reward__accuracy=0.0, reward__std=0.0, sampling__groups=3.0, sampling__batch_groups=3.0) for s in (1, 2, 3)]
    assert "verifier accepts nothing" not in [name for _, name in found(few, "--rollout.group_size=8")], "72 responses"


def test_metrics_of_an_older_run_are_read():
    missing = ("response/", "data/", "policy/rollout_spread", "policy/nll_excess")
    rows = [{key: value for key, value in row(step).items() if not key.startswith(missing)} for step in range(1, 30)]
    assert found(rows) == []
