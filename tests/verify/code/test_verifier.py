"""Code: what is taken as the program, what each kind of test means, and which error a wrong program gets."""
# ruff: noqa: E501 - a line of a program is clearer whole

import ast
import json
import os
from pathlib import Path

import pytest

from benchmarks.code_canonical import DATA, canonical, mutants, problem_of, rows_of
from minirl.verify.code.verifier import (
    CodeVerifier,
    parse_tests,
    pool_deadline,
)
from minirl.verify.pool.pool import VerifierPool
from minirl.verify.types import ERROR, NO_CODE, OUTPUT_LIMIT, RIGHT, TIMEOUT, WRONG, WRONG_ANSWER, Problem
from tests.verify.code.conftest import outcome

WHOLE = os.environ.get("MINIRL_WHOLE_SWEEP") == "1"


def test_the_labels_of_plain_assert_scripts(verify):
    extra_info = {"tests": "assert f(1) == 2\nassert f(2) == 3", "entry_point": "f"}
    assert outcome(verify("def f(x): return x + 1", **extra_info)) == (RIGHT, "")
    assert outcome(verify("def f(x): return x + 2", **extra_info)) == (WRONG, WRONG_ANSWER)
    assert outcome(verify("def f(x): return [][x]", **extra_info)) == (WRONG, "IndexError")
    assert outcome(verify("def f(x): return x +", **extra_info)) == (WRONG, "SyntaxError")
    assert outcome(verify("def f(x):\nreturn x", **extra_info)) == (WRONG, "IndentationError")
    assert outcome(verify("import no_such_module", **extra_info)) == (WRONG, "ModuleNotFoundError")
    assert outcome(verify("def g(x): return x + 1", **extra_info)) == (WRONG, "NameError")
    assert outcome(verify("def f(x):\n    while True: pass", **extra_info, timeout=0.3)) == (WRONG, TIMEOUT)
    assert outcome(verify("class Mine(Exception): pass\ndef f(x): raise Mine", **extra_info)) == (WRONG, "Mine")
    assert outcome(verify("", **extra_info)) == (WRONG, NO_CODE)
    assert outcome(verify("a = 1\n" * 40_000, **extra_info)) == (WRONG, OUTPUT_LIMIT)


def test_the_first_failing_test_names_the_error(verify):
    extra_info = {"tests": "assert f(1) == 2\nassert f(2) == 3\nassert f(0) == 1", "entry_point": "f"}
    assert verify("def f(x): return 2 if x == 1 else 1 // (x - 2)", **extra_info).label == "ZeroDivisionError"
    assert verify("def f(x): return 2 if x == 1 else 9 if x == 2 else 1 // x", **extra_info).label == WRONG_ANSWER


