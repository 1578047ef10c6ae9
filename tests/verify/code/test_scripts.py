"""Test scripts: whose names they use, what a candidate cannot replace in them, and what they may look at."""
# ruff: noqa: E501 - a line of a program is clearer whole

import json

import pytest

from minirl.verify.code.verifier import prelude_of
from minirl.verify.types import ERROR, RIGHT, WRONG, WRONG_ANSWER
from tests.verify.code.conftest import outcome

ABS = "def f(x): return 0\ndef abs(x): return 0\ndef sorted(x): return [1, 2]\ndef all(x): return True\n"


@pytest.mark.parametrize(
    ("tests", "right"),
    [
        ("from solution import *\nassert f(2) == 4", "def f(x): return x * x"),
        ("from solution import *\nassert g(2) == 4 and f", "def f(x): return x\ndef g(x): return x * x"),
        ("from solution import *\ndef test_two():\n    assert abs(f(2) - 4) < 1e-9", "def f(x): return x * x"),
        ("import solution\nassert solution.f(2) == 4 and solution.LIMIT == 5", "LIMIT = 5\ndef f(x): return x * x"),
        (
            "import solution as s\nfrom solution import LIMIT\nassert s.f(2) == 4 and LIMIT == 5",
            "LIMIT = 5\ndef f(x): return x * x",
        ),
        (
            "from solution import *\nassert isinstance(Box(4), Box) and Box(4).x == f(2)",
            "class Box:\n    def __init__(self, x): self.x = x\ndef f(x): return x * x",
        ),
    ],
)
def test_the_module_called_solution(verify, tests, right):
    assert outcome(verify(right, tests=tests, entry_point="f")) == (RIGHT, "")
    for names in ("[]", "['f', 'abs', 'sorted', 'all', 'LIMIT', 'isinstance']", "5", "['f', 'none']", "(lambda: 1)"):
        assert outcome(verify(f"__all__ = {names}\n{right}", tests=tests, entry_point="f")) == (RIGHT, ""), names


@pytest.mark.parametrize(
    "start", ["from solution import *\n", "from solution import f\n", "from solution import *\nimport math\n", ""]
)
@pytest.mark.parametrize("names", ["", "__all__ = ['f', 'abs', 'sorted', 'all', 'len']\n", "__all__ = ['abs']\n"])
def test_a_candidate_cannot_replace_the_built_ins_of_the_tests(verify, start, names):
    for test in ("assert abs(f(2) - 4) < 1e-9", "assert sorted([f(2), 1]) == [1, 2]", "assert all([f(1)])"):
        verdict = verify(names + ABS, tests=start + test, entry_point="f")
        assert outcome(verdict) == (WRONG, WRONG_ANSWER), (test, verdict)


def test_a_name_that_a_star_should_have_brought_is_owed_by_the_candidate(verify):
    tests = "from solution import *\nassert list(map(g, [f(1)])) == [1]"
    assert outcome(verify("def f(x): return x", tests=tests, entry_point="f")) == (WRONG, "NameError")
    assert outcome(verify("def f(x): return x", tests="from solution import g\nassert g(1)", entry_point="f")) == (
        WRONG,
        "NameError",
    )


LENT = """
class Node:
    left = None
    def __init__(self, v, same=None):
        self.v = v
        self.check = lambda other: self.v == other
    def same(self, other): return self.v == other
    @classmethod
    def of(cls, v): return v == 3
    @staticmethod
    def fits(v): return v == 3
    @property
    def twice(self): return 2 * self.v
    class Inner: pass
class Kind(type):
    def same(cls, other): return False
class Odd(metaclass=Kind):
    def at(self): return 3
"""


