"""The final answer of a response."""

import time

import pytest

from minirl.verify.math.extract import answer, boxed, last_number, whole


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"so the answer is \boxed{5}.", "5"),
        (r"\boxed {5}", "5"),
        (r"\boxed 5", "5"),
        (r"\boxed 1,250.5 and", "1,250.5"),
        (r"\boxed C", "C"),
        (r"\fbox{5}", "5"),
        (r"\boxed{1} then \boxed{2}", "2"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \mid x > 1 \right.}", r"\left\{ x \mid x > 1 \right."),
        ("\\boxed{\n 7 \n}", "7"),
        (r"\boxed{\boxed{5}}", "5"),
        (r"\boxed{\text{Evelyn}}", r"\text{Evelyn}"),
        (r"\boxed{}", ""),
    ],
)
def test_last_complete_box(text: str, expected: str) -> None:
    assert boxed(text) == expected


@pytest.mark.parametrize("text", [r"\boxed{a} \boxed{unclosed", r"\boxed{a} and so \boxed{\frac{1}{2}", r"\boxed{a}\boxed"])
def test_a_truncated_box_does_not_hide_the_one_before(text: str) -> None:
    assert boxed(text) == "a"


@pytest.mark.parametrize(
    "text", ["", "no box", r"\boxed{never closed", r"\boxedx{5}", r"\boxed", "boxed{5}", r"\boxed \frac12"]
)
def test_nothing_found_is_none(text: str) -> None:
    assert boxed(text) is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("He pays 3*5=<<3*5=15>>15 dollars.\nA: 15", "15"),
        ("Work.\n#### 1,234", "1,234"),
        ("The final answer is $\\frac{1}{2}$. I hope it is correct.", r"\frac{1}{2}"),
        ("Final Answer: Jane started 3 hours ago.", "3"),
        ("Therefore $x \\ge 5$ is the solution.", r"x \ge 5"),
        ("The number is not 10 which is 1,000.99", "1,000.99"),
        ("It follows that $a = 2$ and so there are 12 ways to do it.", "12"),
        (r"\boxed{1} and \boxed{2}", "1, 2"),
        (r"\boxed{1} is not what we look for, rather \boxed{2}", "2"),
        (r"$\boxed{x = 1}$ or $\boxed{x = 2}$", "x = 1, x = 2"),
        ("x^2 + 2x + 1", "x^2 + 2x + 1"),
        ("$2$, $3$ and $5$", "2, 3, 5"),
        ("   ", None),
        ("Hence there must be 1 000 000 of these people.", "1 000 000"),
        ("He then has about 6.02 \\times 10^{23} of these little things", r"6.02 \times 10^{23}"),
        ("In the end there are 3 - 1/2 of all the cakes left", "3 - 1/2"),
        ("That is version 1.2.3 of it all.", "1.2.3"),
    ],
)
def test_reading_of_texts_without_a_single_box(text: str, expected: str | None) -> None:
    assert answer(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2 + 3 = 5", "2 + 3 = 5"),
        ("is -5", "-5"),
        ("it is 1'000'000.", "1'000'000"),
        ("about 10^ 3 of them", "10^ 3"),
        (r"a \frac{1} {2} share", r"\frac{1} {2}"),
        ("on 12/25/2024", "12/25/2024"),
        ("for 1 1/2 hours", "1 1/2"),
        ("cost $18.", "$18"),
        ("in 2003, 5 of them", "5"),
        ("(see 7)", "7"),
        ("none", None),
    ],
)
def test_the_last_number_is_taken_with_all_that_belongs_to_it(text: str, expected: str | None) -> None:
    assert last_number(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (" 5 ", "5"),
        (r"\boxed{5}", "5"),
        (r"$\boxed{\boxed{5}}$", "5"),
        (r"\boxed{1}, \boxed{2}", r"\boxed{1}, \boxed{2}"),
        ("", ""),
    ],
)
def test_an_answer_loses_its_box(text: str, expected: str) -> None:
    assert whole(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        r"\boxed{" * 60_000,
        r"\boxed{" * 60_000 + "}" * 60_000,
        r"\[" * 20_000,
        "$" * 40_001,
        " " * 100_000,
        "A: " * 30_000,
        "1 " * 50_000,
    ],
)
def test_hostile_texts_take_no_time(text: str) -> None:
    start = time.process_time()
    boxed(text)
    answer(text)
    whole(text)
    assert time.process_time() - start < 2


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("it is 1 000", "1 000"), ("Total: 12", "12"), ("I have 3.", "3."), ("result -5", "-5"), ("the ratio is 2:3", "2:3"),
        ("12:30", "12:30"), ("C: 12", "C: 12"), ("It is noon", "It is noon"),
        ("is not 5", "not 5"), ("3 apples", "3 apples"),
    ],
)  # fmt: skip
def test_a_short_text_without_what_says_that_an_answer_follows(text: str, found: str) -> None:
    assert answer(text) == found