@pytest.mark.parametrize(
    ("tests", "code"),
    [
        ("def check(candidate):\n    assert candidate(2) == 4\n", "def f(x): return x * x"),
        ("from solution import f\ndef test_two():\n    assert f(2) == 4", "def f(x): return x * x"),
        ("a = [3, 1, 2]\nf(a)\nassert a == [1, 2, 3]", "def f(a): a.sort()"),
        ("d = {}\nf(d)\nassert d == {1: {2}}", "def f(d): d[1] = {2}"),
        ("try:\n    f(-1)\n    assert False\nexcept ValueError as e:\n    assert 'low' in str(e)",
         "def f(x): raise ValueError('too low')"),
        ("s = Stack()\ns.push(3)\ns.push(4)\nassert s.pop() == 4 and len(s) == 1 and s.items[0] == 3 and f",
         "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
         "    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)\nf = 1"),
        ("root = Node(1)\nroot.left = Node(2)\nassert f(root) == 3",
         "class Node:\n    def __init__(self, v): self.v, self.left = v, None\n"
         "def f(n): return n.v + f(n.left) if n else 0"),
        ("assert list(f(3)) == [0, 1, 2]", "def f(n):\n    yield from range(n)"),
        ("assert f([1, 2], lambda x: x * 10) == [10, 20]", "def f(a, g): return [g(x) for x in a]"),
        ("assert f(1, int) is True", "def f(x, t): return isinstance(x, t)"),
        ("assert f(2.0, b=(1, {'k': [None, 1 + 2j]})) == (1, {'k': [None, 1 + 2j]})", "def f(a, *, b): return b"),
        ("assert f(self=1, function=2, operation=3, handle=4) == [1, 2, 3, 4]",
         "def f(self, function, operation, handle): return [self, function, operation, handle]"),
        ("assert f() == 10 ** 5000", "def f(): return 10 ** 5000"),
        ("assert f() == {frozenset({1}), b'\\x00'.decode()}", "def f(): return {frozenset({1}), chr(0)}"),
        ("assert f('a a b'.split()) == {'a': 2, 'b': 1}",
         "import collections\ndef f(w): return collections.Counter(w)"),
        ("assert f() == (1, 2)", "import collections\ndef f(): return collections.namedtuple('P', 'x y')(1, 2)"),
        ("import math\nassert math.isnan(f()) and f('inf') == float('inf')", "def f(x='nan'): return float(x)"),
        ("import random\nrandom.seed(1)\nfor _ in range(20):\n    n = random.randint(0, 9)\n    assert f(n) == n * n",
         "def f(x): return x * x"),
    ],
)  # fmt: skip
def test_scripts_may_use_what_python_offers(verify, tests, code):
    assert outcome(verify(code, tests=tests, entry_point="f")) == (RIGHT, ""), verify(code, tests=tests, entry_point="f")
    assert verify("def f(*a, **k): return 'no'\nNode = Stack = f", tests=tests, entry_point="f").status == WRONG


@pytest.mark.parametrize(
    ("tests", "code", "label"),
    [
        ("a = [3, 1, 2]\nassert f(a) == sorted(a)", "def f(a):\n    a.clear()\n    return []", WRONG_ANSWER),
        (
            "a = [3, 1, 2]\nassert f(a) == sorted(a)",
            "import json, os\nm = json.dumps(['=', ['list', []], [[0, ['list', []]]]]).encode()\n"
            "def f(a):\n    os.write(3, len(m).to_bytes(4, 'little') + m)\n    os._exit(0)",
            WRONG_ANSWER,
        ),
        (
            "for a, b in zip(map(f, [1, 2]), [1, 4]):\n    assert a == b",
            "def f(x): raise StopIteration",
            "StopIteration",
        ),
        ("try:\n    f(1)\nexcept Exception:\n    pass", "import os\ndef f(x): os._exit(0)", "Crashed"),
        (
            "for x in f(1), f(2):\n    assert x in ([1], [2])",
            "def f(x): return type('L', (list,), {})([x])",
            WRONG_ANSWER,
        ),
    ],
)
def test_a_script_is_not_fooled_by_what_would_fool_it_in_one_process(verify, tests, code, label):
    assert outcome(verify(code, tests=tests, entry_point="f")) == (WRONG, label)


VECTOR = """
class Vec:
    def __init__(self, x): self.x, self.d = x, {}
    def __eq__(self, other): return isinstance(other, Vec) and self.x == other.x
    def __hash__(self): return hash(self.x)
    def __lt__(self, other): return self.x < other.x
    def __add__(self, other): return Vec(self.x + other.x)
    def __matmul__(self, other): return self.x * other.x
    def __neg__(self): return Vec(-self.x)
    def __repr__(self): return f"Vec({self.x})"
    def __bool__(self): return self.x != 0
    def __len__(self): return 4
    def __setitem__(self, key, value): self.d[key] = value
    def __getitem__(self, key): return self.d[key]
    def __delitem__(self, key): del self.d[key]
    def __enter__(self): self.x = 7; return self
    def __exit__(self, *error): self.x = 8; return True
class Sub(Vec): pass
def count():
    n = 0
    while True:
        yield n
        n += 1
def few():
    yield from (1, 2, 3)
    raise LookupError("no more")
"""


