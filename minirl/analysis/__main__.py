"""The paper's analyses: each gives a table (console, NAME.md, NAME.json) and a picture (NAME.png) in --out.

    python -m minirl.analysis diversity     EVAL... [--before LABEL] [--after LABEL]    error diversity against improvement
    python -m minirl.analysis breakthroughs EVAL... [--before LABEL] [--after LABEL]    problems at 0/n that are solved after
    python -m minirl.analysis case          EVAL... [--problem ID]                      one problem's wrong answers, excerpts
    python -m minirl.analysis dynamics      RUN RUN... [--problems N]                   training dynamics of runs
    python -m minirl.analysis ngrams        EVAL...                                     3-gram similarity in and between classes
    python -m minirl.analysis judge         EVAL... --endpoint URL --judge MODEL        an LLM on shared error roots
    python -m minirl.analysis embeddings    EVAL... --embedder MODEL                    cosines of deceptive pairs and triples
    python -m minirl.analysis paper                                                     the arithmetic of the published tables
    python -m minirl.analysis ranking       MICROSCOPE RESULTS.json                     what a microscope saw against results

EVAL: a folder of eval.py, its samples.jsonl, or (not for the first two) a run folder of train.py; LABEL=PATH renames its model.
RUN: a run folder of train.py, LABEL=FOLDER; folders with one label are seeds of one method. Exit code 2: bad input. See
docs/analysis.md.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from minirl.utils.console import finish_stdout
from minirl.utils.errors import ConfigError


def command_line(argv: Sequence[str] | None) -> argparse.Namespace:
    """The options of one analysis."""
    parser = argparse.ArgumentParser(
        "python -m minirl.analysis", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    made = {}
    for name in ("diversity", "breakthroughs", "case", "dynamics", "ngrams", "judge", "embeddings", "paper", "ranking"):
        made[name] = commands.add_parser(name, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
        made[name].add_argument("--out", type=Path, default=Path("analysis"), metavar="DIR", help="folder of the results")
        if name not in ("case", "dynamics", "paper", "ranking"):
            made[name].add_argument("--seed", type=int, default=0, help="of intervals and of chosen pairs")
        if name not in ("paper", "ranking"):
            made[name].add_argument("inputs", nargs="+", metavar="RUN" if name == "dynamics" else "EVAL")
    made["ranking"].add_argument("microscope", type=Path, metavar="MICROSCOPE", help="RUN/microscope/stepN")
    made["ranking"].add_argument(
        "results", type=Path, metavar="RESULTS.json", help='of minirl.ablate, or {"estimator": accuracy, ...}'
    )
    for name in ("diversity", "breakthroughs"):
        made[name].add_argument("--before", metavar="LABEL", help="the model before training; the first one otherwise")
        made[name].add_argument(
            "--after", action="append", default=[], metavar="LABEL", help="a model after training; all others otherwise"
        )
    for name in ("case", "ngrams", "judge", "embeddings"):
        made[name].add_argument(
            "--model", action="append", default=[], metavar="LABEL", help="only this model; may be repeated"
        )
        made[name].add_argument("--answers-only", action="store_true", help="leave out wrong responses without an answer")
    made["case"].add_argument("--problem", metavar="ID", help="its id, or 'BENCHMARK ID'; else one with many classes")
    made["dynamics"].add_argument("--problems", type=int, metavar="N", help="training problems in an epoch, for means by epoch")
    add = made["embeddings"].add_argument
    add("--embedder", required=True, metavar="MODEL", help="sentence-embedding model: a Hugging Face folder or name")
    add("--threshold", type=float, default=0.95, help="cosine above which a clustering would merge")
    add("--text", choices=["response", "answer"], default="response", help="embed whole responses or canonical answers")
    add = made["judge"].add_argument
    add("--endpoint", default=os.environ.get("OPENAI_BASE_URL"), metavar="URL", help="such as http://localhost:8000/v1")
    add("--judge", required=True, metavar="MODEL", help="its name at the endpoint")
    add("--key-variable", default="OPENAI_API_KEY", metavar="NAME", help="environment variable with the key")
    add("--prompt", choices=["ours", "paper"], default="ours", help="the question; paper: with the paper's pairs")
    add("--pairs", type=int, default=3, help="at most so many pairs of one class, and of two, a problem; not of --prompt paper")
    add("--max-chars", type=int, default=24_000, help="longer responses lose their middle")
    add("--request", type=json.loads, default={}, metavar="JSON",
        help='changes of the request, as {"max_tokens": null, "max_completion_tokens": 4096}')  # fmt: skip
    add("--timeout", type=float, default=120.0, help="seconds for an answer")
    add("--retries", type=int, default=5, help="further tries after 429, 5xx, timeouts and broken connections")
    add("--workers", type=int, default=4, help="requests at a time")
    add("--dry-run", action="store_true", help="print what it would cost in tokens; ask nothing")
    return parser.parse_args(argv)


def run(o: argparse.Namespace) -> None:
    """One analysis. Imports late: help should not take seconds."""
    from minirl.analysis import (
        breakthroughs,
        case,
        diversity,
        dynamics,
        embeddings,
        judge,
        ngrams,
        output,
        paper,
        ranking,
        samples,
    )  # fmt: skip

    if o.name == "paper":
        output.save(o.out, "The paper's arithmetic", paper, paper.analyse())
    elif o.name == "ranking":
        output.save(o.out, "Did the microscope predict it?", ranking, ranking.analyse(*ranking.load(o.microscope, o.results)))
    elif o.name == "dynamics":
        output.save(o.out, "Training dynamics", dynamics, dynamics.analyse(*dynamics.load_runs(o.inputs), o.problems))
    elif o.name in ("diversity", "breakthroughs"):
        before, base, methods = samples.before_and_after(samples.load(o.inputs), o.before, o.after)
        module = diversity if o.name == "diversity" else breakthroughs
        title = "Error diversity and improvement" if o.name == "diversity" else "Breakthroughs"
        output.save(o.out, f"{title}: from {before} to {', '.join(methods)}", module, module.analyse(base, methods, o.seed))
    else:
        models = samples.chosen(samples.load(o.inputs), o.model)
        if o.answers_only:
            models = samples.answered(models)
        if o.name == "case":
            output.save(o.out, "Case study", case, case.analyse(models, o.problem))
        elif o.name == "ngrams":
            output.save(o.out, "3-gram similarity of wrong responses", ngrams, ngrams.analyse(models, o.seed))
        elif o.name == "embeddings":
            found = embeddings.analyse(models, embeddings.Embedder(o.embedder), o.threshold, o.text, o.seed)
            output.save(o.out, f"Embeddings by {o.embedder}", embeddings, found | {"embedder": o.embedder})
        elif judged := judge.run(o, models):
            output.save(o.out, f"Shared error roots, judged by {o.judge}", judge, judged)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0, or 2 for bad input."""
    try:
        run(command_line(argv))
    except ConfigError as error:
        print(f"minirl.analysis: {error}", file=sys.stderr)
        return 2
    finally:
        finish_stdout()
    return 0


if __name__ == "__main__":
    sys.exit(main())
