"""Folders of a checkpoint: written, read back, damaged."""

import json
import os

import pytest

from minirl.run import manifest
from minirl.run.manifest import NEEDED, damage, publish, write


@pytest.fixture
def saved(tmp_path):
    temporary = tmp_path / "step000004.tmp"
    entries = write(temporary, {"state.json": [b"on", b"e"], "surplus.npz": [b"\x00" * 5000]})
    return publish(temporary, entries | write(temporary, {"rank000.safetensors": [], "rank000.json": [b"{}"]}))


def test_a_published_checkpoint_is_whole_and_its_temporary_folder_gone(saved):
    assert saved.name == "step000004"
    assert sorted(p.name for p in saved.parent.iterdir()) == ["step000004"]
    assert damage(saved) is None
    # SHA-256 of "one", from `printf one | sha256sum`
    entry = json.loads((saved / "manifest.json").read_text())["files"]["state.json"]
    assert entry == [3, "7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed"]


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (lambda f: (f / "surplus.npz").unlink(), "surplus.npz is missing"),
        (lambda f: os.truncate(f / "surplus.npz", 4999), "surplus.npz has 4,999 bytes instead of 5,000"),
        (lambda f: (f / "surplus.npz").write_bytes(b"\x00" * 4999 + b"\x01"), "surplus.npz has changed"),
        (lambda f: (f / "manifest.json").unlink(), "manifest.json is missing"),
        (lambda f: os.truncate(f / "manifest.json", 9), "manifest.json is damaged"),
        (lambda f: (f / "manifest.json").write_text("[]"), "manifest.json is damaged"),
        (lambda f: (f / "manifest.json").write_text('{"format": 99}'), "format 99 is of another version"),
        (lambda f: (f / "manifest.json").write_text('{"format": 3, "files": {}}'), "manifest.json does not name state.json"),
        (lambda f: (f / "manifest.json").write_text(f'{{"format": 3, "files": {json.dumps(NEEDED)}}}'), "is damaged"),
    ],
)
def test_every_kind_of_damage_has_its_sentence(saved, harm, says):
    harm(saved)
    assert says in damage(saved)


def test_ranks_share_the_reading(saved):
    (saved / "surplus.npz").unlink()
    found = [damage(saved, rank, 3) for rank in range(3)]
    assert [bool(f) for f in found] == [False, True, False]


def test_a_disk_that_gives_back_something_else_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(manifest, "digest_of", lambda path: "0")
    with pytest.raises(OSError, match="does not hold what was written"):
        write(tmp_path, {"a": [b"one"]})


def test_a_rank_with_another_run_folder_is_an_error(tmp_path):
    entries = write(tmp_path / "step000004.tmp", {"a": [b"one"]})
    with pytest.raises(OSError, match=r"does not see .*rank001\.json: all ranks must have the same run folder"):
        publish(tmp_path / "step000004.tmp", entries | {"rank001.json": [3, "0"]})