@pytest.mark.parametrize(
    "test",
    [
        "assert Vec(1) + Vec(1) == Vec(2) and Vec(1) != Vec(2) and Vec(2) @ Vec(3) == 6 and -Vec(1) == Vec(-1)",
        "assert Vec(1) < Vec(2) and Vec(2) > Vec(1) and sorted([Vec(2), Vec(1)]) == [Vec(1), Vec(2)] == [min(Vec(1), Vec(2)), Vec(2)]",
        "assert repr(Vec(1)) == str(Vec(1)) == f'{Vec(1)}' == 'Vec(1)' and Vec.__name__ == 'Vec' and Vec(1).__dict__ == {'x': 1, 'd': {}}",
        "assert len({Vec(1), Vec(1), Vec(2)}) == 2 and {Vec(1): 'one'}[Vec(1)] == 'one' and hash(Vec(3)) == hash(3)",
        "assert Vec(1) and not Vec(0) and len(Vec(0)) == 4",
        "v = Vec(1)\nv['k'] = [3]\nassert v['k'] == [3]\ndel v['k']\ntry:\n    v['k']\n    raise AssertionError\nexcept KeyError: pass",
        "assert isinstance(Sub(1), Vec) and not isinstance(Vec(1), Sub) and issubclass(Sub, Vec) and not isinstance(1, Vec)",
        "with Vec(3) as v: assert v.x == 7\nassert v.x == 8\nwith Vec(1) as v: v.nothing\nassert v.x == 8",
        "assert Vec(1) != 1 and Vec(1) not in [1, 2] and not isinstance(Vec(1), int)",
        "import itertools\nc = count()\nassert list(itertools.islice(c, 5)) == [0, 1, 2, 3, 4] and next(c) == 5\nassert 50 in count()",
        "got = []\ntry:\n    for x in few(): got.append(x)\nexcept LookupError as e: got.append(str(e))\nassert got == [1, 2, 3, 'no more']",
    ],
)
def test_objects_of_the_candidates_own_classes_do_what_objects_do(verify, test):
    assert outcome(verify(VECTOR, tests=test, entry_point="Vec")) == (RIGHT, ""), verify(VECTOR, tests=test, entry_point="Vec")


@pytest.mark.parametrize(
    "test",
    [
        "f(1) == 3", "3 == f(1)", "not f(1) != 3", "[f(1)] == [3]", "3 in f(1)", "f(1) in (3, 4)", "f(1) < 5", "5 > f(1)",
        "abs(f(1) - 3) < 1e-6", "abs(3 - f(1)) < 1e-6", "f(1) + 0 == 3", "f(1) == f(1) == 3", "{'a': f(1)} == {'a': 3}",
        "isinstance(f(1), int) and f(1) == 3", "{f(1)} == {3}", "len(f(1) ^ {3}) == 0", "sorted([3, f(1)]) == [3, 3]",
    ],
)  # fmt: skip
def test_what_an_object_says_of_itself_does_not_decide_whether_it_is_the_answer(verify, test):
    names = [
        "eq",
        "ne",
        "lt",
        "le",
        "gt",
        "ge",
        "add",
        "radd",
        "sub",
        "rsub",
        "xor",
        "rxor",
        "contains",
        "bool",
        "abs",
        "int",
        "float",
        "index",
    ]
    code = (
        f"def yes(*_): return True\nE = type('E', (), {{f'__{{n}}__': yes for n in {names}}})\nE.__hash__ = lambda s: hash(3)\n"
    )
    code += "E.__iter__ = lambda s: iter([])\nE.__len__ = lambda s: 0\ndef f(x): return E()"
    assert verify(code, tests=f"assert {test}", entry_point="f").status == WRONG
    swallow = "class E:\n    def __enter__(self): return 1\n    def __exit__(self, *e): return True\ndef f(x): return E()"
    assert outcome(verify(swallow, tests="with f(1) as y:\n    assert y == 3", entry_point="f")) == (WRONG, WRONG_ANSWER)


VALUES = [
    "Decimal('1.10')", "Fraction(1, 3)", "date(2020, 1, 2)", "time(1, 2)", "timedelta(1, 2, 3)", "range(0, 10, 3)",
    "datetime(2020, 1, 2, 3, 4, 5, 6)", "datetime(2020, 1, 2, tzinfo=timezone(timedelta(hours=2)))", "b'\\xff'", "1 + 2j",
    "deque([1, (2,)], maxlen=3)", "Counter('aab')", "OrderedDict([(1, 2), (0, 3)])", "defaultdict(int, {(1,): [2]})",
    "{1, 2}", "frozenset({1})", "bytearray(b'a')", "10 ** 30", "-0.0", "float('inf')", "{1: {2: 'x'}}",
]  # fmt: skip


