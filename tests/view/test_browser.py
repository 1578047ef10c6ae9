"""The page in a real headless Chromium: it opens without an error or a request, obeys keys, and shows text as text."""

import json

import pytest

from minirl.view.__main__ import main

from .chromium import Browser, executable
from .folders import HOSTILE, group, write

pytestmark = pytest.mark.skipif(executable() is None, reason="there is no Chromium (Debian: apt install chromium)")


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    made = Browser(tmp_path_factory.mktemp("profile"))
    yield made
    made.close()


@pytest.fixture
def clean(browser):
    """The browser, in which nothing may go wrong during the test."""
    browser.errors.clear()
    browser.look()
    yield browser
    assert browser.errors == []


def page_of(tmp_path, *runs):
    out = tmp_path / "page.html"
    assert main([*map(str, runs), "--out", str(out)]) == 0
    return out


GROUP = "document.getElementById('group').innerText"


def test_it_shows_the_last_step_its_classes_and_reasons(clean, tmp_path):
    clean.open(page_of(tmp_path, write(tmp_path / "run", 3)))
    assert clean["document.getElementById('at').textContent"] == "step 3"
    clean.wait("document.querySelectorAll('.chart .main-svg').length >= 4")
    text = clean[GROUP]
    assert "3 of 10 right; 7 wrong answers in 2 classes; EDAS branch C." in text
    assert "Branch C: wrong answers differ: T says how rare an error is in its group" in text
    assert "wrong: 58 5 of 7 wrong (71%)" in " ".join(text.split())
    assert "branch C: seen 5 of 7, T = −0.31, −12% (punished more)" in text
    assert "right 3 of 10 (30%)" in " ".join(text.split())


@pytest.mark.slow
def test_keys_choose_step_group_and_colour_and_the_address_keeps_them(clean, tmp_path):
    page = page_of(tmp_path, write(tmp_path / "run", 3))
    clean.open(page)
    for key, then in [
        ("ArrowLeft", "#step=2&group=6&run=0&colour=advantage"), ("j", "#step=2&group=7&run=0&colour=advantage"),
        ("c", "#step=2&group=7&run=0&colour=entropies"), ("Home", "#step=1&group=4&run=0&colour=entropies"),
        ("k", "#step=1&group=3&run=0&colour=entropies"), ("ArrowLeft", "#step=1&group=3&run=0&colour=entropies"),
        ("ArrowRight", "#step=2&group=6&run=0&colour=entropies"), ("End", "#step=3&group=9&run=0&colour=entropies"),
    ]:  # fmt: skip
        clean.press(key)
        clean.wait(f"location.hash === {json.dumps(then)}")
    clean.open(page, "#step=2&group=7&run=0&colour=log_ratio")
    assert clean["document.getElementById('at').textContent"] == "step 2"
    assert clean["document.querySelector('#tabs [aria-pressed=true]').innerText"].startswith("unselected")
    assert clean["document.getElementById('colour').value"] == "log_ratio"
    shades = clean["[...document.querySelectorAll('.token')].map(t => t.style.background).filter(Boolean).length"]
    assert shades > 40


def test_a_token_tells_its_numbers(clean, tmp_path):
    clean.open(page_of(tmp_path, write(tmp_path / "run", 1)))
    clean["document.querySelector('.token').click()"]
    said = clean["document.getElementById('token').textContent"]
    for word in ("advantage", "entropy", "log-prob ratio", "surprisal"):
        assert word in said


def test_a_diagnosis_leads_to_its_step(clean, tmp_path):
    clean.open(page_of(tmp_path, write(tmp_path / "run", 6, metrics={"reward/accuracy": 1.0})))
    assert "100.0% of the responses are judged right" in clean["document.getElementById('diagnosed').innerText"]
    clean["[...document.querySelectorAll('#diagnoses button')].find(b => b.innerText === 'step 3').click()"]
    clean.wait("document.getElementById('at').textContent === 'step 3'")


