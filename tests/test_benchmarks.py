"""What the benchmarks promise of the work that they measure."""

import json
import os
import re
import subprocess
import sys
import time

import pytest

from benchmarks import gpu_smoke, race_trl, techniques
from benchmarks.common import ROOT, Rows, tokenizer_of
from minirl.tiny import make as tiny


def test_a_tokenizer_of_a_whole_vocabulary_has_no_id_beyond_it_and_one_end_token():
    small, whole = tiny.tokenizer(), tokenizer_of(1000)
    assert (len(tokenizer_of(None)), len(whole)) == (len(small), 1000)
    text = "<user>123*4=<assistant>"
    assert whole(text)["input_ids"] == small(text)["input_ids"]
    assert whole.decode([len(small), 999]) == f"w{len(small)}w999"
    assert (whole.eos_token_id, whole.pad_token_id) == (small.eos_token_id, small.pad_token_id)
    assert whole.chat_template == small.chat_template


def test_a_prompt_of_the_smoke_run_has_64_tokens(tmp_path):
    gpu_smoke.write_problems(tmp_path / "problems.jsonl", 3)
    rows = (tmp_path / "problems.jsonl").read_text().splitlines()
    assert len(rows) == 3 * (gpu_smoke.STEPS + 1)
    problem = json.loads(rows[0])
    assert len(tokenizer_of(None)(problem["problem"])["input_ids"]) == 64
    assert sum(map(int, problem["problem"][:-1].split("+"))) == int(problem["answer"])


def test_a_run_with_one_step_of_short_responses_is_other_work():
    def run(*lengths):
        return {"name": "plain", "steps": [{"response/tokens": length} for length in lengths]}

    assert gpu_smoke.too_short(run(512.0, 500.0), 512) is None
    assert "499.9 tokens on average, not about 512" in gpu_smoke.too_short(run(512.0, 499.9), 512)
    assert gpu_smoke.too_short({"name": "zero3", "failed": 1}, 512) is None, "that is said elsewhere"


@pytest.mark.parametrize("tail", [False, True])
def test_a_race_forces_the_same_lengths_on_both_programs_and_notices_other_work(tail):
    work = {"name": "8x8x16", "prompts": 8, "samples": 8, "longest": 16, "tail": tail}
    lengths = [race_trl.forced_lengths(work, step) for step in range(100)]
    assert lengths[7] == race_trl.forced_lengths(work, 7), "however many steps a program drew before"
    everything = [length for step in lengths for length in step]
    assert len(everything) == 100 * 64
    if tail:
        assert lengths[1] != lengths[2]
        assert min(everything) >= 1
        assert max(everything) == 16
        assert 3.2 < sum(everything) / len(everything) < 4, "a quarter of 16, less what the limit cuts off"
    else:
        assert set(everything) == {16}
    assert race_trl.other_work(work, "trl", 7, sum(lengths[7])) is None
    sentence = race_trl.other_work(work, "trl", 7, sum(lengths[7]) - 1)
    assert sentence == f"trl trained on {sum(lengths[7]) - 1} response tokens in step 7 of 8x8x16, not on {sum(lengths[7])}"


def test_a_race_gives_medians_of_seconds_means_of_processor_seconds_and_the_highest_peaks():
    def steps(*values):
        return [
            {"step": 10 * x, "update": x, "generation": 5.0, "old": 2.0, "processor": x, "update_gib": x, "process_gib": 40.0}
            for x in values
        ]

    answers = {"trl": steps(6.0, 8.0, 31.0), "minirl": steps(4.0, 1.0, 10.0)}
    on_gpu = {"name": "w", "gpu": True, "correct": True}
    rows = {row["what"]: row for row in race_trl.summary(on_gpu, answers)}
    assert list(rows) == ["step s", "update s", "generation s", "old s", "update GiB", "process GiB"]
    assert rows["step s"] == {
        "workload": "w",
        "what": "step s",
        "TRL": 80,
        "minirl": 40,
        "TRL / minirl": 2,
        "minirl / TRL": 0.5,
    }
    assert (rows["update s"]["TRL"], rows["update s"]["minirl"], rows["update s"]["TRL / minirl"]) == (8, 4, 2)
    assert (rows["update GiB"]["TRL"], rows["update GiB"]["minirl"]) == (31, 10)
    assert rows["update GiB"]["minirl / TRL"] == pytest.approx(10 / 31)
    rows = {row["what"]: row for row in race_trl.summary({"name": "w", "gpu": False, "correct": False}, answers)}
    best = ["best step s", "best update s", "best generation s"]
    assert list(rows) == ["step s", "update s", "generation s", "processor s", *best]
    assert (rows["processor s"]["TRL"], rows["processor s"]["minirl"], rows["processor s"]["TRL / minirl"]) == (15, 5, 3)


