"""Consoles that cannot be written, or not in full; files with odd characters."""

import json
import os
import subprocess
import sys

from minirl.utils.console import replace_file
from tests.conftest import ROOT


def test_a_console_that_cannot_be_written_is_left_for_stderr(tmp_path):
    code = "from minirl.utils.console import say; [say(f'line {i}') for i in range(3)]"
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with open("/dev/full", "w") as full:
        done = subprocess.run([sys.executable, "-c", code], stdout=full, stderr=subprocess.PIPE, text=True, env=environment,
                              timeout=100, check=False)  # fmt: skip
    assert done.returncode == 0
    assert done.stderr.count("stdout cannot be written") == 1
    assert "line 1" in done.stderr
    assert "line 2" in done.stderr
    # nowhere to speak is no reason to stop
    code += "; print('reached', file=open(sys.argv[1], 'w'))"
    with open("/dev/full", "w") as full:
        subprocess.run([sys.executable, "-c", f"import sys; {code}", str(tmp_path / "file")], stdout=full, stderr=full,
                       env=environment, timeout=100, check=False)  # fmt: skip
    assert (tmp_path / "file").read_text() == "reached\n"


def test_characters_that_the_console_lacks_are_escaped():
    code = "from minirl.utils.console import say; say('\\u8fd9 \\ud83d x')"
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=100, check=True
    )
    assert done.stdout == "\\u8fd9 \\ud83d x\n"


def test_half_a_surrogate_pair_in_json_comes_back(tmp_path):
    replace_file(tmp_path / "rows.jsonl", json.dumps({"response": "a\ud83db"}, ensure_ascii=False))
    assert json.loads((tmp_path / "rows.jsonl").read_text(encoding="utf-8"))["response"] == "a\ud83db"