def test_text_of_a_run_is_never_markup(clean, tmp_path):
    def hostile(rng, step):
        rows = group(rng, 1, "changed", prompt=HOSTILE, gold=HOSTILE, key=HOSTILE, detail=HOSTILE, dropped=HOSTILE)
        return [row | {"response": HOSTILE, "pieces": [HOSTILE] * 7, "terms": {HOSTILE: 1.0}, "label": HOSTILE} for row in rows]

    clean.open(page_of(tmp_path, write(tmp_path / "run", 1, groups=hostile)))
    assert (
        "</script><img src=x onerror='window.hacked = 1'><b>bold</b> &"
        in clean["document.querySelector('pre.prompt').textContent"]
    )
    assert clean["document.querySelector('.token').textContent"].startswith("</script>")
    assert clean["document.querySelectorAll('img, #group b').length"] == 0
    assert clean["window.hacked === undefined"]


def test_the_same_prompt_of_two_runs_is_side_by_side(clean, tmp_path):
    one = write(tmp_path / "one", 3)
    two = write(
        tmp_path / "two", 3, seed=1, groups=lambda rng, step: group(rng, 100 + step, "changed") + group(rng, 3 * step, "next")
    )
    clean.open(page_of(tmp_path, one, two))
    assert clean["document.querySelectorAll('#group h3')[0].innerText"] == "A step 3, prompt number 9"
    assert (
        clean["[...document.querySelectorAll('#group > div')].map(c => c.querySelector('pre.prompt').innerText)"]
        == ["<user>9*7=<assistant>"] * 2
    )
    lefts = clean["[...document.querySelectorAll('#group > div')].map(c => c.getBoundingClientRect().left)"]
    assert lefts[0] < lefts[1]
    clean.press("s")
    clean.wait("document.querySelectorAll('#group h3')[0].innerText === 'A step 1, prompt number 3'")
    clean.press("j")
    clean.wait("document.getElementById('group').innerText.includes('Run B has not saved this prompt')")


def brightness(colour):
    return sum(map(int, colour[colour.index("(") + 1 : -1].split(",")[:3])) / 3


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
def test_light_and_dark_follow_the_screen_and_a_key(clean, tmp_path, dark):
    clean.look(dark=dark)
    clean.open(page_of(tmp_path, write(tmp_path / "run", 2)))
    ground, ink = "getComputedStyle(document.body).backgroundColor", "getComputedStyle(document.body).color"
    tick = "(t => t && getComputedStyle(t).fill)(document.querySelector('.chart .xtick text'))"
    clean.wait(tick)
    for is_dark in (dark, not dark):
        assert (brightness(clean[ground]) < brightness(clean[ink])) == is_dark
        assert (brightness(clean[tick]) > 128) == is_dark, "the charts follow"
        clean.press("d")


@pytest.mark.slow
def test_a_phone_needs_no_sideways_scrolling(clean, tmp_path):
    clean.look(width=390, height=844, phone=True)
    one = write(tmp_path / "one", 2, groups=lambda rng, step: group(rng, 1, "changed", response="x" * 500, key="9" * 300))
    two = write(tmp_path / ("name" * 20), 2)
    clean.open(page_of(tmp_path, one, two))
    assert clean["document.documentElement.scrollWidth"] <= 390
    assert clean["Math.min(...[...document.querySelectorAll('button')].map(b => b.getBoundingClientRect().height))"] >= 40


@pytest.mark.slow
def test_a_thousand_steps_open_in_two_seconds(clean, thousand_steps):
    """Of the browser's own work, which a busy machine does not lengthen as it does the time on the clock."""
    clean("Performance.enable", timeDomain="threadTicks")
    clean.open(thousand_steps)
    took = {m["name"]: m["value"] for m in clean("Performance.getMetrics")["metrics"]}
    clean("Performance.disable")
    assert 0 < took["TaskDuration"] < 2
