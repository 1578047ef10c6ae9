"""Random answers, responses, programs and data files against the verifiers and the loader: python -m benchmarks.fuzz

    python -m benchmarks.fuzz --minutes 60                    # all parts in turn, an hour
    python -m benchmarks.fuzz --seconds 20 --part grader      # one of grader, extractor, sandbox, loader, differential
    python -m benchmarks.fuzz --part sandbox --seed 7 --case 1234   # one case again

What must hold: no exception; a verdict right or wrong; the same verdict both ways round, and an answer equal to itself; an
answer graded within SLOW seconds of processor time; text read in time linear in its length; a program judged within its
deadline, with no process and no file left; a file refused by ConfigError or read. `differential` compares the grader with
math-verify: neither is the truth, so disagreements are counted by kind and shown. Every case is made from (part, seed, number)
alone. Exit code 1 for any finding, which is printed with its number.
"""
# ruff: noqa: E501 - the lists of pieces are clearer dense

import argparse
import contextlib
import fcntl
import json
import os
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from minirl.config.options import DataConfig
from minirl.data.problems import load_problems
from minirl.utils.errors import ConfigError
from minirl.verify.math.extract import boxed
from minirl.verify.math.verifier import GRADERS, MathVerifier
from minirl.verify.pool.pool import VerifierPool
from minirl.verify.types import RIGHT, WRONG, Problem

SLOW = 0.05  # seconds of processor time for one answer
DEADLINE = 2.0  # seconds a program may take
MARGIN = 10.0  # seconds more until its verdict, on a busy machine

# ---- what is fuzzed with ---------------------------------------------------------------------------------------------------

PIECES = [
    "0", "1", "2", "-3", "10", "42", "3.14", ".5", "1e5", "1,000", "x", "y", "n", "\\pi", "e", "i", "\\infty", "\\theta",
    "+", "-", "*", "/", "^", "_", "=", "<", ">", "\\le", "\\ne", "\\in", "\\cup", "\\pm", "!", "%", "^\\circ", "'", "|", ":", ";", ",",
    "(", ")", "[", "]", "{", "}", "\\{", "\\}", "\\left(", "\\right)", "\\left\\{", "\\middle|", "\\right]", "\\frac", "\\dfrac",
    "\\sqrt", "\\sqrt[3]", "\\binom", "\\log", "\\sin", "\\ln", "\\sum", "\\int", "\\text{ cm}", "\\mathrm{m}", "\\boldsymbol",
    "\\textbf", "\\begin{pmatrix}", "\\end{pmatrix}", "\\\\", "&", "\\cdot", "\\times", "\\,", "\\;", "~", " ", "\\boxed{", "\\quad",
    "\\over", "\\to", "\\Rightarrow", "\\mathbb{R}", "and", "or", "units", "dollars", "\\$", "$", "x^2", "²", "½", "−", "１", "\u200b",
    "\x00", "é", "數", "\ud83d", "A", "(B)", "True", "None", "\\overline{AB}", "\\angle", "\\triangle", "\\parallel", "0xFF", "1_000",
]  # fmt: skip


def answer(rng: random.Random, depth: int = 0) -> str:
    """A well-formed answer, of numbers, fractions, roots, powers, tuples, sets, intervals, matrices, relations and units."""
    atom = rng.choice(["7", "-2", "0.25", "1,234", "x", "\\pi", "a_1", f"{rng.randint(-999, 999)}"])
    if depth > 2 or rng.random() < 0.3:
        return atom
    a, b = answer(rng, depth + 1), answer(rng, depth + 1)
    return rng.choice([
        f"\\frac{{{a}}}{{{b}}}", f"\\sqrt{{{a}}}", f"{a}^{{{b}}}", f"({a}, {b})", f"\\{{{a}, {b}\\}}", f"[{a}, {b})", f"{a} + {b}",
        f"{a} \\cdot {b}", f"x = {a}", f"{a} \\le x < {b}", f"{a} \\cup {b}", f"\\begin{{pmatrix}} {a} \\\\ {b} \\end{{pmatrix}}",
        f"{a} \\text{{ cm}}", f"{a}\\%", f"{a} \\pmod{{{b}}}", f"\\log_{{{a}}} {b}", f"\\binom{{{a}}}{{{b}}}", f"|{a}|", f"({a})!",
        f"-{a}", f"\\left({a}\\right)", f"\\text{{{a} and }}{b}",
    ])  # fmt: skip


