"""The examples of minirl/verify/README.md run as they stand."""

import re
from pathlib import Path

TEXT = (Path(__file__).parents[2] / "minirl" / "verify" / "README.md").read_text(encoding="utf-8")
PLAIN, TRL, VERL = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


def names_of(code: str) -> dict:
    names: dict = {}
    exec(code, names)
    return names


def test_plain_python() -> None:
    names = names_of(PLAIN)
    assert [verdict.status for verdict in names["verdicts"]] == ["right", "wrong"]


def test_reward_function_of_trl() -> None:
    accuracy = names_of(TRL)["accuracy"]
    chat = [[{"role": "assistant", "content": r"\boxed{5}"}], [{"role": "assistant", "content": "5"}]]
    assert accuracy(completions=chat, prompts=["", ""], answer=["5", "5"]) == [1.0, 0.0]
    assert accuracy(completions=[r"\boxed{0.5}"], answer=["1/2"]) == [1.0]


def test_reward_function_of_verl() -> None:
    compute_score = names_of(VERL)["compute_score"]
    assert compute_score("gsm8k", r"\boxed{5}", "5", {}) == 1.0
    assert compute_score("gsm8k", r"\boxed{6}", "5") == 0.0
