"""Accuracy and pass@k of checkpoints on benchmarks, with intervals, differences and everything that a reader must know.

    eval.py MODEL... --suite math --out DIR                     # a folder, a run folder of train.py, a Hub name, "embedded"
    eval.py before=PATH after=PATH --benchmark aime2025 --out DIR --engine vllm
    torchrun --nproc_per_node 8 eval.py MODEL --suite code --out DIR --engine vllm
    eval.py MODEL --data my.jsonl --samples 8 --out DIR         # rows {problem, answer} or {prompt, tests, entry_point}
    eval.py --responses theirs.jsonl --benchmark gsm8k --out DIR  # judge responses that somebody else sampled
    eval.py --check --suite math --data-dir FOLDER --out DIR    # gold answers and canonical programs must all be right

DIR gets results.json, samples.jsonl, table.md, table.tex, pass_at_k.png and timing.json. The same command again goes on where
it was interrupted. Exit code 2 for bad input, 1 for a run that could not go on (or a --check that fails). See docs/evaluation.md.
"""

import argparse
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that spin on a shared machine cost up to 46x
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from minirl.config import ConfigError, RunError, read_yaml, require
from minirl.distributed import is_main_process
from minirl.evaluation import benchmarks as records
from minirl.evaluation.benchmarks import Benchmark, Loaded

CONFIG = Path(__file__).parent / "configs" / "benchmarks.yaml"


