import json

import pytest

from minirl.analysis.__main__ import main
from minirl.analysis.samples import TRAINING, answered, before_and_after, load, without_prose
from minirl.utils.errors import ConfigError

from .evaluations import rows, write


def test_models_and_problems_are_told_apart_and_samples_without_verdict_count_nowhere(tmp_path):
    path = write(tmp_path / "e", rows("base", [["right", "a", "error", "a"], ["b"] * 4]), rows("new", [["right"] * 4] * 2))
    models = load([path])
    assert list(models) == ["base", "new"]
    first = models["base"]["tests", 0]
    assert (first.judged, len(first.right), [row["label"] for row in first.wrong]) == (3, 1, ["a", "a"])


def test_a_wrong_sample_without_error_class_is_judged_but_not_classified(tmp_path):
    made = [row | {"label": ""} for row in rows("m", [["a", "right"]])]
    problem = load([write(tmp_path / "e", made)])["m"]["tests", 0]
    assert (problem.judged, len(problem.right), problem.wrong) == (2, 1, [])


def test_responses_without_an_answer_can_be_left_out(tmp_path):
    path = write(tmp_path / "e", rows("m", [["<no answer>", "a", "right"], ["<timeout>"]]))
    problems = answered(load([path]))["m"]
    assert [[row["label"] for row in p.samples] for p in problems.values()] == [["a", ""]]


def test_a_label_renames_the_model_of_a_folder(tmp_path):
    one, two = (write(tmp_path / n, rows("model", [["a"]])) for n in "xy")
    assert list(load([f"before={one}", f"after={two}"])) == ["before", "after"]
    with pytest.raises(ConfigError, match=r"was read already: name the models apart with LABEL=PATH"):
        load([one, two])


def test_every_group_of_a_run_folder_is_a_problem(tmp_path):
    folder = tmp_path / "run"
    (folder / "rollouts").mkdir(parents=True)
    keys = ("gold", "response", "status", "label", "key", "tokens")
    for step in (1, 2):
        made = [{"group": g, "prompt": "p", **dict.fromkeys(keys, "x"), "status": "wrong"} for g in (4, 4, 5)]
        (folder / "rollouts" / f"step{step:06d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in made))
    problems = load([str(folder)])["run"]
    assert [(key[0], len(p.samples)) for key, p in problems.items()] == [(TRAINING, 2), (TRAINING, 1)] * 2


def bad_inputs(tmp_path):
    good = [["right", "a"], ["a", "b"]]
    write(tmp_path / "base", rows("base", good))
    write(tmp_path / "fewer", rows("new", good[:1]))
    write(tmp_path / "other", [row | {"gold": "7"} for row in rows("new", good)])
    write(tmp_path / "columns", [{k: v for k, v in row.items() if k not in ("label", "gold")} for row in rows("m", good)])
    write(tmp_path / "status", [row | {"status": "maybe"} for row in rows("m", good)])
    write(tmp_path / "right", rows("m", [["right"] * 2] * 5))
    write(tmp_path / "two", rows("base", good), rows("new", good))
    write(tmp_path / "empty")
    (tmp_path / "json").mkdir()
    (tmp_path / "json" / "samples.jsonl").write_text("{}\n{cut")
    (tmp_path / "unfinished").mkdir()
    (tmp_path / "unfinished" / "samples.rank0.jsonl").write_text("")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("ngrams nowhere", "neither an evaluation"),
        ("ngrams unfinished", "run its eval.py again"),
        ("ngrams empty", "has no samples"),
        ("ngrams json", "line 1: lacks the columns model, benchmark"),
        ("ngrams columns", "line 1: lacks the columns gold, label"),
        ("ngrams status", "'maybe'; there are right, wrong, error"),
        ("ngrams right", "no wrong answers with an error class"),
        ("ngrams base", "two wrong responses of one class and two of different classes"),
        ("ngrams base --model none", "no samples of 'none': there are base"),
        ("ngrams x=two", "a label can name only one"),
        ("diversity base", "nothing to compare 'base' with"),
        ("diversity base fewer", "different problems: 1 are in only one of them, such as tests number 1, only in base"),
        ("breakthroughs base other", "is 'p0' with the answer 'g0' in one, 'p0' with '7' in the other"),
        ("diversity two", "quartiles need 4"),
        ("breakthroughs right new=right", "no problem is at 0/n"),
        ("embeddings base --embedder nowhere", "no embedding model can be loaded from 'nowhere'"),
        ("judge base --judge m", "no problem has two wrong responses"),
        ("judge base --judge m --pairs 0", "at least 1"),
        ("dynamics base two", "not a run folder"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    bad_inputs(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main([*arguments.split(), "--out", "out"]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"sha256": "b"}, "sha256 is a of base, b of new"),
        ({"temperature": 1.0}, "temperature is 0.7 of base, 1.0 of new"),
        ({"samples": 8}, "samples is 4 of base, 8 of new"),
        ({}, ""),
        ({"temperature": 1.0, "engine": "none"}, ""),  # responses of somebody else: nobody knows
    ],
)
def test_evaluations_that_differ_in_data_or_sampling_are_not_compared(change, said, tmp_path):
    for name, changes in (("base", {}), ("new", change)):
        write(tmp_path / name, rows(name, [["a", "right"]]))
        record = {"sha256": "a", "samples": 4, "temperature": 0.7} | changes
        found = {"engine": {"name": record.pop("engine", "vllm")}, "benchmarks": {"tests": record}}
        (tmp_path / name / "results.json").write_text(json.dumps(found))
    models = load([str(tmp_path / "base"), str(tmp_path / "new")])
    if said:
        with pytest.raises(ConfigError, match=f"cannot be compared on tests: {said}"):
            before_and_after(models, "base", [])
    else:
        assert before_and_after(models, "base", [])[0] == "base"


def test_rollouts_of_training_are_no_evaluation_before_and_after(tmp_path):
    (tmp_path / "run" / "rollouts").mkdir(parents=True)
    row = {"group": 1, "prompt": "", "gold": "", "response": "", "status": "right", "label": "", "key": "", "tokens": 1}
    (tmp_path / "run" / "rollouts" / "step000001.jsonl").write_text(json.dumps(row))
    assert main(["diversity", f"a={tmp_path / 'run'}", f"b={tmp_path / 'run'}", "--out", str(tmp_path / "out")]) == 2


def test_responses_that_are_little_more_than_their_answer_are_named_with_the_reason(tmp_path):
    prose = "First I take the sum of both sides, which gives me"
    texts = [["right", f"{prose} a.", f"{prose} then a.", f"{prose} b."]]
    made = {
        "prose": rows("prose", [["right", "a", "a", "b"]], responses=texts),
        "sums": rows("sums", [["right", "a", "a", "b"]], responses=[["x", "3+4=8;\\boxed{8}", "4+4=8;\\boxed{8}", "3*4=9"]]),
        "echo": rows("echo", [["right", "a", "a", "b"]], responses=[["x", prose, prose, f"{prose} b"]]),
    }
    found = without_prose(load([write(tmp_path, *made.values())]), "how they think")
    assert [text.split(": how they think. ")[0] for text in found] == [
        f"Not to be read from the wrong responses of {name}" for name in ("sums", "echo")
    ]
    assert "half of them have 0 words or fewer)" in found[0]
    assert "(100% of the pairs of one class are the same text)" in found[1]
