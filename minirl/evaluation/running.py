"""Sampling and judging of benchmarks, over all ranks.

The randomness of a sample depends on the seed, the benchmark, the problem and its number only. With the transformers engine
on a CPU neither the number of ranks nor an interruption changes a bit: they change no batch.
"""

import json
import sys
import time
import zlib
from argparse import Namespace
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from minirl.data.prompts import Prompt
from minirl.evaluation.benchmarks import Loaded
from minirl.evaluation.folder import Key, Row
from minirl.evaluation.models import Prepared
from minirl.rollout.sampler import EVALUATION, stable_seed
from minirl.rollout.types import Completion, Engine, SamplingParams
from minirl.utils.distributed import Ranks
from minirl.verify.pool.pool import VerifierPool
from minirl.verify.types import Verdict

TERMINAL, LOG = 1.0, 30.0  # seconds between two states of a progress bar


@dataclass(frozen=True)
class Response:
    """One response to judge. tokens, finish: None where somebody else sampled it and did not say."""

    place: int
    sample: int
    prompt: str
    text: str
    tokens: int | None
    finish: str | None


class Judge:
    """Judges responses while others are still sampled, and appends rows to the rank's file as whole problems are done."""

    def __init__(self, pool: VerifierPool, one: Loaded, model: str, path: Path) -> None:
        self.pool, self.one, self.model, self.path = pool, one, model, path
        self.pending: list[list[tuple[Response, Future[Verdict]]]] = []
        self.wants_facts = ".py:" in one.benchmark.verifier

    def submit(self, responses: Sequence[Response]) -> None:
        """Responses to one problem."""
        problem = self.one.problems[responses[0].place]
        extra_info = [
            {"finish": r.finish, "tokens": r.tokens, "group": r.place} if self.wants_facts else None for r in responses
        ]
        self.pending.append([(r, self.pool.submit(problem, r.text, f)) for r, f in zip(responses, extra_info, strict=True)])

    def flush(self, wait: bool = False) -> None:
        """Writes the problems that are judged, all of them if `wait`."""
        done: list[list[tuple[Response, Future[Verdict]]]] = []
        left: list[list[tuple[Response, Future[Verdict]]]] = []
        for group in self.pending:
            (done if wait or all(future.done() for _, future in group) else left).append(group)
        self.pending = left
        if done:
            rows = [self.row(response, future.result()) for group in done for response, future in group]
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def row(self, r: Response, verdict: Verdict) -> Row:
        """A line of samples.jsonl."""
        problem, index = self.one.problems[r.place], self.one.indices[r.place]
        return {
            "model": self.model, "benchmark": self.one.benchmark.name, "problem": problem.id, "index": index,
            "sample": r.sample, "prompt": r.prompt, "gold": problem.answer, "response": r.text, "status": verdict.status,
            "label": verdict.label, "key": verdict.key, "tokens": r.tokens, "finish": r.finish, "detail": verdict.detail,
        }  # fmt: skip


class Judges:
    """A judge for each benchmark and model; benchmarks that are judged alike share a pool of workers."""

    def __init__(self, stack: ExitStack, loaded: Sequence[Loaded], workers: int, path: Path) -> None:
        """Starts the pools, and ends them with `stack`. VerifierError for a verifier that does not work."""
        self.path = path
        self.pools: dict[str, VerifierPool] = {}
        for b in [one.benchmark for one in loaded]:
            if (kind := repr((b.pool(), b.timeout))) not in self.pools:
                self.pools[kind] = stack.enter_context(VerifierPool(*b.pool(), workers, b.timeout))

    def of(self, one: Loaded, model: str) -> Judge:
        """The judge of a benchmark's responses by a model."""
        b = one.benchmark
        return Judge(self.pools[repr((b.pool(), b.timeout))], one, model, self.path)


def chunks(prompts: Sequence[Prompt], width: int) -> list[list[int]]:
    """Places of the prompts by falling length, `width` at a time: batches that are always the same."""
    order = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i].ids), i))
    return [order[i : i + width] for i in range(0, len(order), width)]


def sample_benchmark(
    engine: Engine, prepared: Prepared, one: Loaded, judge: Judge, finished: set[Key], o: Namespace, ranks: Ranks
) -> Row:
    """Samples this rank's unfinished problems and has them judged. Returns the samples made now, of how many, with
    their tokens and seconds, of all ranks."""
    b, prompts = one.benchmark, prepared.prompts[one.benchmark.name]
    # vLLM mixes requests as it likes; the other engine's batches must not depend on what is finished.
    width = 1 if o.engine == "vllm" else max(1, o.max_sequences // b.samples)
    unfinished = [
        chunk for chunk in chunks(prompts, width)
        if any((judge.model, b.name, one.indices[i], j) not in finished for i in chunk for j in range(b.samples))
    ]  # fmt: skip
    mine = [i for chunk in unfinished[ranks.rank :: ranks.size] for i in chunk]
    sampling = SamplingParams(b.samples, b.temperature, b.max_tokens, b.top_p, b.top_k)
    seeds = [stable_seed(o.seed, EVALUATION, zlib.crc32(b.name.encode()), one.indices[i]) for i in mine]
    start, tokens = time.perf_counter(), 0
    sampled = 0  # of samples that are not finished too, as the engine tells them
    title = f"{judge.model} {b.name}" + (f" (rank 0 of {ranks.size})" if ranks.size > 1 else "")
    slow = TERMINAL if sys.stderr.isatty() else LOG
    bar = tqdm(total=len(mine) * b.samples, desc=title, unit="sample", disable=not ranks.main, mininterval=slow, miniters=0)

    def show(count: int) -> None:
        nonlocal sampled
        sampled += count
        bar.set_postfix_str(pace(sampled, tokens, bar.total - bar.n, b.max_tokens, time.perf_counter() - start), refresh=False)
        bar.update(0)

    engine.progress = show
    with bar:
        for place, samples in engine.generate([prompts[i].ids for i in mine], sampling, seeds):
            i = mine[place]
            judge.submit([response_of(i, j, prompts[i], sample, prepared.tokenizer) for j, sample in enumerate(samples)])
            judge.flush()
            tokens += sum(len(sample.ids) for sample in samples)
            bar.update(len(samples))
        judge.flush(wait=True)
    seconds = max(ranks.gather([time.perf_counter() - start]))
    tokens = sum(ranks.gather([tokens]))
    made = sum(len(chunk) for chunk in unfinished) * b.samples
    rate = round(tokens / max(seconds, 1e-9), 1)
    return {"samples": made, "of": len(prompts) * b.samples, "tokens": tokens, "seconds": round(seconds, 2),
            "tokens_per_second": rate}  # fmt: skip


def pace(sampled: int, finished: int, left: int, longest: int, seconds: float) -> str:
    """'1,024 tokens/s, at most 10:00 more': what the bar says while no sample is finished.

    sampled: tokens so far; finished: those of finished samples; left: samples that are not, of up to `longest` tokens each.
    """
    rate = sampled / max(seconds, 1e-9)
    if not rate:
        return ""
    return f"{rate:,.0f} tokens/s, at most {tqdm.format_interval(max(0, left * longest - (sampled - finished)) / rate)} more"


def response_of(place: int, number: int, prompt: Prompt, sample: Completion, tokenizer: Any) -> Response:
    """A sample as text."""
    text = tokenizer.decode(sample.ids, skip_special_tokens=True)
    return Response(place, number, prompt.text, text, len(sample.ids), sample.finish)
