"""What the benchmarks promise of the work that they measure."""

import json
import re
import subprocess
import sys
import time

import pytest

from benchmarks import gpu_smoke, race_trl, techniques
from benchmarks.common import ROOT, tokenizer_of
from minirl.tiny import make as tiny


def test_a_tokenizer_of_a_whole_vocabulary_has_no_id_beyond_it_and_one_end_token():
    small, whole = tiny.tokenizer(), tokenizer_of(1000)
    assert (len(tokenizer_of(None)), len(whole)) == (len(small), 1000)
    text = "<user>123*4=<assistant>"
    assert whole(text)["input_ids"] == small(text)["input_ids"]
    assert whole.decode([22, 999]) == "w22w999"
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
    assert list(rows) == ["step s", "update s", "generation s", "processor s"]
    assert (rows["processor s"]["TRL"], rows["processor s"]["minirl"], rows["processor s"]["TRL / minirl"]) == (15, 5, 3)


def test_each_race_of_the_gpu_script_is_one_workload():
    script = (ROOT / "benchmarks" / "gpu_all.sh").read_text()
    chosen = re.findall(r'^race \S+ "(.+)"$', script, re.MULTILINE)
    assert [[work["name"] for work in race_trl.GPU if only in work["name"]] for only in chosen] == [
        [work["name"]] for work in race_trl.GPU
    ]


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