def test_the_races_of_the_gpu_script_are_all_workloads_for_both_programs():
    script = (ROOT / "benchmarks" / "gpu_all.sh").read_text()
    raced = set(re.findall(r"race (trl|minirl) (\S+?);? ", script.replace('"$workloads"', "plain").replace(";;", "; ")))
    assert raced == {(program, which) for program in ("trl", "minirl") for which in ("plain", "corrected")}
    assert all(any(which in work["name"] for which in ("plain", "corrected")) for work in race_trl.GPU)


def gpu_all(folder, *parts):
    environment = os.environ | {"SMALL": "1", "PYTHON": sys.executable, "PEER": "/no/python"}
    done = subprocess.run(["bash", ROOT / "benchmarks" / "gpu_all.sh", folder, *parts], capture_output=True, text=True,
                          check=False, env=environment)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_gpu_script_writes_rows_skips_what_it_cannot_do_and_what_is_done(tmp_path):
    said = gpu_all(tmp_path, "limit", "race-trl", "tests", "update-0.6b")
    assert "race-trl: skipped: /no/python has no trl" in said
    assert "tests: skipped: needs a GPU" in said
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert [row["benchmark"] for row in rows] == ["hardware", "update", "update"], "uniform lengths and a tail"
    tables = (tmp_path / "rows.md").read_text()
    assert "## hardware\n\n| device | TFLOP/s | GB/s |" in tables
    assert tables.count("| 1m | 16 |") == 2
    (tmp_path / "update-0.6b.done").unlink()
    with (tmp_path / "rows.jsonl").open("a") as file:
        file.write('{"benchmark": "upd')  # cut off by a kill
    said = gpu_all(tmp_path, "limit", "update-0.6b")
    assert "limit: skipped: done before" in said
    assert len((tmp_path / "rows.jsonl").read_text().splitlines()) == 4, "the rows are there: none is measured again"
    assert "no part is called nothing" in subprocess.run(
        ["bash", ROOT / "benchmarks" / "gpu_all.sh", tmp_path, "nothing"], capture_output=True, text=True, check=False,
        env=os.environ | {"SMALL": "1", "PYTHON": sys.executable},
    ).stdout  # fmt: skip


def test_rows_are_there_when_they_are_measured_and_a_cut_line_spoils_no_other(tmp_path):
    rows = Rows("a", tmp_path / "rows.jsonl")
    rows.add({"size": 1, "s": 0.25})
    assert (rows.missing({"size": 1}), rows.missing({"size": 2})) == (False, True)
    with rows.file.open("a") as file:
        file.write('{"benchmark": "a", "rows": [{"si')
    rows.add({"size": 2, "s": 0.5})
    assert [row["size"] for row in rows.rows()] == [1, 2]
    assert Rows("b", rows.file).missing({"size": 1}), "another benchmark's"
    assert "| 2 | 0.5 |" in rows.file.with_suffix(".md").read_text()


def test_rows_of_both_programs_are_compared():
    made = [
        {"workload": "w", "program": p, "steps": 3, "step s": s, "update MFU": None} for p, s in (("minirl", 2.0), ("trl", 5.0))
    ]
    assert race_trl.compared(made) == [{"workload": "w", "what": "step s", "TRL": 5.0, "minirl": 2.0, "TRL / minirl": 2.5}]
    assert race_trl.compared(made[:1]) == race_trl.compared(made[1:]) == []


def test_processor_seconds_count_those_of_children():
    burn = "import sys, time\nwhile time.process_time() < 0.5: pass\nprint('done', flush=True)\nsys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"done\n"
        mine = time.process_time()
        assert race_trl.processor_seconds() - mine > 0.4, "it lives"
    finally:
        child.communicate()


def test_a_technique_has_a_row_of_time_and_where_asked_one_of_memory(tmp_path):
    row = next(r for r in techniques.rows(tmp_path, quick=True) if r.technique == "last tokens left out")
    time, memory = techniques.measure(row._replace(memory=True), turns=2, seconds=0)
    assert (time["unit"], memory["unit"]) == (techniques.TIME, "MiB")
    assert time["off/on"] > 0 < time["off"]
    assert memory["off"] > 1.05 * memory["on"] > 0, "where responses have four tokens on average, one of them is much"


def test_sides_of_a_technique_that_do_other_work_end_the_benchmark():
    row = techniques.Row("a lie", "nothing", lambda: (lambda: [1.0], lambda: [1.01]))
    with pytest.raises(SystemExit, match="a lie, nothing"):
        techniques.measure(row, turns=2, seconds=0)
