"""A page that several tests open."""

import pytest

from minirl.view.__main__ import main

from .folders import write


@pytest.fixture(scope="session")
def thousand_steps(tmp_path_factory):
    """The page of a run of a thousand steps."""
    run = write(tmp_path_factory.mktemp("long") / "run", 1000)
    assert main([str(run)]) == 0
    return run / "view.html"
