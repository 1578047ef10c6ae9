"""Accuracy and pass@k of checkpoints on benchmarks, with confidence intervals and differences between checkpoints.

    eval.py MODEL... --suite math --out DIR                       # a folder, a run folder of train.py, a Hub name, "embedded"
    eval.py before=PATH after=PATH --benchmark aime2025 --out DIR --engine vllm
    torchrun --nproc_per_node 8 eval.py MODEL --suite code --out DIR --engine vllm
    eval.py RUN@40 RUN@80 --suite math --out DIR                  # the checkpoints of a run after these steps
    eval.py MODEL --data my.jsonl --samples 8 --out DIR           # rows {problem, answer} or {prompt, tests, entry_point}
    eval.py --responses theirs.jsonl --benchmark gsm8k --out DIR  # responses that somebody else sampled
    eval.py --check --suite math --data-dir FOLDER --out DIR      # gold answers and canonical programs must all be right

DIR gets results.json, samples.jsonl, table.md, table.tex, pass_at_k.png and timing.json. The same command again resumes an
interrupted evaluation. Exit code 2: bad input; 1: an evaluation that failed, or a --check with a wrong answer.
See docs/evaluation.md.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from minirl.utils.interrupts import say_interrupts

if __name__ == "__main__":
    say_interrupts()

from minirl.utils.console import finish_stdout, is_main_process, leave, say

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin on a shared machine cost up to 46x
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


def command_line(argv: Sequence[str]) -> argparse.Namespace:
    """The options; ends the process for --help and for mistakes of form."""
    parser = argparse.ArgumentParser("eval.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help="PATH or LABEL=PATH; differences are taken to the first one")
    add("--out", type=Path, metavar="DIR", help="folder of the results")
    add("--suite", action="append", default=[], help="math, code, or one of yours; may be repeated")
    add("--benchmark", action="append", default=[], metavar="NAME", help="one benchmark; may be repeated")
    add("--data", action="append", default=[], metavar="FILE", help="a .jsonl or .parquet file as a benchmark of its own")
    add("--skip", action="append", default=[], metavar="NAME", help="leave a benchmark of the suite out")
    add("--benchmarks", type=Path, metavar="FILE.yaml", help="more records, as in configs/benchmarks.yaml")
    add("--data-dir", type=Path, metavar="FOLDER", help="where the data files are; what is not there is loaded from the Hub")
    add("--list", action="store_true", help="list the benchmarks")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of the chosen benchmarks: grader=mathruler",
    )
    add(
        "--as-published",
        action="store_true",
        help="the published setting where ours differs: grader mathruler, 1 sample of code",
    )
    add("--samples", type=int, help="responses to each problem, except of greedy benchmarks")
    add("--max-tokens", type=int, help="a response is cut after so many tokens")
    add(
        "--stop",
        action="append",
        default=[],
        metavar="TEXT",
        help="a response ends at the first token with this in it; repeatable",
    )
    add("--greedy", action="store_true", help="one response to each problem, at temperature 0")
    add("--k", type=int, action="append", default=[], help="further k of pass@k and maj@k; may be repeated")
    add("--limit", type=int, help="only the first N problems of each benchmark", metavar="N")
    add("--seed", type=int, default=0)
    add("--engine", choices=["transformers", "vllm"], default="transformers")
    add("--dtype", choices=["float32", "bfloat16"], help="default: bfloat16 on a GPU, float32 on a CPU")
    add("--revision", help="Hub revision of the models")
    add("--max-sequences", type=int, default=256, help="sequences decoded at once, a rank (256)")
    add("--gpu-memory", type=float, default=0.9, help="vLLM: share of the GPU's memory (0.9)")
    add("--workers", type=int, default=2, help="verifier processes, a rank (2)")
    add("--responses", type=Path, metavar="FILE", help="verify the responses of a .jsonl file; no model")
    add("--check", action="store_true", help="verify gold answers and canonical programs; no model")
    try:
        return parser.parse_args(argv)
    finally:
        finish_stdout()


if __name__ == "__main__":
    OPTIONS = command_line(sys.argv[1:])  # before torch is imported: help should not take seconds

import torch
import yaml

from minirl.evaluation import benchmarks, report, responses, running
from minirl.evaluation.benchmarks import Benchmark, Loaded
from minirl.evaluation.folder import Folder, versions, write_json
from minirl.evaluation.models import Model, close_engine, find_models, open_engine, prompts_of
from minirl.evaluation.published import PAPER, published
from minirl.utils.distributed import Ranks
from minirl.utils.errors import ConfigError, RunError, require
from minirl.verify.code.verifier import confinement
from minirl.verify.types import ERROR, RIGHT, VerifierError

CONFIG = Path(__file__).parent / "configs" / "benchmarks.yaml"


def evaluate(o: argparse.Namespace) -> int:
    """One evaluation, from the command line to the tables; returns the exit code."""
    # Whatever can be wrong with the input is found before a model is loaded.
    loaded = chosen(o)
    models: list[Model] = []
    given: responses.Given = {}
    if not o.models:
        loaded, given = responses.canonical(loaded) if o.check else responses.read_responses(o.responses, loaded)
    check_k(o, loaded)
    notes = [note for one in loaded for note in one.notes]
    if o.models:
        models = find_models(o.models, o.dtype or ("bfloat16" if torch.cuda.is_available() else "float32"), o.revision)
        prepared = {model.label: prompts_of(model, loaded, notes) for model in models}
        described = {m.label: m.description() | {"first_prompts": prepared[m.label].first()} for m in models}
        engine = {"name": o.engine, "max_sequences": o.max_sequences, "dtype": models[0].config.dtype, "stop": o.stop}
    else:
        described = {label: responses.description(o.responses) for label in given}
        engine = {"name": "none"}
    records = {one.benchmark.name: one.record() for one in loaded}
    manifest = {"seed": o.seed, "engine": engine, "versions": versions(), "models": described, "benchmarks": records}
    folder = Folder(o.out)
    if folder.check(manifest):
        notes.append(f"resuming the evaluation in {o.out}")
    if any(one.benchmark.verifier.name == "code" for one in loaded):
        notes.append(confinement())

    ranks = Ranks()
    for note in dict.fromkeys(notes) if ranks.main else ():
        say(note)
    timing: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        pools = running.open_pools(stack, loaded, o.workers)
        finished = folder.begin(manifest, ranks)

        def judge(one: Loaded, label: str) -> running.Judge:
            return running.Judge(pools[one.benchmark.name], one, label, folder.part(ranks.rank))

        for label, answers in given.items() if ranks.main else ():
            for one in loaded:
                judge(one, label).submit(answers[one.benchmark.name], finished)
        for model in models:
            if all((model.label, *key) in finished for one in loaded for key in one.wanted()):
                continue
            made = prepared[model.label]
            sampling_engine = open_engine(model, o, made, max(one.benchmark.sampling.max_tokens for one in loaded), ranks)
            timing[model.label] = {
                one.benchmark.name: running.sample_benchmark(sampling_engine, made, judge(one, model.label), finished, o, ranks)
                for one in loaded
            }
            close_engine(sampling_engine)
            del sampling_engine
    ranks.barrier()
    failed = finish(o, folder, manifest, loaded, timing) if ranks.main else False
    ranks.close()
    return int(failed)


def chosen(o: argparse.Namespace) -> list[Loaded]:
    """The benchmarks asked for, with their problems and the changes of the command line."""
    known = benchmarks.read_records(CONFIG) | (benchmarks.read_records(o.benchmarks) if o.benchmarks else {})
    if o.list:
        lines = []
        for name, b in known.items():
            way = f"{b.sampling.n:3} x T {b.sampling.temperature:g}  {b.metric:9}"
            lines.append(f"{name:20} {', '.join(b.suites) or '-':6} {way} {b.file or b.data.task} {b.hub}\n")
        finish_stdout("".join(lines))
        sys.exit(0)
    for file in o.data:
        b = benchmarks.from_file(file)
        require(b.name not in known, f"--data {file}: there is a benchmark {b.name} already; rename the file")
        known[b.name] = b
    found = benchmarks.select(known, o.suite, [*o.benchmark, *(Path(file).stem for file in o.data)], o.skip)
    require(bool(found), f"no benchmark is chosen: name some by --suite, --benchmark or --data; there are {', '.join(known)}")
    require(
        (o.check + bool(o.responses) + bool(o.models)) == 1,
        "name at least one MODEL, or verify given responses by --responses or --check without one",
    )
    sampling = [flag for flag in ("samples", "max_tokens", "greedy", "stop") if getattr(o, flag)]
    require(
        bool(o.models) or not sampling,
        f"--{''.join(sampling[:1]).replace('_', '-')} says how a model is sampled, and no MODEL is named: leave it out",
    )
    require(o.out is not None, "--out DIR is missing: where should the results go?")
    require(o.limit is None or o.limit > 0, f"--limit must be at least 1, not {o.limit}: no problem would be left")
    require(o.max_sequences > 0, f"--max-sequences must be at least 1, not {o.max_sequences}")
    require(all(o.stop), "--stop has an empty text, which every token contains: leave it out")
    require(o.seed >= 0, f"--seed must be at least 0, not {o.seed}")
    require(not o.data_dir or o.data_dir.is_dir(), f"--data-dir {o.data_dir} is no folder")
    require(os.environ.get("ACCELERATE_USE_DEEPSPEED") != "true", "evaluation needs no DeepSpeed: launch without its config")
    return [benchmarks.load(changed(b, o), o.data_dir, o.limit) for b in found]


def check_k(o: argparse.Namespace, loaded: Sequence[Loaded]) -> None:
    """ConfigError for a --k above the number of samples of some benchmark, or one that only greedy benchmarks could show."""
    remedy = "raise --samples" if o.models else "give more responses to each problem, or leave --k out"
    sizes = {one.benchmark.name: one.benchmark.sampling for one in loaded}
    for k in o.k:
        require(k > 0, f"--k must be at least 1, not {k}")
        lacking = [f"{s.n} samples of {name}" for name, s in sizes.items() if s.temperature and k > s.n]
        enough = any(k <= s.n for s in sizes.values())
        few = lacking[0] if lacking else "one greedy sample"
        require(enough and not lacking, f"--k {k} is not between 1 and the number of samples ({few}): {remedy}")


def changed(b: Benchmark, o: argparse.Namespace) -> Benchmark:
    """The record with the command line's changes."""
    changes: dict[str, Any] = dict(b.as_published) if o.as_published else {}
    for text in o.set:
        key, equals, value = text.partition("=")
        require(bool(equals), f"--set takes KEY=VALUE, not {text!r}")
        try:
            changes[key] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise ConfigError(f"--set {text}: the value is not valid YAML: {' '.join(str(error).split())}") from None
    if o.greedy:
        changes |= {"temperature": 0.0, "samples": 1, "metric": "accuracy"}
    if o.max_tokens is not None:
        changes["max_tokens"] = o.max_tokens
    if o.samples is not None and changes.get("temperature", b.sampling.temperature):
        changes["samples"] = o.samples
    return benchmarks.record(b.name, changes, b)


