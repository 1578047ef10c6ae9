"""minirl against TRL's GRPOTrainer on the same work: python benchmarks/race_trl.py [--quick] [--json] [--results FILE]

The same model, prompts, samples, forced response lengths (the same in each step; a program that trained on another number of
tokens ends the race), reward, optimizer step, precision and threads. Each program is one process of its own, without DDP; they
take turns, one step each on a CPU, one run each on a GPU, which both do not fit. Lengths: "uniform" is the longest allowed;
"tail" is log-normal with a mean of a quarter of it and sigma 1. Medians of wall seconds, without the steps that warm up:

step         all of it, from asking for samples to having logged
update       making micro-batches, forward, loss and what is logged of it, backward, clipping, optimizer step, gradients zeroed.
             Ours: `update`; TRL's: from the end of `_generate_and_score_completions` to `on_step_end`
generation   sampling, reward, advantages, waking the engine, pushing weights to it, its sleep. Ours: `collect_batch`,
             `compute_advantages`, `engine.sleep`, `engine.sync`; TRL's: `_generate_and_score_completions` without "old"
old          the trainer's log-probs before the update, which only a correction (below) asks for. Ours: `compute_logprobs`;
             TRL's: `_get_per_token_logps_and_entropies` without gradient
processor    CPU only: the mean of a step's processor seconds, those of child processes (our verifier's) in ticks of 10 ms with
             them; other work on the machine disturbs them less
best ...     CPU only: the shortest, which other work on the machine disturbs least
update GiB   GPU only: the highest peak of an update, as torch counts allocations, less what building the engine had added: vLLM
             sleeps during the update in both programs, yet torch still counts its weights and cache (vLLM #17117)
process GiB  GPU only: the highest peak of all that torch counts in a step, the engine included, whether it sleeps or not

On a GPU every boundary between these waits for the device, in both programs.

On a CPU: a 1M model in float32, transformers generates on both sides, and nothing corrects for the sampler. On a GPU: the 0.6B
shape, float32 weights under bfloat16 autocast, vLLM in the trainer's process; "plain": neither corrects for the sampler's
log-probs (our default), "corrected": both do, at the price of a forward pass (TRL's default, which masks sequences; ours
truncates the weights of tokens). TRL's loss and what it logs of it (entropies, clip ratios; as ours) are its defaults; what
is not stands in `run_trl`: activations kept, not recomputed, and vLLM's sleep, context and share of memory, all as ours.
--peer-python: an interpreter that has TRL (1.16 was raced), where this one has not.

--program NAME --rows FILE: only that program, all workloads with the same correction in one process, since starting takes
longer than its steps; a row a workload, with rates and MFU, written when it is measured, or when SIGINT comes, of the steps so
far. --label TEXT: the row is of that program run in another way than its plain one. --compare FILE shows both programs' rows.
With `--option=--rollout.continuous=true` (vLLM) a response has the same forced length in whichever step it is sampled.
"""

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count, product
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import environment, result_options, versions

WARM = 2  # steps that are dropped
PHASES = ("update", "generation", "old")  # of a step

# TRL's micro-batch (samples) is on a CPU the fastest of those tried for it; --peer-micro-batch tries another.
CPU = [
    {"name": name, "prompts": prompts, "samples": 8, "longest": 16, "tail": tail, "correct": False, "peer_micro_batch": 64}
    for name, prompts, tail in (("8x8x16", 8, False), ("64x8x16", 64, False), ("64x8x16 tail", 64, True))
]
GPU = [
    {
        "name": f"64x8x512 {'tail' if tail else 'uniform'} {'corrected' if correct else 'plain'}", "prompts": 64, "samples": 8,
        "longest": 512, "tail": tail, "correct": correct, "peer_micro_batch": 16,
    }
    for tail, correct in product((False, True), (False, True))
]  # fmt: skip


def forced_lengths(work: dict[str, Any], step: int) -> list[int]:
    """Response tokens of each sample of a step, counted from 1, group after group; step 0 is our evaluation before it."""
    import numpy as np

    rows, longest = work["prompts"] * work["samples"], work["longest"]
    if not work["tail"]:
        return [longest] * rows
    drawn = np.random.default_rng(step).lognormal(np.log(longest / 4) - 0.5, 1, rows)
    return np.clip(np.round(drawn), 1, longest).astype(int).tolist()


