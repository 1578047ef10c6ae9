"""Where the console cannot be written."""

import os
import subprocess
import sys

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
