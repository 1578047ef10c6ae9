"""What the tests of the code verifier share."""

import os

import pytest

from minirl.verify.code.sandbox import MODES
from minirl.verify.code.verifier import CodeVerifier
from minirl.verify.types import Problem, VerifierError


@pytest.fixture(scope="module")
def verify():
    """Judges a program by the columns of its problem: verify(code, tests=..., entry_point=..., prompt=...)."""
    verifier = CodeVerifier(timeout=5.0)

    def run(code, **extra_info):
        prompt = extra_info.pop("prompt", "")
        return verifier(Problem("p", prompt, "", extra_info), f"```python\n{code}\n```")

    yield run
    verifier.close()


@pytest.fixture(scope="module", params=MODES)
def verifier(request):
    """The verifier in each mode of isolation that this machine allows, with a secret in the environment."""
    os.environ["MINIRL_TEST_SECRET"] = "hush"
    try:
        verifier = CodeVerifier(memory_mb=1024, sandbox=request.param)
    except VerifierError as error:
        if request.param == "process":
            raise
        pytest.skip(f"this machine refuses the mode: {error}")
    yield verifier
    verifier.close()


def outcome(verdict):
    """What a verdict says of a program."""
    return verdict.status, verdict.label
