"""Groups begun one by one: which are trained on does not depend on their lengths; what is unfinished is continued exactly."""

import functools
import itertools
import json
import subprocess
import sys
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import minirl.policy.attention  # noqa: F401 - registers "packed"
import train
from benchmarks.kill_resume import differences, fingerprint, free_port
from minirl.config.command_line import load
from minirl.data.prompts import Order, Prompt
from minirl.loss import importance_weights, overlong_penalty
from minirl.rollout import continuous, records
from minirl.rollout.continuous import UNVERIFIED, continuous_batch, joined, slice_tokens
from minirl.rollout.hf import TransformersEngine
from minirl.rollout.sampler import Sampler, stable_seed, verdict_reward
from minirl.rollout.types import LENGTH, STOP, Completion, Rollout, SamplingParams
from minirl.tiny import make as tiny
from minirl.utils.errors import RunError
from minirl.verify.types import ERROR, RIGHT, WRONG, Problem, Verdict
from tests.conftest import ROOT, few_problems

TOK = tiny.tokenizer()

# ---- which groups, and how long they are: an engine whose responses have lengths of a known distribution -------------------

LONGEST = 512


@functools.cache
def length_of(seed, j):
    """Log-normal, mean 100, then cut; the responses to a prompt have most of it in common."""
    common, own = np.random.default_rng(seed).standard_normal(), np.random.default_rng([seed, j]).standard_normal()
    return int(np.clip(np.exp(np.log(100) - 0.5 + 0.8 * common + 0.6 * own), 1, LONGEST))


class Lengths:
    """An engine whose responses are as long as `length_of` says; the first token tells the verifier which one it is."""

    def __init__(self):
        self.version, self.ranks_per_engine, self.progress = 0, 1, lambda tokens: None
        self.most = 0  # responses at once

    def tokens(self, seed, j):
        return Completion(np.full(length_of(seed, j), j, np.int32), np.full(length_of(seed, j), -1, np.float32), STOP)

    def generate(self, prompts, params, seeds, keep=None):
        groups = [[self.tokens(seed, j) for j in range(params.n)] for seed in seeds]
        order = sorted(range(len(prompts)), key=lambda i: (max(len(s.ids) for s in groups[i]), i))
        yield from ((i, groups[i]) for i in order[:keep])

    def extend(self, rollouts, keys, params, tokens):
        self.most = max(self.most, len(rollouts))
        made = []
        for r, key in zip(rollouts, keys, strict=True):
            rest = self.tokens(*key).ids[r.length : r.length + tokens]
            finish = STOP if r.length + len(rest) == length_of(*key) else LENGTH
            made.append(Completion(rest, np.full(len(rest), -float(self.version), np.float32), finish))
        return made

    def sleep(self):
        pass


class Verifier:
    """Every other response of a group is right; of problems whose answer is "hard" none; "broken" has no verdicts."""

    verifier = "math"

    def submit(self, problem, text, info):
        future = Future()
        status = ERROR if problem.answer == "broken" else RIGHT if int(text) % 2 and problem.answer == "easy" else WRONG
        future.set_result(Verdict(status, "" if status == RIGHT else "a"))
        return future


ANSWERS = ["easy", "hard", "easy", "easy", "broken", "easy", "hard"]
PROBLEMS = [Prompt(Problem(str(i), "", ANSWERS[i % 7]), "", [1] * (1 + i % 3)) for i in range(40)]


class World:
    """A scheduler's surroundings: engine, verifier, order."""

    def __init__(self, *options, seed=0):
        self.config = load(["--rollout.continuous=true", "--rollout.prompts=4", "--rollout.group_size=4",
                            "--algorithm.mini_batch_prompts=2", f"--rollout.max_response_tokens={LONGEST}",
                            "--rollout.max_sequences=48", "--algorithm.rollout_is=truncate", *options])  # fmt: skip
        self.engine, tokenizer = Lengths(), SimpleNamespace(decode=lambda ids, **_: str(int(ids[0])))
        ranks = SimpleNamespace(rank=0, size=1, gather=list)
        self.sampler = Sampler(self.engine, tokenizer, Verifier(), ranks, seed)
        self.order, self.carried, self.share = Order(len(PROBLEMS), seed), [], 0.0

    def step(self):
        penalty = partial(overlong_penalty, maximum=LONGEST, buffer=self.config.algorithm.overlong_buffer)
        given = self.sampler, self.order, PROBLEMS, self.config, self.carried, self.share
        batch = continuous_batch(*given, self.config.keeps(0.0), penalty)
        self.carried = batch.surplus
        self.share = len(batch.groups) / max(1, len(batch.generated))
        self.engine.version += 2
        return batch