def other_work(work: dict[str, Any], program: str, step: int, tokens: int) -> str | None:
    """What to say when a program trained on another number of response tokens in a step than were forced."""
    wanted = sum(forced_lengths(work, step))
    same = tokens == wanted
    return None if same else f"{program} trained on {tokens} response tokens in step {step} of {work['name']}, not on {wanted}"


def summary(work: dict[str, Any], answers: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """A row for each thing measured: both programs' number and both ratios. answers: each program's measured steps."""
    phases = ("step", *PHASES[: 2 + work["correct"]])
    kinds: list[tuple[str, str, Callable[[Iterator[float]], float]]] = [(f"{x} s", x, statistics.median) for x in phases]
    if work["gpu"]:
        kinds += [("update GiB", "update_gib", max), ("process GiB", "process_gib", max)]
    else:
        kinds += [("processor s", "processor", statistics.mean)]
        kinds += [(f"best {x} s", x, min) for x in phases[:3]]
    rows = []
    for name, key, middle in kinds:
        trl, minirl = (middle(answer[key] for answer in answers[program]) for program in ("trl", "minirl"))
        row = {"workload": work["name"], "what": name, "TRL": trl, "minirl": minirl}
        rows.append(row | {"TRL / minirl": trl / minirl, "minirl / TRL": minirl / trl})
    return rows


def digits(problem: Any, response: str, rollout: Any) -> float:
    """The reward of both programs: the share of digits, so that the responses of a group differ."""
    return 0.5 * sum(c.isdigit() for c in response) / max(len(response), 1)


def processor_seconds() -> float:
    """Of this process and its children so far."""
    import psutil

    times = (child.cpu_times() for child in psutil.Process().children(recursive=True))
    return time.process_time() + sum(t.user + t.system for t in times)


class Turns:
    """A worker's side of taking turns: waits for a line on `commands`, answers with one on `answers`; times a step's phases."""

    def __init__(self, work: dict[str, Any]) -> None:
        import torch

        self.cuda, self.gpu, self.engine_bytes, self.begin = torch.cuda, work["gpu"], 0, 0.0
        self.work = work  # each word says which lengths the next step has
        self.commands, self.answers = os.fdopen(work["commands"]), os.fdopen(work["answers"], "w")
        self.measured: dict[str, float] = dict.fromkeys(PHASES, 0.0)  # in this step

    def _now(self) -> float:
        if self.gpu:
            self.cuda.synchronize()
        return time.perf_counter()

    def start(self, phase: str) -> None:
        """Begins to count seconds, and for the update the peak of memory."""
        if self.gpu and phase == "update":
            self.measured["process_gib"] = self.cuda.max_memory_allocated() / 2**30
            self.cuda.reset_peak_memory_stats()
        self.measured[phase] -= self._now()

    def stop(self, phase: str) -> None:
        """Ends what `start` began."""
        self.measured[phase] += self._now()
        if self.gpu and phase == "update":
            peak = self.cuda.max_memory_allocated()
            self.measured["update_gib"] = (peak - self.engine_bytes) / 2**30
            self.measured["process_gib"] = max(self.measured["process_gib"], peak / 2**30)

    def timed(self, phase: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, its seconds counted as those of `phase`."""

        def wrapped(*arguments: Any, **named: Any) -> Any:
            self.start(phase)
            result = function(*arguments, **named)
            self.stop(phase)
            return result

        return wrapped

    def builds_engine(self, build: Callable[..., Any]) -> Callable[..., Any]:
        """`build`, what torch has allocated more after it counted as the engine's."""

        def wrapped(*arguments: Any) -> Any:
            before = self.cuda.memory_allocated()
            result = build(*arguments)
            self.engine_bytes = self.cuda.memory_allocated() - before
            return result

        return wrapped

    def step_boundary(self) -> None:
        """Called once a step: ends the one before, waits for the word, begins the next."""
        end = self._now()
        if self.begin:
            self.measured |= {"step": end - self.begin, "processor": processor_seconds() - self.processor}
            gpu = self.cuda.get_device_name() if self.gpu else ""
            self.answers.write(json.dumps({"versions": versions(), "gpu": gpu, **self.measured}) + "\n")
            self.answers.flush()
        if not (line := self.commands.readline()):
            os._exit(0)
        self.work |= json.loads(line)
        self.measured, self.processor = dict.fromkeys(PHASES, 0.0), processor_seconds()
        self.begin = time.perf_counter()


# ---- minirl ----------------------------------------------------------------------------------------------------------------


def run_minirl(work: dict[str, Any]) -> None:
    """The product's own train.train, stopped between steps, its engine's lengths forced."""
    turns, steps = Turns(work), count()
    folder = Path(work["folder"])
    samples, prompts, longest = work["samples"], work["prompts"], work["longest"]
    options = [
        f"--model.path={work['model']}", "--data.task=dataset", f"--data.train={folder / 'problems.jsonl'}",
        "--data.chat=false", f"--verifier.name={Path(__file__).resolve()}:digits", f"--rollout.prompts={prompts}",
        f"--rollout.group_size={samples}", f"--rollout.max_response_tokens={longest}", "--rollout.max_sequences=512",
        "--algorithm.estimator=grpo", f"--algorithm.mini_batch_prompts={prompts}", "--optimizer.lr=1e-6",
        "--optimizer.warmup_steps=0", "--eval.every=0", "--eval.problems=1", "--eval.samples=1", "--eval.k=1",
        f"--run.steps={10**6}", "--run.save_every=0", f"--run.dir={folder / work['run']}", "--rollout.logprob_diff_stop=1000",
        "--rollout.logprob_diff_warn=1000", f"--algorithm.rollout_is={'truncate' if work['correct'] else 'none'}",
    ]  # fmt: skip
    if work["gpu"]:
        options += ["--model.dtype=bfloat16", "--rollout.engine=vllm", "--rollout.vllm.gpu_memory_utilization=0.3"]
    else:
        options += ["--optimizer.micro_batch_tokens=2048"]  # the fastest of those tried for us
        options += ["--rollout.engine=vllm"] if work["vllm"] else []
    options += work["options"]
    import train
    from minirl.config.command_line import load
    from minirl.rollout.engines import build_engine
    from minirl.run import lifecycle
    from minirl.run.inputs import read_inputs
    from minirl.run.report import Reporter

    class Stopped(Reporter):
        def evaluation(self, step: int, result: dict[str, float], seconds: float) -> None:
            super().evaluation(step, result, seconds)
            turns.step_boundary()

        def step(self, step: int, metrics: dict[str, float], *more: Any) -> None:
            super().step(step, metrics, *more)
            turns.measured["tokens"] = int(metrics["sampling/trained_tokens"])
            if "sampling/new_tokens" in metrics:  # with rollout.continuous, those of later batches too
                turns.measured["sampled"] = int(metrics["sampling/new_tokens"])
            turns.step_boundary()

    def lengths(rows: int) -> list[int]:
        return forced_lengths(work, next(steps))[:rows]

    known = cache(lambda step, tail: forced_lengths(work | {"tail": tail}, step))

    def length_of(group: int, j: int) -> int:
        """Of the j-th response of a group, by the group's place in the order: the same as `lengths` gives in its step."""
        step, place = divmod(group, prompts)
        return known(step + 1, work["tail"])[place * samples + j]

    def forced(*arguments: Any) -> Any:
        engine = turns.builds_engine(build_engine)(*arguments)
        engine.sleep, engine.sync = (turns.timed("generation", x) for x in (engine.sleep, engine.sync))
        return force_vllm(engine, lengths, length_of) if work["vllm"] else force_transformers(engine, lengths)

    lifecycle.Reporter, lifecycle.build_engine = Stopped, forced  # type: ignore[misc]
    phases = {"collect_batch": "generation", "compute_advantages": "generation", "compute_logprobs": "old", "update": "update"}
    for name, phase in phases.items():
        setattr(train, name, turns.timed(phase, getattr(train, name)))
    train.train(read_inputs(load(options)))


def force_transformers(engine: Any, lengths: Callable[[int], list[int]]) -> Any:
    import torch

    engine.stop_ids = torch.tensor([], dtype=torch.long)
    engine.limits = lambda rows, sampling: torch.tensor(lengths(rows))
    return engine


def force_vllm(engine: Any, lengths: Callable[[int], list[int]], length_of: Callable[[int, int], int]) -> Any:
    """One request a sample, since vLLM cuts all samples of a request at the same length."""
    from dataclasses import replace

    from minirl.rollout.sampler import stable_seed
    from minirl.rollout.types import STOP
    from minirl.rollout.vllm import completion_of

    def generate(prompts: Any, sampling: Any, seeds: Any, keep: Any = None) -> Any:
        engine.reset_prefix_cache()
        n, groups = sampling.n, {i: [] for i in range(len(prompts))}  # type: ignore[var-annotated]
        wanted, places = lengths(len(prompts) * n), {}
        for i, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            for j in range(n):
                name = str(engine.requests)
                engine.requests += 1
                places[name] = i
                parameters = engine.parameters(replace(sampling, n=1), (seed + j) % 2**63)
                parameters.max_tokens, parameters.ignore_eos, parameters.stop_token_ids = wanted[i * n + j], True, []
                engine.engine.add_request(name, {"prompt_token_ids": prompt}, parameters)
        while engine.engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    i = places[output.request_id.split("-")[0]]
                    groups[i].append(completion_of(output.outputs[0], engine.vocabulary))
                    if len(groups[i]) == n:
                        yield i, groups[i]

    def extend(rollouts: Any, keys: Any, sampling: Any, tokens: int) -> Any:
        """As the engine's own, but for where a response ends."""
        first, is_last, found = engine.requests, [], {}  # type: ignore[var-annotated]
        for rollout, (seed, j) in zip(rollouts, keys, strict=True):
            rest = length_of(rollout.group, j) - rollout.length
            is_last.append(rest <= tokens)
            one = replace(sampling, n=1, max_tokens=min(tokens, rest))
            parameters = engine.parameters(one, stable_seed(seed, j, rollout.length))
            parameters.ignore_eos, parameters.stop_token_ids = True, []
            ids = {"prompt_token_ids": [*rollout.prompt_ids, *rollout.completion.ids.tolist()]}
            engine.engine.add_request(str(engine.requests), ids, parameters)
            engine.requests += 1
        while engine.engine.has_unfinished_requests():
            found |= engine.finished(first)
        pieces = [completion_of(found[i][0], engine.vocabulary) for i in range(len(rollouts))]
        return [replace(piece, finish=STOP) if last else piece for piece, last in zip(pieces, is_last, strict=True)]

    engine.generate, engine.extend = generate, extend
    return engine


# ---- TRL -------------------------------------------------------------------------------------------------------------------


def run_trl(work: dict[str, Any]) -> None:
    """TRL's GRPOTrainer, stopped between steps by a callback, its lengths forced by a logits processor or a request each."""
    turns, steps = Turns(work), count(1)
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, LogitsProcessor, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer
    from trl.generation.vllm_generation import VLLMGeneration

    folder, gpu = Path(work["folder"]), work["gpu"]
    rows = [json.loads(line) for line in (folder / "problems.jsonl").read_text().splitlines()]
    total, micro = work["prompts"] * work["samples"], work["peer_micro_batch"]
    more: dict[str, Any] = {"use_cpu": True, "bf16": False}
    if gpu:
        more = {
            "bf16": True, "use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3,
            "vllm_enable_sleep_mode": True, "vllm_max_model_length": work["longest"] + 64,
            "vllm_importance_sampling_correction": work["correct"],
        }  # fmt: skip
    config = GRPOConfig(
        output_dir=str(folder / work["run"]), max_steps=10**6, per_device_train_batch_size=min(micro, total),
        gradient_accumulation_steps=max(1, total // micro), num_generations=work["samples"],
        max_completion_length=work["longest"], learning_rate=1e-6, lr_scheduler_type="constant", beta=0.0, temperature=1.0,
        logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, gradient_checkpointing=False,
        weight_decay=0.01, max_grad_norm=1.0, model_init_kwargs={"dtype": "float32"}, **more,
    )  # fmt: skip

    class Boundary(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            turns.step_boundary()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            turns.stop("update")

    class Force(LogitsProcessor):
        """Ends row i after wanted[i] tokens, never before."""

        def __init__(self, wanted: list[int], start: int, end: int) -> None:
            self.wanted, self.start, self.end = torch.tensor(wanted), start, end

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            scores[:, self.end] = -torch.inf
            last = (self.wanted == input_ids.shape[1] - self.start + 1).nonzero()[:, 0]
            scores[last] = -torch.inf
            scores[last, self.end] = 0.0
            return scores

    VLLMGeneration._init_vllm = turns.builds_engine(VLLMGeneration._init_vllm)
    tokenizer = AutoTokenizer.from_pretrained(work["model"])
    trainer = GRPOTrainer(
        model=work["model"], args=config, train_dataset=Dataset.from_list([{"prompt": r["problem"]} for r in rows]),
        reward_funcs=lambda completions, **_: [digits(None, c, None) for c in completions],
        processing_class=tokenizer, callbacks=[Boundary()],
    )  # fmt: skip
    if gpu:
        llm = trainer.vllm_generation.llm
        llm_generate = llm.generate

        def forced(prompts: Any, sampling_params: Any, **named: Any) -> Any:
            each = [sampling_params.clone() for _ in prompts]
            for parameters, length in zip(each, forced_lengths(work, next(steps)), strict=True):
                parameters.max_tokens, parameters.ignore_eos = length, True
            return llm_generate(prompts, sampling_params=each, **named)

        llm.generate = forced
    else:
        model_generate = trainer.model.generate

        def forced(**inputs: Any) -> Any:
            start = inputs["input_ids"].shape[1]
            force = Force(forced_lengths(work, next(steps)), start, tokenizer.eos_token_id)
            return model_generate(**inputs, logits_processor=[force])

        trainer.model.generate = forced
    generate, logprobs = trainer._generate_and_score_completions, trainer._get_per_token_logps_and_entropies
    old = turns.timed("old", logprobs)

    def timed_generate(inputs: Any) -> Any:
        batch = turns.timed("generation", generate)(inputs)
        turns.measured["generation"] -= turns.measured["old"]
        turns.measured["tokens"] = int(batch["num_items_in_batch"])
        turns.start("update")
        return batch

    def timed_logprobs(*arguments: Any, **named: Any) -> Any:
        return (logprobs if torch.is_grad_enabled() else old)(*arguments, **named)

    trainer._generate_and_score_completions = timed_generate
    trainer._get_per_token_logps_and_entropies = timed_logprobs
    trainer.train()


# ---- the race --------------------------------------------------------------------------------------------------------------


class Program:
    """A worker process that makes a step at each word."""

    def __init__(self, name: str, python: str, work: dict[str, Any], threads: int) -> None:
        ours, theirs = os.pipe(), os.pipe()
        os.set_inheritable(ours[0], True)
        os.set_inheritable(theirs[1], True)
        work = work | {"commands": ours[0], "answers": theirs[1], "run": f"run-{name}-{random.randrange(10**9)}"}
        variables = environment(
            OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false",
            CUDA_VISIBLE_DEVICES=os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0],
        )  # fmt: skip
        self.log = Path(work["folder"]) / f"{name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [python, __file__, "--worker", name, json.dumps(work)], pass_fds=(ours[0], theirs[1]), stdout=log, stderr=log,
                env=variables,
            )  # fmt: skip
        os.close(ours[0])
        os.close(theirs[1])
        self.commands, self.answers = os.fdopen(ours[1], "w"), os.fdopen(theirs[0])

    def step(self, work: dict[str, Any]) -> dict[str, Any]:
        """A step of that workload: what it measured."""
        try:
            self.commands.write(json.dumps({"tail": work["tail"]}) + "\n")
            self.commands.flush()
        except BrokenPipeError:
            pass  # the empty answer below says why
        answer = self.answers.readline()
        if not answer:
            sys.exit(f"race_trl.py: a program ended early, see the end of its log {self.log}:\n{self.log.read_text()[-2000:]}")
        return json.loads(answer)

    def close(self) -> None:
        self.commands.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=10)
        self.process.kill()  # else, cut off within a step, it might hold the GPU's memory for a while
        self.process.wait()
        self.answers.close()


def interrupts_once() -> None:
    """One SIGINT is a KeyboardInterrupt, those after it are nothing: `timeout` sends two to the process that it started."""

    def first(*_: Any) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, first)


