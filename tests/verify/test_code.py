"""Code: what is taken as the program, what each kind of test means, and which error a wrong program gets."""

import ast
import json
import os
from pathlib import Path

import pytest

from benchmarks.code_canonical import DATA, canonical, mutants, problem_of, rows_of
from minirl.tasks import Problem
from minirl.verify import ERROR, NO_CODE, OUTPUT_LIMIT, RIGHT, TIMEOUT, WRONG, WRONG_ANSWER
from minirl.verify.code import CodeVerifier, extract_code, parse_tests, pool_deadline, prelude_of, same_output
from minirl.verify.pool import VerifierPool

WHOLE = os.environ.get("MINIRL_WHOLE_SWEEP") == "1"


@pytest.fixture(scope="module")
def verify():
    verifier = CodeVerifier(timeout=2.0)

    def run(code, **facts):
        prompt = facts.pop("prompt", "")
        return verifier(Problem("p", prompt, "", facts), f"```python\n{code}\n```")

    yield run
    verifier.close()


def outcome(verdict):
    return verdict.status, verdict.label


@pytest.mark.parametrize(
    ("response", "code"),
    [
        ("```python\na = 1\n```", "a = 1\n"),
        ("first\n```python\na = 1\n```\nbetter:\n```python\na = 2\n```\nDone.", "a = 2\n"),
        ("```python\na = 1\n```\nrun it:\n```bash\npython a.py\n```\noutput\n```\n1\n```", "a = 1\n"),
        ("```\na = 1\n```", "a = 1\n"),
        ("```Python3\na = 1\n```", "a = 1\n"),
        ("~~~py\na = 1\n~~~", "a = 1\n"),
        ("1. So:\n   ```python\n   if a:\n       b = 1\n   ```", "if a:\n    b = 1\n"),
        ("```python\ndef f():\n    return 1", "def f():\n    return 1"),
        ("````python\ntext = '''\n```\n'''\n````", "text = '''\n```\n'''\n"),
        ("def f(x):\n    return x", "def f(x):\n    return x"),
        ("Here is my solution\n\ndef f(x):\n    return x", "def f(x):\n    return x"),
        ("```bash\nls\n```", None),
        ("```python\n\n```", None),
        ("I do not know.", None),
        ("42", None),
        ("", None),
    ],
)
def test_the_program_in_a_response(response, code):
    assert extract_code(response) == code


def test_a_completion_is_put_after_a_prompt_that_is_python():
    prompt = 'def f(x):\n    """Twice x."""\n'
    assert extract_code("    return 2 * x\n", prompt) == prompt + "    return 2 * x\n"


def test_the_labels_of_plain_assert_scripts(verify):
    facts = {"tests": "assert f(1) == 2\nassert f(2) == 3", "entry_point": "f"}
    assert outcome(verify("def f(x): return x + 1", **facts)) == (RIGHT, "")
    assert outcome(verify("def f(x): return x + 2", **facts)) == (WRONG, WRONG_ANSWER)
    assert outcome(verify("def f(x): return [][x]", **facts)) == (WRONG, "IndexError")
    assert outcome(verify("def f(x): return x +", **facts)) == (WRONG, "SyntaxError")
    assert outcome(verify("def f(x):\nreturn x", **facts)) == (WRONG, "IndentationError")
    assert outcome(verify("import no_such_module", **facts)) == (WRONG, "ModuleNotFoundError")
    assert outcome(verify("def g(x): return x + 1", **facts)) == (WRONG, "NameError")
    assert outcome(verify("def f(x):\n    while True: pass", **facts, timeout=0.3)) == (WRONG, TIMEOUT)
    assert outcome(verify("class Mine(Exception): pass\ndef f(x): raise Mine", **facts)) == (WRONG, "Mine")
    assert outcome(verify("", **facts)) == (WRONG, NO_CODE)
    assert outcome(verify("a = 1\n" * 40_000, **facts)) == (WRONG, OUTPUT_LIMIT)


def test_the_first_failing_test_names_the_error(verify):
    facts = {"tests": "assert f(1) == 2\nassert f(2) == 3\nassert f(0) == 1", "entry_point": "f"}
    assert verify("def f(x): return 2 if x == 1 else 1 // (x - 2)", **facts).label == "ZeroDivisionError"
    assert verify("def f(x): return 2 if x == 1 else 9 if x == 2 else 1 // x", **facts).label == WRONG_ANSWER


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


def test_helpers_of_the_prompt_are_the_prompts(verify):
    """HumanEval's decode_cyclic is tested with encode_cyclic of the prompt: the candidate may not supply its own."""
    prompt = "import math\ndef encode(s):\n    return s[1:] + s[:1]\ndef decode(s):\n    '''Undo encode.'''\n"
    tests = "for s in ('abc', 'xyz'):\n    assert decode(encode(s)) == s"
    facts = {"prompt": prompt, "tests": tests, "entry_point": "decode"}
    assert verify("def decode(s): return encode(encode(s))", **facts).status == RIGHT
    assert verify("def encode(s): return s\ndef decode(s): return s", **facts).label == WRONG_ANSWER
    assert "math" in prelude_of(prompt, "decode")
    assert "decode" not in prelude_of(prompt, "decode")
    assert prelude_of("Write a function.", "decode") == ""


@pytest.mark.parametrize(
    ("tests", "words"),
    [
        ("assert f(1) ==", "do not compile"),
        ("assert True", "never call"),
        ("import no_such_module\nassert f(1) == 1", "no_such_module"),
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
    assert verify("class Solution: pass", tests=live, entry_point="f").label == "AttributeError"


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
        else:
            assert verdict.status == WRONG, (row["id"], index, verdict)
            assert verdict.label.isidentifier() or verdict.label == TIMEOUT


def test_mutants_are_programs():
    row = {"prompt": "", "canonical_solution": "def f(x):\n    return x", "entry_point": "f"}
    for mutant in mutants(row)[1:]:
        ast.parse(mutant)


@pytest.mark.skipif(not DATA.is_dir(), reason="the data folder is not beside the repository")
def test_tests_of_the_stdin_sample_are_read():
    for row in [json.loads(line) for line in Path(DATA / "codeforces_stdin_sample.jsonl").read_text().splitlines()]:
        assert parse_tests(Problem(row["id"], row["prompt"], "", row)).kind == "program"