def kept_draws(count, seed=0):
    """The first draw numbers whose groups have signal, without any engine."""
    order = Order(len(PROBLEMS), seed)
    return list(
        itertools.islice(
            (n for n, i in (order.draw(1)[0] for _ in range(10**4)) if PROBLEMS[i].problem.answer == "easy"), count
        )
    )


DYNAMIC, PLAIN = "--algorithm.dynamic_sampling=true", "--algorithm.dynamic_sampling=false"


@pytest.mark.parametrize("ahead", [0, 0.5, 1, 3])
@pytest.mark.parametrize("slots", [4, 48, 512])
@pytest.mark.parametrize("dynamic", [DYNAMIC, PLAIN])
def test_a_batch_is_the_next_groups_in_the_order_drawn_however_long_they_are(ahead, slots, dynamic):
    world = World(f"--rollout.ahead={ahead}", f"--rollout.max_sequences={slots}", dynamic)
    batches = [world.step() for _ in range(12)]
    numbers = [group[0].group for batch in batches for group in batch.groups]
    assert numbers == (kept_draws(48) if dynamic == DYNAMIC else list(range(48)))
    used = [group[0].group for batch in batches for group in batch.generated]
    assert used == list(range(world.order.position)), "each draw is used once, in order, none is lost"
    for r in (r for batch in batches for group in batch.generated for r in group):
        assert r.length == length_of(stable_seed(0, 0, r.group), int(r.completion.ids[0]))
        assert r.completion.finish == STOP
    assert world.engine.most <= max(4, slots)
    if not ahead:
        assert all(not batch.surplus for batch in batches)
        assert all((r.versions == r.versions[0]).all() for batch in batches for group in batch.groups for r in group)


def lengths(groups):
    return np.array([r.length for group in groups for r in group], float)


def test_lengths_trained_on_are_distributed_as_those_generated_which_aborting_the_longest_fails():
    law = np.array([length_of(stable_seed(seed, 0, n), j) for seed in range(3) for n in range(700) for j in range(4)], float)

    def distance(sample):
        """Kolmogorov and Smirnov's distance to the law, in units of what it is for 5 of 100 samples (whole groups)."""
        at = np.sort(law)
        gap = np.searchsorted(np.sort(sample), at, "right") / len(sample) - np.searchsorted(at, at, "right") / len(at)
        return np.abs(gap).max() / (1.36 / np.sqrt(len(sample) / 4))

    for ahead in (0, 1, 3):
        world = World(f"--rollout.ahead={ahead}", PLAIN, seed=7)
        steps = [world.step().groups for _ in range(100)]
        assert distance(lengths([g for step in steps for g in step])) < 1
        assert distance(lengths([g for step in steps[:25] for g in step])) < 1, "from the first steps on"
    world = World(PLAIN, seed=7)
    aborted = []
    for _ in range(100):
        drawn = world.order.draw(7)  # 4 / (1 - 0.4)
        params = SamplingParams(4, 1.0, LONGEST)
        aborted += world.sampler.groups([PROBLEMS[i] for _, i in drawn], [n for n, _ in drawn], params, keep=4)
    assert distance(lengths(aborted)) > 2


def test_to_take_the_first_to_finish_would_be_biased_though_all_are_trained_on_in_the_end():
    """Why batches are in the order drawn: the same engine, the groups that finish first, the others later."""
    open_, taken = dict[int, int](), []
    for n in range(24):
        open_[n] = max(length_of(stable_seed(7, 0, n), j) for j in range(4))
    for n in sorted(open_, key=open_.get)[:8]:
        taken.append(open_[n])
    assert np.mean(taken) < 0.5 * np.mean(list(open_.values()))


