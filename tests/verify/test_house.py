"""verify is a guest: it imports nothing else of minirl and no torch, and its imports run one way."""

import ast
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
VERIFY = ROOT / "minirl" / "verify"


def imports() -> dict[str, set[str]]:
    """For each module of verify the modules that it imports, those inside functions too."""
    files = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in VERIFY.rglob("*.py")}
    found: dict[str, set[str]] = {}
    for name, path in files.items():
        found[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found[name] |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name} imports by dots"
                inner = {f"{node.module}.{alias.name}" for alias in node.names}
                found[name] |= {one if one in files else str(node.module) for one in inner}
    return found


def test_it_imports_nothing_else_of_minirl_and_no_torch() -> None:
    for name, used in imports().items():
        for other in used:
            assert other.split(".")[0] not in ("torch", "transformers", "vllm", "deepspeed", "accelerate"), (
                f"{name} imports {other}"
            )
            assert not other.startswith("minirl") or other.startswith("minirl.verify"), f"{name} imports {other}"


def test_its_imports_run_one_way() -> None:
    left = {name: {other for other in used if other.startswith("minirl.verify")} for name, used in imports().items()}
    while free := {name for name, used in left.items() if not used & set(left)}:
        left = {name: used for name, used in left.items() if name not in free}
    assert not left, f"a circle among {sorted(left)}"


def test_importing_it_is_light() -> None:
    heavy = ("torch", "sympy", "numpy", "transformers", "mathruler", "math_verify")
    code = f"import sys, minirl.verify; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
