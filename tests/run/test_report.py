"""The console of a run."""

import re
import time

import pytest

from minirl.run.report import COLUMNS, console_header, console_line, fitted, legend
from minirl.utils import console
from minirl.utils.console import Activity
from tests.watch.test_diagnoses import row


def metrics(**more):
    return row(1) | {"time/step": 0.4, "speed/tokens": 13553.0} | more


@pytest.mark.parametrize("steps", [2, 12, 250, 999_999])
def test_a_step_is_a_line_of_at_most_100_columns_under_its_header(steps):
    usual = console_line(steps - 1, steps, metrics())
    extreme = {"policy/entropy": 123456.0, "optimizer/grad_norm": float("inf"), "policy/approx_kl": 3e-12, "time/step": 36000.0,
               "speed/tokens": 1.2e7, "response/tokens": 32768.0, "reward/mean": -0.25, "sampling/groups": 1248.0}  # fmt: skip
    for line in (console_header(steps), usual, console_line(steps, steps, metrics(**extreme))):
        assert len(line) <= 100
        assert len(line) == len(console_header(steps)), "columns are aligned"
    assert usual.split() == [
        f"{steps - 1}/{steps}", "0.400", "0.400", "32/45", "70%", "0.400", "1.0e-3", "0.010", "1.000", "100", "2%", "0.400",
        "13,553",
    ]  # fmt: skip
    assert all(f"  {name} " in legend() for name, _, _ in COLUMNS)
    assert max(map(len, legend().splitlines())) <= 100


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [(0.0, 5, "0.000"), (0.00123, 6, "1.2e-3"), (0.0052, 5, " 5e-3"),
     (99.4567, 6, "99.457"), (99.4567, 5, "99.46"), (1234567.0, 6, " 1235k"),
     (-0.25, 6, "-0.250"), (float("nan"), 5, "  nan"), ("16/19", 7, "  16/19")],
)  # fmt: skip
def test_numbers_fit_their_columns(value, width, text):
    assert fitted(value, width) == text


class Bar:
    """What `Activity` uses of tqdm."""

    def __init__(self, disable):
        self.disable, self.shown, self.closed = disable, [], False

    def set_postfix_str(self, text):
        self.shown.append(text)

    def close(self):
        self.closed = True


@pytest.mark.parametrize("terminal", [True, False])
def test_a_long_step_says_what_goes_on(terminal, monkeypatch):
    said = []
    monkeypatch.setattr(console, "say", said.append)
    bar = Bar(disable=not terminal)
    activity = Activity(bar, every=0.3)
    activity.begin("step 12: sampling")
    activity.done, activity.of, activity.tokens = 120, 320, 3210
    shown = bar.shown if terminal else said
    deadline = time.monotonic() + 60
    while not shown and time.monotonic() < deadline:
        time.sleep(0.05)
    activity.close()
    assert re.fullmatch(r"(\.\.\. )?step 12: sampling 120/320 responses, 3,210 tokens, \d+ s", shown[0])
    assert not (said if terminal else bar.shown), "on a terminal nothing is printed, in a log nothing else"
    assert bar.closed
    activity.begin("nothing is said after the end")
    count = len(shown)
    time.sleep(0.8)
    assert len(shown) <= count + 1


def test_a_short_step_prints_nothing_of_the_kind(monkeypatch):
    said = []
    monkeypatch.setattr(console, "say", said.append)
    activity = Activity(Bar(disable=True), every=30.0)
    activity.begin("step 1: updating")
    time.sleep(0.5)
    activity.close()
    assert said == []
