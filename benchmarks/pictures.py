"""The pictures of README.md and docs/reading-metrics.md, from real runs of the embedded model: a healthy one and sick ones.

    python -m benchmarks.pictures        # runs: runs/pictures, one or two minutes of an idle core each; PNGs: docs/images

A finished run is not made again. Prints what each run says of itself. The picture of a group is the page of the run
(python -m minirl.view) in a headless Chromium; without one it is left as it is.
"""

import argparse
import contextlib
import copy
import io
import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import ROOT

IMAGES = ROOT / "docs" / "images"
GROUP = (6, 352)  # step and draw number: four right, 35 four times, 80 and 65 once
HEALTHY, SICK = "#2459c7", "#b42332"
# For the screenshot: of the page only the group, its classes in two columns.
ONLY_GROUP = """<style>header, h2, #notes, #picker, section:not([aria-labelledby=h-groups]), #foot { display: none !important }
#group > div { columns: 2; column-gap: 12px } #group .card { break-inside: avoid; margin: 0 0 8px }</style>"""


def zeros(problem: Any, response: str, rollout: Any) -> float:
    """A reward that can be farmed: for each zero that is written."""
    return response.count("0") / 3


@dataclass(frozen=True)
class Case:
    """A sick run: what is changed, the diagnosis that it should get, and the metrics that show it."""

    options: list[str]
    metrics: list[str]
    lost_pushes: bool = False


CASES = {
    "learning rate too high": Case(["--optimizer.lr=4e-3"], ["policy/approx_kl", "reward/accuracy", "optimizer/grad_norm"]),
    "reward hacking": Case(
        ["--run.steps=30", f"--verifier.rewards=[[{__file__}:zeros, 2.0]]"],
        ["reward/mean", "reward/accuracy", "policy/entropy"],
    ),
    "truncation": Case(["--rollout.max_response_tokens=17"], ["response/truncated", "response/no_answer", "reward/accuracy"]),
    "stale weights": Case([], ["policy/rollout_logprob_diff_mean", "reward/accuracy", "policy/clip_low"], lost_pushes=True),
}


@contextlib.contextmanager
def engines_that_lose_pushes() -> Iterator[None]:
    """While it lasts, an engine samples with the weights that it began with, and believes that it has the new ones."""
    from minirl.run import lifecycle

    build = lifecycle.build_engine

    def spoilt(*arguments: Any) -> Any:
        engine: Any = build(*arguments)
        engine.model = copy.deepcopy(engine.model)
        engine.sync = lambda policy: setattr(engine, "version", policy.version)
        return engine

    lifecycle.build_engine = spoilt
    try:
        yield
    finally:
        lifecycle.build_engine = build


def metrics_of(folder: Path, options: list[str], lost_pushes: bool = False) -> list[dict[str, float]]:
    """The metrics of a run with these options, which is made if it is not there; prints its diagnoses."""
    import train
    from minirl.config.command_line import load
    from minirl.watch.diagnoses import diagnose

    config = load([*options, "--run-dir", str(folder)])
    with engines_that_lose_pushes() if lost_pushes else contextlib.nullcontext():
        code = train.main(config)
    if code == 2:
        raise SystemExit(f"{folder} holds another run: remove it")
    history = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    for found in diagnose(history, config):
        print(f"== {folder.name}: step {found.step}, {found.name}: {found.text}")
    return history


def draw(case: Case, healthy: list[dict[str, float]], sick: list[dict[str, float]], out: Path) -> None:
    """The metrics of a case, of the sick run and of the healthy one, side by side."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 2.3), layout="constrained")
    for axis, name in zip(figure.subplots(1, len(case.metrics)), case.metrics, strict=True):
        for label, rows, colour in (("healthy", healthy[: len(sick)], HEALTHY), ("sick", sick, SICK)):
            axis.plot([row["step"] for row in rows], [row[name] for row in rows], color=colour, label=label, linewidth=1.3)
        axis.set_title(name, fontsize=9)
        axis.set_xlabel("step", fontsize=8)
        axis.tick_params(labelsize=8)
    figure.axes[0].legend(fontsize=8)
    picture = io.BytesIO()
    figure.savefig(picture, dpi=100)
    save(picture.getvalue(), out)


def group_picture(run: Path, out: Path) -> None:
    """A screenshot of one group on the page of a run, cut to what is on it."""
    from PIL import Image, ImageChops

    browser = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
    if browser is None:
        print(f"no Chromium: {out} is left as it is")
        return
    from minirl.view.__main__ import main as view

    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder) / "view.html", Path(folder) / "shot.png"
        view([str(run), "--out", str(page)])
        page.write_text(page.read_text(encoding="utf-8").replace("</head>", f"{ONLY_GROUP}</head>", 1), encoding="utf-8")
        address = f"{page.as_uri()}#step={GROUP[0]}&group={GROUP[1]}&run=0&colour=advantage"
        command = [
            browser, "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1000,2400",
            "--virtual-time-budget=10000", f"--user-data-dir={folder}/profile", f"--screenshot={shot}", address,
        ]  # fmt: skip
        subprocess.run(command, check=True, capture_output=True, timeout=120)
        with Image.open(shot) as image:
            picture = image.convert("RGB")
    ground = Image.new("RGB", picture.size, picture.getpixel((2, picture.height - 2)))
    _, _, _, bottom = ImageChops.difference(picture, ground).getbbox() or (0, 0, 0, picture.height)
    cut = io.BytesIO()
    picture.crop((0, 0, picture.width, min(picture.height, bottom + 12))).save(cut, "PNG")
    save(cut.getvalue(), out)


def save(picture: bytes, out: Path) -> None:
    """Writes a PNG with at most 128 colours, which is a third of the size."""
    from PIL import Image

    out.parent.mkdir(parents=True, exist_ok=True)
    with Image.open(io.BytesIO(picture)) as image:
        image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(out, optimize=True)
    print(f"{out}: {out.stat().st_size / 1000:.0f} kB")


def main() -> None:
    """Makes the runs and the pictures."""
    parser = argparse.ArgumentParser("python -m benchmarks.pictures", description=__doc__)
    parser.add_argument("--runs", type=Path, default=Path("runs/pictures"), help="folder of the runs")
    arguments = parser.parse_args()
    healthy = metrics_of(arguments.runs / "healthy", [])
    save((arguments.runs / "healthy" / "curves.png").read_bytes(), IMAGES / "run.png")
    group_picture(arguments.runs / "healthy", IMAGES / "group.png")
    short = [
        "--run.steps=20", "--eval.every=0", "--eval.problems=16", "--run.save_every=0", "--run.save_rollouts=0",
        "--rollout.max_generation_batches=2", "--rollout.logprob_diff_stop=100",
    ]  # fmt: skip
    for name, case in CASES.items():
        file = name.replace(" ", "-")
        sick = metrics_of(arguments.runs / file, [*short, *case.options], case.lost_pushes)
        draw(case, healthy, sick, IMAGES / f"{file}.png")


if __name__ == "__main__":
    main()
