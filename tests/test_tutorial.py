"""Every command of the tutorial, in order, in an empty folder; the runs are made short."""

import re
import shlex
import subprocess
import sys

import pytest

from tests.conftest import ROOT

COMMANDS = [
    line for block in re.findall(r"```bash\n(.*?)```", (ROOT / "docs" / "tutorial.md").read_text(), flags=re.S)
    for line in block.splitlines() if line.strip()
]  # fmt: skip
SHORT = [
    "--rollout.prompts=8", "--algorithm.mini_batch_prompts=8", "--eval.problems=16", "--eval.samples=8", "--eval.every=0",
]  # fmt: skip
# What is shortened; the number of steps of the first run stays above the step that is replayed.
CHANGES = {"train.py --run-dir": [*SHORT, "--run.steps=6", "--run.save_every=4"], "minirl.ablate": SHORT}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_commands_of_the_tutorial_run_in_order(tmp_path):
    assert len(COMMANDS) == 5
    for line in COMMANDS:
        assert line.startswith("python "), line
        extra = next((more for part, more in CHANGES.items() if part in line), [])
        if "minirl.ablate" in line:
            line = line.replace("steps=20", "steps=2").replace("--seeds 3", "--seeds 1")
        line = line.replace("step51", "step5")
        command = [sys.executable, *shlex.split(line)[1:], *extra]
        command = [str(ROOT / "train.py") if part == "train.py" else part for part in command]
        found = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=400)
        assert found.returncode == 0, f"{line}\n{found.stdout[-3000:]}\n{found.stderr[-3000:]}"
    made = {"first.html", "both.html", "runs/first/report.md", "runs/compare/report.html", "runs/first/microscope/step5"}
    assert all((tmp_path / path).exists() for path in made)


def test_the_tutorials_links_lead_somewhere():
    text = (ROOT / "docs" / "tutorial.md").read_text()
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert (ROOT / "docs" / target).exists(), target