def mutated(rng: random.Random, text: str, pieces: list[str], most: int = 4) -> str:
    """`text` with a few parts dropped, repeated, swapped, or replaced by pieces."""
    for _ in range(rng.randint(0, most)):
        i, j = sorted(rng.randint(0, len(text)) for _ in range(2))
        j = min(j, i + 12)
        text = rng.choice([
            text[:i] + text[j:], text[:j] + text[i:j] * rng.choice([1, 1, 2, 50]) + text[j:], text[:i] + rng.choice(pieces) + text[j:],
            text[j:] + text[:i], text[:i] + rng.choice(pieces) * rng.choice([1, 3, 200]) + text[i:],
        ])  # fmt: skip
    return text[:4000]


PROGRAMS = [
    "def solve(x):\n    return x * x\n", "def solve(x):\n    return sum(x for _ in range(x))\n", "class A:\n    def solve(self, x): return x ** 2\n",
    "import sys\nprint(int(sys.stdin.read()) ** 2)\n", "solve = lambda x: x * x\n", "def solve(x):\n    while True: pass\n",
    "import os, sys, time, threading\n", "try:\n    f()\nexcept BaseException as e:\n    print(e)\n", "raise SystemExit(0)\n",
    "import subprocess; subprocess.Popen(['sleep', '31.4159'])\n", "open('fuzz-left', 'w').write('x')\n", "x = [0] * 10**9\n",
    "import sys; f = sys._getframe()\nwhile f: print(f.f_locals); f = f.f_back\n", "os.fork()\n", "print('y' * 10**7)\n",
    "def solve(x):\n    return solve(x)\n", "__all__ = ['abs']\ndef abs(x): return 9\n", "import signal; signal.alarm(1)\n",
    "class N(int):\n    def __eq__(self, o): return True\ndef solve(x): return N(1)\n", "```\n", "if 1:\n\tpass\n        pass\n",
]  # fmt: skip
CODE = [
    "(",
    ")",
    ":",
    "\n",
    "    ",
    "return",
    "9",
    "'",
    '"""',
    "#",
    "import os\n",
    "solve",
    "lambda",
    "\x00",
    "é",
    "```",
    "```python\n",
    "=",
    "\t",
]
TESTS: list[dict[str, Any]] = [
    {"tests": "assert solve(3) == 9\nassert solve(5) == 25", "entry_point": "solve"},
    {"tests": {"type": "call", "inputs": [[3], [5]], "outputs": [9, 25]}, "entry_point": "solve"},
    {"tests": {"type": "stdin_stdout", "inputs": ["3", "5"], "outputs": ["9", "25"]}},
]

# ---- the parts: each yields nothing, or what a case violates ---------------------------------------------------------------

Findings = Iterator[str]


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """(result, seconds of processor time) of a call; where it seems slow, the best of three without what is cached, since other
    programs that share a core's caches make any of them slower."""
    times = []
    for _ in range(3):
        start = time.process_time()
        result = call()
        times.append(time.process_time() - start)
        if times[-1] <= SLOW:
            break
        for name, module in list(sys.modules.items()):
            if name.startswith("minirl.verify.math"):
                for function in vars(module).values():
                    getattr(function, "cache_clear", lambda: None)()
    return result, min(times)


def grader(rng: random.Random) -> Findings:
    gold = answer(rng)
    given = rng.choice([gold, answer(rng), mutated(rng, gold, PIECES), mutated(rng, answer(rng), PIECES, 8)])
    verifier = MathVerifier(answer="whole")
    verdict, seconds = timed(lambda: verifier(Problem("fuzz", "", gold), given))
    if verdict.status not in (RIGHT, WRONG):
        yield f"status {verdict.status} for {given!r} against {gold!r}: {verdict.detail}"
    if seconds > SLOW:
        yield f"{seconds:.2f} s for {given[:300]!r} against {gold!r}"
    if given.strip() and verifier(Problem("fuzz", "", given), given).status != RIGHT:
        yield f"{given!r} is not equal to itself"
    if given.strip() and verifier(Problem("fuzz", "", given), gold).status != verdict.status:
        yield f"{given!r} and {gold!r}: another verdict the other way round"


