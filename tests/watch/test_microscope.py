"""Every estimator's gradient on a saved step is that of its own run; what cannot be looked at is said."""

import json
import shutil

import numpy as np
import pytest
import torch

import train
from minirl.config.command_line import every_estimator, load
from minirl.policy.policy import Policy
from minirl.watch import microscope
from tests.conftest import few_problems

RUN = [
    "--run.steps=4", "--run.save_every=2", "--rollout.prompts=4", "--rollout.group_size=6", "--algorithm.mini_batch_prompts=2",
    "--eval.problems=4", "--eval.samples=2", "--eval.k=2", "--eval.every=0", "--optimizer.lr=1e-3",
    "--optimizer.warmup_steps=0", "--algorithm.estimator=dapo+edas", "--algorithm.entropy_coef=0.01",
]  # fmt: skip


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run with dynamic sampling whose batch of step 3 has the weights from before it, and that of step 4 has not."""
    folder = tmp_path_factory.mktemp("microscope") / "run"
    assert train.main(load([*RUN, *few_problems(folder.parent), "--run-dir", str(folder)])) == 0
    return folder


@pytest.fixture
def look_at(monkeypatch):
    """look_at(step, names, *options): {estimator: its Look, or why there is none}, by the command itself."""

    def run(step, names, *options):
        found, real = {}, microscope.looks

        def kept(*arguments):
            for name, look in real(*arguments):
                found[name] = look
                yield name, look

        with monkeypatch.context() as patch:
            patch.setattr(microscope, "looks", kept)
            assert train.main(load(["--replay", str(step), "--estimators", names, *options])) == 0
        return found

    return run


def own_gradient(monkeypatch, step, name, *options):
    """float64[P]: the gradient of the first optimizer step of a replay with the estimator, as accumulated, before clipping."""
    found, real = [], Policy.step

    def kept(self, lr):
        found.append(torch.cat([p.grad.flatten() for p in self.head.parameters()]).double().numpy())
        return real(self, lr)

    with monkeypatch.context() as patch:
        patch.setattr(Policy, "step", kept)
        assert train.main(load(["--replay", str(step), f"--algorithm.estimator={name}", *options])) == 0
    return found[0]


def distance(a, b):
    return np.linalg.norm(a - b) / np.linalg.norm(b)


NAMES = "dapo+edas,dapo+entropy,nsr,reinforce_pp,ngrpo,dapo+ace,dapo+edas-shuffled"


@pytest.mark.parametrize(
    ("options", "names"),
    [
        (["--algorithm.mini_batch_prompts=4"], NAMES),
        (["--algorithm.loss_agg_mode=null", "--algorithm.loss=null", "--algorithm.mini_batch_prompts=4"], "grpo,gpg,dapo"),
        (["--algorithm.loss=clip_cov", "--algorithm.kl_coef=0.1", "--algorithm.mini_batch_prompts=4"], "dapo,dapo+entropy"),
        (["--algorithm.loss=gspo", "--algorithm.old_logprobs=rollout", "--algorithm.mini_batch_prompts=4"], "dapo+edas"),
    ],
)
def test_the_gradient_of_a_batch_of_one_mini_batch_is_that_of_the_estimator_s_own_run(
    finished, look_at, monkeypatch, options, names
):
    looks = look_at(finished / "step3", names, *options)
    assert list(looks) == names.split(",")
    for name, look in looks.items():
        whole = look.parts.sum(0, dtype=np.float64)
        assert distance(whole, own_gradient(monkeypatch, finished / "step3", name, *options)) < 1e-6, name


def test_of_two_mini_batches_the_first_is_the_own_run_s_first_step_and_the_gradient_is_their_mean(
    finished, look_at, monkeypatch
):
    look = look_at(finished / "step3", "grpo")["grpo"]
    first = 2 * look.parts[:2].sum(0, dtype=np.float64)
    assert distance(first, own_gradient(monkeypatch, finished / "step3", "grpo")) < 1e-6
    assert look.policy.steps == 2


@pytest.mark.slow
def test_all_are_named_and_the_run_is_left_alone_but_for_the_folder(finished, tmp_path, capsys):
    run = shutil.copytree(finished, tmp_path / "run", ignore=shutil.ignore_patterns("microscope"))
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    config = load(["--replay", str(run / "step3"), "--estimators", "all"])
    assert train.main(config) == 0
    after = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    made = {str(p.relative_to(run)) for p in after.keys() - before.keys()}
    assert made == {f"microscope/step3/microscope.{ending}" for ending in ("md", "json", "png")}
    assert all(after[p] == before[p] for p in before)
    found = json.loads((run / "microscope/step3/microscope.json").read_text())
    names = every_estimator(config)
    assert {"grpo", "pkpo", "dapo+edas-inverted", "dapo+ace", "maxrl"} < set(names)
    assert [*found["estimators"], *found["left_out"]] == [*(n for n in names if n != "pkpo"), "pkpo"]
    assert "rollout.group_size=6 is too small for pkpo" in found["left_out"]["pkpo"]
    assert found["estimators"]["dapo"]["same_as"] == "grpo", "with the aggregation of the run"
    assert found["first"] == "dapo+edas"
    printed = capsys.readouterr().out
    assert "| dapo+edas-inverted |" in printed
    assert "is too small for pkpo" in printed


def test_the_weights_are_what_they_were_and_a_step_moves_log_probs_as_their_derivatives_say(finished, look_at):
    look = look_at(finished / "step3", "grpo")["grpo"]
    policy = look.policy
    before = [p.detach().clone() for p in policy.weights]
    rollouts = [r for group in look.batch.groups for r in group][:3]
    gradient = look.parts.sum(0, dtype=np.float64)
    moves, _ = policy.moved(gradient, rollouts)
    assert all(torch.equal(p, old) for p, old in zip(policy.weights, before, strict=True))
    length = microscope.STEP * np.sqrt(sum(float(p.double().square().sum()) for p in before))
    micro = policy.policy.micro_batches(rollouts)[0]
    logprobs = micro.split(torch.arange(sum(r.length for r in rollouts)))  # where each token is in the micro-batch
    values, _ = policy.logprobs(micro)
    for i, places in zip(micro.indices, logprobs, strict=True):
        for t, place in enumerate(places.astype(int)):
            parts = torch.autograd.grad(values[place], policy.weights, retain_graph=True)
            slope = torch.cat([g.flatten() for g in parts]).double().numpy() @ gradient / np.linalg.norm(gradient)
            assert moves[i][t] == pytest.approx(-length * slope, rel=0.05, abs=2e-4)


def test_an_estimator_that_the_rewards_do_not_fit_is_named_and_the_others_are_looked_at(finished, tmp_path, look_at):
    (tmp_path / "mine.py").write_text("def minus(problem, response, rollout):\n    return -1.0 - len(response) % 2\n")
    options = [f"--verifier.name={tmp_path / 'mine.py'}:minus", "--algorithm.dynamic_sampling=false"]
    looks = look_at(finished / "step3", "maxrl,rloo", *options)
    assert "the mean reward, which must not be negative" in looks["maxrl"]
    assert looks["rloo"].parts.any()


def test_an_estimator_of_one_s_own_takes_its_options_and_the_others_do_not_mind(finished, tmp_path, look_at):
    (tmp_path / "own.py").write_text(
        "from dataclasses import dataclass\nfrom minirl.advantages import Estimator, centred, option\n\n\n"
        "@dataclass(frozen=True)\nclass Twice(Estimator):\n    factor: float = option(1.0, 'x')\n\n"
        "    def __call__(self, group):\n        return centred(group.rewards, std=False) * self.factor\n"
    )
    own = f"{tmp_path / 'own.py'}:Twice"
    options = [f"--algorithm.estimator={own}", "--estimator.custom={factor: 1.2}"]
    looks = look_at(finished / "step3", f"{own},rloo", *options)
    mine, rloo = (look.parts.sum(0) for look in looks.values())
    assert distance(mine, rloo) < 2e-2, "6 / 5 for groups of six; the entropy bonus is in both"


def test_what_cannot_be_looked_at_is_said(finished, capsys):
    assert train.main(load(["--replay", str(finished / "step4"), "--estimators", "grpo"])) == 2
    assert "a gradient needs the weights from before step 4" in (error := capsys.readouterr().err)
    assert error.endswith("it has those of steps: 3\n")
    assert train.main(load(["--replay", str(finished / "step3"), "--estimators", "pkpo"])) == 2
    assert "no estimator fits this step: pkpo: rollout.group_size=6 is too small" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--estimators", "grpo"], "name it by --replay RUN/stepN"),
        (["--replay", "RUN/step3", "--estimators", "grpo,grpoo"], "unknown estimator 'grpoo'"),
        (["--replay", "RUN/step3", "--estimators", "grpo,"], "unknown estimator ''"),
    ],
)
def test_names_are_checked_before_anything_is_loaded(finished, arguments, message):
    with pytest.raises(Exception, match=message):
        load([a.replace("RUN", str(finished)) for a in arguments])