def test_standard_values_cross_in_both_directions_with_their_types(verify):
    imports = "from decimal import *\nfrom fractions import *\nfrom datetime import *\nfrom collections import *\n"
    values = f"VALUES = [{', '.join(VALUES)}]\n"
    tests = (
        "for n, v in enumerate(VALUES):\n    for got in (f(n), same(v)):\n        assert got == v and type(got) is type(v), v\n"
    )
    tests += "assert P().x == 1 and P() == (1, 2) and P()._asdict() == {'x': 1, 'y': 2} and count('aab').most_common(1) == [('a', 2)]\n"
    tests += "d = groups()\nd[1].append(2)\nassert d == {1: [2]}\nq = deque([1])\nfill(q)\nassert q == deque([1, 3])"
    code = "def f(n): return VALUES[n]\ndef same(x): return x\ndef P(): return namedtuple('P', 'x y')(1, 2)\ncount = Counter\n"
    code += "def groups(): return defaultdict(list)\ndef fill(q): q.append(3)"
    verdict = verify(imports + values + code, tests=imports + values + tests, entry_point="f")
    assert outcome(verdict) == (RIGHT, ""), verdict


def test_objects_of_the_tests_own_classes_may_be_read_and_changed_but_lead_nowhere(verify):
    tree = "class Node:\n    def __init__(self, v, l=None, r=None): self.v, self.l, self.r = v, l, r\nEXPECTED = 3\n"
    flip = "def f(n):\n    if n: n.l, n.r = f(n.r), f(n.l)\n    return n"
    test = tree + "n = f(Node(1, Node(2), Node(EXPECTED)))\nassert n.l.v == 3 and n.r.v == 2 and n.r.l is None"
    assert outcome(verify(flip, tests=test, entry_point="f")) == (RIGHT, "")
    for way in ("n.__init__.__globals__", "type(n).__init__", "n.__class__", "g.__globals__", "g.__closure__", "i.gi_frame"):
        code = f"def f(n, g, i):\n    try: return {way}['EXPECTED']\n    except Exception: return None"
        test = tree + "assert f(Node(1), lambda: EXPECTED + 1, (EXPECTED for _ in '1')) == 3"
        assert outcome(verify(code, tests=test, entry_point="f")) == (WRONG, WRONG_ANSWER)


@pytest.mark.parametrize(
    ("tests", "code", "label"),
    [
        ("assert f(Pair(1)) == 1", "def f(x): return x", "NameError"),  # what the tests call may be asked of the candidate
        ("assert f(1) == LIMIT", "def f(x): return x", "NameError"),  # and what the prompt names
        ("assert list(map(g, [1])) == [2]", "def f(x): return x", "NameError"),
        ("try:\n    r = f(1)\nexcept ValueError: pass\nassert r == 1", "def f(x): raise ValueError", "NameError"),
        ("assert len(f(1)) == 1 / (f(0) or 0)", "def f(x): return [] if x else None", "ZeroDivisionError"),
        ("assert f([f(1), f(1)])", "def f(x): return 'x' * (17 << 20)", OUTPUT_LIMIT),
        ("assert f([C, C])", "C = 'x' * (17 << 20)\ndef f(x): return 1", OUTPUT_LIMIT),
        ("assert f(1) == 2", "f = 5", "TypeError"),
        ("import sys\nif f(1) != 2: sys.exit(1)", "def f(x): return x", WRONG_ANSWER),
        ("assert f(1) == 2", "import os\nos.write(3, b'\\x05\\0\\0\\0[1\\0\\0\\0')\ndef f(x): pass", "Crashed"),
    ],
)
def test_a_program_cannot_turn_its_failure_into_an_error_of_the_tests(verify, tests, code, label):
    entry = None if "map(g" in tests else "f"
    assert outcome(verify(code, tests=tests, entry_point=entry, prompt="Below LIMIT.")) == (WRONG, label)