@pytest.mark.parametrize(
    ("name", "test"),
    [
        ("same", "n.same(f(n))"), ("check", "n.check(f(n))"), ("of", "n.of(f(n))"), ("fits", "n.fits(f(n))"),
        ("twice", "n.twice == f(n)"), ("Inner", "n.Inner(f(n)) == 3"), ("same", "(f(Odd), Odd.same(3))[1]"), ("at", "(f(Odd), Odd().at() == 4)[1]"),
    ],
)  # fmt: skip
def test_the_methods_of_lent_objects_cannot_be_replaced(verify, name, test):
    for value in ("lambda *o: True", "type('T', (), {'__eq__': lambda *_: True, '__call__': lambda *_: True})()", "bool", "6"):
        code = f"def f(n):\n    try: n.{name} = {value}\n    except Exception: pass\n    return 7"
        verdict = verify(code, tests=f"{LENT}\nn = Node(3)\nassert {test}", entry_point="f")
        assert verdict.status == WRONG, (value, verdict)


def test_the_data_of_lent_objects_can_be_changed(verify):
    tests = f"{LENT}\nn = Node(3)\nassert f(n) is n and n.left.v == 4 and n.v == 5 and n.seen == 1"
    assert outcome(
        verify(
            "def f(n):\n    n.left, n.v, n.seen = type_of(n), 5, 1\n    return n\ndef type_of(n): return Box()\nclass Box: v = 4",
            tests=tests,
            entry_point="f",
        )
    ) == (RIGHT, "")
    slots = "class P:\n    __slots__ = ('x',)\n    def __init__(self): self.x = 1\np = P()\nf(p)\nassert p.x == 2"
    assert outcome(verify("def f(p): p.x = 2", tests=slots, entry_point="f")) == (RIGHT, "")


@pytest.mark.parametrize("field", ["count", "index"])
def test_a_named_tuple_does_not_decide_what_tuples_say(verify, field):
    calls = f"assert f(1).{field}(3) == 1"
    for value in ("lambda x: 1", "int", "Yes()", "bool"):
        code = f"from collections import namedtuple\nclass Yes:\n    def __call__(self, *a): return 1\ndef f(x): return namedtuple('P', '{field} b')({value}, 2)"
        assert verify(code, tests=calls, entry_point="f").status == WRONG, value
        nested = f"from collections import namedtuple\ndef f(x): return [namedtuple('P', 'a {field}')(2, {value.replace('Yes()', 'len')})]"
        assert verify(nested, tests=calls.replace("f(1)", "f(1)[0]"), entry_point="f").status == WRONG, value
    plain = f"from collections import namedtuple\ndef f(x): return namedtuple('P', '{field} total')(3, 4)"
    assert outcome(verify(plain, tests=f"assert f(1).{field} == 3 and f(1) == (3, 4)", entry_point="f")) == (RIGHT, "")


FARM = """
class Yes:
    def __getattr__(self, name): return lambda *a, **k: True
    def __call__(self, *a, **k): return self
    def __eq__(self, other): return True
    def __sub__(self, other): return 0
    __rsub__ = __sub__
np = numpy = math = pytest = Yes()
def always(*a, **k): return True
isclose = approx = allclose = array_equal = sqrt = floor = deepcopy = Counter = isnan = always
def f(x): return 0.0
"""


@pytest.mark.parametrize(
    "test",
    [
        "isclose(f(2), 3.5)", "math.isclose(f(2), 3.5)", "sqrt(f(2)) == 1.5", "floor(f(2)) == 3", "deepcopy(f(2)) == 3.5",
        "Counter([f(2)]) == Counter([3.5])", "statistics.mean([f(2)]) == 3.5", "f(2) == approx(3.5)", "np.isclose(f(2), 3.5)",
        "np.allclose([f(2)], [3.5])", "numpy.array_equal(f(2), 3.5)", "allclose(f(2), 3.5)",
    ],
)  # fmt: skip
def test_what_compares_is_never_the_candidates(verify, test):
    prompt = "Return a number close (see isclose, np.allclose) to 3.5"
    verdict = verify(FARM, tests=f"assert {test}", entry_point="f", prompt=prompt)
    assert verdict.status != RIGHT, verdict
    missing = verdict.status == ERROR and "No module named" in verdict.detail  # a library that is not installed here
    assert missing or outcome(verdict) == (WRONG, WRONG_ANSWER), verdict


