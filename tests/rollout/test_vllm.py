"""The vLLM engine on a CPU: the same distribution as the trainer's, new weights after every push, and a guard that fires."""

import json
import os
import re
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from benchmarks.kill_resume import free_port
from minirl.config.command_line import load
from minirl.policy.policy import Policy
from minirl.rollout.continuous import joined
from minirl.rollout.engines import build_engine
from minirl.rollout.types import LENGTH, STOP, Completion, Rollout, SamplingParams
from minirl.rollout.vllm import VllmEngine, completion_of, mask_ids_beyond, rounding_of_tempered_logits
from minirl.tiny import make as tiny
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError, RunError
from minirl.verify.types import Verdict
from tests.conftest import ROOT
from tests.test_train import start

pytest.importorskip("vllm", reason="needs vLLM, or its build for CPUs")

TOK = tiny.tokenizer()
PROMPTS = [TOK(text)["input_ids"] for text in ("<user>123*4=<assistant>", "<user>999*9=<assistant>", "7*")]
SAMPLING = SamplingParams(6, 1.0, 10)


@pytest.fixture(scope="module")
def policy():
    return Policy(load(["--rollout.engine=vllm"]), Ranks(), len(TOK))


@pytest.fixture(scope="module")
def engine(policy):
    return build_engine(policy.config, policy, TOK, longest_prompt=16)


def collect(engine, sampling=SAMPLING, seeds=(1, 2, 3)):
    groups = dict(engine.generate(PROMPTS, sampling, seeds))
    assert sorted(groups) == [0, 1, 2]
    return [groups[i] for i in range(3)]


def logprob_diff(policy, groups):
    """Largest |sampler - trainer| log-prob over all tokens."""
    rollouts = [Rollout(0, "", "", p, s, 0, "", Verdict("wrong"), 0.0) for p, g in zip(PROMPTS, groups, strict=True) for s in g]
    batch = policy.micro_batch(rollouts, list(range(len(rollouts))))
    with torch.no_grad():
        logprobs, _ = policy.logprobs(batch)
    return (logprobs - batch.flat([r.completion.logprobs for r in rollouts])).abs().max().item()


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_those_of_the_trainer(policy, engine, temperature):
    policy.head.output.temperature = temperature
    assert logprob_diff(policy, collect(engine, SamplingParams(6, temperature, 10))) < 1e-4
    policy.head.output.temperature = 1.0


@pytest.mark.slow
def test_new_weights_reach_the_engine_and_a_push_that_is_withheld_shows(policy, engine):
    before = collect(engine)
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    assert logprob_diff(policy, collect(engine)) > 1e-2, "the guard sees weights that were not pushed"
    policy.version += 1
    engine.sync(policy)
    after = collect(engine)
    assert engine.version == policy.version
    assert logprob_diff(policy, after) < 1e-4, "also for prompts whose keys and values were cached with the old weights"
    assert [s.ids.tolist() for g in before for s in g] != [s.ids.tolist() for g in after for s in g]


