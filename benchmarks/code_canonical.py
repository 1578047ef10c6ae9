"""Every canonical solution of the code data sets, and mutants of each, through the pool:

    python -m benchmarks.code_canonical [DATA_FOLDER]

Prints for each set: how many canonical solutions pass, how many mutants fail and with which labels, and what disagrees.
"""

import json
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from minirl.verify.pool.pool import VerifierPool
from minirl.verify.types import ERROR, RIGHT, WRONG, Problem

DATA = Path(__file__).parents[2] / "shared" / "data"
SETS = ("humaneval", "humaneval_plus_mini", "mbpp", "mbpp_plus")


def rows_of(name: str, folder: Path = DATA) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]


def problem_of(row: dict[str, Any]) -> Problem:
    return Problem(row["id"], row["prompt"], "", {"tests": row["tests"], "entry_point": row["entry_point"]})


def canonical(row: dict[str, Any]) -> str:
    """The whole program: HumanEval's solutions are the body of the function that the prompt begins."""
    return (row["prompt"] if f"def {row['entry_point']}" in row["prompt"] else "") + row["canonical_solution"]


def mutants(row: dict[str, Any]) -> list[str]:
    """Programs that must fail, made from the canonical one in ways that do not depend on its problem.

    A bracket left open in its last line; the function gone; its answer put into a list; an exception instead of its
    answer; an object that says it equals everything.
    """
    program, name = canonical(row), row["entry_point"]
    rename = program + f"\n_kept = {name}\n"
    cut = program.rstrip()
    cut = cut[: cut.rfind("\n") + 1] + "  (" + cut[cut.rfind("\n") + 1 :]
    return [
        cut,
        program + f"\ndel {name}\n",
        rename + f"def {name}(*args, **kwargs):\n    return ['wrong', _kept(*args, **kwargs)]\n",
        rename + f"def {name}(*args, **kwargs):\n    _kept(*args, **kwargs)\n    raise LookupError\n",
        rename + "class _Same:\n    def __eq__(self, other): return True\n    __ne__ = __lt__ = __gt__ = __eq__\n"
        f"def {name}(*args, **kwargs):\n    return _Same()\n",
    ]


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else DATA
    failures = 0
    with VerifierPool("code", workers=2, timeout=15.0) as pool:
        for name in SETS:
            start = time.monotonic()
            rows = rows_of(name, folder)
            programs = [(row, index, code) for row in rows for index, code in enumerate([canonical(row), *mutants(row)])]
            verdicts = pool.grade([(problem_of(row), f"```python\n{code}\n```") for row, _, code in programs])
            labels: Counter[str] = Counter()
            passed = 0
            for (row, index, _), verdict in zip(programs, verdicts, strict=True):
                flagged = not row.get("canonical_passes", True)  # where the tests themselves may be at fault
                expected = [RIGHT] if index == 0 and not flagged else [WRONG, ERROR] if flagged else [WRONG]
                passed += index == 0 and verdict.status == RIGHT
                labels[verdict.label] += index > 0
                if verdict.status not in expected:
                    failures += 1
                    print(f"  {row['id']} program {index}: {verdict}")
            seconds = time.monotonic() - start
            wrong = sum(v.status == WRONG for (_, index, _), v in zip(programs, verdicts, strict=True) if index)
            print(f"{name}: {passed} of {len(rows)} canonical solutions pass", end=", ")
            print(f"{wrong} of {len(programs) - len(rows)} mutants fail", end=", ")
            print(f"{len(programs) / seconds:.0f} programs a second; labels {dict(labels.most_common())}")
    return failures > 0


if __name__ == "__main__":
    sys.exit(main())
