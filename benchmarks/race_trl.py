"""minirl against TRL's GRPOTrainer on the same work: python benchmarks/race_trl.py [--quick] [--json] [--results FILE]

The same model, prompts, number of samples, response lengths (forced), reward, optimizer step, precision and threads. Each
program is a process of its own, and they take turns: one step each on a CPU, one run each on a GPU, which both do not fit.
A step is the whole of it, from asking for samples to having logged, seconds of wall time; steps that warm up are dropped.
Prints the ratio of medians (peer seconds / our seconds) a workload, and on a CPU that of processor seconds of the two trainers,
which other work on the machine disturbs less. Lengths: "uniform" is the longest allowed; "tail" is
log-normal with a mean of a quarter of it and sigma 1, the same numbers for both programs.

On a CPU: a 1M model in float32, transformers generates on both sides. On a GPU: the 0.6B shape in bfloat16, vLLM in the process
of the trainer on both sides. --peer-python: an interpreter that has TRL (1.16 was raced), where this one has not.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.common import environment

WARM = 2  # steps that are dropped

# TRL's micro-batch (samples) is the fastest of those tried for it.
CPU = [
    {"name": "8x8x16", "prompts": 8, "samples": 8, "longest": 16, "tail": False, "peer_micro_batch": 64},
    {"name": "64x8x16", "prompts": 64, "samples": 8, "longest": 16, "tail": False, "peer_micro_batch": 64},
    {"name": "64x8x16 tail", "prompts": 64, "samples": 8, "longest": 16, "tail": True, "peer_micro_batch": 64},
]  # fmt: skip
GPU = [
    {"name": "64x8x512", "prompts": 64, "samples": 8, "longest": 512, "tail": False, "peer_micro_batch": 16},
    {"name": "64x8x512 tail", "prompts": 64, "samples": 8, "longest": 512, "tail": True, "peer_micro_batch": 16},
]  # fmt: skip


class Lengths:
    """The forced lengths of one step after another, int[rows]; both programs draw the same."""

    def __init__(self, work: dict[str, Any]) -> None:
        import numpy as np

        self.work, self.rng, self.log, self.round, self.clip = work, np.random.default_rng(0), np.log, np.round, np.clip

    def __call__(self, rows: int) -> list[int]:
        longest = self.work["longest"]
        if not self.work["tail"]:
            return [longest] * rows
        return self.clip(self.round(self.rng.lognormal(self.log(longest / 4) - 0.5, 1, rows)), 1, longest).astype(int).tolist()


def digits(problem: Any, response: str, rollout: Any) -> float:
    """The reward of both programs: the share of digits, so that the responses of a group differ."""
    return share_of_digits(response)


def share_of_digits(text: str) -> float:
    return 0.5 * sum(c.isdigit() for c in text) / max(len(text), 1)


class Turns:
    """A worker's side of taking turns: waits for a line on `commands`, answers with one on `answers`."""

    def __init__(self, work: dict[str, Any]) -> None:
        self.commands, self.answers = os.fdopen(work["commands"]), os.fdopen(work["answers"], "w")
        self.begin: tuple[float, float] | None = None

    def step_boundary(self) -> None:
        """Called once a step: ends the one before, waits for the word, begins the next."""
        import torch

        if torch.cuda.is_available():
            torch.cuda.synchronize()
        if self.begin is not None:
            peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
            wall, cpu = time.perf_counter() - self.begin[0], time.process_time() - self.begin[1]
            self.answers.write(json.dumps({"seconds": wall, "cpu": cpu, "peak_gib": peak}) + "\n")
            self.answers.flush()
        if not self.commands.readline():
            os._exit(0)
        self.begin = time.perf_counter(), time.process_time()


# ---- minirl ----------------------------------------------------------------------------------------------------------------


def run_minirl(work: dict[str, Any]) -> None:
    """The product's own train.train, stopped between steps, its engine's lengths forced."""
    folder = Path(work["folder"])
    samples, prompts, longest = work["samples"], work["prompts"], work["longest"]
    options = [
        f"--model.path={folder / 'model'}", "--data.task=dataset", f"--data.train={folder / 'problems.jsonl'}",
        "--data.chat=false", f"--verifier.name={Path(__file__).resolve()}:digits", f"--rollout.prompts={prompts}",
        f"--rollout.samples={samples}", f"--rollout.max_response_tokens={longest}", "--rollout.max_sequences=512",
        "--algorithm.estimator=grpo", f"--algorithm.mini_batch_prompts={prompts}", "--optimizer.lr=1e-6",
        "--optimizer.warmup_steps=0", "--eval.every=0", "--eval.problems=1", "--eval.samples=1", "--eval.k=1",
        f"--run.steps={10**6}", f"--run.dir={folder / work['run']}", "--rollout.gap_stop=1000", "--rollout.gap_warn=1000",
    ]  # fmt: skip
    if work["gpu"]:
        options += ["--model.dtype=bfloat16", "--rollout.engine=vllm", "--rollout.vllm.gpu_memory_utilization=0.3"]
    else:
        options += ["--optimizer.micro_batch_tokens=2048"]  # the fastest of those tried for us
    options += work["options"]
    import train
    from minirl.command_line import load
    from minirl.report import Reporter
    from minirl.rollout import build_engine

    turns, lengths = Turns(work), Lengths(work)

    class Stopped(Reporter):
        def evaluation(self, step: int, result: dict[str, float]) -> None:
            super().evaluation(step, result)
            turns.step_boundary()

        def step(self, *arguments: Any) -> None:
            super().step(*arguments)
            turns.step_boundary()

    def forced(*arguments: Any) -> Any:
        engine = build_engine(*arguments)
        return force_vllm(engine, lengths) if work["gpu"] else force_transformers(engine, lengths)

    train.Reporter, train.build_engine = Stopped, forced  # type: ignore[misc]
    train.train(load(options))


