"""Grades answers to mathematics problems, with one of three graders:

exact       equality of canonical keys (minirl/verify/canonical.py), the default
mathruler   the verdicts of mathruler 0.1.0, the grader of the EDAS paper, wherever it terminates
math_verify the verdicts of math-verify 0.9.0

An answer in training is the content of the last complete box. The label of a wrong answer is its canonical key,
whatever the grader, so that classes of errors are the same for every order of the rollouts.
"""

import re
import time
from collections.abc import Callable
from functools import lru_cache

from minirl.verify.math import extract, values
from minirl.verify.math.canonical import canonical_key, nesting, read
from minirl.verify.math.clean import clean
from minirl.verify.math.latex import MAX_DEPTH, Node, Unreadable, parse
from minirl.verify.types import EMPTY_ANSWER, NO_ANSWER, RIGHT, WRONG, Problem, Verdict

# Beyond these the other graders may not come back: their answer is then decided by their own text comparison only.
MAX_LENGTH = 2000
MAX_NUMBER_LOG2 = 2e6
MAX_POLYNOMIAL_POWER = 200


def exact(answer: str, gold: str) -> bool:
    return canonical_key(answer) == canonical_key(gold)


def mathruler(answer: str, gold: str) -> bool:
    return told(mathruler_of, answer, gold)


def math_verify(answer: str, gold: str) -> bool:
    return told(math_verify_of, answer, gold)


def told(grade: Callable[[str, str], bool], answer: str, gold: str) -> bool:
    """The verdict of a library that raises on some texts: an answer that it cannot read is wrong, a fault of ours raises.

    Whose fault it is shows when the gold answer is judged alone: math-verify raises on full-width digits, and a response
    must not leave its group by writing them.
    """
    try:
        return grade(answer, gold)
    except Exception:  # noqa: BLE001 - a library may raise anything about a text; the next line tells that from a fault of ours
        grade(gold, gold)
        return False


def mathruler_of(answer: str, gold: str) -> bool:
    from mathruler import grader

    if terminates(answer) and terminates(gold):
        return bool(grader.grade_answer(answer, gold))
    # The part of grade_answer that comes before sympy.
    if grader.normalize_answer(answer) == grader.normalize_answer(gold):
        return True
    return len(answer) <= MAX_LENGTH and grader._normalize(answer) == grader._normalize(gold)


def math_verify_of(answer: str, gold: str) -> bool:
    import math_verify as library

    if not (terminates(answer) and terminates(gold)):
        return answer.strip() == gold.strip()
    # No timeouts of its own: they need signals, which fail outside the main thread. The pool has a deadline.
    parsed = [library.parse(f"${text}$", parsing_timeout=None, raise_on_error=True) for text in (gold, answer)]
    return bool(library.verify(*parsed, timeout_seconds=None, raise_on_error=True))


GRADERS: dict[str, Callable[[str, str], bool]] = {"exact": exact, "mathruler": mathruler, "math_verify": math_verify}


REPEATED = re.compile(r"[\]'\"]\s*\*|,[^()]*\)\s*\*|\*\s*[\['\"]|\*\s*\([^()]*,")  # [1]*10**9 is a list to sympy
TOWER = re.compile(r"\^.*\^|\^\W*\d{4}|\d{4}\)*\s*!|!.*!|\)\s*!|[eE]\+?\d{6}")


def terminates(text: str) -> bool:
    """Whether sympy can be trusted with a text: it is not too long, and no number or power in it is too large."""
    if len(text) > MAX_LENGTH or nesting(text) > MAX_DEPTH:
        return False
    if not re.search(r"[\^!]|\*\*|binom|[eE]\+?\d{6}", text):
        return not (REPEATED.search(text) and re.search(r"\d{5}", text))
    cleaned = clean(text)
    if REPEATED.search(cleaned):
        return False
    return all(map(small, re.split(r"[=<>≤≥≠≈,;]", cleaned)))


def small(expression: str) -> bool:
    if not re.search(r"[\^!eE]|binom", expression):
        return True
    try:
        return log2_bound(parse(expression)) <= MAX_NUMBER_LOG2
    except Unreadable:
        return not TOWER.search(expression)


def log2_bound(node: Node) -> float:
    """An upper bound of log2 of all numbers that evaluating a tree makes; infinite when a power is too large."""
    if node[0] == "num":
        return float(values.bits(node[1]))
    if node[0] == "sym":
        return 2.0
    parts = [log2_bound(part) for part in node[1:] if isinstance(part, tuple)]
    if node[0] == "pow":
        if node[2][0] == "num" and values.symbols(node[1]) and abs(node[2][1]) > MAX_POLYNOMIAL_POWER:
            return float("inf")
        return parts[0] * 2.0 ** min(parts[1], 500)
    if node[0] == "fn" and node[1] in ("!", "!!", "binom"):
        return parts[0] * 2.0 ** min(parts[0], 500)
    return sum(parts) + len(parts)


