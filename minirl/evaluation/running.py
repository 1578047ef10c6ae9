"""Samples a model's responses to benchmarks and has them verified, over all ranks.

The randomness of a sample depends only on the seed, the benchmark, the problem and the number of the sample. With the
transformers engine on a CPU neither the number of ranks nor an interruption changes a bit, because batches stay the same.
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

from tqdm import tqdm

from minirl.evaluation.benchmarks import Loaded
from minirl.evaluation.folder import Key, Row
from minirl.evaluation.models import Prepared
from minirl.rollout.sampler import EVALUATION, Sampler, by_length, submit
from minirl.rollout.types import Engine
from minirl.utils.distributed import Ranks
from minirl.verify.pool.pool import VerifierPool
from minirl.verify.types import Verdict

TERMINAL, LOG = 1.0, 30.0  # seconds between two states of a progress bar


@dataclass(frozen=True)
class Response:
    """One response. problem: index into the benchmark's problems; tokens, finish: None where they are not known."""

    problem: int
    sample: int
    prompt: str
    text: str
    tokens: int | None
    finish: str | None


class Judge:
    """Has a model's responses to a benchmark verified, and appends their rows to the rank's file, whole problems at a time,
    while others are still sampled."""

    def __init__(self, pool: VerifierPool, one: Loaded, model: str, path: Path) -> None:
        self.pool, self.one, self.model, self.path = pool, one, model, path
        self.pending: list[list[tuple[Response, Future[Verdict]]]] = []

    def submit(self, responses: Sequence[Response], finished: set[Key]) -> None:
        """Verifies responses that somebody else sampled, except those that are finished."""
        for r in responses:
            if (self.model, self.one.benchmark.name, self.one.indices[r.problem], r.sample) not in finished:
                problem = self.one.problems[r.problem]
                facts = {"group": r.problem, "finish": r.finish, "tokens": r.tokens, "prompt": r.prompt, "raw": r.text}
                self.pending.append([(r, submit(self.pool, problem, r.text, facts))])
        self.flush(wait=True)

    def flush(self, wait: bool = False) -> None:
        """Writes the problems whose responses all have verdicts; waits for all of them if `wait`."""
        done: list[list[tuple[Response, Future[Verdict]]]] = []
        left: list[list[tuple[Response, Future[Verdict]]]] = []
        for group in self.pending:
            (done if wait or all(verdict.done() for _, verdict in group) else left).append(group)
        self.pending = left
        if done:
            rows = [self.row(response, verdict.result()) for group in done for response, verdict in group]
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def row(self, r: Response, verdict: Verdict) -> Row:
        """A line of samples.jsonl."""
        problem, index = self.one.problems[r.problem], self.one.indices[r.problem]
        return {
            "model": self.model, "benchmark": self.one.benchmark.name, "problem": problem.id, "index": index,
            "sample": r.sample, "prompt": r.prompt, "gold": problem.answer, "response": r.text, "status": verdict.status,
            "label": verdict.label, "key": verdict.key, "tokens": r.tokens, "finish": r.finish, "detail": verdict.detail,
        }  # fmt: skip


def open_pools(stack: ExitStack, loaded: Sequence[Loaded], workers: int) -> dict[str, VerifierPool]:
    """{benchmark: its verifier pool}, closed with `stack`; benchmarks with the same verifier share one. VerifierError for a
    verifier that does not work."""
    shared: dict[str, VerifierPool] = {}
    for v in [one.benchmark.verifier for one in loaded]:
        if repr(v) not in shared:
            shared[repr(v)] = stack.enter_context(VerifierPool(*v.pool(), workers, v.timeout))
    return {one.benchmark.name: shared[repr(one.benchmark.verifier)] for one in loaded}


def sample_benchmark(engine: Engine, prepared: Prepared, judge: Judge, finished: set[Key], o: Namespace, ranks: Ranks) -> Row:
    """Samples the unfinished problems of the judge's benchmark, those of this rank, and has them verified.

    Returns the samples made now by all ranks, of how many in total, and their tokens and seconds.
    """
    one, b = judge.one, judge.one.benchmark
    prompts = prepared.prompts[b.name]
    # vLLM mixes requests as it likes; the other engine's batches must not depend on which problems are finished.
    width = 1 if o.engine == "vllm" else max(1, o.max_sequences // b.sampling.n)
    order = by_length(prompts)
    unfinished = [
        batch for start in range(0, len(order), width) for batch in [order[start : start + width]]
        if any((judge.model, b.name, one.indices[i], j) not in finished for i in batch for j in range(b.sampling.n))
    ]  # fmt: skip
    mine = [i for batch in unfinished[ranks.rank :: ranks.size] for i in batch]
    part = [prompts[i] for i in mine], [one.indices[i] for i in mine]
    sampler = Sampler(engine, prepared.tokenizer, judge.pool, ranks, o.seed, o.stop)
    start, tokens = time.perf_counter(), 0
    sampled = 0  # tokens so far, those of unfinished samples included
    title = f"{judge.model} {b.name}" + (f" (rank 0 of {ranks.size})" if ranks.size > 1 else "")
    slow = TERMINAL if sys.stderr.isatty() else LOG
    bar = tqdm(total=len(mine) * b.sampling.n, desc=title, unit="sample", disable=not ranks.main, mininterval=slow, miniters=0)

    def show(count: int) -> None:
        nonlocal sampled
        sampled += count
        bar.set_postfix_str(
            pace(sampled, tokens, bar.total - bar.n, b.sampling.max_tokens, time.perf_counter() - start), refresh=False
        )
        bar.update(0)

    engine.progress = show
    with bar:
        for k, group in sampler.sample_groups(*part, b.sampling, (EVALUATION, zlib.crc32(b.name.encode()))):
            i = mine[k]
            judge.pending.append(
                [(Response(i, j, prompts[i].text, text, len(sample.ids), sample.finish), verdict)
                 for j, (sample, text, verdict) in enumerate(group)]
            )  # fmt: skip
            judge.flush()
            tokens += sum(len(sample.ids) for sample, *_ in group)
            bar.update(len(group))
        judge.flush(wait=True)
    seconds = max(ranks.gather([time.perf_counter() - start]))
    tokens = sum(ranks.gather([tokens]))
    return {"samples": sum(map(len, unfinished)) * b.sampling.n, "of": len(prompts) * b.sampling.n, "tokens": tokens,
            "seconds": round(seconds, 2), "tokens_per_second": round(tokens / max(seconds, 1e-9), 1)}  # fmt: skip


def pace(sampled: int, finished: int, left: int, longest: int, seconds: float) -> str:
    """'1,024 tokens/s, at most 10:00 more', for the progress bar while no sample is finished.

    sampled: tokens so far; finished: those of finished samples; left: unfinished samples, of up to `longest` tokens each.
    """
    rate = sampled / max(seconds, 1e-9)
    if not rate:
        return ""
    return f"{rate:,.0f} tokens/s, at most {tqdm.format_interval(max(0, left * longest - (sampled - finished)) / rate)} more"