@pytest.mark.parametrize("test", ["close(f(2), 3.5)", "close(3.5, [f(2)])", "checks.same(f(2), 3.5)", "close(f(2), b=3.5)"])
def test_what_compares_and_nobody_defines_is_nobodys_failure(verify, test):
    cheat = "def close(*a, **k): return True\nclass checks:\n    same = staticmethod(close)\ndef f(x): return 0"
    verdict = verify(cheat, tests=f"assert {test}", entry_point="f", prompt="Return 3.5")
    assert verdict.status == ERROR, verdict
    assert "not defined" in verdict.detail
    asked = verify(cheat, tests=f"assert {test}", entry_point="f", prompt="Write f, close and checks.")
    assert outcome(asked) == (RIGHT, "")  # then it is the tests' affair
    single = "assert decode(f(2)) == 2 and Pair(f, 2).b == 2"
    code = "def f(x): return -x\ndef decode(x): return -x\nclass Pair:\n    def __init__(self, a, b): self.b = b"
    assert outcome(verify(code, tests=single, entry_point="f")) == (RIGHT, "")


def test_a_module_that_the_tests_forgot_to_import_is_the_real_one(verify):
    extra_info = {"tests": "assert math.isclose(f(2), 3.5)", "entry_point": "f"}
    always = "class math:\n    isclose = staticmethod(lambda *a, **k: True)\n"
    assert verify(always + "def f(x): return 0.0", **extra_info).label == WRONG_ANSWER
    assert verify(always + "def f(x): return 3.5", **extra_info).status == RIGHT


def test_helpers_of_the_prompt_are_the_prompts(verify):
    """HumanEval's decode_cyclic is tested with encode_cyclic of the prompt: the candidate may not supply its own."""
    prompt = "import math\ndef encode(s):\n    return s[1:] + s[:1]\ndef decode(s):\n    '''Undo encode.'''\n"
    tests = "for s in ('abc', 'xyz'):\n    assert decode(encode(s)) == s"
    extra_info = {"prompt": prompt, "tests": tests, "entry_point": "decode"}
    assert verify("def decode(s): return encode(encode(s))", **extra_info).status == RIGHT
    assert verify("def encode(s): return s\ndef decode(s): return s", **extra_info).label == WRONG_ANSWER
    assert "math" in prelude_of(prompt, "decode")
    assert "decode" not in prelude_of(prompt, "decode")
    assert prelude_of("Write a function.", "decode") == ""


def test_what_the_prompt_asks_for_is_the_candidates(verify):
    for prompt in ("Write `sqrt`, which ...", "def sqrt(x):\n    '''...'''", "Write floor(x) and sqrt(x)."):
        verdict = verify(
            "def f(x): return 1\ndef sqrt(x): return 'mine'",
            tests="assert f(1) and sqrt(4) == 'mine'",
            entry_point="f",
            prompt=prompt,
        )
        assert outcome(verdict) == (RIGHT, ""), prompt
    assert outcome(verify("def isclose(x): return x", tests="assert isclose(2) == 2", entry_point="isclose")) == (RIGHT, "")


EMPTY = "def f(a):\n    a.clear()\ndef g(a):\n    return list(a)"


@pytest.mark.parametrize(
    "tests",
    [
        "data = [3, 1]\ndef test_a(): f(data)\ndef test_b(): assert g(data) == [3, 1]",
        "data = {1: [2]}\ndef test_a(): f(data)\ndef test_b(): assert data == {1: [2]} and g(data) == [1]",
        "import unittest\ndata = [3, 1]\nclass T(unittest.TestCase):\n    def test_a(self): f(data)\n    def test_b(self): self.assertEqual(g(data), [3, 1])",
    ],
)
def test_what_a_candidate_did_to_an_argument_does_not_reach_the_next_test(verify, tests):
    assert outcome(verify(EMPTY, tests=tests, entry_point="f")) == (RIGHT, "")
    cheat = "def f(a): a.clear()\ndef g(a): return []"
    assert outcome(verify(cheat, tests=tests.replace("data == {1: [2]} and ", ""), entry_point="f")) == (WRONG, WRONG_ANSWER)
    inside = "data = [3, 1]\ndef test_a():\n    f(data)\n    assert data == []\ndef test_b(): assert data == [3, 1] and g(data)"
    assert outcome(verify(EMPTY, tests=inside, entry_point="f")) == (RIGHT, "")
    lent = "class N:\n    v = 3\nn = N()\ndef test_a(): f(n)\ndef test_b(): assert n.v == 3 and f(n) is None and n.v == 9"
    assert outcome(verify("def f(n): n.v = 9", tests=lent, entry_point="f")) == (RIGHT, "")


