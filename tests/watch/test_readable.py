"""Which groups of a step are written to rollouts/, and what is said of each response."""

from math import log

import numpy as np
import pytest

from minirl.advantages import BASES, PAPER, WRAPPERS
from minirl.config.command_line import load
from minirl.policy.model import load_tokenizer
from minirl.rollout.sampler import as_group
from minirl.rollout.types import Batch, Completion, Rollout
from minirl.verify.types import Verdict
from minirl.watch.readable import TOKENS, Readable, tokens

ONE = ["--rollout.prompts=1", "--algorithm.mini_batch_prompts=1"]
RIGHT, NOTHING = Verdict("right", key="7"), Verdict("error")


def wrong(label, key=None):
    return Verdict("wrong", label, key or label)


def group(number, *verdicts, seed=0):
    """Rollouts of one prompt with everything that an estimator may ask for."""
    rng = np.random.default_rng([seed, number])
    made = []
    for verdict in verdicts:
        n = int(rng.integers(2, 6))
        arrays = [rng.normal(-1, 0.3, n).astype(np.float32) for _ in range(4)]
        completion = Completion(rng.integers(5, 15, n).astype(np.int32), arrays[0], "stop")
        reward = float("nan") if verdict.status == "error" else float(verdict.status == "right")
        rollout = Rollout(number, f"prompt {number}", "7", [1, 2], completion, 0, "text", verdict, reward)
        rollout.old_logprobs, rollout.ref_logprobs, rollout.entropies = arrays[1], arrays[2], np.abs(arrays[3])
        made.append(rollout)
    return made


def trained(config, *groups):
    """The groups with the advantages that the trainer gives them."""
    seen = [as_group(g, 0.0, config.run.seed) for g in groups]
    estimator = config.build_estimator().fitted(seen)
    for rollouts, g in zip(groups, seen, strict=True):
        for r, advantage, weight in zip(rollouts, estimator(g), estimator.weights(g), strict=True):
            r.advantages, r.weight = advantage, float(weight)
    return list(groups)


def chosen(batch, config, carried=()):
    return [(c.rollouts[0].group, c.why, c.dropped) for c in Readable(batch, carried, 0.0, config).chosen]


def test_the_rules_of_choice_in_their_order():
    config = load(
        ["--algorithm.estimator=dapo+edas", "--rollout.prompts=4", "--algorithm.mini_batch_prompts=1", "--run.save_rollouts=9"]
    )
    alike, differ = group(5, RIGHT, *[wrong("a")] * 3), group(6, RIGHT, wrong("a"), wrong("a"), wrong("b"))
    usual, easy, hard = group(8, RIGHT, wrong("a")), group(7, RIGHT, RIGHT), group(9, wrong("a"), wrong("b"))
    silent, late, later = group(10, NOTHING, NOTHING), group(11, RIGHT, wrong("a")), group(12, RIGHT, wrong("b"))
    batch = Batch(trained(config, alike, differ, usual), [], [alike, differ, easy, usual, hard, silent, late, later])
    # Branch B changes each of three wrong answers by 0.2 of its advantage. Branch C: for a a b, T of b is twice that of a with
    # the other sign, (ln 3 - H) / ln 3 = 0.42, so 0.4 (0.21 + 0.21 + 0.42) = 0.34 < 0.6.
    assert chosen(batch, config, [later]) == [
        (5, "changed", ""),
        (8, "unselected", ""),
        (7, "dropped", "all 2 responses are right: nothing to compare"),
        (6, "next", ""),
        (9, "next", "all 2 responses are wrong: nothing to compare"),
        (10, "next", "no response has a verdict"),
        (11, "next", "left over: the batch was full"),
        (12, "next", "carried over to the next batch: this one was full"),
    ]
    config.run.save_rollouts = 2
    assert [number for number, *_ in chosen(batch, config)] == [5, 8]
    config.run.save_rollouts = 0
    assert chosen(batch, config) == []


def test_without_shaping_the_group_with_the_most_different_wrong_answers_comes_first():
    config = load(
        ["--algorithm.estimator=grpo", "--rollout.prompts=100", "--algorithm.mini_batch_prompts=1", "--run.save_rollouts=1"]
    )
    few, many = group(1, RIGHT, *[wrong("a")] * 3), group(2, RIGHT, wrong("a"), wrong("b"), wrong("c"))
    assert chosen(Batch(trained(config, few, many), [], [few, many]), config) == [(2, "changed", "")]


def test_a_step_without_a_group_to_train_on_writes_what_it_sampled():
    config = load(["--rollout.prompts=100", "--algorithm.mini_batch_prompts=1", "--run.save_rollouts=1"])
    easy = group(3, RIGHT, RIGHT)
    assert [(n, why) for n, why, _ in chosen(Batch([], [], [easy]), config)] == [(3, "dropped")]


