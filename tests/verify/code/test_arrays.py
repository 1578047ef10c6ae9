"""numpy in the tests: arrays of an honest candidate are arrays, an object that claims to be anything is none."""

import pytest

from minirl.verify.code.verifier import CodeVerifier
from minirl.verify.types import Problem

TESTS = [
    "np.allclose(f(2), 4)", "np.isclose(f(2), 4).all()", "(np.array(4) == f(2)).all()", "np.equal(f(2), 4).all()",
    "np.all(f(2) == np.array([4, 4]))", "np.abs(np.array(f(2)) - 4).sum() < 1e-6",
    "np.testing.assert_allclose(f(2), 4) is None",
]  # fmt: skip
PRETENDS = """
class Anything:
    def __len__(self): return LENGTH
    def __iter__(self): return iter([self] * LENGTH)
    def __getitem__(self, i): return self if i < LENGTH else [][1]
    def __getattr__(self, name): return self
    def __call__(self, *a, **k): return self
    def __eq__(self, other): return True
    def __bool__(self): return True
    def __float__(self): return 4.0
    def __array__(self, *a, **k): return []
def f(x): return Anything()
"""


@pytest.fixture(scope="module")
def grade():
    pytest.importorskip("numpy")
    verifier = CodeVerifier()

    def judged(test, program):
        problem = Problem("p", "", "", {"tests": f"import numpy as np\nassert {test}", "entry_point": "f", "timeout": 20})
        return verifier(problem, f"```python\n{program}\n```").status

    yield judged
    verifier.close()


@pytest.mark.slow
@pytest.mark.parametrize("test", TESTS)
def test_an_object_that_claims_to_be_any_array_is_wrong(grade, test):
    for length in (0, 1, 2):
        assert grade(test, PRETENDS.replace("LENGTH", str(length))) == "wrong", length


@pytest.mark.slow
@pytest.mark.parametrize("test", TESTS)
@pytest.mark.parametrize("array", ["[4.0, 4.0]", "[[4, 4], [4, 4]]"])
def test_arrays_of_the_candidate_are_arrays(grade, test, array):
    assert grade(test, f"import numpy as np\ndef f(x): return np.array({array})") == "right"
    assert grade(test, f"import numpy as np\ndef f(x): return np.array({array}) + 1") == "wrong"
