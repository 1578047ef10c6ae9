"""A task of your own: a function that returns the problems of a split. Here sums of two digits.

    python train.py --data.task=examples/task.py:sums

The embedded model reads digits, + - * = and the letters A to X; another model reads what its tokenizer reads.
"""

from typing import Any


def sums(split: str) -> list[dict[str, Any]]:
    """The rows of the split train or test; columns are named by data.prompt_column and data.answer_column."""
    rows = [{"problem": f"{a}+{b}=", "answer": str(a + b), "id": f"{a}+{b}"} for a in range(1, 10) for b in range(1, 10)]
    return [row for i, row in enumerate(rows) if (i % 5 == 0) == (split == "test")]
