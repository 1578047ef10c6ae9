"""What a problem is. No heavy import here: verifier workers load this module.

A task is a source of problems; how a response is scored is the verifier's business (minirl/verify).
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem.

    id: unique within a data set; prompt: what the user says, before any chat template; answer: the gold answer as text
    ("" where tests decide); facts: whatever else the verifier needs (for code: tests, entry_point, timeout ...).
    """

    id: str
    prompt: str
    answer: str
    facts: dict[str, Any] = field(default_factory=dict)
