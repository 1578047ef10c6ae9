"""The verifier that a name stands for."""

from collections.abc import Mapping, Sequence
from typing import Any

from minirl.verify import rewards
from minirl.verify.rewards import is_weight, reward_of
from minirl.verify.types import ERROR, Problem, Verdict, Verifier, VerifierError


def load_verifier(name: str, **options: Any) -> Verifier:
    """The verifier called `name`: "math", "code", "combine", or "path/to/file.py:function" (rewards.py).

    The options go to its constructor. An unknown name or option is a VerifierError that says so.
    """
    try:
        if name == "math":
            from minirl.verify.math.verifier import MathVerifier

            return MathVerifier(**options)
        if name == "code":
            from minirl.verify.code.verifier import CodeVerifier

            return CodeVerifier(**options)
        if name == "combine":
            return combine(**options)
        if ".py:" in name:
            return rewards.CustomReward(name, **options)
    except TypeError as error:
        raise VerifierError(f"verifier {name!r} does not take the options {options}: {error}") from error
    raise VerifierError(f"unknown verifier {name!r}: expected math, code, combine, or path/to/file.py:function")


class Combined:
    """A weighted sum of verifiers. Status, label and key are those of the first; an error of any is an error.

    The verdict's terms hold the reward of each part before its weight; a name that stands twice is told by "#2".
    """

    wants_rollout = True

    def __init__(self, parts: Sequence[tuple[str, float, Any]]) -> None:
        self.parts = parts

    def self_test(self) -> bool:
        tests = [getattr(verifier, "self_test", None) for _, _, verifier in self.parts]
        return all(test() is not False for test in tests if test is not None)

    def __call__(self, problem: Problem, response: str, rollout: Mapping[str, Any] | None = None) -> Verdict:
        verdicts: list[Verdict] = []
        terms: dict[str, float] = {}
        total, seconds = 0.0, 0.0
        for name, weight, verifier in self.parts:
            arguments = (problem, response, rollout) if getattr(verifier, "wants_rollout", False) else (problem, response)
            verdict = verifier(*arguments)
            if verdict.status == ERROR:
                return Verdict(ERROR, detail=f"in {name}: {verdict.detail}", seconds=seconds)
            repeats = sum(part[0] == name for part in self.parts[: len(verdicts)])
            term = terms[f"{name}#{repeats + 1}" if repeats else name] = reward_of(verdict)
            total += weight * term
            seconds += verdict.seconds
            verdicts.append(verdict)
        first = verdicts[0]
        return Verdict(first.status, first.label, first.key, total, seconds, first.detail, terms)


def combine(rewards: Sequence[Sequence[Any]]) -> Combined:
    """From [(name, weight) or (name, weight, options), ...] as in a config: the first one decides right and wrong."""
    if not rewards:
        raise VerifierError("combine needs at least one (name, weight)")
    parts = []
    for entry in rewards:
        if len(entry) not in (2, 3) or not isinstance(entry[0], str) or not is_weight(entry[1]):
            raise VerifierError(
                f"combine takes (name, weight) or (name, weight, options), the weight a finite number, not {entry!r}"
            )
        name, weight, *rest = entry
        parts.append((name, float(weight), load_verifier(name, **(rest[0] if rest else {}))))
    return Combined(parts)
