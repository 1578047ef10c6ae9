"""Code that reads stdin and writes stdout: how it may do so, and which output is the expected one."""
# ruff: noqa: E501 - a line of a program is clearer whole

import json

import pytest

from minirl.verify.code.verifier import same_lines, same_output
from minirl.verify.types import RIGHT, TIMEOUT, WRONG_ANSWER
from tests.verify.code.conftest import outcome

FAST_IO = """
import os, sys
from io import BytesIO, IOBase
class Fast(IOBase):
    def __init__(self, file):
        self.fd, self.buffer, self.writable = file.fileno(), BytesIO(), "r" not in file.mode
        self.write = self.buffer.write if self.writable else None
    def readline(self):
        if not self.buffer.tell():
            self.buffer.write(os.read(self.fd, max(os.fstat(self.fd).st_size, 8192)))
            self.buffer.seek(0)
        return self.buffer.readline()
    def flush(self):
        if self.writable:
            os.write(self.fd, self.buffer.getvalue())
            self.buffer.seek(0), self.buffer.truncate(0)
class IOWrapper(IOBase):
    def __init__(self, file):
        self.buffer = Fast(file)
        self.flush, self.writable = self.buffer.flush, self.buffer.writable
        self.write = lambda text: self.buffer.write(text.encode())
        self.readline = lambda: self.buffer.readline().decode()
sys.stdin, sys.stdout = IOWrapper(sys.stdin), IOWrapper(sys.stdout)
input = lambda: sys.stdin.readline().rstrip()
"""
ANSWER = "input()\nprint(sum(map(int, input().split())))"


@pytest.mark.parametrize(
    "program",
    [
        FAST_IO + ANSWER,
        "import sys\nsys.stdout = open(1, 'w')\n" + ANSWER,
        "import io, sys\nsys.stdin = io.StringIO(sys.stdin.read())\n" + ANSWER,
        "import sys\ninput = sys.stdin.readline\n" + ANSWER,
        "import io, os\ninput = io.BytesIO(os.read(0, os.fstat(0).st_size)).readline\n" + ANSWER,
        "import sys\nsys.stdin = sys.stdout = None\nsys.stdin, sys.stdout = sys.__stdin__, sys.__stdout__\n" + ANSWER,
        "import os, sys\nassert os.path.isabs(__file__) and sys.argv == [__file__]\n" + ANSWER + "\nsys.stdout.close()",
        "print(sum(map(int, open(0).read().split()[1:])))",
        "out = open(1, 'w')\nout.write(str(sum(map(int, open(0).read().split()[1:]))))",
        "import sys\nd = sys.stdin.buffer.read().split()\nsys.stdout.buffer.write(b'%d' % sum(map(int, d[1:])))",
        "import fileinput\nprint(sum(map(int, list(fileinput.input())[1].split())))",
    ],
)
def test_programs_may_treat_stdin_and_stdout_as_in_an_interpreter_of_their_own(verify, program):
    verdict = verify(program, tests={"type": "stdin_stdout", "inputs": ["2\n1 2\n"], "outputs": ["3\n"]})
    assert outcome(verdict) == (RIGHT, ""), verdict


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        ("1 2\n3\n", "1 2\n3", True), (" a b \n", "a b\n\n", True), ("1 2\n3", "1 2 3", False), ("a  b", "a b", False),
        ("1  2", "1 2.0", True), ("1", "1.0", True), ("1.50", "1.5", True), ("1e3", "1000", True), ("0.3", "0.3000001", False),
        ("YES", "yes", False), ("a\n\nb", "a\nb", False), ("NaN", "nan", False), ("1", "sNaN", False), ("", "", True), ("1", "", False),
    ],
)  # fmt: skip
def test_output_for_tests_of_livecodebench_is_compared_as_its_judge_does(verify, expected, got, same):
    assert same_lines(expected, got) is same
    if got == "1 2 3":  # that form of tests means that judge
        live = [{"input": "", "output": expected, "testtype": "stdin"}]
        assert verify(f"print({got!r})", tests=live).label == WRONG_ANSWER
        assert verify(f"print({got!r})", tests={"inputs": [""], "outputs": [expected]}).status == RIGHT


def test_stdin_programs(verify):
    tests = json.dumps({"type": "stdin_stdout", "inputs": ["2\n1 2\n", "1\n5\n"], "outputs": ["3\n", "5\n"]})
    assert verify("input()\nprint(sum(map(int, input().split())))", tests=tests).status == RIGHT
    assert (
        verify("import sys\nd = sys.stdin.read().split()\nsys.stdout.write(str(sum(map(int, d[1:]))))", tests=tests).status
        == RIGHT
    )
    assert (
        verify(
            "if __name__ == '__main__':\n    input()\n    print(sum(map(int, input().split())))\n    exit()",
            tests=tests,
        ).status
        == RIGHT
    )
    threaded = "import threading\ndef main():\n    input()\n    print(sum(map(int, input().split())))\n"
    threaded += "threading.Thread(target=main).start()"
    assert verify(threaded, tests=tests).status == RIGHT
    assert verify("print(3)", tests=tests).label == WRONG_ANSWER
    assert verify("input()\nprint(sum(map(int, input().split())))\nprint()\nprint('bye')", tests=tests).label == WRONG_ANSWER
    assert verify("int('x')", tests=tests).label == "ValueError"
    assert verify("print(", tests=tests).label == "SyntaxError"
    assert verify("while True: pass", tests=tests, timeout=0.3).label == TIMEOUT
    live = [{"input": "3", "output": "9", "testtype": "stdin"}]
    assert verify("print(int(input()) ** 2)", tests=live).status == RIGHT
    assert verify("print(len(input()))", tests={"inputs": ["x" * 10**6], "outputs": ["1000000"]}).status == RIGHT


@pytest.mark.parametrize(
    ("expected", "got", "same"),
    [
        ("1 2\n3\n", "1 2\n3", True), ("1 2\n3\n", "1  2 \r\n3\n\n", True), ("YES", "yes", False), ("1", "1.0", False),
        ("1.5", "1.5000001", True), ("1.5", "1.51", False), ("0.000000", "-0.0", True), ("1e9", "1000000000", True),
        ("1000000000.5", "1000000001.0", True), ("1.5", "nan", False), ("12", "12.0000001", False), ("1 2", "1", False),
        ("", "", True), ("", "0", False), ("007", "7", False), ("1.0", "1e999", False),
    ],
)  # fmt: skip
def test_output_is_compared_as_judges_do(expected, got, same):
    assert same_output(expected, got) is same