def test_a_truncated_push_and_a_wrong_temperature_show(policy, engine):
    assert logprob_diff(policy, collect(engine, SamplingParams(6, 0.7, 10))) > 1e-2
    name, parameter = max(policy.model.named_parameters(), key=lambda item: item[1].numel())
    half = parameter.detach().clone()
    half[: len(half) // 2] = 0
    engine.model.load_weights(iter([(name, half)]))
    engine.llm.reset_prefix_cache()
    assert logprob_diff(policy, collect(engine)) > 1e-2
    engine.sync(policy)
    assert logprob_diff(policy, collect(engine)) < 1e-4


def test_seeds_decide_and_samples_differ(engine):
    first, again, other = collect(engine), collect(engine), collect(engine, seeds=(7, 8, 9))
    ids = [[s.ids.tolist() for s in g] for g in first]
    assert ids == [[s.ids.tolist() for s in g] for g in again]
    assert ids != [[s.ids.tolist() for s in g] for g in other]
    assert len({tuple(i) for i in ids[2]}) > 1


def test_the_groups_that_finish_first_come_whole_and_nothing_of_the_rest_is_left(engine):
    ids = [[s.ids.tolist() for s in group] for group in collect(engine)]
    order = sorted(range(3), key=lambda i: (max(map(len, ids[i])), i))
    for keep in range(4):
        some = {i: [s.ids.tolist() for s in group] for i, group in engine.generate(PROMPTS, SAMPLING, (1, 2, 3), keep)}
        assert list(some) == order[:keep]
        assert some == {i: ids[i] for i in order[:keep]}
        assert not engine.engine.has_unfinished_requests()
        assert not engine.engine.output_processor.parent_requests, "with the samples that were finished"
        engine.reset_prefix_cache()  # raises while requests are running
    assert ids == [[s.ids.tolist() for s in group] for group in collect(engine)]


def test_a_response_in_slices_has_the_log_probs_of_the_version_of_each_token(policy, engine):
    empty = Completion(np.empty(0, np.int32), np.empty(0, np.float32), "", np.empty(0, np.int32))
    rollouts = [Rollout(i, "", "", p, empty, 0, "", Verdict("error"), 0.0) for i, p in enumerate(PROMPTS) for _ in range(6)]
    keys = [(r.group, j % 6) for j, r in enumerate(rollouts)]

    def extend(tokens):
        rows = [i for i, r in enumerate(rollouts) if not r.completion.finish]
        pieces = engine.extend([rollouts[i] for i in rows], [keys[i] for i in rows], SAMPLING, tokens)
        for i, piece in zip(rows, pieces, strict=True):
            assert 1 <= len(piece.ids) <= tokens
            rollouts[i].completion = joined(rollouts[i].completion, piece, policy.version, SAMPLING.max_tokens)
        return any(not r.completion.finish for r in rollouts)

    def logprobs():
        batch = policy.micro_batch(rollouts, list(range(len(rollouts))))
        with torch.no_grad():
            values = batch.split(policy.logprobs(batch)[0])
        return dict(zip(batch.indices, values, strict=True))

    first = policy.version
    extend(3)
    before = logprobs()
    with torch.no_grad():
        for parameter in policy.model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    policy.version += 2
    engine.sync(policy)
    while extend(3):
        pass
    after = logprobs()
    for i, r in enumerate(rollouts):
        old = r.completion.versions == first
        assert old.tolist() == [True] * len(before[i]) + [False] * (r.length - len(before[i]))
        assert r.completion.logprobs[old] == pytest.approx(before[i], abs=1e-4)
        assert r.completion.logprobs[~old] == pytest.approx(after[i][~old], abs=1e-4)
        assert r.completion.finish == (STOP if r.completion.ids[-1] == TOK.eos_token_id else LENGTH)
        assert r.completion.finish == STOP or r.length == 10
    assert any(len(set(r.completion.versions.tolist())) > 1 for r in rollouts)
    # The numbers that continue a response are others than those that began it, and each response has its own
    assert len({tuple(r.completion.ids.tolist()) for r in rollouts[:6]}) > 1
    assert not engine.engine.has_unfinished_requests()
    collect(engine)


def test_a_response_in_slices_is_distributed_as_one_in_a_piece(engine):
    """The second of two tokens, by the first: a chi-squared test against the engine's own probabilities. Numbers that came
    again with each request would make equal tokens too frequent."""
    empty = Completion(np.empty(0, np.int32), np.empty(0, np.float32), "")
    n, params = 1500, SamplingParams(1, 2.0, 2)
    rollouts = [Rollout(0, "", "", PROMPTS[2], empty, 0, "", Verdict("error"), 0.0) for _ in range(n)]
    pairs = []
    for _ in range(2):
        pieces = engine.extend(rollouts, [(11, j) for j in range(n)], params, 1)
        for r, piece in zip(rollouts, pieces, strict=True):
            r.completion = joined(replace(r.completion, versions=np.zeros(r.length, np.int32)), piece, 0, 2)
        pairs.append([(int(p.ids[0]), float(p.logprobs[0])) for p in pieces])
    counts = Counter((a, b) for (a, _), (b, _) in zip(*pairs, strict=True))
    firsts = Counter(a for a, _ in pairs[0])
    expected = {(a, b): firsts[a] * np.exp(logprob) for (a, _), (b, logprob) in zip(*pairs, strict=True)}
    large = [pair for pair, e in expected.items() if e >= 5]
    statistic = sum((counts[p] - expected[p]) ** 2 / expected[p] for p in large)
    assert len(large) > 5
    assert statistic < len(large) + 4 * np.sqrt(2 * len(large)), "four standard deviations of chi-squared"


def test_responses_keep_their_stop_token_and_say_why_they_ended(engine):
    for sample in (s for g in collect(engine, SamplingParams(16, 1.0, 8)) for s in g):
        assert len(sample.ids) == len(sample.logprobs) <= 8
        assert (sample.finish == "stop") == (sample.ids[-1] == TOK.eos_token_id)
        assert sample.ids.dtype == np.int32


def test_every_sampling_field_is_ours(engine):
    params = engine.parameters(SamplingParams(3, 0.7, 9, top_p=0.8, top_k=20), 5)
    assert (params.n, params.temperature, params.top_p, params.top_k, params.max_tokens, params.seed) == (3, 0.7, 0.8, 20, 9, 5)
    assert (params.min_p, params.repetition_penalty, params.presence_penalty, params.frequency_penalty) == (0, 1, 0, 0)
    assert not params.detokenize


def test_ids_beyond_the_tokenizer_have_no_probability(policy, engine):
    # The embedded model has no ids beyond its tokenizer: a smaller vocabulary stands for one that has
    compute = engine.model.compute_logits
    mask_ids_beyond(engine.model, 5)
    try:
        hidden = torch.randn(4, policy.model.config.hidden_size)
        whole, cut = compute(hidden), engine.model.compute_logits(hidden)
        assert torch.equal(whole[:, :5], cut[:, :5])
        assert torch.isfinite(whole[:, 5:]).all()
        assert (cut[:, 5:] == -torch.inf).all()
        assert max(int(i) for g in collect(engine) for s in g for i in s.ids) < 5
    finally:
        engine.model.compute_logits = compute


def test_running_out_of_memory_says_what_to_lower(engine, monkeypatch):
    def fail():
        raise torch.OutOfMemoryError("tried to allocate 2 GiB")

    monkeypatch.setattr(engine.engine, "step", fail)
    with pytest.raises(RunError, match=r"tried to allocate 2 GiB; lower rollout\.max_sequences"):
        engine.step()


def test_prompts_beyond_one_batch_of_the_engine_are_sampled_whole(engine):
    # 200 x 26 tokens: more than the 4,096 that vLLM computes in one step; a prompt in pieces would end the run on a CPU
    prompts = [[4 + (i * j) % 18 for j in range(3, 29)] for i in range(200)]
    groups = dict(engine.generate(prompts, SamplingParams(1, 1.0, 2), range(200)))
    assert sorted(groups) == list(range(200))
    assert all(1 <= len(s.ids) <= 2 for group in groups.values() for s in group)


# ---- whole runs ------------------------------------------------------------------------------------------------------------

RUN = [
    "--rollout.engine=vllm", "--run.steps=3", "--rollout.prompts=4", "--algorithm.mini_batch_prompts=2", "--eval.problems=8",
    "--eval.samples=4", "--eval.k=2", "--optimizer.warmup_steps=0", "--optimizer.lr=1e-3", "--rollout.logprob_diff_stop=1e-4",
]  # fmt: skip


KL = ("--algorithm.kl_coef=0.01",)


def run(command, expect=0):
    """Runs it and gives what it printed."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=230, cwd=ROOT,
                          env=os.environ | {"PYTHONPATH": str(ROOT)}, check=False)  # fmt: skip
    assert done.returncode == expect, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout + done.stderr


def launch(folder, *arguments, launcher=(sys.executable,)):
    return run([*launcher, ROOT / "train.py", *RUN, "--run-dir", folder, *arguments])


def rows(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def launch_program(file, folder, *arguments, before="", expect=0):
    """`launch` by a program that first runs `before` and aborts when its interpreter shuts down, as an engine's threads do now
    and then."""
    file.write_text(
        "import atexit, os, runpy, sys\n"
        "atexit.register(lambda: os.abort())\n"
        f"{before}\n"
        f"sys.argv = {['train.py', *RUN, *arguments, '--run-dir', str(folder)]!r}\n"
        f"runpy.run_path({str(ROOT / 'train.py')!r}, run_name='__main__')\n"
    )
    return run([sys.executable, file], expect)


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """The metrics of one plain process, which leaves without shutting the interpreter down."""
    folder = tmp_path_factory.mktemp("runs")
    said = launch_program(folder / "program.py", folder / "plain", *KL)
    assert re.search(r"^ *3/3 ", said, re.MULTILINE)
    assert (folder / "plain" / "summary.json").exists()
    return rows(folder / "plain")


def assert_same_curve(one, folder):
    """The run in `folder` has the metrics of the rows `one`, and ended as a run should."""
    two = rows(folder)
    assert len(one) == len(two) == 3
    for a, b in zip(one, two, strict=True):
        for key in (k for k in a if not k.startswith(("time/", "speed/", "checkpoint/", "policy/rollout_logprob_diff"))):
            assert a[key] == pytest.approx(b[key], rel=1e-3, abs=1e-4), key
        assert max(a["policy/rollout_logprob_diff_max"], b["policy/rollout_logprob_diff_max"]) < 1e-4
    assert (folder / "summary.json").exists()


@pytest.mark.slow
def test_two_nodes_of_one_rank_each_with_zero_3_give_the_curve_of_one_plain_process(tmp_path, plain):
    # With a KL to the starting model, which ZeRO-3 leaves whole
    accelerate = (Path(sys.executable).parent / "accelerate", "launch", "--num_processes", "2", "--main_process_port",
                  free_port(), "--main_process_ip", "127.0.0.1", "--config_file",
                  ROOT / "configs" / "accelerate" / "zero3-2nodes.yaml")  # fmt: skip
    with ThreadPoolExecutor(2) as nodes:
        ends = [
            nodes.submit(launch, tmp_path / "nodes", *KL, launcher=(*accelerate, "--machine_rank", k)) for k in (0, 1)
        ]  # fmt: skip
    first, second = (end.result() for end in ends)
    assert "2 ranks" in first
    assert "all_gather_into_tensor" not in first + second, "a warning of DeepSpeed's that no one who reads it can mend"
    assert re.search(r"^ *1/3 ", first, re.MULTILINE)
    assert not re.search(r"^ *1/3 ", second, re.MULTILINE), "the first rank speaks"
    assert_same_curve(plain, tmp_path / "nodes")


@pytest.mark.slow
def test_two_ranks_that_hold_one_engine_together_give_the_curve_of_one(tmp_path, plain):
    torchrun = (sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", free_port())
    launch(tmp_path / "two", *KL, "--rollout.vllm.tensor_parallel=2", launcher=torchrun)
    for a, b in zip(plain, rows(tmp_path / "two"), strict=True):
        assert a["reward/accuracy"] == b["reward/accuracy"]
        assert a["sampling/tokens"] == b["sampling/tokens"]
        assert a["optimizer/grad_norm"] == pytest.approx(b["optimizer/grad_norm"], rel=1e-3)
        assert b["policy/rollout_logprob_diff_max"] < 1e-4


@pytest.fixture
def untied(tmp_path):
    """A folder with the embedded model, its output layer one of its own and a little different."""
    tied = AutoModelForCausalLM.from_pretrained(tiny.FOLDERS["embedded"])
    config = tied.config
    config.tie_word_embeddings = False
    model = AutoModelForCausalLM.from_config(config)
    head = tied.lm_head.weight
    noise = 0.001 * torch.randn(head.shape, generator=torch.Generator().manual_seed(0))
    model.load_state_dict(tied.state_dict() | {"lm_head.weight": head + noise})
    model.save_pretrained(tmp_path / "untied")
    TOK.save_pretrained(tmp_path / "untied")
    return tmp_path / "untied"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_continues_responses_at_the_next_version_is_resumed_and_replayed(tmp_path, untied):
    """With an output layer of its own: the limit of `RUN` on the difference of log-probs says that it is pushed too."""
    ahead = ("--rollout.continuous=true", "--rollout.ahead=1", "--algorithm.rollout_is=truncate", "--rollout.temperature=1.3",
             "--run.save_every=1", "--run.keep=3", "--rollout.max_sequences=24", f"--model.path={untied}")  # fmt: skip
    launch(tmp_path / "whole", *ahead)
    one = rows(tmp_path / "whole")
    assert sum(row["sampling/unfinished_responses"] for row in one) > 0
    assert one[-1]["policy/old_tokens"] > 0
    begun, trained = (AutoModelForCausalLM.from_pretrained(folder) for folder in (untied, tmp_path / "whole" / "model"))
    assert (trained.lm_head.weight - begun.lm_head.weight).abs().max() > 5e-4, "the steps are of 1e-3"
    assert not torch.allclose(trained.lm_head.weight, trained.get_input_embeddings().weight, atol=2e-3)
    launch(tmp_path / "whole", *ahead, "--resume", tmp_path / "whole" / "checkpoints" / "step000001")
    assert_same_curve(one, tmp_path / "whole")
    said = run([sys.executable, ROOT / "train.py", "--replay", tmp_path / "whole" / "step3"])
    compared, different = map(int, re.search(r"(\d+) metrics: \d+ equal to the bit, (\d+) differ", said).groups())
    assert compared > 20
    assert different == 0
    assert ": 0 verdicts differ" in said
    assert f"{'policy/old_tokens':<28}{one[-1]['policy/old_tokens']:>14.6g}" in said, "tokens of an older version"


@pytest.mark.parametrize("ranks", [1, 2])
def test_engines_of_several_ranks_compute_their_logits_where_ids_beyond_the_vocabulary_are_masked(policy, monkeypatch, ranks):
    """The engine is not built: what it would be asked for, as vLLM's own arguments."""
    import vllm

    asked = []

    def stop(**options):
        asked.append(vllm.EngineArgs(**{name: value for name, value in options.items() if name != "disable_log_stats"}))
        raise RuntimeError("built no further")

    monkeypatch.setattr(vllm, "LLM", stop)
    config = load(["--rollout.engine=vllm", f"--rollout.vllm.tensor_parallel={ranks}"])
    several = SimpleNamespace(ranks=SimpleNamespace(size=ranks, rank=0, main=True, barrier=lambda: None), model=policy.model,
                              vocabulary=policy.vocabulary)  # fmt: skip
    with pytest.raises(ConfigError, match="built no further"):
        VllmEngine(config, several, [], 16)
    (arguments,) = asked
    if not hasattr(arguments, "enable_batch_sharded_sampling"):
        pytest.skip("this vLLM has no such sampling")
    assert arguments.enable_batch_sharded_sampling is (False if ranks == 2 else None)


@pytest.mark.slow
def test_more_tensor_parallel_ranks_than_processes_is_refused(tmp_path, capsys):
    assert start([*RUN, "--rollout.vllm.tensor_parallel=2", "--run-dir", str(tmp_path / "a")]) == 2
    assert "tensor_parallel=2 does not divide the 1 ranks" in capsys.readouterr().err


def test_a_token_beyond_the_tokenizer_is_no_completion(engine):
    logprobs = SimpleNamespace(start_indices=[0, 1], token_ids=[3, 21], logprobs=[-1.0, -2.0])
    output = SimpleNamespace(token_ids=[3, 21], logprobs=logprobs, finish_reason="stop")
    assert completion_of(output, 22).ids.tolist() == [3, 21]
    with pytest.raises(RuntimeError, match="sampled token 21, padding beyond the tokenizer's 21"):
        completion_of(output, 21)
    assert engine.vocabulary == len(TOK)


def test_tempered_logits_are_rounded_by_older_versions(monkeypatch):
    for version, temperature, notes in (("0.26.0", 0.7, 1), ("0.26.0", 1.0, 0), ("0.32.0", 0.7, 0), ("0.33.1", 0.7, 0)):
        monkeypatch.setattr("minirl.rollout.vllm.installed", lambda package, version=version: version)
        assert len(rounding_of_tempered_logits(temperature)) == notes


@pytest.mark.slow
def test_the_guard_ends_a_run_whose_sampler_is_another_policy_and_the_interpreter_is_not_shut_down(tmp_path):
    withheld = (
        "from minirl.rollout.vllm import VllmEngine\n"
        "first = VllmEngine.sync\n"
        "def once(self, policy):\n"
        "    if policy.version == 0: first(self, policy)\n"
        "    else: self.version = policy.version\n"
        "VllmEngine.sync = once"
    )
    said = launch_program(tmp_path / "program.py", tmp_path / "out", "--optimizer.lr=3e-2", before=withheld, expect=1)
    assert "the engine holds other weights" in said
    assert "train.py: " in said
    assert not (tmp_path / "out" / "summary.json").exists()
