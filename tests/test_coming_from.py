"""docs/coming-from-trl-and-verl.md names options and metrics of ours; all of them exist."""

import re

from minirl.config.command_line import THEIRS
from minirl.config.options import every_option
from tests.conftest import ROOT, every_metric

PAGE = (ROOT / "docs" / "coming-from-trl-and-verl.md").read_text(encoding="utf-8")


def ours(heading: str) -> list[str]:
    """The names in the column "minirl" of the table below `heading`."""
    table = PAGE.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line.startswith("|")]
    column = rows[0].index("minirl")
    assert all(len(row) == len(rows[0]) for row in rows)
    return [name for row in rows[2:] for name in re.findall(r"`([^`]+)`", row[column])]


def test_every_option_named_exists():
    known = {key for key, *_ in every_option()}
    values = {choice for _, _, about in every_option() for choice in about.get("choices", ())} | {"--run-dir"}
    headings = re.findall(r"^## (.+)$", PAGE, re.MULTILINE)
    named = [name for heading in headings if heading != "Metrics" for name in ours(heading)]
    assert len(set(named) & known) > 40
    assert not set(named) - known - values


def test_the_names_that_the_command_line_knows_are_the_page_s():
    """Those of the trainer itself (learning rate, steps, files) are everybody's and are not on the page."""
    options = {key for key, *_ in every_option()}
    rows = [line for line in PAGE.splitlines() if line.startswith("|")]
    paged = {theirs for theirs, ours in THEIRS.items() if any(f"`{ours}`" in row and f"{theirs}" in row for row in rows)}
    assert set(THEIRS.values()) <= options
    assert set(THEIRS) - paged <= {
        "learning_rate", "max_steps", "output_dir", "model_name_or_path", "train_files"
    }  # fmt: skip


def test_every_metric_named_exists():
    known = every_metric() | {"optimizer/lr", "time/step", "speed/tokens"}
    assert len(ours("Metrics")) > 15
    assert not set(ours("Metrics")) - known