def force_transformers(engine: Any, lengths: Lengths) -> Any:
    import torch

    engine.stop_ids = torch.tensor([], dtype=torch.long)
    engine.limits = lambda rows, sampling: torch.tensor(lengths(rows))
    return engine


def force_vllm(engine: Any, lengths: Lengths) -> Any:
    """One request a sample, since vLLM cuts all samples of a request at the same length."""
    from dataclasses import replace

    def generate(prompts: Any, sampling: Any, seeds: Any, keep: Any = None) -> Any:
        n, groups = sampling.samples, {i: [] for i in range(len(prompts))}  # type: ignore[var-annotated]
        wanted, places = lengths(len(prompts) * n), {}
        for i, (prompt, seed) in enumerate(zip(prompts, seeds, strict=True)):
            for j in range(n):
                name = str(engine.requests)
                engine.requests += 1
                places[name] = i
                parameters = engine.parameters(replace(sampling, samples=1), (seed + j) % 2**63)
                parameters.max_tokens, parameters.ignore_eos, parameters.stop_token_ids = wanted[i * n + j], True, []
                engine.engine.add_request(name, {"prompt_token_ids": prompt}, parameters)
        while engine.engine.has_unfinished_requests():
            for output in engine.step():
                if output.finished:
                    i = places[output.request_id.split("-")[0]]
                    groups[i].append(engine.sample(output.outputs[0]))
                    if len(groups[i]) == n:
                        yield i, groups[i]

    engine.generate = generate
    return engine


# ---- TRL -------------------------------------------------------------------------------------------------------------------