def race(work: dict[str, Any], steps: int, options: argparse.Namespace) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One workload: (its rows, the versions that TRL's worker runs on)."""
    pythons = {"minirl": sys.executable, "trl": options.peer_python}
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in pythons}
    for names in [[name] for name in pythons] if work["gpu"] else [list(pythons)]:
        programs = {name: Program(name, pythons[name], work, options.threads) for name in names}
        for step, (name, program) in product(range(1, WARM + steps + 1), programs.items()):
            answers[name].append(program.step(work))
            if sentence := other_work(work, name, step, answers[name][-1]["tokens"]):
                sys.exit(f"race_trl.py: {sentence}")
        for program in programs.values():
            program.close()
    return summary(work, {name: measured[WARM:] for name, measured in answers.items()}), answers["trl"][0]["versions"]


def alone(name: str, works: list[dict[str, Any]], steps: int, options: argparse.Namespace, file: Any) -> None:
    """One program through workloads that differ only in their lengths, one after the other; a row each in `file`."""
    called = f"{name} {options.label}".strip()
    works = [work for work in works if file.missing({"workload": work["name"], "program": called})]
    if not works:
        return
    interrupts_once()
    program = Program(name, sys.executable if name == "minirl" else options.peer_python, works[0], options.threads)
    number, cut = 0, False
    try:
        for work in works:
            measured, begun = list[dict[str, Any]](), number
            try:
                while len(measured) < options.warm + steps:
                    measured.append(program.step(work))
                    number += 1
                    if sentence := other_work(work, name, number, measured[-1]["tokens"]):
                        sys.exit(f"race_trl.py: {sentence}")
            except KeyboardInterrupt:
                cut = True
            if kept := measured[options.warm :]:
                lengths = [forced_lengths(work, n) for n in range(begun + options.warm + 1, number + 1)]
                file.add(rates(work, called, kept, lengths), peer_versions=kept[-1]["versions"])
            if cut:
                sys.exit(3)
    finally:
        program.close()


