r"""The grader by itself, in a pool of processes that survives whatever a response makes of it. No torch, no trainer.

    python examples/grader_plain.py

A verdict is right, wrong, or error: an error is a fault of the grader or the gold answer and never a silent 0. Equal answers
have equal keys, so that `label` tells the different wrong answers of a group apart. Programs: VerifierPool("code"), with
extra_info={"tests": ...} in each Problem. Files of rows: python -m minirl.verify FILE.jsonl.
"""

from minirl.verify import Problem
from minirl.verify.pool.pool import VerifierPool

PROBLEM = Problem("1", "What is 1/2 + 1/4?", r"\frac{3}{4}")
RESPONSES = [
    r"Together \boxed{0.75}.",
    r"<think>Perhaps \boxed{3/4}?</think> It is \boxed{\frac{2}{6}}.",
    r"1/2 + 1/4 = \boxed{1/3}",
    "It is 3/4.",
]


def main() -> None:
    """Prints a line for each response."""
    with VerifierPool("math", {"grader": "exact"}, workers=2, timeout=5.0) as pool:
        for response, verdict in zip(RESPONSES, pool.grade([(PROBLEM, text) for text in RESPONSES]), strict=True):
            print(f"{verdict.status:5}  {verdict.label or '-':12}  {response}")


if __name__ == "__main__":  # the pool's workers are fresh processes
    main()
