"""A case study: the wrong responses to one problem by class, each with its size, its share and an excerpt."""

from collections.abc import Mapping
from typing import Any

from minirl.analysis.output import Table
from minirl.analysis.samples import Attempts, Problems
from minirl.utils.errors import ConfigError

EXCERPT = 400  # characters


def interesting(attempts: Attempts) -> tuple[int, int]:
    """What a problem is chosen by: its classes with at least two responses, if there is a second class; then its wrong
    responses."""
    sizes = [len(rows) for rows in classes(attempts).values()]
    return sum(size > 1 for size in sizes) if len(sizes) > 1 else 0, len(attempts.wrong)


def classes(attempts: Attempts) -> dict[str, list[dict[str, Any]]]:
    """{class: its wrong responses}, the largest first, equal ones in the order of their first response."""
    found: dict[str, list[dict[str, Any]]] = {}
    for row in attempts.wrong:
        found.setdefault(row["label"], []).append(row)
    return dict(sorted(found.items(), key=lambda item: -len(item[1])))


def excerpt(text: str, longest: int = EXCERPT) -> str:
    """The end of a response, where the answer is, of at most `longest` characters; its beginning is cut at a word."""
    text = text.strip()
    if len(text) <= longest:
        return text
    return f"[...] {text[-longest:].partition(' ')[2] or text[-longest:]}"


def analyse(models: Mapping[str, Problems], problem: str | None) -> dict[str, Any]:
    """The case: `problem` by its id (or "BENCHMARK ID"), else the most interesting one of the first model, the first on a tie.
    ConfigError when there is no such problem, or when nothing is wrong in it."""
    first = next(iter(models.values()))
    if problem is None:
        key = max(first, key=lambda key: interesting(first[key]))
    else:
        keys = [k for p in models.values() for k, a in p.items() if problem in (a.name, a.samples[0]["problem"])]
        if not keys:
            raise ConfigError(f"no problem is called {problem!r}: there are {next(iter(first.values())).name!r} and others")
        if len({benchmark for benchmark, _ in keys}) > 1:
            raise ConfigError(f"several benchmarks have a problem {problem!r}: write the benchmark before it")
        key = keys[0]
    found = {label: problems[key] for label, problems in models.items() if key in problems}
    if not any(attempts.wrong for attempts in found.values()):
        raise ConfigError(
            f"{next(iter(found.values())).name} has no wrong response with an error class: name another --problem"
        )
    row = next(iter(found.values())).samples[0]
    return {
        "problem": next(iter(found.values())).name,
        "chosen": problem is None,
        "prompt": row["prompt"],
        "gold": row["gold"],
        "models": {
            label: {
                "samples": attempts.judged,
                "right": len(attempts.right),
                "wrong": len(attempts.wrong),
                "classes": [
                    {"class": label, "responses": len(rows), "share": len(rows) / len(attempts.wrong),
                     "sample": rows[0]["sample"], "excerpt": excerpt(rows[0]["response"])}
                    for label, rows in classes(attempts).items()
                ],
            }
            for label, attempts in found.items()
        },
    }  # fmt: skip


def tables(result: Mapping[str, Any]) -> list[str | Table]:
    """The problem, and for each model its classes and an excerpt of each."""
    rule = (
        "Chosen because it has the most classes of two or more wrong responses among problems with several classes, then the "
        "most wrong responses."
    )
    single = all(len(found["classes"]) < 2 for found in result["models"].values())
    blocks: list[str | Table] = [
        *(["Not to be read from it: how errors differ. All its wrong responses are of one class."] if single else []),
        f"Problem {result['problem']}, right answer `{result['gold']}`." + f" {rule}" * result["chosen"],
        quoted(result["prompt"]),
    ]
    for model, found in result["models"].items():
        table: Table = [["wrong answer", "responses", "share, %"]]
        table += [[c["class"], str(c["responses"]), f"{100 * c['share']:.1f}"] for c in found["classes"]]
        blocks += [
            f"## {model}: {found['wrong']} of {found['samples']} responses wrong, {len(found['classes'])} classes",
            table,
        ]
        for c in found["classes"]:
            blocks += [f"`{c['class']}` ({c['responses']} of {found['wrong']}), the end of sample {c['sample']}:"]
            blocks += [quoted(c["excerpt"])]
    return blocks


def quoted(text: str) -> str:
    """A text as a Markdown block that shows it as it is."""
    return "\n".join(f"    {line}" for line in text.splitlines()) or "    (empty)"


def draw(result: Mapping[str, Any], plt: Any) -> Any:
    """The figure. plt: matplotlib.pyplot."""
    models = result["models"]
    tallest = max(len(found["classes"]) for found in models.values())
    size = (5.5 * len(models), min(12, 1.5 + 0.35 * tallest))
    figure, axes = plt.subplots(1, len(models), figsize=size, layout="constrained", squeeze=False)
    for axis, (model, found) in zip(axes.flat, models.items(), strict=True):
        names = [c["class"][:40].replace("$", r"\$") for c in found["classes"]]
        axis.barh(range(len(names)), [100 * c["share"] for c in found["classes"]], color="C3")
        axis.set_yticks(range(len(names)), names, fontsize=8)
        axis.invert_yaxis()
        axis.set(title=f"{model}: {found['wrong']} of {found['samples']} wrong", xlabel="share of the wrong responses, %")
    figure.suptitle(result["problem"].replace("$", r"\$"))
    return figure
