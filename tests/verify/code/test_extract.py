"""Which text of a response is the program; and that reading it takes a time that grows with its length only."""
# ruff: noqa: E501 - a line of a program is clearer whole

import gc
import time

import pytest

from minirl.verify.code.extract import extract_code
from minirl.verify.code.outputs import same_lines, same_output
from minirl.verify.code.verifier import CodeVerifier
from minirl.verify.types import RIGHT, Problem


def fenced(*blocks):
    return "\n\nThen:\n\n".join(f"```python\n{block}\n```" for block in blocks) + "\nDone."


@pytest.fixture(scope="module")
def verifier():
    verifier = CodeVerifier(timeout=5.0)
    yield verifier
    verifier.close()


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


SOLVE = "def f(x):\n    return x * x"
MAIN = "n = int(input())\nprint(n * n)"

CALLS = {  # answers that are right, entry point f
    "a usage example after it": fenced(SOLVE, "print(f(3))"),
    "tests after it": fenced(SOLVE, "assert f(2) == 4\nassert f(3) == 10"),
    "an example that would fail": fenced(SOLVE, "result = f('a')\nprint(result)"),
    "an example that imports it": fenced(SOLVE, "from solution import f\nimport mine as f\nprint(f(3))"),
    "tests before it": fenced("assert f(2) == 4", SOLVE),
    "a first attempt": fenced("def f(x):\n    return x", SOLVE),
    "a helper's caller": fenced("def square(x):\n    return x * x", "def f(x):\n    return square(x)", "for i in range(3):\n    print(square(i))"),
    "imports apart": fenced("import math\nfrom typing import List", "def f(x: int) -> List[int]:\n    return int(math.pow(x, 2))", "f(3)"),
    "a star import apart": fenced("from math import *", "def f(x):\n    return int(pow(x, 2) + floor(0.5))"),
    "a constant and a class apart": fenced("POWER = 2\n\n@staticmethod\ndef g(): pass\nclass Box:\n    def __init__(self, x):\n        self.x = x\n", "def f(x):\n    return Box(x).x ** POWER", "f(1)"),
    "a chain of helpers": fenced("def a(x):\n    return x", "def b(x):\n    return a(x) * a(x)", "def f(x):\n    return b(x)", "print(b(3))"),
    "a helper after it": fenced("def f(x):\n    return square(x)", "def square(x):\n    return x * x\nprint(f(3))"),
    "the helper's block runs an example": fenced("def g(x):\n    return x * x\n\nprint(g(input()))", "def f(x):\n    return g(x)"),
    "a name of an example in its documentation": fenced("result = f(3)", 'def f(x):\n    """Gives the result of x."""\n    return x * x', "result = f(4)"),
    "an unmarked solution and a marked example": "```\n" + SOLVE + "\n```\nRun:\n```python\nprint(f(2))\n```",
    "a marked solution and other languages": "```python\n" + SOLVE + "\n```\n```bash\npython f.py\n```\n```text\n9\n```\n```\n4\n```",
    "a method": fenced("class Solution:\n    def f(self, x):\n        return x * x", "print(Solution().f(3))"),
    "a lambda": fenced("f = lambda x: x * x", "print(f(2))"),
    "CRLF": fenced(SOLVE, "print(f(3))").replace("\n", "\r\n"),
    "a fence in its docstring": '```python\ndef f(x):\n    """Square.\n\n    ```\n    f(2)\n    ```\n    """\n    return x * x\n```\nDone.',
    "a fence in a docstring at the margin": '```python\n"""Square.\n```\nf(2)\n```\n"""\ndef f(x):\n    return x * x\n```\nDone.',
    "a marked fence in a docstring": '```python\ndef f(x):\n    """Square.\n\n```python\nf(2)\n```\n    """\n    return x * x\n```\nDone.',
    "an odd quote in a comment": "```python\n# don't use ''' here\n" + SOLVE + "\n```\nThen\n```python\nprint(f(2))  # it's \"\"\"\n```",
    "a block that never closes": "So:\n```python\n" + SOLVE,
    "a block that the next one closes": "So:\n```python\n" + SOLVE + "\n\n```python\nprint(f(2))\n```",
    "closed only": SOLVE + "\n```\nThat is all.",
    "a list of steps": "1. So\n   ```python\n   def f(x):\n       return x * x\n   ```\n2. Use\n   ```python\n   f(2)\n   ```",
    "attributes of a block": "```python title=\"f.py\" linenums=1\n" + SOLVE + "\n```\n```pycon\n>>> f(2)\n4\n```",
    "four backticks": "````python\n" + SOLVE + "\n````\n```python\nf(1)\n```",
    "prose before code": "The square is\n\n" + SOLVE + "\n",
    "a heading": "# Solution\n\nHere it is.\n\nimport math\n" + SOLVE,
    "comments first": "# squares\n\n" + SOLVE,
    "prose after code": SOLVE + "\n\nThis works because x is a number.",
    "a fence at the end of a sentence": "The code: ```python\n" + SOLVE + "\n```",
    "a quotation": "> ```python\n> def f(x):\n>     return x * x\n> ```",
    "an import of several lines apart": fenced("from math import (\n  floor,\n  ceil,\n)", "def f(x):\n    return floor(x * x)"),
    "a mark of the byte order": "```python\n\ufeff" + SOLVE + "\n```",
}  # fmt: skip
PROGRAMS = {  # answers that are right, a stdin/stdout program
    "an example after it": fenced(MAIN, "print(solve(3))"),
    "tests after it": fenced(MAIN, "assert square(3) == 9"),
    "input shown in a block": fenced(MAIN) + "\n```\n3\n```\n```text\n9\n```",
    "functions and a call": fenced("def main():\n    n = int(input())\n    print(n * n)", "main()"),
    "a helper apart": fenced("def square(x):\n    return x * x\n\nprint(square(2))", "print(square(int(input())))", "square(2)"),
    "imports apart": fenced("import sys", "n = int(sys.stdin.readline())\nprint(n * n)", "def other():\n    return 1"),
    "a first attempt": fenced("n = int(input())\nprint(n)", MAIN, "# It takes O(1)."),
    "reading and printing apart": fenced("n = int(input())", "print(n * n)"),
    "standard input by its number": fenced("n = int(open(0).read())\nprint(n * n)", "x = 5"),
    "main at the end": fenced("def main():\n    n = int(input())\n    print(n * n)\nif __name__ == '__main__':\n    main()", "main"),
    "reading, computing and printing apart": fenced("n = int(input())", "square = n * n", "print(square)"),
    "prose and statements without a fence": "The program:\n\nn = int(input())\nprint(n * n)\n\nIt reads n and prints it.",
    "without a fence": MAIN,
    "CRLF without a fence": MAIN.replace("\n", "\r\n"),
    "without a fence, a function first": "def main():\n    n = int(input())\n    print(n * n)\nmain()",
    "a loop without a fence": "for line in [input()]:\n    print(int(line) ** 2)",
    "a comment without a fence": "# reads n\nprint(int(input()) ** 2)",
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_answers_to_a_question_for_a_function(verifier, name):
    call = {"type": "call", "inputs": [[2], [3]], "outputs": [4, 9]}
    for tests in ({"tests": call, "entry_point": "f"}, {"tests": "assert f(2) == 4\nassert f(3) == 9", "entry_point": "f"}):
        if name != "a method" or tests["tests"] is call:
            verdict = verifier(Problem("p", "Square.", "", tests), CALLS[name])
            assert verdict.status == RIGHT, (verdict, extract_code(CALLS[name], "", "f"))


@pytest.mark.parametrize("name", PROGRAMS)
def test_answers_to_a_question_for_a_program(verifier, name):
    tests = {"type": "stdin_stdout", "inputs": ["2\n", "3\n"], "outputs": ["4", "9"]}
    verdict = verifier(Problem("p", "Square.", "", {"tests": tests}), PROGRAMS[name])
    assert verdict.status == RIGHT, (verdict, extract_code(PROGRAMS[name], "", None, True))


def test_without_an_entry_point_the_names_that_the_tests_call_decide(verifier):
    problem = Problem("p", "Square.", "", {"tests": ["assert f(2) == 4", "assert f(3) == 9"]})
    assert verifier(problem, fenced(SOLVE, "print(f(1))")).status == RIGHT


@pytest.mark.parametrize(
    ("prompt", "response"),
    [
        ("Write f.\n```python\n", "def f(x):\n    return x * x\n```\nIt squares."),
        ("Write f.\n```python\n", "def f(x):\n    return x * x\n```\nUse it:\n```python\nprint(f(2))\n```"),
        ("Write f.\n```python\n", "def f(x):\n    return x * x\n"),
        ("Write f.\n```python\n", "Sure.\n```python\ndef f(x):\n    return x * x\n```"),
        ("Write f.\n```python\ndef f(x):\n", "    return x * x\n```\nIt squares."),
        ("Write f.\n```python\ndef f(x):\n", "    return x * x\n"),
        ('def f(x):\n    """Square."""\n', "    return x * x\n```\nIt squares."),
        ('def f(x):\n    """Square."""\n', "    y = x\n    return x * y\n"),
        ('def f(x):\n    """Square."""\n    ', "return x * x\n"),
        ('def f(x):\n    """Square."""\n', " It squares:\n\ndef f(x):\n    return x * x\n"),
        ("Write f.\n```\nf(2) == 4\n```\n", "```python\ndef f(x):\n    return x * x\n```"),
    ],
)
def test_a_fence_or_a_function_that_the_prompt_began(verifier, prompt, response):
    problem = Problem("p", prompt, "", {"tests": "assert f(2) == 4 and f(3) == 9", "entry_point": "f"})
    verdict = verifier(problem, response)
    assert verdict.status == RIGHT, (verdict, extract_code(response, prompt, "f"))


N = 200_000
HOSTILE = {
    "dots": "import a" + ".b" * N,
    "dots in a block": "```python\nimport a" + ".b" * N + "\n```",
    "values in a text": 'print(f"' + "{1}" * N + '")',
    "brackets": "x = " + "(" * N,
    "braces": "{" * N,
    "backticks": "`" * N,
    "fences": "```\n" * N,
    "marked fences": "```python\n" * N,
    "blocks": "```python\na = 1\n```\n" * N,
    "blocks that need each other": "".join(f"```python\ndef f{n}(x): return f{n + 1}(x)\n```\n" for n in range(9999)),
    "blocks with quotes": "```python\n'''\n```\n" * N,
    "blocks with two kinds of quotes": "```python\n'''\n```\n```python\n\"\"\"\n```\n" * N,
    "spaces": " " * N * 4,
    "spaces after a word": "a" + " " * N * 4 + "x",
    "tabs and a fence": "\t" * N + "```",
    "words": "a " * N * 2,
    "words with commas": "a," * N * 2,
    "words with commas and spaces": "a , " * N + "=",
    "for": "for " * N,
    "for and spaces": "for" + " " * N,
    "functions without end": "def a(" * N,
    "functions without end in blocks": "```python\ndef f(x): return y\n```\n```python\n" + "def a(" * 30_000 + "\n```\n",
    "for in blocks": "```python\ndef f(x): return y\n```\n```python\n" + "for " * 45_000 + "\n```\n",
    "lambdas in blocks": "```python\ndef f(x): return y\n```\n```python\n" + "lambda a" * 20_000 + "\n```\n",
    "quotes": "```python\n" + "'\"" * N + "\n```",
    "escapes": "```python\n" + '"' + '\\"' * N + "\n```",
    "conditions": "if " + ": )" * N,
    "calls": "a(" + ")(" * N + "x",
    "items": "a[" + "] = " * N,
    "lines of code": "a = 1\n" * N,
    "imports": "import " + "a, " * N,
    "imports in blocks": "```python\ndef f(x): return y\n```\n```python\nimport " + "a, " * 50_000 + "\n```\n",
    "carriage returns": "\r" * N * 4,
    "a letter many times": "a" * N * 8,
}


@pytest.fixture
def frozen():
    """Garbage collection does not go through what other tests have left in this process: that time is not the reader's."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.slow
@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("name", HOSTILE)
def test_reading_a_response_takes_time_that_grows_with_its_length(name):
    for entry_point, program, prompt in (("f", False, ""), (None, True, "def f(x):\n"), ("f", False, "```python\ndef f(x):\n")):
        start = time.process_time()
        extract_code(HOSTILE[name], prompt, entry_point, program)
        assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    "program",
    [
        "print('1'*3000000+'x')",
        "print('1.'*3000000)",
        "print('1'*3000000)",
        "print('1e'*2000000)",
        "print('.1'*3000000, '1 '*9)",
    ],
)
def test_comparing_outputs_takes_time_that_grows_with_their_length(verifier, program):
    for tests in ({"inputs": [""], "outputs": ["3.14"]}, [{"input": "", "output": "3.14", "testtype": "stdin"}]):
        start = time.process_time()
        verdict = verifier(Problem("p", "", "", {"tests": tests, "tolerance": 1e-3}), f"```python\n{program}\n```")
        assert verdict.label == "WrongAnswer"
        assert time.process_time() - start < 1.0


@pytest.mark.parametrize(
    "text", ["1" * 10**6 + "x", "-" * 10**6, "1_" * 10**6, "." * 10**6, "1e" + "9" * 10**6, "+1." + "0" * 10**6 + "e"]
)
def test_texts_that_are_nearly_numbers(text):
    start = time.process_time()
    assert not same_output("3.14", text)
    assert not same_output(text, "3.14")
    assert not same_lines("3.14", text, 1e-3)
    assert not same_lines(text, "3.14", 1e-3)
    assert time.process_time() - start < 1.0


def test_long_integers_in_stdin_stdout_and_expected_values(verifier):
    tests = {"type": "stdin_stdout", "inputs": ["9" * 6000 + "\n"], "outputs": ["1" + "0" * 6000]}
    assert verifier(Problem("p", "", "", {"tests": tests}), "```python\nprint(int(input()) + 1)\n```").status == RIGHT
    call = '{"fn_name": "f", "inputs": [[' + "9" * 6000 + ']], "outputs": [1' + "0" * 6000 + "]}"
    assert verifier(Problem("p", "", "", {"tests": call}), "```python\ndef f(x): return x + 1\n```").status == RIGHT
    wrong = verifier(Problem("p", "", "", {"tests": call}), "```python\ndef f(x): return x + 2\n```")
    assert wrong.label == "WrongAnswer", wrong


def test_the_tolerance_is_offered_where_livecodebench_has_none(verifier):
    tests = [{"input": "", "output": "0.3333333333", "testtype": "stdin"}]
    response = "```python\nprint(1 / 3)\n```"
    assert verifier(Problem("p", "", "", {"tests": tests}), response).label == "WrongAnswer"
    assert verifier(Problem("p", "", "", {"tests": tests, "tolerance": 1e-6}), response).status == RIGHT
    assert verifier(Problem("p", "", "", {"tests": tests, "tolerance": -1}), response).status == "error"
    loose = CodeVerifier(tolerance=1e-6)
    assert loose(Problem("p", "", "", {"tests": tests}), response).status == RIGHT
    assert loose(Problem("p", "", "", {"tests": tests}), "```python\nprint(0.34)\n```").label == "WrongAnswer"
    loose.close()
    assert same_lines("1 0.5", "1 0.5000001", 1e-6)
    assert not same_lines("1 0.5", "1.0000001 0.5", 1e-6)  # integers are exact
    assert not same_lines("a 0.5", "b 0.5", 1e-6)


def test_the_body_of_a_function_that_the_prompt_begins_may_stand_in_a_block(verifier):
    problem = Problem("p", 'def f(x):\n    """Square."""\n', "", {"tests": "assert f(3) == 9", "entry_point": "f"})
    assert verifier(problem, "```python\n    return x * x\n```").status == RIGHT
    assert verifier(problem, "```python\n    return x\n```").status != RIGHT
