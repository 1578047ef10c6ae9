"""What a page holds of a run folder: all of a small one, an even part of a large one, what is whole of one being written."""

import base64
import json
import zlib
from itertools import pairwise

import pytest

import train
from minirl.config.command_line import load
from minirl.view.__main__ import main
from minirl.view.read import CURVE_POINTS, RESPONSE_CHARACTERS, flat, ordinal, read_run
from minirl.watch.diagnoses import diagnose
from tests.conftest import ROOT, few_problems

from .folders import HOSTILE, group, write


def unpack(text):
    return json.loads(zlib.decompress(base64.b64decode(text)))


def data_of(page):
    return json.loads(page.read_text().split('id="data">')[1].split("</script>")[0])


def test_a_real_run_is_in_its_page_with_the_reasons(tmp_path, capsys):
    run = tmp_path / "run"
    options = [
        "--run.steps=3", "--rollout.prompts=4", "--algorithm.mini_batch_prompts=2", "--eval.problems=4", "--eval.every=0",
        "--eval.samples=2", "--eval.k=1", "--run.save_rollouts=9", "--optimizer.lr=3e-3",
        "--optimizer.warmup_steps=0", *few_problems(tmp_path),
    ]  # fmt: skip
    assert train.main(load([*options, "--run-dir", str(run)])) == 0
    assert main([str(run)]) == 0
    assert "view.html: 2" in capsys.readouterr().out
    (shown,) = data_of(run / "view.html")["runs"]
    assert unpack(shown["curves"])["step"] == [1, 2, 3]
    assert [e["step"] for e in shown["held_out"]] == [0, 3]
    assert (shown["finished"], shown["notes"]) == (True, [])
    for step in shown["steps"]:
        groups = unpack(step["packed"])
        assert [g["group"] for g in groups] == [g["number"] for g in step["groups"]]
        assert groups[0]["chosen"] == "changed" or all(g["dropped"] for g in groups), "a batch without a group to train on"
        saved = [json.loads(x) for x in (run / "rollouts" / f"step{step['step']:06d}.jsonl").read_text().splitlines()]
        again = [{k: g[k] for k in g if k != "responses"} | r for g in groups for r in g["responses"]]
        assert again == saved
        for r in groups[0]["responses"] if groups[0]["chosen"] == "changed" else ():
            assert len(r["pieces"]) == len(r["entropies"]) == r["tokens"]
            assert r["advantage"] == pytest.approx(r["before"]["dapo"] + r.get("change", 0), abs=3e-5)
    second = [r for step in shown["steps"] for g in unpack(step["packed"]) for r in g["responses"] if "log_ratio" in r]
    assert second, "the second mini-batch of a step has another policy than the one that sampled"


def test_no_text_of_a_run_can_end_the_script_that_holds_it(tmp_path):
    def hostile(rng, step):
        return group(rng, 1, "changed", prompt=HOSTILE, gold=HOSTILE, response=HOSTILE, label=HOSTILE, key=HOSTILE)

    run = write(tmp_path / "run", 1, groups=hostile, options=[f"--rollout.stop=[{json.dumps('</script><b>')}]"])
    out = tmp_path / "page.html"
    assert main([str(run), "--out", str(out)]) == 0
    template = (ROOT / "minirl" / "view" / "page.html").read_text()
    assert out.read_text().lower().count("</script") == template.lower().count("</script")
    (shown,) = data_of(out)["runs"]
    (only,) = unpack(shown["steps"][0]["packed"])
    assert only["prompt"] == only["responses"][0]["response"] == HOSTILE
    assert shown["options"]["rollout.stop"] == ["</script><b>"]


@pytest.mark.slow
def test_a_thousand_steps_are_at_most_ten_megabytes(thousand_steps):
    assert thousand_steps.stat().st_size < 10e6
    (shown,) = data_of(thousand_steps)["runs"]
    steps = [s["step"] for s in shown["steps"]]
    assert steps[-1] == 1000
    assert len({b - a for a, b in pairwise(steps)}) == 1, "every one, or every second ..."