@pytest.mark.parametrize("ahead", [1, 3])
def test_responses_go_on_where_they_were_and_every_token_says_its_version(ahead):
    world = World(f"--rollout.ahead={ahead}", PLAIN)
    mixed = 0
    for _ in range(10):
        before = {g[0].group: [(r.completion.ids.copy(), r.completion.finish) for r in g] for g in world.carried}
        saved, version = world.carried, world.engine.version
        batch = world.step()
        for group in saved:  # the step before must be able to save what it left
            assert [(r.completion.ids.tolist(), r.completion.finish) for r in group] == [
                (ids.tolist(), finish) for ids, finish in before[group[0].group]
            ]
        for r in (r for group in (*batch.groups, *batch.surplus) for r in group):
            versions = r.versions
            assert len(versions) == r.length
            assert (np.diff(versions) >= 0).all()
            assert versions[-1] == r.version <= version
            # The engine reports minus its version as the log-prob
            assert (r.completion.logprobs == -versions).all()
            mixed += versions[0] != versions[-1]
        for group in batch.surplus:
            done = all(r.completion.finish for r in group)
            assert all((r.verdict is UNVERIFIED) != done for r in group), "what is saved is unfinished or has verdicts"
        assert batch.metrics["sampling/ahead_groups"] == len(batch.surplus)
    assert mixed > 5


def test_the_lead_bounds_how_old_a_token_can_be():
    for ahead in (0.5, 1):
        world = World(f"--rollout.ahead={ahead}", PLAIN, "--rollout.max_sequences=512")
        lags = []
        for _ in range(20):
            version = world.engine.version
            lags += [version - r.versions.min() for group in world.step().groups for r in group]
        assert max(lags) == 2, "two optimizer steps are one step"


def test_nothing_happens_silently():
    off, on = World(PLAIN), World(PLAIN, "--rollout.ahead=2", "--rollout.max_sequences=512")
    for world in (off, on):
        total, held = 0, 0
        for _ in range(6):
            batch = world.step()
            used = sum(r.length for group in batch.generated for r in group)
            now = sum(r.length for group in batch.surplus for r in group)
            metrics = batch.metrics
            assert batch.tokens == metrics["sampling/new_tokens"]
            assert metrics["sampling/new_tokens"] == used + now - held + metrics["sampling/discarded_tokens"]
            assert 0 <= metrics["sampling/tail_share"] < 1
            held, total = now, total + metrics["sampling/unfinished_responses"]
        assert (total > 0) == (world is on)
    assert off.step().metrics["sampling/tail_share"] > on.step().metrics["sampling/tail_share"]


def test_a_batch_that_cannot_be_filled_is_smaller_or_an_error(monkeypatch):
    monkeypatch.setattr(Verifier, "submit", lambda self, problem, text, info: done(Verdict(WRONG, "a")))
    few = [DYNAMIC, "--rollout.max_generation_batches=3"]
    for ahead in (0, 1):
        batch = World(*few, f"--rollout.ahead={ahead}").step()
        assert (len(batch.groups), len(batch.generated)) == (0, 12)
        with pytest.raises(RunError, match=r"only 0 of 4 groups .* 12 sampled in 3 generation batches"):
            World(*few, f"--rollout.ahead={ahead}", "--rollout.when_exhausted=error").step()


def done(verdict):
    future = Future()
    future.set_result(verdict)
    return future


def test_the_penalty_for_long_responses_is_given_once_and_a_missing_verdict_stays_one():
    world = World("--rollout.ahead=2", PLAIN, "--algorithm.overlong_buffer=500")
    missing = 0
    for group in (g for _ in range(10) for g in world.step().groups):
        for r in group:
            expected = verdict_reward(r.verdict) + min(0, (12 - r.length) / 500)
            missing += np.isnan(r.reward)
            assert np.isnan(r.reward) == (r.verdict.status == ERROR)
            assert r.reward == pytest.approx(expected, nan_ok=True)
    assert missing > 0


