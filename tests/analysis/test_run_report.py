"""The report of a run, on evaluations worked out by hand."""

import json

import numpy as np
import pytest

from minirl.analysis.run_report import (
    before_after,
    changes,
    example_group,
    numbers,
    pass_curve,
    settings,
    training_accuracy,
)
from minirl.config.command_line import load


def problem(name, n, right, wrong, tokens=5.0):
    return {"id": name, "n": n, "right": right, "wrong": wrong, "tokens": tokens}


def test_the_numbers_of_a_problem():
    found = numbers(problem("a", 4, 1, {"7": 2, "<no answer>": 1}), 2)
    assert found["pass@1"] == 0.25
    assert found["pass@k"] == 1 - (3 * 2) / (4 * 3), "1 - C(3, 2) / C(4, 2)"
    assert found["error_diversity"] == 2 / 3
    assert found["no_answer"] == 0.25
    empty = numbers(problem("b", 0, 0, {}), 2)
    assert np.isnan([empty["pass@1"], empty["pass@k"], empty["error_diversity"]]).all()


def test_changes_are_paired_over_problems_and_their_intervals_cover_no_less_than_the_truth():
    rng = np.random.default_rng(0)
    level = rng.random(200)
    before = [problem(str(i), 10, int(rng.binomial(10, p)), {}) for i, p in enumerate(level)]
    after = [problem(p["id"], 10, min(10, p["right"] + 1), {}) for p in before]
    mean, low, high = changes(before, after[::-1], 4, 0)["pass@1"]
    expected = np.mean([(b["right"] - a["right"]) / 10 for a, b in zip(before, after, strict=True)])
    assert mean == pytest.approx(expected)
    assert low < mean < high
    assert high - low < 0.02, "the problems' own spread, of 0.3, is gone: they are paired"
    assert "error_diversity" not in changes(before, after, 4, 0), "no problem has a labelled wrong answer"
    assert changes(before, [problem("another", 10, 1, {})], 4, 0) == {}


@pytest.mark.parametrize("k", [1, 4])
def test_the_table_has_pass_at_k_once(k):
    metrics = {
        "pass@1": 0.25,
        "pass@k": 0.5,
        "k": k,
        "error_diversity": 0.5,
        "no_answer": 0.0,
        "truncated": 0.0,
        "mean_tokens": 7.0,
        "problems": 20,
    }
    table = before_after(metrics, metrics | {"pass@1": 0.375}, {"pass@1": (0.125, 0.1, 0.15)})
    assert table.count("| pass@1 ") == 1
    assert ("pass@4" in table) == (k == 4)
    assert "| 0.250  | 0.375  | +0.125 | +0.100 to +0.150 |" in table
    assert "nan" not in table
    assert "too few" not in table
    table = before_after(metrics | {"problems": 2}, metrics, {"pass@1": (0.0, 0.0, 0.0)})
    assert "| +0.000 | no variation     |" in table
    assert table.endswith("\n\n2 problems are too few to say anything of others; 20 or more are needed.")


def test_the_pass_curve_has_powers_of_two():
    ks, values = pass_curve([problem("a", 8, 2, {}), problem("b", 8, 0, {}), problem("c", 0, 0, {})], 8, 0)
    assert ks == [1, 2, 4, 8]
    assert values[0].tolist() == pytest.approx([0.125, (1 - 15 / 28) / 2, (1 - 15 / 70) / 2, 0.5])
    assert (values[1] <= values[0]).all()
    assert (values[0] <= values[2]).all()


def test_the_settings_are_what_differs_and_what_matters():
    usual = load([])
    text = settings(load(["--optimizer.lr=1e-5", "--rollout.prompts=64"]))
    assert f"| optimizer.lr | 1e-05 | {usual.optimizer.lr} |" in text
    assert f"| rollout.prompts | 64 | {usual.rollout.prompts} |" in text
    assert "| rollout.temperature | 1.0 |  |" in text
    assert "betas" not in text


def test_why_training_accuracy_is_not_held_out_accuracy():
    history = [{"sampling/groups": 30.0, "reward/accuracy": 0.4}, {"sampling/groups": 10.0, "reward/accuracy": 0.8}]
    before = {"pass@1": 0.3, "problems": 256}
    text = training_accuracy(load(["--data.task=arithmetic"]), history, before)
    assert "50.0% of the training responses are right" in text
    assert "before training 30.0%" in text
    assert "before dynamic sampling drops any" in text
    assert "has seen the training problems" in text
    assert "sampled otherwise" not in text
    text = training_accuracy(load(["--data.task=rules", "--eval.temperature=0.6"]), history, before)
    assert "temperature 1 and 0.6" in text
    assert "has seen the training problems" not in text
    assert "dynamic sampling" not in training_accuracy(load(["--algorithm.estimator=grpo"]), history, before)


def test_the_example_is_the_newest_group_with_right_and_wrong_responses(tmp_path):
    (tmp_path / "rollouts").mkdir()

    def response(group, status, text, advantage, label=""):
        return {"group": group, "prompt": "2|3=", "gold": "5", "response": text, "status": status, "label": label,
                "reward": float(status == "right"), "advantage": advantage}  # fmt: skip

    rows = {1: [response(0, "right", "5", 1.0), response(0, "wrong", "old", -1.0, "6")],
            2: [response(1, "wrong", "6`", [-0.5, -1.5], "6"), response(1, "right", "a\n5", 0.75), response(2, "right", "5",
            None)], 3: [response(3, "right", "5", None)]}  # fmt: skip
    for step, responses in rows.items():
        lines = "".join(json.dumps(r) + "\n" for r in responses)
        (tmp_path / "rollouts" / f"step{step:06d}.jsonl").write_text(lines)
    text = example_group(tmp_path)
    assert text.startswith("Of step 2, to the prompt `2\\|3=`")
    assert text.splitlines()[-2:] == ["| `a 5` | right |  | 1 | +0.750 |", "| `6'` | wrong | `6` | 0 | -1.000 |"]
    assert example_group(tmp_path / "nothing") == ""


def test_the_example_shows_what_the_last_wrapper_changed(tmp_path):
    (tmp_path / "rollouts").mkdir()
    rows = [{"group": 0, "prompt": "p", "gold": "5", "response": text, "status": status, "label": "", "reward": reward,
             "advantage": after, "before": {"dapo": before}}
            for text, status, reward, before, after in [("5", "right", 1.0, 0.5, 0.5),
                                                        ("6", "wrong", 0.0, -1.162, -1.394)]]  # fmt: skip
    (tmp_path / "rollouts" / "step000001.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines = example_group(tmp_path).splitlines()
    assert lines[-4] == "| response | verdict | label | reward | dapo | advantage |"
    assert lines[-1] == "| `6` | wrong |  | 0 | -1.162 | -1.394 |"
