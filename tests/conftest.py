"""Set before torch is imported anywhere: spinning threads on a shared machine cost up to 46x."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

settings.register_profile("patient", deadline=None)  # a machine under load takes long over an example now and then
settings.load_profile("patient")

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # train.py is a script beside the package, not a part of it


@contextlib.contextmanager
def mounted(folder, size):
    """A disk of that size (as mount takes it) in `folder`, where this user may mount; else the test is skipped."""
    folder.mkdir()
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], capture_output=True, check=False
    )
    if mount.returncode:
        pytest.skip(f"cannot mount: {mount.stderr.decode().strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def few_problems(folder):
    """Options for a run on few problems of the embedded task, which saves the seconds that thousands take to encode."""
    from minirl.data import rules

    rows = [{"problem": p.prompt, "answer": p.answer} for p in rules.problems("train")[:80]]
    (folder / "few.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return ["--data.task=dataset", f"--data.train={folder / 'few.jsonl'}", "--data.test_size=8"]


def every_metric():
    """The names of all metrics of a step's batch and update, and of its meter."""
    from minirl.config.command_line import load
    from minirl.policy.plan import Model
    from minirl.rollout.types import Batch
    from minirl.run.metrics import UpdateStats, batch_metrics
    from minirl.utils.distributed import Ranks
    from minirl.watch import limit, meter

    stats = UpdateStats()
    stats.sums["known_tokens"] = 1.0  # without such a token there are fewer
    tiny = Model(40, 1, 2, 5, heads=2, kv_heads=1, head_dim=1, mlp=3, head_norms=False)
    least = limit.step_limit(tiny, limit.Hardware("tiny", 1.0, 1.0), [], [], limit.Setting(1, 8))
    metered = meter.named(limit.meter(least, {"step": 1.0}))
    return set(batch_metrics(Batch([], [], []), [], 0, 0.0, load([]))) | set(stats.metrics(Ranks())) | set(metered)


def other_weights(folder):
    """A copy of the embedded model with one weight changed."""
    import safetensors.torch

    from minirl.tiny import make as tiny

    shutil.copytree(tiny.FOLDERS["embedded"], folder)
    tensors = safetensors.torch.load_file(folder / "model.safetensors")
    tensors["model.norm.weight"][0] += 0.5
    safetensors.torch.save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


# Files whose tests start several ranks or engines: one after the other in one of the two test processes, and first, as they
# are the longest. The tests of any other file stay together too, and share what it built.
HEAVY = ("test_vllm.py", "test_zero.py", "test_resume.py")


def pytest_addoption(parser):
    parser.addoption("--slow", action="store_true", help="run the slow tests too, as .ci/run does")


def pytest_collection_modifyitems(config, items):
    items.sort(key=lambda item: item.path.name not in HEAVY)
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow"):
                item.add_marker(pytest.mark.skip(reason="slow: runs with --slow"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    from xdist.scheduler import LoadScopeScheduling

    class ByFile(LoadScopeScheduling):  # its own groups, by mark, are lost on pytest 9.2
        def _split_scope(self, nodeid):
            file = nodeid.partition("::")[0]
            return "ranks" if file.rpartition("/")[2] in HEAVY else file

    return ByFile(config, log)