def finish(o: argparse.Namespace, folder: Folder, manifest: dict[str, Any], loaded: Sequence[Loaded], timing: Any) -> bool:
    """Writes results.json, the tables and the picture. Returns whether it is a --check and a response is not right."""
    labels = list(manifest["models"])
    rows = folder.merge([(label, *key) for label in labels for one in loaded for key in one.wanted()])
    paper_rows = [] if o.check else published([one.benchmark for one in loaded])
    found = report.results_of(loaded, labels, rows, o.k, o.seed)
    write_json(o.out / "results.json", manifest | found | {"published": {"source": PAPER, "rows": paper_rows}})
    shown = report.write_tables(o.out, found, loaded, paper_rows)
    if timing:
        write_json(o.out / "timing.json", timing)
    say(f"\n{shown}\n\n{len(rows)} samples judged, results in {o.out}")
    wrong = [row for row in rows.values() if row["status"] != RIGHT]
    errors = [row for row in wrong if row["status"] == ERROR]
    if errors:
        say(f"{len(errors)} samples have no verdict and are left out of all metrics")
    for row in wrong[:20] if o.check else errors[:3]:
        say(f"{row['status']}: {row['benchmark']} {row['problem']}: {row['label']} {row['detail']}")
    report.draw_pass_at_k(o.out / "pass_at_k.png", found, loaded)
    for label, entries in found["results"].items():
        for name, entry in entries.items():
            if not entry["counts"]["right"] + entry["counts"]["wrong"]:
                first = next(row for row in errors if (row["model"], row["benchmark"]) == (label, name))
                raise RunError(
                    f"no response of {label} to {name} has a verdict, the first because of {first['label']} {first['detail']}: "
                    f"mend that, then verify them again by --responses {o.out / 'samples.jsonl'} with another --out"
                )
    return o.check and bool(wrong)


def main(o: argparse.Namespace) -> int:
    """The exit code: 0 done, 2 bad input, 1 an evaluation or a check that failed."""
    try:
        return evaluate(o)
    except (ConfigError, RunError, VerifierError) as error:
        if is_main_process():
            print(f"eval.py: {error}", file=sys.stderr)
        return 1 if isinstance(error, RunError) else 2


if __name__ == "__main__":
    leave(main(OPTIONS))