def rates(work: dict[str, Any], name: str, answers: list[dict[str, Any]], lengths: list[list[int]]) -> dict[str, Any]:
    """A program's row of a workload: medians of seconds, and rates of the measured steps. lengths: of each step's responses.

    MFU: products and attention of three forward passes, a prompt once a group, over the seconds of the update and the peak of
    the GPU, where it is a known one.
    """
    from transformers import AutoConfig

    from minirl.policy import plan
    from minirl.watch import limit

    row = {"workload": work["name"], "program": name, "steps": len(answers)}
    for key in ("step", *PHASES[: 2 + work["correct"]]):
        row[f"{key} s"] = statistics.median(answer[key] for answer in answers)
    sampled = sum(answer.get("sampled", answer["tokens"]) for answer in answers)
    row["sampled tokens/s"] = sampled / sum(answer["generation"] for answer in answers)
    row["updated tokens/s"] = sum(map(sum, lengths)) / sum(answer["update"] for answer in answers)
    model = plan.measure(AutoConfig.from_pretrained(work["model"]))
    prompt, n = 6, work["samples"]  # tokens of "12+34="
    flops = sum(
        3 * limit.trainer_flops(model, [limit.Group(prompt, each[i : i + n]) for i in range(0, len(each), n)])
        for each in lengths
    )
    row["update TFLOP/s"] = flops / sum(answer["update"] for answer in answers) / 1e12
    if work["gpu"]:
        peak = limit.hardware_of(answers[0]["gpu"])
        row["update MFU"] = row["update TFLOP/s"] * 1e12 / peak.flops if peak else None
        row |= {f"{k} GiB": max(answer[f"{k}_gib"] for answer in answers) for k in ("update", "process")}
    return row


def compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """A row for each number of a workload that both programs have one of, of rows by `rates`; TRL's with a label are compared
    with ours without one."""
    found = {(row["workload"], row["program"]): row for row in rows}
    result = []
    for (workload, program), trl in found.items():
        minirl = found.get((workload, "minirl"))
        if not program.startswith("trl") or minirl is None:
            continue
        workload += program.removeprefix("trl").replace(" ", ", TRL ", 1)
        for what, value in trl.items():
            if isinstance(value, float) and minirl.get(what):
                result.append({"workload": workload, "what": what, "TRL": value, "minirl": minirl[what]})
                result[-1]["TRL / minirl"] = value / minirl[what]
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps: under a minute on a CPU")
    result_options(parser)
    parser.add_argument("--steps", type=int, help="measured steps a program and workload")
    parser.add_argument("--warm", type=int, default=WARM, help="with --program: steps before them")
    parser.add_argument("--threads", type=int, default=1, help="of each program, on a CPU")
    parser.add_argument("--only", help="only workloads whose name has this in it")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has TRL")
    parser.add_argument("--peer-micro-batch", type=int, help="TRL's per_device_train_batch_size")
    parser.add_argument("--option", action="append", default=[], help="one more option of our train.py, as --option=--a.b=c")
    parser.add_argument("--program", choices=("minirl", "trl"), help="only this one; with --rows")
    parser.add_argument("--rows", help="file for a JSON line a row; rows that it has are skipped")
    parser.add_argument("--label", default="", help="with --program: what to call it in its rows, after its name")
    parser.add_argument("--folder", help="keeps the model with random weights and the logs there for other calls")
    parser.add_argument("--compare", metavar="FILE", help="show the rows of both programs that the file has, and end")
    parser.add_argument("--engine", choices=("transformers", "vllm"), default="transformers", help="ours, on a CPU")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, work = options.worker
        {"minirl": run_minirl, "trl": run_trl}[name](json.loads(work))
        return
    import torch

    from benchmarks.common import Rows, finish, random_model, table

    if options.compare:
        both = compared(Rows("race_trl", options.compare).rows())
        print(table(both) if both else "no workload has been raced by both programs yet")
        return
    if bool(options.program) != bool(options.rows):
        sys.exit("race_trl.py: --program and --rows belong together")
    gpu = torch.cuda.is_available()
    steps = options.steps or (5 if gpu else 3 if options.quick else 25)
    rows: list[dict[str, Any]] = []
    keep = contextlib.nullcontext(options.folder) if options.folder else tempfile.TemporaryDirectory(prefix="race-")
    with keep as folder:
        shape, dtype = ("0.6b", "bfloat16") if gpu else ("1m", "float32")
        model = random_model(Path(folder) / f"{shape}-{dtype}", shape, dtype)
        pairs = random.Random(0)
        problems = [(pairs.randint(10, 99), pairs.randint(10, 99)) for _ in range(4096)]
        text = "".join(json.dumps({"problem": f"{a}+{b}=", "answer": str(a + b)}) + "\n" for a, b in sorted(set(problems)))
        (Path(folder) / "problems.jsonl").write_text(text)
        chosen = [work for work in (GPU if gpu else CPU) if not options.only or options.only in work["name"]]
        if not chosen:
            sys.exit(f"race_trl.py: no workload has {options.only!r} in its name")
        more = {"folder": folder, "model": str(model), "gpu": gpu, "options": options.option}
        more["vllm"] = gpu or options.engine == "vllm"
        if options.peer_micro_batch:
            more["peer_micro_batch"] = options.peer_micro_batch
        chosen = [work | more for work in chosen]
        if options.program:
            for correct in (False, True):
                works = [work for work in chosen if work["correct"] == correct]
                alone(options.program, works, steps, options, Rows("race_trl", options.rows))
            return
        for work in chosen:
            measured, peer = race(work, steps, options)
            rows += measured
            if not options.json:
                print(table(measured), flush=True)
    finish("race_trl", rows, options.results, options.json, steps=steps, peer_versions=peer)


if __name__ == "__main__":
    main()