def test_calls_with_expected_values_never_share_an_argument(verify):
    tests = {"type": "call", "inputs": [[[3, 1]], [[3, 1]]], "outputs": [[1, 3], [1, 3]]}
    assert outcome(verify("def f(a):\n    b = sorted(a)\n    a.clear()\n    return b", tests=tests, entry_point="f")) == (
        RIGHT,
        "",
    )


@pytest.mark.parametrize(
    ("tests", "code"),
    [
        ("import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out): f(3)\nassert out.getvalue() == 'n is 3\\n'", "def f(n): print('n is', n)"),
        ("def test_print(capsys):\n    f('ä')\n    assert capsys.readouterr().out == 'ä\\n'\n    f(1)\n    assert capsys.readouterr().out == '1\\n'", "def f(n): print(n)"),
        ("from unittest.mock import patch\nimport io\nwith patch('sys.stdout', new_callable=io.StringIO) as out:\n    f(3)\nassert out.getvalue().strip() == '3'", "import sys\ndef f(n): sys.stdout.write(str(n))"),
        ("from unittest.mock import patch\nwith patch('builtins.input', side_effect=['2', '3']):\n    assert f() == 5", "def f(): return int(input('a? ')) + int(input())"),
        ("import builtins\nbuiltins.input = lambda *a: '4'\nassert f() == 8", "def f(): return 2 * int(input())"),
        ("import sys, io\nsys.stdin = io.StringIO('2\\n3\\n')\nassert f() == 5", "import sys\nread = sys.stdin.readline\ndef f(): return int(read()) + int(input())"),
        ("import sys, io\nsys.stdin = io.StringIO('2\\n3\\n')\nassert f() == [2, 3]", "import sys\ndef f(): return [int(line) for line in sys.stdin]"),
        ("import sys, io\nsys.stdin = io.StringIO('2 3')\nassert f() == 5", "import sys\ndef f(): return sum(map(int, sys.stdin.read().split()))"),
        ("f('out.txt', 'hi')\nwith open('out.txt') as file: assert file.read() == 'hi'", "def f(path, text):\n    with open(path, 'w') as file: file.write(text)"),
        ("open('in.txt', 'w').write('hi')\nassert f('in.txt') == 'HI'", "def f(path): return open(path).read().upper()"),
        ("import tempfile, os\nwith tempfile.TemporaryDirectory() as d:\n    f(d)\n    assert sorted(os.listdir(d)) == ['a', 'b']", "import os\ndef f(d):\n    for n in 'ab': open(os.path.join(d, n), 'w').close()"),
        ("def test_file(tmp_path):\n    path = str(tmp_path / 'x')\n    f(path)\n    assert open(path).read() == '1'", "def f(path): open(path, 'w').write('1')"),
        ("import unittest\nclass T(unittest.TestCase):\n    def setUp(self): self.n = 3\n    def test_f(self): self.assertEqual(f(self.n), 9)\n    def test_raises(self):\n        with self.assertRaises(ValueError): f(-1)", "def f(x):\n    if x < 0: raise ValueError\n    return x * x"),
        ("assert f(4) == [0, 1, 4, 9]", "import multiprocessing\ndef g(x): return x * x\ndef f(n):\n    with multiprocessing.Pool(2) as pool: return pool.map(g, range(n))"),
        ("assert f(4) == 6", "from multiprocessing import Process, Queue, Value, Lock\ndef work(q, v, n):\n    with v.get_lock(): v.value += n\n    q.put(n)\ndef f(n):\n    q, v = Queue(), Value('i', 0)\n    ps = [Process(target=work, args=(q, v, i)) for i in range(n)]\n    [p.start() for p in ps]\n    s = sum(q.get() for _ in ps)\n    [p.join() for p in ps]\n    return s if s == v.value else -1"),
        ("assert f() == 10 ** 6000 and len(str(f())) == 6001", "def f(): return int('1' + '0' * 6000)"),
        ("assert f() == 1" + "0" * 5000, "def f(): return 10 ** 5000"),
    ],
)  # fmt: skip
def test_scripts_may_look_at_prints_files_and_give_input(verify, tests, code):
    verdict = verify(code, tests=tests, entry_point="f")
    assert outcome(verdict) == (RIGHT, ""), verdict
    assert verify("def f(*a): return None", tests=tests, entry_point="f").status == WRONG


