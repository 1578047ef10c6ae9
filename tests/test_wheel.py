"""The wheel, made from the source distribution, does what a checkout does, from an empty folder."""

import os
import subprocess
import sys
import tarfile
import zipfile

import pytest

from .conftest import ROOT

SHORT = [
    "--run.steps=1", "--rollout.prompts=4", "--algorithm.mini_batch_prompts=4", "--eval.problems=8", "--eval.samples=2",
    "--eval.k=2",
]  # fmt: skip


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with what the wheel installs. No index is asked: setuptools must be there, as for an editable installation."""
    pytest.importorskip("setuptools", minversion="77")
    work = tmp_path_factory.mktemp("wheel")
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(listed, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    if files.returncode:
        pytest.skip("no git checkout, so what belongs to the project is not known")
    with tarfile.open(work / "all.tar", "w") as archive:
        for name in files.stdout.splitlines():
            archive.add(ROOT / name, f"source/{name}")
    with tarfile.open(work / "all.tar") as archive:
        archive.extractall(work, filter="data")
    build = "from setuptools import build_meta; print(build_meta.build_{}({!r}))"
    made = work / "made"
    made.mkdir()
    subprocess.run([sys.executable, "-c", build.format("sdist", str(made))], cwd=work / "source", check=True)
    with tarfile.open(next(made.glob("*.tar.gz"))) as archive:
        archive.extractall(made, filter="data")
    unpacked = next(path for path in made.iterdir() if path.is_dir())
    subprocess.run([sys.executable, "-c", build.format("wheel", str(made))], cwd=unpacked, check=True)
    zipfile.ZipFile(next(made.glob("*.whl"))).extractall(work / "site")
    return work / "site"


def run(site, folder, *command):
    environment = os.environ | {"PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_trains_evaluates_and_compares(site, tmp_path):
    launch = ["accelerate.commands.launch", "--num_processes=1", "--cpu", "-m", "minirl.train"]
    printed = run(site, tmp_path, *launch, *SHORT, "--run-dir=mine")
    assert "1 steps in" in printed
    assert (tmp_path / "mine" / "model" / "config.json").is_file()
    printed = run(site, tmp_path, "minirl.eval", "mine", "--benchmark=rules", "--limit=8", "--samples=2", "--out=evaluation")
    assert "16 samples judged" in printed
    run(site, tmp_path, "minirl.ablate", "--estimators=grpo,dapo", "--seeds=1", "--jobs=1", "--out=compared", *SHORT)
    assert (tmp_path / "compared" / "results.json").is_file()


def test_it_has_the_presets(site):
    names = {path.relative_to(ROOT) for path in (ROOT / "configs").rglob("*.yaml")}
    assert names == {path.relative_to(site / "minirl") for path in (site / "minirl" / "configs").rglob("*.yaml")}