def command_line(argv: Sequence[str]) -> argparse.Namespace:
    """The options; argparse ends the process for --help and for mistakes of form."""
    assert __doc__ is not None
    parser = argparse.ArgumentParser("eval.py", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("models", nargs="*", metavar="MODEL", help="PATH or LABEL=PATH; differences are taken to the first one")
    add("--out", type=Path, help="folder of the results")
    add("--suite", action="append", default=[], help="math or code, or one of yours; may be repeated")
    add("--benchmark", action="append", default=[], metavar="NAME", help="one benchmark; may be repeated")
    add("--data", action="append", default=[], metavar="FILE", help="a .jsonl or .parquet file as a benchmark of its own")
    add("--skip", action="append", default=[], metavar="NAME", help="leave a benchmark of the suite out")
    add("--benchmarks", type=Path, metavar="FILE.yaml", help="more records, as in configs/benchmarks.yaml")
    add("--data-dir", type=Path, metavar="FOLDER", help="where the files of the records are; else the Hub is asked")
    add("--list", action="store_true", help="say which benchmarks there are")
    add(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="change a key of all chosen records, e.g. grader=mathruler",
    )
    add("--samples", type=int, help="responses to each problem, but for greedy benchmarks")
    add("--max-tokens", type=int, help="longest response")
    add("--greedy", action="store_true", help="one response at temperature 0, everywhere")
    add("--k", type=int, action="append", default=[], help="further k of pass@k and maj@k; may be repeated")
    add("--limit", type=int, help="only the first so many problems of each benchmark")
    add("--seed", type=int, default=0)
    add("--engine", choices=["transformers", "vllm"], default="transformers")
    add("--dtype", choices=["float32", "bfloat16"], help="default: bfloat16 on a GPU, float32 on a CPU")
    add("--revision", help="Hub revision of the models")
    add("--max-sequences", type=int, default=256, help="sequences decoded at once, a rank (256)")
    add("--gpu-memory", type=float, default=0.9, help="vLLM: share of the GPU's memory (0.9)")
    add("--workers", type=int, default=2, help="verifier processes, a rank (2)")
    add("--responses", type=Path, metavar="FILE", help="judge the responses of a .jsonl file; no model")
    add("--check", action="store_true", help="judge gold answers and canonical programs; no model")
    return parser.parse_args(argv)


def chosen(o: argparse.Namespace) -> list[Loaded]:
    """The benchmarks asked for, with their problems and the changes of the command line."""
    known = records.read_records(CONFIG) | (records.read_records(o.benchmarks) if o.benchmarks else {})
    if o.list:
        for name, b in known.items():
            print(
                f"{name:20} {', '.join(b.suites) or '-':6} {b.samples:3} x T {b.temperature:g}  {b.metric:9} {b.file or b.task} {b.hub}"
            )
        sys.exit(0)
    for file in o.data:
        b = records.from_file(file)
        known[b.name] = b
        o.benchmark.append(b.name)
    found = records.select(known, o.suite, o.benchmark, o.skip)
    require(bool(found), f"no benchmark is chosen: name some by --suite, --benchmark or --data; there are {', '.join(known)}")
    require(o.limit is None or o.limit > 0, f"--limit must be at least 1, not {o.limit}: no problem would be left")
    require(not o.data_dir or o.data_dir.is_dir(), f"--data-dir {o.data_dir} is no folder")
    return [records.load(changed(b, o), o.data_dir, o.limit) for b in found]


def changed(b: Benchmark, o: argparse.Namespace) -> Benchmark:
    """The record with the command line's changes, checked."""
    import yaml

    changes: dict[str, Any] = {}
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
    if o.samples is not None and changes.get("temperature", b.temperature):
        changes["samples"] = o.samples
    made = records.record(b.name, changes, b)
    for k in o.k:
        require(k >= 1, f"--k must be at least 1, not {k}")
        require(
            k <= made.samples or not made.temperature,
            f"--k {k} is more than the {made.samples} samples of {b.name}: raise --samples",
        )
    return made


def main(o: argparse.Namespace) -> int:
    """The exit code: 0 done, 2 bad input, 1 a run that could not go on."""
    from minirl.verify import VerifierError

    try:
        return evaluate(o)
    except (ConfigError, RunError, VerifierError) as error:
        if is_main_process():
            print(f"eval.py: {error}", file=sys.stderr)
        return 1 if isinstance(error, RunError) else 2


def evaluate(o: argparse.Namespace) -> int:
    """One evaluation, from the command line to the tables."""
    loaded = chosen(o)
    require(o.out is not None, "--out DIR is missing: where should the results go?")
    given = o.responses is not None or o.check
    require(given != bool(o.models), "name at least one MODEL, or judge given responses by --responses or --check without one")
    require(os.environ.get("ACCELERATE_USE_DEEPSPEED") != "true", "evaluation needs no DeepSpeed: launch without its config")

    from minirl.evaluation import report, running
    from minirl.report import say
    from minirl.verify.code import confinement

    notes = [note for one in loaded for note in one.notes]
    models: list[running.Model] = []
    prepared: dict[str, tuple[Any, dict[str, list[Any]], list[str]]] = {}
    if given:
        loaded, answers = running.canonical(loaded) if o.check else running.read_responses(o.responses, loaded)
        labels = list(answers)
    else:
        import torch

        models = running.find_models(o.models, o.dtype or ("bfloat16" if torch.cuda.is_available() else "float32"), o.revision)
        labels = [m.label for m in models]
        for model in models:
            prepared[model.label] = running.prompts_of(model, loaded)
            notes += prepared[model.label][2]
    manifest: dict[str, Any] = {
        "seed": o.seed, "versions": running.versions(), "benchmarks": {one.benchmark.name: one.record() for one in loaded},
        "engine": {"name": "none"} if given else
        {"name": o.engine, "max_sequences": o.max_sequences, "dtype": models[0].config.dtype},
        "models": {label: {"responses": o.responses.name if o.responses else "canonical"} for label in labels} if given else
        {m.label: {"path": m.config.path, "sha256": running.fingerprint(m), "first_prompts": {
            name: prompts[0].text for name, prompts in prepared[m.label][1].items()}} for m in models},
    }  # fmt: skip
    folder = running.Folder(o.out)
    begun = folder.check(manifest)
    ranks = running.Ranks()
    if ranks.main:
        for line in (*dict.fromkeys(notes), *([f"going on in {o.out}"] if begun else [])):
            say(line)
        if any(one.benchmark.verifier == "code" for one in loaded):
            say(confinement())
    finished = folder.begin(manifest, ranks)
    timing: dict[str, dict[str, Any]] = {}
    with ExitStack() as stack:
        judges = running.Judges(stack, o.workers, o.out / f"samples.rank{ranks.rank}.jsonl")
        if given and ranks.main:
            for label in labels:
                for one in loaded:
                    running.judge_responses(judges.of(one, label), answers[label][one.benchmark.name], finished)
        for model in models:
            tokenizer, prompts, _ = prepared[model.label]
            if not running.missing(model, loaded, finished):
                continue
            longest = (max(len(p.ids) for ps in prompts.values() for p in ps), max(one.benchmark.max_tokens for one in loaded))
            engine = running.open_engine(model, o.engine, o.max_sequences, o.gpu_memory, longest, tokenizer, ranks)
            for one in loaded:
                width = running.batch_width(o.engine, one.benchmark, o.max_sequences)
                spent = running.sample_benchmark(
                    engine, tokenizer, one, prompts[one.benchmark.name], judges.of(one, model.label), finished, width, o.seed,
                    ranks,
                )  # fmt: skip
                timing.setdefault(model.label, {})[one.benchmark.name] = running.speed(spent, ranks)
            running.close_engine(engine)
            del engine
    ranks.barrier()
    wrong = finish(o, folder, manifest, labels, loaded, timing, report, say) if ranks.main else 0
    ranks.close()
    return int(o.check and wrong > 0)


def finish(
    o: argparse.Namespace, folder: Any, manifest: Mapping[str, Any], labels: Sequence[str], loaded: Sequence[Loaded],
    timing: Mapping[str, Any], report: Any, say: Any,
) -> int:  # fmt: skip
    """Writes what the evaluation says; returns how many samples were not right."""
    from minirl.evaluation.running import write_json

    wanted = [(label, *key) for label in labels for one in loaded for key in one.wanted()]
    rows = folder.merge(wanted)
    published = read_yaml(CONFIG)["published"]
    found = report.results_of(loaded, labels, rows, o.k, o.seed)
    write_json(o.out / "results.json", {**manifest, **found, "published": {"source": report.PAPER, "averages": published}})
    shown = report.write_tables(o.out, found, loaded, published)
    report.draw_pass_at_k(o.out / "pass_at_k.png", found, loaded)
    if timing:
        write_json(o.out / "timing.json", timing)
    wrong = [row for row in rows.values() if row["status"] != "right"]
    errors = [row for row in wrong if row["status"] == "error"]
    say(f"\n{shown}\n\n{len(rows)} samples judged, results in {o.out}")
    for row in errors[:3]:
        say(f"no verdict on {row['benchmark']} {row['problem']}: {row['detail']}")
    if errors:
        say(f"{len(errors)} samples have no verdict and count nowhere")
    for row in wrong[: 10 if o.check else 0]:
        say(f"not right: {row['benchmark']} {row['problem']}: {row['status']} {row['label']} {row['detail']}")
    return len(wrong)


if __name__ == "__main__":
    sys.exit(main(command_line(sys.argv[1:])))