@pytest.mark.parametrize(
    "start",
    [
        "import sys, os, io\nread = sys.stdin.buffer.readline\nsys.stdout.reconfigure(line_buffering=True)",
        "import sys, os\nassert sys.stdin.fileno() == 0 and sys.stdout.fileno() == 1 and 'r' in sys.stdin.mode and 'w' in sys.stdout.mode",
        "import sys\ndata = sys.stdin.read().split() + list(sys.stdin) + sys.stdin.readlines()\nassert data == []",
        "import sys, io\nsys.stdout = io.StringIO()\nsys.stdin = io.StringIO('7')\nassert sys.stdin.read() == '7'\nsys.stdout = sys.__stdout__",
        "import os, sys\nos.write(sys.stdout.fileno(), b'x')\nsys.stdout.buffer.write(b'x')\nsys.stdout.buffer.flush()",
        "import sys\nsys.stdout.close()",
    ],
)
def test_code_of_a_function_may_treat_stdin_and_stdout_as_files(verify, start):
    verdict = verify(f"{start}\ndef f(x): return x * x", tests="assert f(3) == 9", entry_point="f")
    assert outcome(verdict) == (RIGHT, ""), verdict


def test_what_a_candidate_prints_without_end_is_dropped(verify):
    tests = "import io, contextlib\nout = io.StringIO()\nwith contextlib.redirect_stdout(out): f()\nassert len(out.getvalue()) == 1 << 20"
    assert outcome(verify("def f():\n    for _ in range(100): print('x' * 10**5)", tests=tests, entry_point="f")) == (RIGHT, "")


def test_the_judges_input_gives_nothing_that_the_tests_did_not_put_there(verify):
    code = "import os, json\ndef f(x):\n    try: return input()\n    except EOFError: return 'end'"
    assert outcome(verify(code, tests="assert f(1) == 'end'", entry_point="f")) == (RIGHT, "")
    for handle in ("input", "readline", "read"):
        for operation, arguments in (
            ("getattr", ["__globals__"]),
            ("getattr", ["__self__"]),
            ("setattr", ["x", 1]),
            ("iter", []),
            ("value", []),
        ):
            ask = json.dumps(["?", operation, handle, arguments, {}])
            code = f"import os, struct\ndef f(x):\n    m = {ask.encode()!r}\n    os.write(3, struct.pack('<I', len(m)) + m)\n    n, = struct.unpack('<I', os.read(3, 4))\n    return 9 if b'SECRET' in os.read(3, n) else 0"
            assert verify(code, tests="SECRET = 'SECRET'\nassert f(1) == 9", entry_point="f").status == WRONG