def test_a_prompt_whose_own_code_fails_is_nobodys_failure(verify):
    verdict = verify(
        "def f(x): return x", prompt="import nothing\ndef f(x):\n    pass", tests="assert f(1) == 1", entry_point="f"
    )
    assert verdict.status == ERROR
    assert "code of the prompt" in verdict.detail
    assert verify("def f(x): return x", tests="import sys\nassert f(1) == 1\nsys.exit(0)", entry_point="f").status == RIGHT


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ("assert f(1) ==", "do not compile"),
        ("assert True", "never call"),
        ("import no_such_module\nassert f(1) == 1", "no_such_module"),
        ("assert 1 / 0 == f(1)", "ZeroDivisionError"),
        ("assert 1 == 2\nassert f(1) == 1", "fail by themselves"),
        ("assert f(1) == no_such_value", "no_such_value"),
        ("import sys\nsys.exit()", "SystemExit"),
        ("f(1)\n__import__('os')._exit(0)", "the judge ended"),
        ("", "must be Python source"),
        ({"type": "call", "inputs": [[1]], "outputs": []}, "same length"),
        ({"type": "call", "inputs": [1], "outputs": [1]}, "list of its arguments"),
        ([{"input": "1"}], "output"),
        (17, "must be Python source"),
        (None, "must be Python source"),
    ],
)
def test_bad_tests_are_an_error_and_nobodys_failure(verify, tests, words):
    verdict = verify("def f(x): return x", tests=tests, entry_point="f")
    assert verdict.status == ERROR
    assert words in verdict.detail
    assert verify("def f(x): return x", tests="assert f(1) == 1", entry_point="f", timeout=-1).status == ERROR


@pytest.mark.parametrize(
    ("expected", "answer", "right"),
    [
        ("9", "9", True), ("9", "9.0", False), ("9", "'9'", False), ("9", "True", False), ("1", "True", False),
        ("True", "1", False), ("True", "True", True), ("None", "None", True), ("None", "0", False),
        ("0.1 + 0.2", "0.3", True), ("0.3", "0.30001", False), ("2.0", "2", True), ("1e20", "1e20 + 1e10", True),
        ("float('nan')", "float('nan')", True), ("1.0", "10 ** 400", False), ("1.0", "True", False),
        ("[1, [2, 3]]", "[1, (2, 3)]", True), ("(1, 2)", "[1, 2]", False), ("[1, 2]", "[2, 1]", False),
        ("[1]", "[True]", False), ("{'a': [1.0]}", "{'a': [1.0 + 1e-9]}", True),
        ("{'a': 1}", "{'a': 1, 'b': 2}", False), ("[]", "()", True), ("{}", "set()", False),
        ("{1}", "{True}", False), ("{1: 2}", "{True: 2}", False), ("(1, 2)", "__import__('time').gmtime(0)[:2]", False),
        ("{'a': 1}", "__import__('collections').Counter('a')", True), ("[0]", "range(1)", False),
        ("{1, 2}", "{2, 1}", True), ("{1, 2}", "[1, 2]", False), ("'a'", "b'a'", False),
    ],
)  # fmt: skip
def test_expected_values_are_compared_by_exact_type(verify, expected, answer, right):
    tests = [{"args": [], "expected": eval(expected)}]
    verdict = verify(f"def f(): return {answer}", tests=tests, entry_point="f")
    assert outcome(verdict) == ((RIGHT, "") if right else (WRONG, WRONG_ANSWER))


def test_calls_in_the_formats_of_the_data_sets(verify):
    apps = json.dumps({"fn_name": "f", "inputs": [[1, 2], [3, 4]], "outputs": [3, 7]})
    live = json.dumps([{"input": "[1, 2]\n3", "output": "[1, 2, 3]", "testtype": "functional"}])
    method = "class Solution:\n    def f(self, a: List[int], x: int) -> List[int]:\n        return a + [x]"
    assert verify("def f(a, b): return a + b", tests=apps).status == RIGHT
    assert verify("def f(a, b): return a * b", tests=apps).label == WRONG_ANSWER
    assert verify(method, tests=live, entry_point="f").status == RIGHT
    assert verify(method, tests=live, entry_point="Solution.f").status == RIGHT
    assert verify(method.replace("[x]", "[0]"), tests=live, entry_point="f").label == WRONG_ANSWER
    bare = "def f(a: List[int], t: Optional[TreeNode] = None) -> Deque[ListNode]:\n    return a + [pow(2, 5, 29)]"
    assert verify(bare, tests=[{"args": [[1]], "expected": [1, 3]}], entry_point="f").status == RIGHT
    assert verify("def f(x): return x", tests=["assert f(1) == 1", "assert f(2) == 2"], entry_point="f").status == RIGHT
    assert verify("def f(x): return x", tests='["assert f(1) == 1", "assert f(2) == 3"]', entry_point="f").label == WRONG_ANSWER
    assert verify("class Solution: pass", tests=live, entry_point="f").label == "AttributeError"