def test_slices_by_hand():
    assert [slice_tokens(n) for n in (4, 24, 512, 8192)] == [4, 8, 8, 128]


# ---- the transformers engine -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    return tiny.model(hidden=32, layers=2, seed=1).eval()


def begun(prompt, n):
    empty = Completion(np.empty(0, np.int32), np.empty(0, np.float32), "", np.empty(0, np.int32))
    return [Rollout(0, "", "", prompt, empty, 0, "", UNVERIFIED, float("nan")) for _ in range(n)]


def extended(engine, rollouts, keys, params, tokens):
    """One slice of those that are unfinished."""
    rows = [i for i, r in enumerate(rollouts) if not r.completion.finish]
    pieces = engine.extend([rollouts[i] for i in rows], [keys[i] for i in rows], params, tokens)
    for i, piece in zip(rows, pieces, strict=True):
        assert 1 <= len(piece.ids) <= tokens
        rollouts[i].completion = joined(rollouts[i].completion, piece, engine.version, params.max_tokens)
    return any(not r.completion.finish for r in rollouts)


@pytest.mark.parametrize("room", [64, 3])
def test_slices_of_a_response_are_the_response_as_a_whole(model, room):
    asked, params, seeds = [TOK(t)["input_ids"] for t in ("<user>12*3=<assistant>", "7")], SamplingParams(5, 1.0, 10), (3, 4)
    engine = TransformersEngine(model, [TOK.eos_token_id], len(TOK), room)
    whole = dict(engine.generate(asked, params, seeds))
    keys = [(seed, j) for seed in seeds for j in range(5)]
    rollouts = [r for prompt in asked for r in begun(prompt, 5)]
    while extended(engine, rollouts, keys, params, 3):
        pass
    expected = [s for i in range(2) for s in whole[i]]
    assert {s.finish for s in expected} == {STOP, LENGTH}, "else the test shows less than it says"
    for r, s in zip(rollouts, expected, strict=True):
        assert r.completion.ids.tolist() == s.ids.tolist()
        assert r.completion.finish == s.finish
        assert r.completion.logprobs == pytest.approx(s.logprobs, abs=1e-5)


def test_tokens_of_each_version_have_its_log_probs_and_the_weights_correct_the_old_ones_only():
    model = tiny.model(hidden=32, layers=2, seed=1).eval()
    prompt, params = TOK("<user>12*3=<assistant>")["input_ids"], SamplingParams(8, 1.0, 10)
    engine, keys = TransformersEngine(model, [], len(TOK), 64), [(3, j) for j in range(8)]
    rollouts = begun(prompt, 8)
    extended(engine, rollouts, keys, params, 4)

    def logprobs(ids):
        with torch.no_grad():
            all_ = model(torch.tensor([prompt + ids])).logits[0].log_softmax(-1)
        return torch.stack([all_[len(prompt) - 1 + t, token] for t, token in enumerate(ids)])

    before = [logprobs(r.completion.ids.tolist()) for r in rollouts]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    engine.version = 2
    while extended(engine, rollouts, keys, params, 4):
        pass
    for r, old in zip(rollouts, before, strict=True):
        now, sampled = logprobs(r.completion.ids.tolist()), torch.from_numpy(r.completion.logprobs)
        assert r.completion.versions.tolist() == [0] * 4 + [2] * 6
        assert sampled[:4].tolist() == pytest.approx(old.tolist(), abs=1e-5)
        assert sampled[4:].tolist() == pytest.approx(now[4:].tolist(), abs=1e-5)
        weights = importance_weights(now, sampled, "truncate", 0.0, 50.0)
        assert weights[:4].tolist() == pytest.approx((now[:4] - old).exp().tolist(), rel=1e-4)
        assert weights[4:].tolist() == pytest.approx([1] * 6, abs=1e-4)
        assert (weights[:4] - 1).abs().max() > 1e-3