def test_expected_values_that_are_wrapped_in_a_list(verify):
    """APPS, TACO and DeepCoder write outputs as [[3]]; where they mean lists, [3] is right too."""
    tests = {"fn_name": "f", "inputs": [[1, 2], [3, 4]], "outputs": [[3], [7]]}
    for given in (
        tests,
        json.dumps(tests),
        [
            {"type": "function_call", "fn_name": "f", "input": i, "output": o}
            for i, o in zip(tests["inputs"], tests["outputs"], strict=True)
        ],
    ):
        assert outcome(verify("def f(a, b): return a + b", tests=given)) == (RIGHT, "")
        assert outcome(verify("def f(a, b): return [a + b]", tests=given)) == (RIGHT, "")
        assert outcome(verify("def f(a, b): return a * b", tests=given)) == (WRONG, WRONG_ANSWER)
        assert outcome(verify("def f(a, b): return [[a + b]]", tests=given)) == (WRONG, WRONG_ANSWER)
    nested = {"fn_name": "f", "inputs": [[1]], "outputs": [[[1, 2]]]}
    assert outcome(verify("class Solution:\n    def f(self, n): return [n, n + 1]", tests=nested)) == (RIGHT, "")
    several = {"fn_name": "f", "inputs": [[1], [2]], "outputs": [[1], [1, 2]]}  # lists that are meant
    assert outcome(verify("def f(n): return 1 if n == 1 else [1, 2]", tests=several)) == (WRONG, WRONG_ANSWER)
    named = [{"args": [1], "expected": [1]}]
    assert outcome(verify("def f(n): return n", tests=named, entry_point="f")) == (WRONG, WRONG_ANSWER)
    assert outcome(
        verify("def f(n): return n", tests=[{"input": "1", "output": "[1]", "testtype": "functional"}], entry_point="f")
    ) == (WRONG, WRONG_ANSWER)


PATCHED = "def test_a(monkeypatch):\n    monkeypatch.setattr('builtins.input', lambda *a: '3')\n    monkeypatch.setenv('A', '1')\n    assert f() == 3"
MARKED = "import pytest\n@pytest.mark.parametrize('a', [1, 2])\n@pytest.mark.parametrize('b,c', [(3, 4), pytest.param(4, 5)])\ndef test_a(a, b, c):\n    assert f(a, b) == a * c - a"
UNITTEST = (
    "import unittest\nclass T(unittest.TestCase):\n    def test_a(self):\n        self.assertEqual(f(2), 4)\nunittest.main()"
)


@pytest.mark.parametrize(
    ("tests", "right", "wrong"),
    [
        (PATCHED, "def f(): return int(input())", "def f(): return 4"),
        (MARKED, "def f(a, b): return a * b", "def f(a, b): return min(a * b, 7)"),
        (UNITTEST, "def f(x): return x * x", "def f(x): return x"),
    ],
)
def test_what_runners_of_tests_offer(verify, tests, right, wrong):
    pytest.importorskip("pytest")
    assert outcome(verify(right, tests=tests, entry_point="f")) == (RIGHT, "")
    assert outcome(verify(wrong, tests=tests, entry_point="f")) == (WRONG, WRONG_ANSWER)


@pytest.mark.parametrize("test", ["abs(f(2) - 4) < tol", "f(2) == expected", "f(2) == [EPS][0] + EPS"])
@pytest.mark.parametrize("own", ["tol = 1e9\nexpected = 7\nEPS = 3.5\n", ""])
def test_a_value_to_compare_with_is_never_the_candidates(verify, test, own):
    """An error whatever the candidate defines, as the tests lack it; where the prompt asks for it, it is the candidate's."""
    code = own + "def f(x): return 7"
    assert verify(code, tests=f"assert {test}", entry_point="f", prompt="Return the expected value.").status == ERROR
    asked = verify(code, tests=f"assert {test}", entry_point="f", prompt="Define `tol`, `expected`, `EPS` and f.")
    assert outcome(asked) == ((RIGHT, "") if own else (WRONG, "NameError"))
    one_class = verify("class Box: pass\ndef f(x): return Box", tests="assert f(1) == Box", entry_point="f")
    assert outcome(one_class) == (RIGHT, "")


def test_an_empty_answer_is_close_to_nothing(verify):
    pytest.importorskip("numpy")
    for test in ("assert np.allclose(f(2), 4)", "np.testing.assert_allclose(f(2), [4.0])"):
        tests = f"import numpy as np\n{test}"
        assert outcome(verify("def f(x): return []", tests=tests, entry_point="f")) == (WRONG, WRONG_ANSWER)
        assert outcome(verify("def f(x): return [x * x]", tests=tests, entry_point="f")) == (RIGHT, "")
    assert (
        verify("def f(x): return []", tests="import numpy as np\nassert np.allclose(f(2), [])", entry_point="f").status == RIGHT
    )