def extractor(rng: random.Random) -> Findings:
    parts = [rng.choice([*PIECES, "\\boxed{", "\\fbox{", "}", answer(rng)]) for _ in range(rng.randint(1, 40))]
    text = " ".join(parts) * rng.choice([1, 1, 1, 300])
    start = time.process_time()
    found = boxed(text)
    if (seconds := time.process_time() - start) > SLOW + len(text) * 2e-6:
        yield f"{seconds:.2f} s for {len(text)} characters, {text[:200]!r} ..."
    if found is not None and found not in text:
        yield f"{found!r} is not in {text[:300]!r}"
    with_box = f"{text[:2000]} \\boxed{{31415}} done"
    if boxed(with_box) != "31415":
        yield f"the last box of {with_box[:300]!r} is {boxed(with_box)!r}"


def differential(rng: random.Random) -> Findings:
    gold = answer(rng)
    given = rng.choice([gold, mutated(rng, gold, PIECES, 2), mutated(rng, gold, ["0", "\\,", "\\left(", "\\right)", "$"], 1)])
    with contextlib.suppress(Exception):  # math-verify raises for texts it cannot read
        ours, theirs = GRADERS["exact"](given, gold), GRADERS["math_verify"](given, gold)
        if ours != theirs:
            signs = {"\\frac": "fraction", "\\sqrt": "root", "^": "power", "\\{": "set", "pmatrix": "matrix", "\\text": "text",
                     "\\%": "percent", "\\le": "relation", "=": "relation", "\\cup": "union", "(": "tuple", "!": "factorial"}  # fmt: skip
            kind = next((name for sign, name in signs.items() if sign in gold), "number")
            yield f"{'ours' if ours else 'math-verify'} alone says equal, {kind}: {given!r}, {gold!r}"


def program(rng: random.Random) -> tuple[Problem, str]:
    source = "".join(rng.choice(PROGRAMS) for _ in range(rng.randint(1, 3)))
    source = mutated(rng, source, CODE, 3) if rng.random() < 0.7 else source
    fence = rng.choice(
        ["```python\n{}\n```", "```\n{}\n```", "{}", "First:\n```python\nsolve(3)\n```\n```python\n{}\n```\nDone."]
    )
    return Problem("fuzz", "", "", rng.choice(TESTS) | {"timeout": DEADLINE}), fence.replace("{}", source)