def rows_of(config, *groups):
    readable = Readable(Batch(trained(config, *groups), [], list(groups)), [], 0.0, config)
    return readable.rows({}, load_tokenizer(config.model))


def test_the_reason_of_branch_c_is_the_paper_s_numbers():
    config = load(["--algorithm.estimator=grpo+edas", *ONE, "--run.save_rollouts=1"])
    rows = rows_of(config, group(1, RIGHT, *[wrong("a")] * 6, *[wrong("b")] * 3, NOTHING))
    # Ten rewards, one of them 1: mean 0.1, std of ddof 1 sqrt(0.1).
    base = -0.1 / (0.1**0.5 + 1e-6)
    entropy = -(6 / 9 * log(6 / 9) + 3 / 9 * log(3 / 9))
    t = {"a": (-log(6 / 9) - entropy) / log(9), "b": (-log(3 / 9) - entropy) / log(9)}
    for row in rows[1:10]:
        size = 6 if row["label"] == "a" else 3
        assert (row["class_size"], row["class_of"], row["branch"], row["clipped"]) == (size, 9, "C", False)
        assert row["surprise"] == pytest.approx(t[row["label"]], abs=1e-5)
        assert row["change"] == pytest.approx(0.4 * abs(base) * t[row["label"]], abs=1e-5)
        assert row["before"] == {"grpo": pytest.approx(base, abs=1e-5)}
        assert row["advantage"] == pytest.approx(row["before"]["grpo"] + row["change"], abs=3e-5)
    assert "change" not in rows[0], "the right one"
    assert rows[10]["left_out"] == "it has no verdict"


def test_branch_b_held_back_by_kappa_and_an_answer_without_class():
    config = load(["--estimator.edas.beta=0.8", *ONE, "--run.save_rollouts=1"])
    right, one, two, other = rows_of(config, group(1, RIGHT, wrong("a"), wrong("a"), wrong("")))
    assert one["branch"] == two["branch"] == "B"
    assert one["clipped"]
    assert one["change"] == pytest.approx(one["before"]["dapo"] / 2, abs=2e-5), "kappa is 2"
    assert not {"change", "class_size"} & (other.keys() | right.keys())


def test_what_changed_the_reward_and_what_the_loss_leaves_out():
    config = load(["--algorithm.estimator=nsr", "--algorithm.mask_truncated=true"])
    rollouts = group(0, RIGHT, wrong("a"))
    rollouts[1].reward -= 0.25
    rollouts[1].completion = Completion(rollouts[1].completion.ids, rollouts[1].completion.logprobs, "length")
    right, cut = rows_of(config, rollouts)
    assert right["left_out"] == "the estimator gives it the weight 0"
    assert "shaping" not in right
    assert cut["left_out"].startswith("it was truncated")
    assert cut["shaping"] == {"overlong": -0.25, "reference kl": 0.0}


NAMES = dict.fromkeys([*PAPER, *BASES, *(f"dapo+{wrapper}" for wrapper in WRAPPERS), "rloo+lead+edas-c+entropy"])


@pytest.mark.parametrize("name", NAMES)
def test_every_estimator_is_explained(name):
    config = load([f"--algorithm.estimator={name}", *ONE, "--run.save_rollouts=2"])
    verdicts = [RIGHT, RIGHT, *[wrong("a")] * 5, wrong("b"), wrong("c"), wrong("")]
    rows = rows_of(config, group(1, *verdicts), group(2, *verdicts, seed=1))
    assert len(rows) == 20
    for row in rows:
        assert list(row.get("before", {})) == name.split("+")[:-1]
        if "edas" in name and row["label"]:
            inner = [a for part, a in row["before"].items() if "edas" not in part][-1]
            after = row["before"].get("edas-c", row["advantage"])
            assert after == pytest.approx(inner + row["change"], abs=3e-5)


def test_values_of_tokens_belong_to_their_texts():
    config = load([])
    tokenizer = load_tokenizer(config.model)
    ids = np.array(tokenizer("12+3", add_special_tokens=False)["input_ids"] * TOKENS, np.int32)
    n = len(ids)
    r = Rollout(1, "", "", [1], Completion(ids, np.arange(n, dtype=np.float32), "stop"), 0, "", RIGHT, 1.0)
    r.old_logprobs = r.completion.logprobs
    row = tokens(r, np.stack([np.full(n, 0.12345, np.float32), np.zeros(n, np.float32)]), tokenizer)
    assert len(row["pieces"]) == len(row["logprobs"]) == len(row["entropies"]) == TOKENS
    assert tokenizer.decode(ids[:TOKENS]) == "".join(row["pieces"])
    assert row["entropies"][0] == 0.1234 or row["entropies"][0] == 0.1235
    assert not {"sampler_ratio", "log_ratio"} & row.keys(), "zero everywhere"