def test_more_than_fits_is_thinned_evenly_from_the_last_step_and_said(tmp_path):
    run = write(tmp_path / "run", 30)
    whole = read_run(run, 10**9)
    assert len(whole.steps) == 30
    assert whole.notes == []
    size = sum(len(s["packed"]) for s in whole.steps)
    part = read_run(run, size // 3)
    assert [s["step"] for s in part.steps] == [2, 6, 10, 14, 18, 22, 26, 30]
    assert sum(len(s["packed"]) for s in part.steps) <= size // 3
    assert part.notes == ["Groups are here of every 4th of 30 saved steps: more would not fit the page."]
    one = read_run(run, len(whole.steps[-1]["packed"]) // 2)
    assert [(s["step"], len(s["groups"])) for s in one.steps] == [(30, 1)]
    assert "Of the 3 groups of step000030 only 1 are here: more would not fit the page." in one.notes


def test_long_curves_and_long_responses_are_shortened_and_said(tmp_path):
    long = "a" * RESPONSE_CHARACTERS + "b"
    run = write(tmp_path / "run", 1, groups=lambda rng, step: group(rng, 1, "changed", response=long)[:2])
    rows = "".join(
        json.dumps({"step": s, "reward/mean": s / 3, "odd": float("nan")}) + "\n" for s in range(1, 2 * CURVE_POINTS + 2)
    )
    (run / "metrics.jsonl").write_text(rows)
    contents = read_run(run, 10**9)
    steps = contents.curves["step"]
    assert (steps[0], steps[1], steps[-1]) == (2, 5, 4001)
    assert set(contents.curves["odd"]) == {None}
    text = unpack(contents.steps[0]["packed"])[0]["responses"][0]["response"]
    assert text.startswith("a" * 3000 + "\n[... 1 characters are left out")
    assert text.endswith("b")
    assert contents.notes == [
        "The curves show every 3rd of 4,001 steps.",
        "2 responses of more than 6,000 characters have lost their middle.",
        "No diagnoses: metrics.jsonl, of another version, has no 'policy/approx_kl'.",
    ]
    assert contents.diagnoses is None


def test_diagnoses_are_those_of_the_whole_run(tmp_path):
    run = write(tmp_path / "run", 6, metrics={"reward/accuracy": 1.0})
    contents = read_run(run, 10**9)
    history = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = diagnose(history, load([str(run / "config.yaml")]))
    assert contents.diagnoses == [{"step": d.step, "name": d.name, "text": d.text} for d in found]
    assert any("100.0% of the responses are judged right" in d["text"] for d in contents.diagnoses)


def test_a_config_that_can_no_longer_be_read_costs_the_diagnoses_only(tmp_path):
    run = write(tmp_path / "run", 2)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("estimator: dapo+edas", "estimator: gone.py:Mine"))
    contents = read_run(run, 10**9)
    assert (contents.diagnoses, len(contents.steps)) == (None, 2)
    (note,) = contents.notes
    assert note.startswith("No diagnoses: the config cannot be read (")
    assert "gone.py" in note


def test_a_run_that_is_being_written(tmp_path):
    run = write(tmp_path / "run", 4)
    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "reward/me')  # no end of line: the next one is on its way
    with (run / "rollouts" / "step000005.jsonl").open("w") as file:
        file.write(json.dumps({"group": 9, "prompt": "p", "response": "r", "status": "right"}) + '\n{"group": 9, "pro')
    (run / "rollouts" / "step000006.jsonl").write_text("")
    contents = read_run(run, 10**9)
    assert contents.curves["step"] == [1, 2, 3, 4]
    assert [s["step"] for s in contents.steps] == [1, 2, 3, 4, 5]
    assert (contents.finished, contents.notes) == (False, [])
    (run / "metrics.jsonl").write_text('{"step": 1}\nnonsense\n[1]\n{"step": 2}\n')
    assert read_run(run, 10**9).notes[0] == "2 lines of metrics.jsonl are no JSON objects and are left out."


def test_a_run_that_has_only_begun_has_a_page(tmp_path):
    run = write(tmp_path / "run", 1)
    (run / "metrics.jsonl").unlink()
    (run / "rollouts" / "step000001.jsonl").unlink()
    assert main([str(run)]) == 0
    (shown,) = data_of(run / "view.html")["runs"]
    assert (unpack(shown["curves"]), shown["steps"]) == ({}, [])


def test_two_runs_and_what_differs(tmp_path):
    one = write(tmp_path / "one", 2)
    two = write(tmp_path / "two", 3, seed=1, options=["--algorithm.estimator=grpo", "--run-dir=elsewhere"])
    out = tmp_path / "page.html"
    assert main([str(one), str(two), "--out", str(out)]) == 0
    data = data_of(out)
    assert [run["name"] for run in data["runs"]] == ["one", "two"]
    assert ["algorithm.estimator", "dapo+edas", "grpo"] in data["differences"]
    assert ["run.steps", 2, 3] in data["differences"]
    assert all(name != "run.dir" and a != b for name, a, b in data["differences"])
    keys = [{g["key"] for s in run["steps"] for g in s["groups"]} for run in data["runs"]]
    assert len(keys[0] & keys[1]) == 6, "equal prompts have equal keys"


@pytest.mark.parametrize("content", [None, "- 1", "a: [", "\0"])
def test_another_folder_is_refused_with_one_sentence(tmp_path, capsys, content):
    if content is not None:
        (tmp_path / "config.yaml").write_text(content)
    assert main([str(tmp_path)]) == 2
    error = capsys.readouterr().err
    assert error.startswith(f"minirl.view: {tmp_path} is no run folder of train.py")
    assert not (tmp_path / "view.html").exists()


def test_a_page_that_cannot_be_written(tmp_path, capsys):
    run = write(tmp_path / "run", 1)
    assert main([str(run), "--out", str(tmp_path / "none" / "a.html")]) == 2
    assert "cannot write" in capsys.readouterr().err


def test_small_things():
    assert [ordinal(n) for n in (2, 3, 4, 11, 12, 13, 21, 102, 112)] == [
        "2nd",
        "3rd",
        "4th",
        "11th",
        "12th",
        "13th",
        "21st",
        "102nd",
        "112th",
    ]
    assert flat({"a": {"b": 1, "c": {}}, "d": [1]}) == {"a.b": 1, "a.c": {}, "d": [1]}


def test_damaged_evaluations_and_numbers_that_are_not_finite_cost_no_page(tmp_path):
    run = write(tmp_path / "run", 2)
    (run / "evaluations").mkdir(exist_ok=True)
    (run / "evaluations" / "step000000.json").write_text('{"metrics": {"pass@1": 0.5, "error_diversity": NaN}}')
    (run / "evaluations" / "step000001.json").write_text('{"metrics": {"pass@')
    assert main([str(run)]) == 0
    (shown,) = data_of(run / "view.html")["runs"]
    assert {"step": 0, "pass@1": 0.5, "error_diversity": None} in shown["held_out"]
    assert "step000001.json of evaluations/ is damaged" in " ".join(shown["notes"])
