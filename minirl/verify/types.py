"""Scoring of responses: a verifier maps (problem, response text) to a Verdict. Nothing here imports torch."""

from dataclasses import dataclass, field
from typing import Any, Protocol

RIGHT, WRONG, ERROR = "right", "wrong", "error"

# Labels of wrong responses that gave no answer to compare. Every other label is a canonical key, which never starts
# with "<".
NO_ANSWER = "<no answer>"
EMPTY_ANSWER = "<empty answer>"
TIMEOUT = "<timeout>"

# Labels of code that are not the name of an exception type (those stand as they are: SyntaxError, IndexError ...).
NO_CODE = "<no code>"
WRONG_ANSWER = "WrongAnswer"
MEMORY_LIMIT = "MemoryLimit"
OUTPUT_LIMIT = "OutputLimit"
CRASHED = "Crashed"  # the program ended, or was ended by a signal, before it answered


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    id: unique within a data set; prompt: what the user says, before any chat template; answer: the gold answer as text
    ("" where tests decide); extra_info: whatever else the verifier needs (for code: tests, entry_point, timeout ...);
    messages: of a problem that is a conversation all its {"role", "content"}, the prompt being the last one of the user.
    """

    id: str
    prompt: str
    answer: str
    extra_info: dict[str, Any] = field(default_factory=dict)
    messages: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier says of one response.

    status: "right", "wrong", or "error" (our own fault, such as a crashed worker: such a response has no reward and is
    left out of its group's statistics; it is never a silent 0).
    label: the error class E(y) of a wrong response: two wrong responses with the same label made the same error.
    key: canonical form of the extracted answer, None when there is none; equal keys <=> equal answers.
    reward: None means 1 for right and 0 for wrong; custom reward functions may set any finite number.
    detail: a sentence for people (an exception's text, the failing test ...).
    terms: of a combined reward, the reward of each part by its name, before its weight.
    """

    status: str
    label: str = ""
    key: str | None = None
    reward: float | None = None
    seconds: float = 0.0
    detail: str = ""
    terms: dict[str, float] = field(default_factory=dict, hash=False)


class Verifier(Protocol):
    """Scores one response. Runs inside a worker process that may be killed at any moment."""

    def __call__(self, problem: Problem, response: str) -> Verdict: ...


class VerifierError(RuntimeError):
    """A verifier that cannot be used: unknown name, bad options, failed self-test, workers that do not start."""
