"""Graders for mathematics and code. Imports nothing else of minirl, and no torch.

    from minirl.verify import Problem, load_verifier
    load_verifier("math")(Problem("1", "1/2 + 1/4 = ?", "3/4"), "It is \\boxed{0.75}.").status    # "right"

README.md beside this file says what it promises and how to use it elsewhere.
"""

from minirl.verify.registry import load_verifier
from minirl.verify.types import ERROR, RIGHT, TIMEOUT, WRONG, Problem, Verdict, Verifier, VerifierError

__all__ = [
    "ERROR", "RIGHT", "TIMEOUT", "WRONG", "Problem", "Verdict", "Verifier", "VerifierError", "load_verifier",
]  # fmt: skip