def loader(rng: random.Random) -> Findings:
    rows: list[Any] = [{"problem": f"{n}+{n}=?", "answer": str(2 * n)} for n in range(4)]
    odd: list[Any] = [
        None,
        7,
        1e400,
        [],
        {},
        "",
        "x" * 5000,
        {"role": "user"},
        [{"role": "user", "content": "?"}],
        True,
        "\ud83d",
        "a\x00b",
    ]
    for _ in range(rng.randint(0, 3)):
        rng.choice(rows)[rng.choice(["problem", "answer", "id", "extra"])] = rng.choice(odd)
    content = "\n".join(json.dumps(row) for row in rows).encode()
    for _ in range(rng.randint(0, 3)):
        i = rng.randint(0, len(content))
        content = (
            content[:i]
            + rng.choice([b"", b"\n", b"\xff", b'"', b"}", b"{", b"\\", b"[" * 2000, b"\xef\xbb\xbf"])
            + content[i + 1 :]
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / rng.choice(["rows.jsonl", "rows.jsonl", "rows.parquet"])
        file.write_bytes(content)
        with contextlib.suppress(ConfigError):
            load_problems(DataConfig(task="dataset", train=str(file), test_size=1))


# ---- running them ----------------------------------------------------------------------------------------------------------

PARTS: dict[str, Callable[[random.Random], Findings]] = {
    "grader": grader, "extractor": extractor, "loader": loader, "differential": differential,
}  # fmt: skip


def generator(part: str, seed: int, case: int) -> random.Random:
    """The randomness of one case."""
    return random.Random(f"{part} {seed} {case}")


def run_part(part: str, seed: int, cases: Iterator[int], end: float) -> tuple[int, list[str]]:
    """(cases, findings) until `end`, a time.monotonic()."""
    findings, count = [], 0
    for case in cases:
        if time.monotonic() > end:
            break
        count += 1
        try:
            findings += [f"case {case}: {text}" for text in PARTS[part](generator(part, seed, case)) or ()]
        except Exception as error:  # noqa: BLE001 - any exception is a finding
            findings.append(f"case {case}: {type(error).__name__}: {error}"[:600])
    return count, findings


def processes() -> set[str]:
    """Numbers and command lines of processes that a program may have left."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and "31.4159" in (line := entry.joinpath("cmdline").read_text()):
                found.add(f"{entry.name}: {line}")
    return found


def in_use(path: Path) -> bool:
    """Whether it is a sandbox's folder of somebody else's at work now, who holds a lock on it, or gone by now."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def run_sandbox(seed: int, cases: Iterator[int], end: float) -> tuple[int, list[str]]:
    """Programs through the pool as training does; then what they left behind."""
    findings, count = [], 0
    places = [tempfile.gettempdir(), "/dev/shm", os.getcwd()]
    before = {place: set(os.listdir(place)) for place in places if os.path.isdir(place)}
    with VerifierPool("code", {"timeout": DEADLINE, "memory_mb": 256}, workers=2, timeout=DEADLINE) as pool:
        while time.monotonic() < end and (batch := [case for case, _ in zip(cases, range(16), strict=False)]):
            start = time.monotonic()
            futures = [(case, pool.submit(*program(generator("sandbox", seed, case)))) for case in batch]
            for case, future in futures:
                count += 1
                try:
                    # Programs wait for those before them: each of the batch may take its deadline on one of two workers.
                    verdict = future.result(timeout=len(batch) * (DEADLINE + 1) + MARGIN)
                except TimeoutError:
                    findings.append(f"case {case}: no verdict after {time.monotonic() - start:.0f} s")
                    continue
                if verdict.status not in (RIGHT, WRONG):
                    findings.append(f"case {case}: status {verdict.status}: {verdict.detail}")
    time.sleep(1.0)
    findings += [f"left running: {line}" for line in processes()]
    for place, names in before.items():
        findings += [
            f"left in {place}: {name}"
            for name in set(os.listdir(place)) - names
            if name.startswith(("fuzz", "minirl")) and not in_use(Path(place, name))
        ]
    return count, findings


def main(argv: list[str] | None = None) -> int:
    """The command; returns the exit code."""
    global SLOW
    parser = argparse.ArgumentParser("python -m benchmarks.fuzz", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=1.0, help="for all parts together (1)")
    parser.add_argument("--seconds", type=float, help="the same in seconds")
    parser.add_argument("--part", action="append", choices=[*PARTS, "sandbox"], help="only this part; may be repeated")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="only this case of each part")
    parser.add_argument("--slow", type=float, default=SLOW, help="seconds of processor time that one answer may take (0.05)")
    parser.add_argument("--json", action="store_true")
    o = parser.parse_args(argv)
    SLOW = o.slow
    chosen = o.part or [*PARTS, "sandbox"]
    each = (o.seconds if o.seconds is not None else 60 * o.minutes) / len(chosen)
    report: dict[str, Any] = {}
    failed = False
    for part in chosen:
        cases = iter([o.case] if o.case is not None else range(10**12))
        end = time.monotonic() + each
        count, findings = run_sandbox(o.seed, cases, end) if part == "sandbox" else run_part(part, o.seed, cases, end)
        report[part] = {"cases": count, "findings": len(findings), "first": findings[:20]}
        if part == "differential":
            report[part]["kinds"] = dict(Counter(text.split(": ")[1] for text in findings).most_common())
        else:
            failed |= bool(findings)
    if o.json:
        print(json.dumps(report))
        return int(failed)
    for part, found in report.items():
        print(
            f"{part:13} {found['cases']:>9,} cases {found['findings']:>6,} {'disagreements' if 'kinds' in found else 'findings'}"
        )
        for kind, number in found.get("kinds", {}).items():
            print(f"    {number:>6,}  {kind}")
        for text in found["first"][: 5 if "kinds" in found else 20]:
            print(f"    {text[:400]}")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