READINGS: dict[str, Callable[[str], str | None]] = {"boxed": extract.boxed, "whole": extract.whole, "lenient": extract.answer}


@lru_cache(maxsize=65_536)
def check_gold(answer: str) -> str | None:
    """A sentence that says why a gold answer is unfit, None when it can be read. Words are readable as words."""
    if not answer.strip():
        return "the gold answer is empty"
    tree = read(answer)
    if tree.kind == "text" and tree.key.startswith("text:") and re.search(r"[\d\\=+^/<>≤≥]", tree.key):
        return f"the gold answer {answer!r} cannot be read as mathematics; only the same text will be right"
    return None


def note_list(answer: str) -> str | None:
    """A sentence for a gold answer that is a list or a set, of which order and repetition do not count unless the
    verifier's option `ordered` says so; None for any other."""
    tree = read(answer)
    if tree.kind != "set" or len(tree.items) < 2 or re.search(r"\\pm|±|\\mp|∓", answer):
        return None
    return f"the gold answer {answer!r} is a list of {len(tree.items)}: its order does not count unless ordered is set"


class MathVerifier:
    """Scores responses. The module's docstring has the graders.

    answer: where the answer stands.
      "boxed"    in the last complete box; a response without one gives no answer
      "whole"    the response is the answer and nothing else; a box around it is taken off
      "lenient"  as benchmarks of texts without a box read them: boxes, else what follows "answer is", "A:" or "####",
                 else the last formula, else the last number; never a part of a number
    after: the text that ends a model's thinking; None reads the whole response. Where a response holds it, only what
      stands behind its last occurrence may answer, so a box inside the thinking counts for nothing. A response that is
      cut inside its thinking gives no answer: one that opens it ("<think>" for "</think>") behind the last end, or one
      without any end where `thinking` says that the prompt opened it.
    thinking: whether the prompt ends inside the thinking, as chat templates do that end in "<think>".
    ordered: a list counts in the order in which it is written, with repetitions, and is the tuple of its elements;
      without it 1,2,2 is 2,1. A problem's extra_info["ordered"] decides for itself. Of the grader "exact" only.
    """

    def __init__(
        self,
        grader: str = "exact",
        answer: str = "boxed",
        after: str | None = "</think>",
        thinking: bool = False,
        ordered: bool = False,
    ):
        if grader not in GRADERS:
            raise ValueError(f"unknown grader {grader!r}: use one of {', '.join(GRADERS)}")
        if answer not in READINGS:
            raise ValueError(f"unknown reading {answer!r} of answers: use one of {', '.join(READINGS)}")
        if after == "":
            raise ValueError("after must be a text such as '</think>', or None to read the whole response")
        if thinking and after is None:
            raise ValueError("thinking says that the prompt opens the thinking; after must then say what ends it")
        self.grader, self.ordered, self.after, self.thinking = grader, ordered, after, thinking
        self.opening = "<" + after[2:] if after and after.startswith("</") else None
        self.grade = GRADERS[grader]
        self.read = READINGS[answer]

    def answer_of(self, response: str) -> str | None:
        """The answer that a response gives, "" for an empty box, None where it gives none."""
        if self.after is not None:
            _, end, rest = response.rpartition(self.after)
            if (self.thinking and not end) or (self.opening and self.opening in rest):
                return None  # cut inside the thinking
            response = rest
        return self.read(response)

    def __call__(self, problem: Problem, response: str) -> Verdict:
        start = time.perf_counter()
        ordered = problem.extra_info.get("ordered", self.ordered)
        if ordered and self.grader != "exact":
            raise ValueError(f"ordered lists need the grader exact, not {self.grader}")
        answer = self.answer_of(response)
        if not answer:
            label = NO_ANSWER if answer is None else EMPTY_ANSWER
            return Verdict(WRONG, label, seconds=time.perf_counter() - start)
        key = canonical_key(answer, ordered)
        right = key == canonical_key(problem.answer, True) if ordered else self.grade(answer, problem.answer)
        return Verdict(RIGHT if right else WRONG, "" if right else key, key, seconds=time.perf_counter() - start)

    def self_test(self) -> None:
        """Raises RuntimeError when the grader cannot tell right from wrong here (math-verify #50: a grader whose errors
        are swallowed outside the main thread gives every answer 0)."""
        for answer, gold, expected in SELF_TEST:
            if self.grade(answer, gold) is not expected:
                raise RuntimeError(f"grader {self.grader}: {answer!r} against {gold!r} is not judged {expected}")


SELF_TEST = [
    ("0.5", "1/2", True),
    ("0.5", "1/3", False),
    ("x+1", "1+x", True),
    ("x+1", "x+2", False),
    ("7", "7", True),
    ("7", "8", False),
]