def run_trl(work: dict[str, Any]) -> None:
    """TRL's GRPOTrainer, stopped between steps by a callback, its lengths forced by a logits processor or a request each."""
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for key, value in {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        os.environ[key] = str(value)
    import torch
    from datasets import Dataset
    from transformers import AutoTokenizer, LogitsProcessor, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    folder, gpu = Path(work["folder"]), work["gpu"]
    rows = [json.loads(line) for line in (folder / "problems.jsonl").read_text().splitlines()]
    total, micro = work["prompts"] * work["samples"], work["peer_micro_batch"]
    engine: dict[str, Any] = {"use_vllm": False}
    device: dict[str, Any] = {"use_cpu": True, "bf16": False, "model_init_kwargs": {"dtype": "float32"}}
    if gpu:
        engine = {"use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": 0.3, "vllm_enable_sleep_mode": True}
        device = {"bf16": True}
    config = GRPOConfig(
        output_dir=str(folder / work["run"]), max_steps=10**6, per_device_train_batch_size=min(micro, total),
        gradient_accumulation_steps=max(1, total // micro), num_generations=work["samples"],
        max_completion_length=work["longest"], learning_rate=1e-6, lr_scheduler_type="constant", beta=0.0, temperature=1.0,
        logging_steps=1, save_strategy="no", report_to=[], disable_tqdm=True, gradient_checkpointing=False,
        weight_decay=0.01, max_grad_norm=1.0, **engine, **device,
    )  # fmt: skip
    turns, lengths = Turns(work), Lengths(work)

    class Boundary(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            turns.step_boundary()

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

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    trainer = GRPOTrainer(
        model=str(folder / "model"), args=config, train_dataset=Dataset.from_list([{"prompt": r["problem"]} for r in rows]),
        reward_funcs=lambda completions, **_: [share_of_digits(c) for c in completions],
        processing_class=tokenizer, callbacks=[Boundary()],
    )  # fmt: skip
    if gpu:
        llm = trainer.vllm_generation.llm
        generate = llm.generate

        def forced(prompts: Any, sampling_params: Any, **more: Any) -> Any:
            each = [sampling_params.clone() for _ in prompts]
            for parameters, length in zip(each, lengths(len(prompts)), strict=True):
                parameters.max_tokens, parameters.ignore_eos = length, True
            return generate(prompts, sampling_params=each, **more)

        llm.generate = forced
    else:
        model_generate = trainer.model.generate

        def forced(**inputs: Any) -> Any:
            count, start = inputs["input_ids"].shape
            return model_generate(**inputs, logits_processor=[Force(lengths(count), start, tokenizer.eos_token_id)])

        trainer.model.generate = forced
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
            OMP_NUM_THREADS=str(threads), OMP_WAIT_POLICY="passive", HF_HUB_OFFLINE="1", TOKENIZERS_PARALLELISM="false"
        )
        self.log = Path(work["folder"]) / f"{name}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [python, __file__, "--worker", name, json.dumps(work)], pass_fds=(ours[0], theirs[1]), stdout=log, stderr=log,
                env=variables,
            )  # fmt: skip
        os.close(ours[0])
        os.close(theirs[1])
        self.commands, self.answers = os.fdopen(ours[1], "w"), os.fdopen(theirs[0])

    def step(self) -> dict[str, float]:
        try:
            self.commands.write("go\n")
            self.commands.flush()
        except BrokenPipeError:
            pass  # the empty answer below says why
        answer = self.answers.readline()
        if not answer:
            sys.exit(f"race_trl.py: a program ended early, see the end of its log {self.log}:\n{self.log.read_text()[-2000:]}")
        return json.loads(answer)

    def close(self) -> None:
        self.commands.close()
        self.process.wait(timeout=60)
        self.answers.close()


def race(work: dict[str, Any], steps: int, options: argparse.Namespace) -> dict[str, Any]:
    """One workload: medians of both programs, and their ratio."""
    pythons = {"minirl": sys.executable, "trl": options.peer_python}
    seconds: dict[str, list[float]] = {name: [] for name in pythons}
    processor: dict[str, list[float]] = {name: [] for name in pythons}
    peaks = dict.fromkeys(pythons, 0.0)

    def run(programs: dict[str, Program], count: int, keep: bool) -> None:
        for _ in range(count):
            for name, program in programs.items():
                answer = program.step()
                if keep:
                    seconds[name].append(answer["seconds"])
                    processor[name].append(answer["cpu"])
                    peaks[name] = max(peaks[name], answer["peak_gib"])

    turns = [[name] for name in pythons] * 2 if work["gpu"] else [list(pythons)]
    for names in turns:
        programs = {name: Program(name, pythons[name], work, options.threads) for name in names}
        run(programs, WARM, keep=False)
        run(programs, steps, keep=True)
        for program in programs.values():
            program.close()
    middle, busy = ({name: statistics.median(values) for name, values in x.items()} for x in (seconds, processor))
    row = {
        "workload": work["name"], "steps": len(seconds["trl"]), "trl s": middle["trl"], "minirl s": middle["minirl"],
        "ratio": middle["trl"] / middle["minirl"],
    }  # fmt: skip
    if work["gpu"]:
        row |= {"trl GiB": peaks["trl"], "minirl GiB": peaks["minirl"]}
    else:
        row |= {"trl cpu s": busy["trl"], "minirl cpu s": busy["minirl"], "cpu ratio": busy["trl"] / busy["minirl"]}
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer steps: under a minute on a CPU")
    parser.add_argument("--json", action="store_true", help="print one JSON line instead of a table")
    parser.add_argument("--results", help="file for one more JSON line; else benchmarks/results.jsonl")
    parser.add_argument("--steps", type=int, help="measured steps a program and workload")
    parser.add_argument("--threads", type=int, default=1, help="of each program, on a CPU")
    parser.add_argument("--only", help="only workloads whose name has this in it")
    parser.add_argument("--peer-python", default=sys.executable, help="interpreter that has TRL")
    parser.add_argument("--peer-micro-batch", type=int, help="TRL's per_device_train_batch_size")
    parser.add_argument("--option", action="append", default=[], help="one more option of our train.py, as --option=--a.b=c")
    parser.add_argument("--worker", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        name, work = options.worker
        {"minirl": run_minirl, "trl": run_trl}[name](json.loads(work))
        return
    import torch

    from benchmarks.common import finish, random_model, table

    gpu = torch.cuda.is_available()
    steps = options.steps or (4 if gpu else 3 if options.quick else 25)
    rows = []
    with tempfile.TemporaryDirectory(prefix="race-") as folder:
        random_model(Path(folder) / "model", "0.6b" if gpu else "1m", "bfloat16" if gpu else "float32")
        pairs = random.Random(0)
        problems = [(pairs.randint(10, 99), pairs.randint(10, 99)) for _ in range(4096)]
        text = "".join(json.dumps({"problem": f"{a}+{b}=", "answer": str(a + b)}) + "\n" for a, b in sorted(set(problems)))
        (Path(folder) / "problems.jsonl").write_text(text)
        chosen = [work for work in (GPU if gpu else CPU) if not options.only or options.only in work["name"]]
        if not chosen:
            sys.exit(f"race_trl.py: no workload has {options.only!r} in its name")
        for work in chosen:
            more = {"folder": folder, "gpu": gpu, "options": options.option}
            if options.peer_micro_batch:
                more["peer_micro_batch"] = options.peer_micro_batch
            rows.append(race(work | more, steps, options))
            if not options.json:
                print(table(rows[-1:]), flush=True)
    if not options.json:
        print(f"\nratio of medians, TRL's seconds / ours:\n{table(rows)}")
    finish("race_trl", rows, options.results, options.json)


if __name__ == "__main__":
    main()
