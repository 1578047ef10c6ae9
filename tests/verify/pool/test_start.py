"""Workers and sandboxes start whatever files the user keeps in the working folder or beside the package."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
NAMES = (
    "random",
    "signal",
    "token",
    "types",
    "json",
    "socket",
    "pickle",
    "ast",
    "select",
    "math",
    "minirl",
    "fractions",
    "copy",
)
SCRIPT = """
import sys
sys.path.append(sys.argv[1])
from minirl.verify.pool.pool import VerifierPool
from minirl.verify.types import Problem
if __name__ == "__main__":
    for name, response in (("code", "```python\\ndef f(x): return x\\n```"), ("math", "\\\\boxed{1}"), ("grade.py:grade", "1")):
        with VerifierPool(name, workers=1, timeout=20.0) as pool:
            problem = Problem("p", "", "1", {"tests": "import random\\nassert f(1) == 1", "entry_point": "f"})
            print(name, pool.grade([(problem, response)])[0].status)
"""


def poison(folder):
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"raise SystemExit('the wrong {name}')")


@pytest.mark.parametrize("place", ["the working folder", "beside the package"])
def test_files_with_the_names_of_pythons_own_modules_do_no_harm(tmp_path, place):
    work, site = tmp_path / "work", tmp_path / "site"
    work.mkdir()
    (work / "helper.py").write_text("REWARD = 1.0")
    (work / "grade.py").write_text("import helper\ndef grade(problem, response, rollout): return helper.REWARD")
    (tmp_path / "script.py").write_text(SCRIPT)
    library = ROOT
    if place == "beside the package":
        shutil.copytree(ROOT / "minirl" / "verify", site / "minirl" / "verify")
        shutil.copy(ROOT / "minirl" / "__init__.py", site / "minirl")
        poison(site)
        (site / "minirl.py").unlink()
        library = site
    else:
        poison(work)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-P", str(tmp_path / "script.py"), str(library)]
    result = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert result.stdout == "code right\nmath right\ngrade.py:grade right\n", result.stderr
    assert "Warning" not in result.stderr