def test_the_pool_waits_as_long_as_the_tests_allow():
    tests = {"type": "stdin_stdout", "inputs": ["1"] * 10, "outputs": ["1"] * 10}
    assert pool_deadline(Problem("p", "", "", {"tests": tests, "timeout": 2.0}), 5.0) > 20.0
    assert 5.0 < pool_deadline(Problem("p", "", "", {"tests": "assert f(1)"}), 5.0) < 15.0
    with VerifierPool("code", workers=1, timeout=0.5) as pool:
        slow = Problem("p", "", "", {"tests": "assert f(1) == 1", "entry_point": "f", "timeout": 3.0})
        response = "```python\nimport time\ndef f(x):\n    time.sleep(1.2)\n    return x\n```"
        short = Problem("q", "", "", {"tests": "assert f(1) == 1", "entry_point": "f"})
        assert [outcome(v) for v in pool.grade([(slow, response), (short, response)])] == [
            (RIGHT, ""),
            (WRONG, TIMEOUT),
        ]
        assert pool.counts["replaced workers"] == 0


def test_self_test_fails_when_the_sandbox_does_not_discriminate(monkeypatch):
    verifier = CodeVerifier()
    assert verifier.self_test() is True
    monkeypatch.setattr(verifier.sandbox, "run_tests", lambda *_, **__: {"status": "right"})
    assert verifier.self_test() is False
    verifier.close()


@pytest.mark.slow
@pytest.mark.skipif(not DATA.is_dir(), reason="the data folder is not beside the repository")
@pytest.mark.parametrize("name", ["humaneval", "humaneval_plus_mini", "mbpp", "mbpp_plus"])
def test_canonical_solutions_pass_and_their_mutants_fail(name):
    """A sample; MINIRL_WHOLE_SWEEP=1 takes every row, as benchmarks/code_canonical.py does with its counts printed."""
    rows = rows_of(name)[:: 1 if WHOLE else 30]
    items, kinds = [], []
    for row in rows:
        programs = [canonical(row), *mutants(row)]
        assert len(programs) >= 4, row["id"]
        items += [(problem_of(row), f"```python\n{program}\n```") for program in programs]
        kinds += [(row, index) for index in range(len(programs))]
    with VerifierPool("code", workers=2, timeout=15.0) as pool:
        verdicts = pool.grade(items)
    for (row, index), verdict in zip(kinds, verdicts, strict=True):
        if index == 0:
            assert (verdict.status == RIGHT) is row.get("canonical_passes", True), (row["id"], verdict)
        elif row.get("canonical_passes", True) or verdict.status != ERROR:  # one flagged test calls itself: nobody's failure
            assert verdict.status == WRONG, (row["id"], index, verdict)
            assert verdict.label.isidentifier() or verdict.label == TIMEOUT


def test_mutants_are_programs():
    row = {"prompt": "", "canonical_solution": "def f(x):\n    return x", "entry_point": "f"}
    made = mutants(row)[1:]
    assert len(made) >= 3
    for mutant in made:
        ast.parse(mutant)


@pytest.mark.skipif(not DATA.is_dir(), reason="the data folder is not beside the repository")
def test_tests_of_the_stdin_sample_are_read():
    for row in [json.loads(line) for line in Path(DATA / "codeforces_stdin_sample.jsonl").read_text().splitlines()]:
        assert parse_tests(Problem(row["id"], row["prompt"], "", row)).kind == "program"