def test_with_the_weight_of_the_whole_response_means_over_mixed_versions_are_the_new_policy_s():
    """By enumeration: two tokens of three, the first of an old policy, the second of the new one."""
    rng = np.random.default_rng(0)
    old_first, new_first = rng.dirichlet(np.ones(3)), rng.dirichlet(np.ones(3))
    new_second, value = rng.dirichlet(np.ones(3), 3), rng.standard_normal((3, 3))
    corrected = truth = plain = 0.0
    for a, b in itertools.product(range(3), repeat=2):
        done = Completion(np.array([a], np.int32), np.log(old_first[[a]]).astype(np.float32), "", np.zeros(1, np.int32))
        piece = Completion(np.array([b], np.int32), np.log(new_second[a, [b]]).astype(np.float32), STOP)
        response = joined(done, piece, 2, 9)
        now = torch.tensor(np.log([new_first[a], new_second[a, b]]), dtype=torch.float32)
        weight = importance_weights(now, torch.from_numpy(response.logprobs), "sequence_truncate", 0.0, 1e6, [2])[0].item()
        sampled = old_first[a] * new_second[a, b]
        corrected += sampled * weight * value[a, b]
        plain += sampled * value[a, b]
        truth += new_first[a] * new_second[a, b] * value[a, b]
    assert corrected == pytest.approx(truth, abs=1e-6)
    assert abs(plain - truth) > 0.01


# ---- whole runs ------------------------------------------------------------------------------------------------------------

RUN = [
    "--run.steps=4", "--run.save_every=1", "--run.keep=9", "--run.save_batches=9", "--rollout.prompts=4",
    "--rollout.group_size=4", "--rollout.temperature=1.3", "--algorithm.mini_batch_prompts=2", "--eval.problems=8",
    "--eval.during_problems=4", "--eval.samples=2", "--eval.k=2", "--eval.every=2", "--optimizer.lr=1e-3",
    "--optimizer.warmup_steps=0", "--rollout.continuous=true", "--rollout.ahead=1.5", "--algorithm.rollout_is=truncate",
    "--algorithm.overlong_buffer=8", "--rollout.max_sequences=40",
]  # fmt: skip


