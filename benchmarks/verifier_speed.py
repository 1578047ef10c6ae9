"""How fast responses are graded, side by side in one run:

    python -m benchmarks.verifier_speed [--workers 2] [--grader exact] [--data FOLDER]

1. Responses with answers of GSM8K and MATH, in groups that repeat answers as real ones do, through the pool, against
   mathruler called in a loop in this process on the same responses (the best of three rounds each).
2. 2,560 responses of which 1% are hostile, through the pool.
3. Trivial programs in the sandbox.
"""

import argparse
import json
import os
import platform
import random
import time
from collections.abc import Callable
from pathlib import Path

from minirl.verify.pool.pool import VerifierPool
from minirl.verify.types import ERROR, RIGHT, TIMEOUT, Problem

DATA = Path(__file__).parents[2] / "shared" / "data"
SAMPLES = 10  # a group
ROUNDS = 3
HOSTILE = [
    "9^{9^{9^{9}}}", "9**9**9**9", "100000000!", "(10**8)!", "2^{10^{9}}", "(x+1)^{5000}", "[1]*10**9", "((((5!)!)!)!)",
    "(" * 500 + "1" + ")" * 500, "\\frac{" * 300 + "1" + "}{2}" * 300, "\\sqrt{" * 400 + "2" + "}" * 400, "9" * 100_000,
    "1e999999999", "\\binom{10^9}{5*10^8}", "x^{x^{x^{x^{x}}}}", "\\sum_{k=1}^{10^{12}} k!", "{" * 2000,
    "+".join(["x"] * 20_000),
]  # fmt: skip


def groups(file: Path, count: int, rng: random.Random) -> list[tuple[Problem, str]]:
    """Groups of SAMPLES responses: most give the gold answer or one of two wrong ones, a few something of their own."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()][:count]
    answers = [row["answer"] for row in rows]
    items = []
    for row in rows:
        problem = Problem(row["id"], row["problem"], row["answer"])
        wrong = rng.sample(answers, 2)
        for _ in range(SAMPLES):
            answer = rng.choices([row["answer"], *wrong, rng.choice(answers)], [5, 2, 2, 1])[0]
            words = " ".join(rng.choices(["so", "we", "add", "the", "sum", "is", "then", "$x=3$"], k=60))
            items.append((problem, f"{words}. The answer is $\\boxed{{{answer}}}$."))
    return items


def best(items: list[tuple[Problem, str]], grade: Callable[[Problem, str], object]) -> float:
    seconds = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        for problem, response in items:
            grade(problem, response)
        seconds.append(time.perf_counter() - start)
    return min(seconds)


def through_pool(items: list[tuple[Problem, str]], options: argparse.Namespace) -> float:
    """Seconds, with fresh workers and nothing remembered in every round; the start of the workers is not counted."""
    seconds = []
    for _ in range(ROUNDS):
        with VerifierPool("math", {"grader": options.grader}, options.workers) as pool:
            pool.grade([(Problem(f"warm {n}", "", "1"), "\\boxed{1}") for n in range(64)])
            start = time.perf_counter()
            pool.grade(items)
            seconds.append(time.perf_counter() - start)
    return min(seconds)


def mathematics(options: argparse.Namespace) -> None:
    from mathruler.grader import extract_boxed_content, grade_answer

    rng = random.Random(0)
    for name, file, count in (("GSM8K", "gsm8k_test.jsonl", 1000), ("MATH", "math500.jsonl", 500)):
        items = groups(options.data / file, count, rng)
        direct = best(items, lambda problem, text: grade_answer(extract_boxed_content(text), problem.answer))
        pooled = through_pool(items, options)
        print(f"{name}: {len(items)} responses: pool {len(items) / pooled:.0f} a second,", end=" ")
        print(f"mathruler in a loop {len(items) / direct:.0f} a second: {direct / pooled:.2f} times")


def hostile(options: argparse.Namespace) -> None:
    rng = random.Random(1)
    items = groups(options.data / "math500.jsonl", 256, rng)
    places = rng.sample(range(len(items)), 26)
    for number, place in enumerate(places):
        items[place] = (items[place][0], f"\\boxed{{{HOSTILE[number % len(HOSTILE)]}}}")
    with VerifierPool("math", {"grader": options.grader}, options.workers) as pool:
        start = time.perf_counter()
        verdicts = pool.grade(items)
        seconds = time.perf_counter() - start
    right = sum(verdicts[place].status == RIGHT for place in places)
    timeouts, errors = sum(v.label == TIMEOUT for v in verdicts), sum(v.status == ERROR for v in verdicts)
    print(f"{len(items)} responses, 26 of them hostile: {seconds:.2f} s; hostile ones judged right {right},", end=" ")
    print(f"timeouts {timeouts}, errors {errors}")


def programs(options: argparse.Namespace) -> None:
    tests = "assert f(1) == 2\nassert f(2) == 3\nassert f(3) == 4"
    script = [
        (Problem(f"p{n}", "", "", {"tests": tests, "entry_point": "f"}), "```python\ndef f(x): return x + 1\n```")
        for n in range(400)
    ]
    io = {"type": "stdin_stdout", "inputs": ["1"], "outputs": ["2"]}
    stdin = [(Problem(f"p{n}", "", "", {"tests": io}), "```python\nprint(int(input()) + 1)\n```") for n in range(400)]
    for name, items in (("function tested by asserts", script), ("stdin/stdout", stdin)):
        with VerifierPool("code", {"sandbox": options.sandbox}, options.workers) as pool:
            pool.grade(items[:20])
            start = time.perf_counter()
            verdicts = pool.grade(items[20:])
            seconds = time.perf_counter() - start
        right = sum(v.status == RIGHT for v in verdicts)
        print(f"sandboxed programs, {name}: {len(verdicts) / seconds:.0f} a second, {right} of {len(verdicts)} right")


def main() -> None:
    assert __doc__ is not None
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--grader", default="exact")
    parser.add_argument("--sandbox", default=None, help="a mode of minirl/verify/sandbox.py; the strongest without it")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--only", choices=["mathematics", "hostile", "programs"])
    options = parser.parse_args()
    load = f"load {os.getloadavg()[0]:.1f}"
    print(f"{os.cpu_count()} cores, {load}, Python {platform.python_version()}, {options.workers} workers")
    for part in (mathematics, hostile, programs):
        if options.only in (None, part.__name__):
            part(options)


if __name__ == "__main__":
    main()
