"""What the benchmarks promise of the work that they measure."""

import json

import pytest

from benchmarks import gpu_smoke, techniques
from benchmarks.common import tokenizer_of
from minirl import tiny


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
