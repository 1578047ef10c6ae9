"""python -m minirl.verify: counts, labels, JSON, and one clear sentence for what cannot be read."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from minirl.verify.__main__ import main

ROOT = Path(__file__).parents[2]
TESTS = "assert f(2) == 4\nassert f(3) == 9"


def code_row(body: str, **more) -> dict:
    return {
        "prompt": "Square a number.",
        "tests": TESTS,
        "entry_point": "f",
        "response": f"```python\n{body}\n```",
    } | more


def write(path: Path, rows: list) -> str:
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows) + "\n\n")
    return str(path)


CODE_ROWS = [
    code_row("def f(x): return x * x", id="good", expected=True),
    code_row("def f(x): return 2 * x", id="bad", expected=False),
    code_row("def f(x): return x ** 2", id="labelled wrongly", expected=False),
    code_row("def f(x):\n    while True: pass", id="slow", expected=True, timeout=0.3),
    code_row("def f(x): return x", tests="assert f(", id="untestable"),
]


def test_code_rows_are_counted(tmp_path, capsys):
    assert main([write(tmp_path / "rows.jsonl", CODE_ROWS), "--code"]) == 0
    lines = {line.rsplit(None, 1)[0].strip(): line.rsplit(None, 1)[1] for line in capsys.readouterr().out.splitlines()}
    expected = {"rows": 5, "right": 2, "wrong": 2, "error": 1, "timeout": 1, "labelled": 4, "agreement": 2}
    expected |= {"false right": 1, "false wrong": 1, "WrongAnswer": 1, "<timeout>": 1}
    assert {name: int(lines[name]) for name in expected} == expected
    assert float(lines["per second"]) > 0


def test_json_holds_a_verdict_for_every_row(tmp_path, capsys):
    assert main([write(tmp_path / "rows.jsonl", CODE_ROWS), "--code", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [v["id"] for v in report["verdicts"]] == ["good", "bad", "labelled wrongly", "slow", "untestable"]
    assert [v["status"] for v in report["verdicts"]] == ["right", "wrong", "right", "wrong", "error"]
    assert [v["label"] for v in report["verdicts"]] == ["", "WrongAnswer", "", "<timeout>", ""]
    assert "resource limits" in report["sandbox"]
    assert (report["right"], report["error"], report["false right"]) == (2, 1, 1)


def test_mathematics_rows(tmp_path, capsys):
    pytest.importorskip("minirl.verify.math.verifier", reason="the mathematics verifier is not here")
    rows = [
        {"gold": "1/2", "pred": "0.5", "expected": True},
        {"gold": "1/2", "pred": "1/3", "expected": False},
        {"gold": "7", "pred": "8", "expected": True},
        {"gold": "7", "pred": "7"},
    ]
    assert main([write(tmp_path / "rows.jsonl", rows), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [v["status"] for v in report["verdicts"]] == ["right", "wrong", "wrong", "right"]
    assert (report["labelled"], report["agreement"], report["false wrong"], report["false right"]) == (3, 2, 1, 0)
    assert report["verdicts"][1]["label"] == report["verdicts"][1]["key"]
    assert main([str(tmp_path / "rows.jsonl"), "--grader", "mathruler"]) == 0
    assert "right        2" in capsys.readouterr().out


ROWS = [
    {
        "id": "boxed",
        "problem": "?",
        "answer": "5",
        "response": r"\boxed{4}? That forgets the last of them: \boxed{5}",
        "expected": True,
    },
    {"id": "no box", "answer": "1000", "response": "There are 1 000 of them.", "expected": True},
    {"id": "inside thinking", "answer": "5", "response": r"<think> \boxed{5}", "expected": False},
    {"id": "an answer", "gold": "69$,$84", "pred": r"\boxed{84, 69}", "expected": True},
    {"id": "no part of a number", "gold": "5", "pred": "it is far more than 10^5", "expected": False},
    {"answer": "1/2", "pred": "0.5", "expected": False},
]


def test_a_response_is_graded_as_in_training_and_a_pred_as_an_answer(tmp_path, capsys):
    path = write(tmp_path / "rows.jsonl", ROWS)
    assert main([path, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [v["status"] for v in report["verdicts"]] == ["right", "wrong", "wrong", "right", "wrong", "right"]
    assert [v["label"] for v in report["verdicts"]][1:3] == ["<no answer>", "<no answer>"]
    assert main([path, "--json", "--lenient"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert [v["status"] for v in report["verdicts"]] == ["right", "right", "wrong", "right", "wrong", "right"]


def test_rows_that_disagree_with_their_label_are_named(tmp_path, capsys):
    assert main([write(tmp_path / "rows.jsonl", ROWS)]) == 0
    told = [line.strip() for line in capsys.readouterr().out.splitlines() if " is judged " in line]
    assert told == [
        "row 2 (no box) is judged wrong, expected right: no answer against '1000'",
        "row 6 is judged right, expected wrong: '0.5' against '1/2', read as 1/2",
    ]
    assert (
        main([write(tmp_path / "code.jsonl", [*CODE_ROWS[1:3], code_row("def f(x): return x", expected=True)]), "--code"]) == 0
    )
    told = [line.strip() for line in capsys.readouterr().out.splitlines() if " is judged " in line]
    assert told[0] == "row 2 (labelled wrongly) is judged right, expected wrong"
    assert told[1].startswith("row 3 is judged wrong, expected right [WrongAnswer]")


def test_many_disagreements_are_counted(tmp_path, capsys):
    assert main([write(tmp_path / "rows.jsonl", [{"answer": "1", "pred": "1", "expected": False}] * 23)]) == 0
    assert "and 3 more" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("rows", "options", "words"),
    [
        ([], [], "has no rows"),
        (["{"], [], "line 1: not JSON"),
        (["[1]"], [], "line 1: a row must be an object, not list"),
        ([{"gold": "1", "pred": "1"}, {"gold": "1"}], [], "line 2: 'response' or 'pred' must be text, the row has nothing"),
        ([{"gold": 1, "pred": "1"}], [], "line 1: 'answer' or 'gold' must be text, the row has int"),
        ([{"gold": "1", "pred": "1", "expected": "yes"}], [], "'expected' must be true or false, not 'yes'"),
        ([{"answer": "1"}], [], "line 1: 'response' or 'pred' must be text, the row has nothing"),
        ([{"response": "1"}], [], "line 1: 'answer' or 'gold' must be text, the row has nothing"),
        ([{"gold": "1", "pred": "1"}], ["--code"], "line 1: 'prompt' must be text"),
        ([code_row("", tests=3)], ["--code"], "'tests' must be text or tests, the row has int"),
    ],
)
def test_what_cannot_be_read_is_one_sentence_and_exit_code_2(tmp_path, capsys, rows, options, words):
    assert main([write(tmp_path / "rows.jsonl", rows), *options]) == 2
    output = capsys.readouterr()
    assert words in output.err
    assert output.err.count("\n") == 1
    assert output.out == ""


def test_a_byte_order_mark_is_no_part_of_the_first_row(tmp_path, capsys):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"gold": "1/2", "pred": "0.5"}\n', encoding="utf-8-sig")
    assert main([str(path), "--workers", "1"]) == 0
    assert "right        1" in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--workers", "0"], ["--workers", "-1"], ["--timeout", "0"], ["--timeout", "nan"]])
def test_numbers_that_cannot_be_are_exit_code_2(tmp_path, capsys, option):
    with pytest.raises(SystemExit) as stop:
        main([write(tmp_path / "rows.jsonl", [{"gold": "1", "pred": "1"}]), *option])
    assert stop.value.code == 2
    assert f"{option[0]}: must be more than 0" in capsys.readouterr().err


def test_it_runs_as_a_command_from_any_folder(tmp_path):
    command = [sys.executable, "-m", "minirl.verify", "missing.jsonl"]
    result = subprocess.run(command, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False)
    assert result.returncode == 2
    assert result.stderr.startswith("missing.jsonl cannot be read")
    assert "Traceback" not in result.stderr
    result = subprocess.run([*command[:3], "--grader", "none", "x"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 2


def test_row_numbers_count_empty_lines(tmp_path, capsys):
    rows = ['{"response": "7", "answer": "7", "expected": true}', "", '{"response": "8", "answer": "7", "expected": true}']
    (tmp_path / "rows.jsonl").write_text("\n".join(rows))
    assert main([str(tmp_path / "rows.jsonl"), "--lenient"]) == 0
    assert "row 3 is judged wrong, expected right" in capsys.readouterr().out
