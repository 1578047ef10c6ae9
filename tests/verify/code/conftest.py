"""What the tests of the code verifier share."""

import pytest

from minirl.verify.code.verifier import CodeVerifier
from minirl.verify.types import Problem


@pytest.fixture(scope="module")
def verify():
    """Judges a program by the columns of its problem: verify(code, tests=..., entry_point=..., prompt=...)."""
    verifier = CodeVerifier(timeout=5.0)

    def run(code, **extra_info):
        prompt = extra_info.pop("prompt", "")
        return verifier(Problem("p", prompt, "", extra_info), f"```python\n{code}\n```")

    yield run
    verifier.close()


def outcome(verdict):
    """What a verdict says of a program."""
    return verdict.status, verdict.label