@pytest.fixture(scope="module")
def problems(tmp_path_factory):
    return few_problems(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def run(problems):
    """Runs in this process, with slices of two tokens, and gives the folder."""

    def start(folder, *options):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(continuous, "slice_tokens", lambda longest: 2)
            assert train.main(load([*RUN, *problems, "--run-dir", str(folder), *options])) == 0
        return folder

    return start


@pytest.fixture(scope="module")
def whole(run, tmp_path_factory):
    return run(tmp_path_factory.mktemp("continuous") / "run")


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def saved(folder, step, name="generated"):
    return records.load(folder / "batches" / f"step{step:06}" / f"{name}.npz")


def test_a_run_trains_on_responses_of_several_versions_and_says_so(whole):
    made = rows(whole)
    assert sum(row["sampling/unfinished_responses"] for row in made[:-1]) > 0
    assert made[0]["policy/old_tokens"] == 0
    assert all(0 < row["policy/old_tokens"] <= 1 for row in made[2:])
    assert all(row["policy/version_lag"] >= row["policy/old_tokens"] for row in made), "a step behind is two optimizer steps"
    assert all(row["policy/rollout_logprob_diff_max"] < 1e-4 for row in made), "of the tokens of the step's own version"
    for row in made:
        sampled, empty = row["time/limit_generation"] + row["time/lost_waste"], row["sampling/tail_share"]
        assert row["time/lost_tail"] == pytest.approx(sampled * empty / (1 - empty)), "nothing was discarded"
    numbers = [group[0].group for step in range(1, 5) for group in saved(whole, step)]
    assert numbers == list(range(len(numbers)))
    mixed = [r for step in range(2, 5) for group in saved(whole, step) for r in group if len(set(r.versions.tolist())) > 1]
    assert mixed
    assert all(row["sampling/aborted_groups"] == 0 for row in made)


@pytest.mark.slow
def test_a_run_that_is_stopped_in_the_middle_of_its_groups_is_the_same_run(run, whole, tmp_path):
    for _ in range(3):
        run(tmp_path / "out", "--stop-after=0s")
    assert any(not r.completion.finish for group in saved(tmp_path / "out", 3, "carried") for r in group)
    run(tmp_path / "out")
    assert differences(fingerprint(whole), fingerprint(tmp_path / "out")) == []
    for step in range(1, 5):
        for name in ("carried.npz", "generated.npz"):
            one, two = (folder / "batches" / f"step{step:06}" / name for folder in (whole, tmp_path / "out"))
            a, b = ([(r.completion.ids.tolist(), r.versions.tolist(), r.completion.logprobs.tolist(), r.text, r.version)
                     for g in records.load(path) for r in g if r.length] for path in (one, two))  # fmt: skip
            assert a == b, (step, name)


@pytest.mark.parametrize("step", [1, 2, 3, 4])
def test_a_step_with_tokens_of_several_versions_comes_out_again(whole, step, capsys):
    assert train.main(load(["--replay", str(whole / f"step{step}")])) == 0
    printed = capsys.readouterr().out
    assert ", 0 differ by more" in printed
    assert "optimizer/grad_norm" in printed
    assert "policy/old_tokens" in printed


def test_another_estimator_sees_the_same_step(whole, capsys):
    assert train.main(load(["--replay", str(whole / "step3"), "--algorithm.estimator=grpo"])) == 0
    assert "algorithm.estimator: dapo+edas -> grpo" in capsys.readouterr().out
    assert train.main(load(["--replay", str(whole / "step3"), "--estimators", "grpo,dapo"])) == 0
    found = json.loads((whole / "microscope" / "step3" / "microscope.json").read_text())
    assert found["left_out"] == {}


def test_nothing_is_begun_beyond_the_batch_by_default(run, tmp_path):
    folder = run(tmp_path / "out", "--rollout.ahead=0", "--algorithm.rollout_is=none", "--run.steps=3")
    assert all((row["policy/old_tokens"], row["sampling/ahead_groups"]) == (0, 0) for row in rows(folder))
    assert all(saved(folder, step, "carried") == [] for step in (1, 2, 3))
    numbers = [group[0].group for step in (1, 2, 3) for group in saved(folder, step)]
    assert numbers == list(range(len(numbers)))
    assert train.main(load(["--replay", str(folder / "step3")])) == 0


def test_without_dynamic_sampling_and_anything_ahead_it_is_the_plain_run(run, tmp_path):
    same = ["--algorithm.estimator=grpo", "--rollout.ahead=0", "--run.steps=2"]
    one, two = run(tmp_path / "a", *same), run(tmp_path / "b", *same, "--rollout.continuous=false")
    for a, b in zip(rows(one), rows(two), strict=True):
        for key in (k for k in b if not k.startswith(("time/", "speed/", "checkpoint/", "policy/rollout_logprob_diff"))):
            assert a[key] == pytest.approx(b[key], rel=1e-3, abs=1e-4), key
    ids = [[[r.completion.ids.tolist() for r in g] for g in saved(folder, 2)] for folder in (one, two)]
    assert ids[0] == ids[1]


@pytest.mark.slow
def test_two_ranks_share_the_groups_resume_exactly_and_one_replays_them(problems, tmp_path):
    folder = tmp_path / "two"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", free_port()]
    options = [*RUN, *problems, "--run.steps=3", "--eval.every=0", "--rollout.max_sequences=12", "--run-dir", str(folder)]
    made = []
    for more in ([], ["--resume", str(folder / "checkpoints" / "step000001")]):
        done = subprocess.run([*torchrun, str(ROOT / "train.py"), *options, *more], cwd=ROOT, capture_output=True, text=True,
                              timeout=200, check=False)  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        made.append(fingerprint(folder))
    assert differences(*made) == []
    assert sum(row["sampling/unfinished_responses"] for row in rows(folder)[:-1]) > 0
    numbers = [group[0].group for step in range(1, 4) for group in saved(folder, step)]
    assert numbers == list(range(len(numbers)))
    assert train.main(load(["--replay", str(folder / "step3")])) == 0
