"""Equality of answers, canonical keys, graders, and the verifier."""

import math
import random
import subprocess
import sys
import threading
import time
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minirl.verify.math.verifier import (
    GRADERS,
    MathVerifier,
    canonical_key,
    check_gold,
    exact,
    mathruler,
    terminates,
)
from minirl.verify.types import EMPTY_ANSWER, NO_ANSWER, RIGHT, WRONG, Problem

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"

# One line for each pair: two answers, worked out by hand.
EQUAL = r"""
2/4 ~ 1/2
\frac{2}{4} ~ 0.5
\dfrac12 ~ \tfrac{1}{2}
-\frac{1}{2} ~ \frac{1}{-2}
\frac94\pi ~ \frac{9\pi}{4}
007 ~ 7
5.000 ~ 5
.5 ~ 0.50
+5 ~ 5
5. ~ 5
2^{10} ~ 1024
10^3 ~ 1,000
3\times10^4 ~ 3e4
1.5\times 10^{-3} ~ 0.0015
5 million ~ 5000000
5\text{ million} ~ 5{,}000{,}000
1\,000 ~ 1000
10 000 ~ 10,000
11,\! 111,\! 111,\! 100 ~ 11111111100
100000000000000000000001 ~ 100,000,000,000,000,000,000,001
1\frac{1}{2} ~ 3/2
-1\frac{1}{2} ~ -1.5
2 3/4 ~ 11/4
0.\overline{3} ~ 1/3
0.1\overline{6} ~ \frac16
10! ~ 3628800
\frac{10!}{8!} ~ 90
\binom{5}{2} ~ {5 \choose 2}
\log_2 8 ~ 3
\frac{\log 3}{\log 2} ~ \log_2 3
50\% ~ 50
28 percent ~ 28\%
90^\circ ~ 90\text{ degrees}
\sin 30^\circ ~ 1/2
\$1,250.50 ~ 1250.5
17\text{ any text} ~ 17
5\,\mathrm{cm}^2 ~ 5
125\textnormal{ miles} ~ 125 miles
60 km/h ~ 60 miles per hour
\sqrt8 ~ 2\sqrt2
\frac{1}{\sqrt{2}} ~ \frac{\sqrt{2}}{2}
\sqrt{6+2\sqrt{5}} ~ 1+\sqrt5
\sqrt{3+2\sqrt2}-\sqrt2 ~ 1
\sqrt[3]{-8} ~ -2
\cos\frac{\pi}{3} ~ \frac12
\cos\frac{\pi}{9}\cos\frac{2\pi}{9}\cos\frac{4\pi}{9} ~ \frac18
e^{i\pi} ~ -1
\frac{1}{1+i} ~ \frac{1-i}{2}
x^2+2x+1 ~ (x+1)^2
\frac{x^2-1}{x-1} ~ x+1
\sin^2 x ~ 1-\cos^2 x
2\sin x \cos y ~ \sin(x+y)+\sin(x-y)
\frac{(n-1)!}{k!} \frac{n}{(n-k)!} ~ \binom{n}{k}
v_0^2 ~ v^2_0
x_{1} ~ x_1
2*x**2 + 1 ~ 1+2x^2
sqrt(2)/2 ~ \frac{\sqrt{2}}{2}
1,2,3 ~ \{3,2,1\}
-3 \text{ or } 3 ~ \pm 3
\{1\pm\sqrt{5},-2\} ~ -2, 1+\sqrt5, 1-\sqrt5
48$, $384 ~ 384, 48
5\text{ cm} \text{ per hour} ~ 5
1\pm\sqrt2 ~ 1-\sqrt{2},1+\sqrt{2}
6 \text{ and } 8 ~ 8, 6
(1,2),(3,4) ~ (3,4) and (1,2)
\left(\frac{1}{2}, 3\right) ~ (0.5,3)
\langle 1, 2 \rangle ~ (1,2)
x>5 ~ (5,\infty)
5<x ~ x>5
x \geqslant 5 ~ [5,+\infty)
-x>-1 ~ x<1
-2 \le x \le 7 ~ x\in[-2,7]
3 \ge x > -2 ~ (-2,3]
0<f(x)<1 ~ (0,1)
x \neq 2 ~ (-\infty,2)\cup(2,\infty)
\mathbb{R}\setminus\{2\} ~ x \ne 2
x<1 \text{ or } x>3 ~ (3,\infty)\cup(-\infty,1)
[0,1]\cup[1,2] ~ [0,2]
\{x \mid -1 < x < 1 \} ~ (-1,1)
x=5 ~ 5
a=4,\,-8,\,-10 ~ -10,-8,4
x=1, y=2 ~ y=2, x=1
(p,q)=(3,2) ~ p=3, q=2
p=5,q=2;p=7,q=2 ~ (5,2),(7,2)
x_1=1,x_2=2 ~ \{2,1\}
x = 5+5+1 = 1/3 \approx 0.33 ~ 1/3
x\approx11 ~ 11
a_n = 2n+1 ~ 2n+1
f(x)=x^2+1 ~ y = x^2+1
y=2x+1 ~ 4x - 2y + 2 = 0
x^2/4 + y^2/3 = 1 ~ x^2/16 + y^2/12 = 1/4
x^2+y^2=25 ~ y^2 = 25 - x^2
\angle ABC = 60^\circ ~ 60
\frac{NO}{BO}=\frac{1}{\sqrt{6}} ~ \frac{1}{\sqrt{6}}
S_{MBCN}:S=7:32 ~ 7:32
4:6 ~ 2:3
x-2y+z-1=0 ~ z=1-x+2y
|2x| ~ 2|x|
|x-y| ~ |y-x|
\sqrt{x^2} ~ |x|
|x-100| ~ |100-x|
\min(k+1,m) ~ \min(m,1+k)
\lfloor n/2\rfloor ~ \lfloor\frac{n}{2}\rfloor
2^{n+1}-2 ~ 2(2^n-1)
P(A) = \frac13 ~ 1/3
\begin{pmatrix}1&2\\3&4\end{pmatrix} ~ \left[\begin{array}{cc} 1 & 2 \\ 3 & 4 \end{array}\right]
\frac{1}{5}\begin{pmatrix}5\\10\end{pmatrix} ~ \begin{bmatrix}1\\2\end{bmatrix}
204_5 ~ 204_{5}
\text{Even} ~ even
\text{(C)} ~ C
\mathrm{E} ~ E
\text{Alice and Bob} ~ Bob and Alice
\emptyset ~ \{\}
185\ ~ 185
**42** ~ 42
5\text{ m} ~ 5
5\mathrm{~N} ~ 5
9.8\ \text{m}/\text{s}^2 ~ 9.8
9.8\,\frac{\mathrm{m}}{\mathrm{s}^{2}} ~ 9.8
3.0 \times 10^{8} \mathrm{~m} \cdot \mathrm{s}^{-1} ~ 3\times10^8
-40^{\circ}\text{F} ~ -40
20 sq. ft. ~ 20 square feet
5 meters squared ~ 5
12 different ways ~ 12
3 cups of flour ~ 3
\$5 per hour ~ 5
15 years old ~ 15
1/2 mile ~ 0.5
1,000\text{ dollars} ~ 1000
10\pi\text{ m} ~ 10\pi
26!\text{ ways} ~ 26!
3\text{ cm}, 5\text{ cm} ~ 3,5
5 meters ~ 5 feet
2.5 million dollars ~ 2{,}500{,}000
5 dozen eggs ~ 60
1.234.567,89 ~ 1234567.89
3:30 p.m. ~ 3:30\text{ PM}
9 am ~ 9:00 a.m.
0.333... ~ 1/3
0.1666\ldots ~ \frac16
0.(3) ~ 1/3
0.\dot{1}2\dot{3} ~ \frac{41}{333}
1,2,3,\ldots ~ 1, 2, 3, ...
\{1,2\},\{3\} ~ \{3\},\{2,1\}
\{\{1\},\{2\}\} ~ \{\{2\},\{1\}\}
\{0,\pm 2\} ~ \{-2,0,2\}
(y,x)=(1,2) ~ x=2,y=1
(b,a)=(1,2) ~ a=2,b=1
(n,k)=(5,2) ~ (k,n)=(2,5)
(r,\theta)=(2,\pi) ~ (2,\pi)
1A_{16} ~ 1a_{16}
101 base two ~ 101_2
1010_{\text{two}} ~ (1010)_2
[[1,2],[3,4]] ~ \begin{pmatrix}1&2\\3&4\end{pmatrix}
\begin{pmatrix}1&2\end{pmatrix}^T ~ \begin{pmatrix}1\\2\end{pmatrix}
x>3, x<5 ~ 3<x<5
x<1, x>3 ~ x<1 \lor x>3
m>1, m\neq 2 ~ (1,2)\cup(2,\infty)
x>3, y<5 ~ y<5, x>3
|x|<5 ~ -5<x<5
|2x+1|\ge 3 ~ (-\infty,-2]\cup[1,\infty)
|x|\ne 1 ~ \mathbb{R}\setminus\{-1,1\}
\{x\in\mathbb{R}\mid x\neq 3\} ~ \mathbb{R}-\{3\}
A\cup B ~ B\cup A
\text{No solutions} ~ no solution
\text{does not exist} ~ DNE
-\text{infinity} ~ -\infty
1 : \sqrt{2} ~ \sqrt2:2
f^{-1}(x)=\frac{x-1}{2} ~ \frac{x-1}{2}
\frac{dy}{dx}=2x ~ 2x
y=Ce^x ~ Ce^{x}
ax-y+b=0 ~ y=ax+b
P(X=2)=\frac14 ~ 0.25
\sin A=\frac35 ~ 3/5
\max\{1,2\} ~ 2
\ln 10^{100} ~ 100\ln 10
0\cdot\pi ~ 0
4^n ~ 2^{2n}
=5 ~ "5"
"""
DIFFERENT = r"""
1/3 ~ 0.333333333333333333
100000000000000000000001 ~ 100000000000000000000002
0.12345678901234567891 ~ 0.12345678901234567892
\pi ~ 3.14159265358979323846264338327950288
\sqrt{2}+10^{-60} ~ \sqrt{2}
\sqrt{2}+10^{-300} ~ \sqrt{2}
1/2004! ~ 1/2006!
1/2^99 ~ 1/2^98
9^{9^9} ~ 9^{9^9}+1
10^{10^{10^{10}}} ~ 10^{10}
10^{10^{10^{10}}} ~ 10^{10^{10^{11}}}
100000000! ~ 100000001!
(x+1)^{5000} ~ (x+1)^{5001}
50% ~ 0.5
111_2 ~ 7
52_8 ~ 528
\Delta ~ \delta
A ~ a
ABCD ~ BDCA
n=2,3,4 ~ n=1,2,3
12:00 ~ 1:00
4:30 ~ 2:15
2:3 ~ 3:2
4 ~ 4\sqrt(2)
1-1/e ~ 1+1/e
32, 349 ~ 32349
(1,2) ~ (2,1)
(1,2) ~ 1,2
(1,2) ~ [1,2]
[0,1) ~ [0,1]
\{1,2\} ~ \{1,2,3\}
x>5 ~ x\ge5
x>5 ~ x<5
|x| \le 3 ~ x \le 3
x=1,y=2 ~ x=2,y=1
x=1,y=2 and x=3,y=4 ~ x=1,y=4 and x=3,y=2
y=2x+1 ~ y=2x+2
x^2+y^2=1 ~ x^2+2y^2=1
a^2+b=0 ~ 0
7=11a+c ~ 11a+c
3=4 ~ 5=6
x^2=4 ~ x=2
R=I ~ I
f'(x)=f(x) ~ f(x)
|x| ~ x
|x-5| ~ 5-x
|x-100| ~ 100-x
|x-y| ~ x-y
|x-100|=3 ~ x=97
y-|x-100|=0 ~ y=100-x
\sqrt{(x-100)^2} ~ 100-x
\frac{|x-500|}{x-500} ~ -1
\min(k+1,m) ~ m
\lfloor x\rfloor ~ 1
x^3-x=0 ~ x=0
\sqrt{x^2} ~ x
x ~ -x
f(x) ~ f(y)
f(2) ~ f(3)
I(0) ~ I(0)e^{-t}
0.64N ~ 0.64
2 3 ~ 6
10 000 ~ 0
(x+1 ~ x+1
5+ ~ 5
\frac{1}{0} ~ \infty
n \text{ is even} ~ n
x \equiv 1 \pmod 3 ~ 1
5 \text{ or } 6 ~ 5
5\text{ or 6} ~ 5
5\text{ if even} ~ 5
5 miles if even ~ 5
5 feet 3 inches ~ 3 feet 5 inches
x=3 \text{ if } y=2 ~ 3
\int_0^1 x\,dx ~ x
\sum_{i=1}^{10} i ~ 10
AZYUK2A ~ 2
5am ~ 5pm
\begin{pmatrix}1\\2\end{pmatrix} ~ \begin{pmatrix}1&2\end{pmatrix}
\begin{vmatrix}1&2\\3&4\end{vmatrix} ~ \begin{pmatrix}1&2\\3&4\end{pmatrix}
(a+5)(b+2) ~ (+5)(b+2)
None ~ 5
5 squared ~ 5
2 thirds ~ 2
3\text{ quarters} ~ 3
5 factorial ~ 5
5 dozen ~ 5
5 plus x ~ 5
2 over x ~ 2
3 mod n ~ 3
5 mod 3 ~ 3 mod 5
3 to 4 ~ 4 to 3
3 by 4 ~ 4 by 3
101 base two ~ 101
3 a.m. ~ 3 p.m.
3 miles north ~ 3 miles south
5\text{ km north} ~ 5
100 below zero ~ 100
10 more ~ 10
5\text{ or more} ~ 5
5\text{ is wrong} ~ 5
5\text{ at most} ~ 5
5\text{th} ~ 5
5 years ago ~ 5
5\text{ loss} ~ 5\text{ gain}
5\text{i} ~ 5
5 m ~ 5
1 hour and 30 minutes ~ 30 hours and 1 minute
3 apples, 2 pears ~ 2 apples, 3 pears
0.5\% of x ~ 0.5 of x
2020-01-02 ~ 2017
x squared = 5 ~ x = 5
not x = 5 ~ x=5
not x > 5 ~ x > 5
\{1,2\},\{3\} ~ \{1\},\{2,3\}
\{1,2\},\{3\} ~ 1,2,3
\{\{1\}\} ~ \{1\}
\{\emptyset\} ~ \emptyset
(\{1\},2) ~ (1,2)
[[1,2],[3,4]] ~ [1,2],[3,4]
1,2,3,... ~ 1,2,3
1,2,\dots,10 ~ 1,2,10
0.333... ~ 0.333
3.14159... ~ 3.14159
2.718281828... ~ 2.718281828
0.(3) ~ 0
0.\overline{3} ~ 0.\overline{33}1
\sqrt{10^{400}+1} ~ 10^{200}
\sqrt{10^{400}+1} ~ \sqrt{10^{400}+2}
(10^{400}+1)\sqrt{2} ~ 10^{400}\sqrt{2}
\ln(10^{400}+1) ~ \ln(10^{400})
\cos(10^{-70}) ~ 1
\cos(10^{-70}) ~ \cos(10^{-71})
\cos(10^{-300}) ~ 1
\sin(10^{-300}) ~ 0
\cos(\cos(10^{-100})) ~ \cos 1
\tanh 200 ~ 1
\sqrt2\tanh(150) ~ \sqrt2
\sinh 150 ~ \cosh 150
\arctan(10^{200}) ~ \frac{\pi}{2}
e^{10^{-125}} ~ 1
2^{2^{-1200}} ~ 1
x(1+10^{-200}) ~ x
x^{1+10^{-200}} ~ x
e^{\pi\sqrt{163}} ~ 262537412640768744
(y,x)=(1,2) ~ (1,2)
(n,k)=(5,2) ~ (k,n)=(5,2)
1A_{16} ~ 1B_{16}
1010_2 ~ 1010_3
x>3, y<5 ~ 3<x<5
x>3, y>3 ~ x>3
x>3 and x<1 ~ x>3 or x<1
|x|<5 ~ x<5
\{2x \mid x>3\} ~ (3,\infty)
\{n\in\mathbb{N}: n>3\} ~ (3,\infty)
A\cup B ~ A\cap B
A\setminus B ~ B\setminus A
p\lor q ~ p\land q
3:4 ~ 3/4
\text{no solution} ~ 0
"""
EQUAL_PAIRS = [tuple(line.split(" ~ ")) for line in EQUAL.strip().splitlines()]
DIFFERENT_PAIRS = [tuple(line.split(" ~ ")) for line in DIFFERENT.strip().splitlines()]


@pytest.mark.parametrize(("left", "right"), EQUAL_PAIRS)
def test_equal_answers_share_a_key(left: str, right: str) -> None:
    assert canonical_key(left) == canonical_key(right)


@pytest.mark.parametrize(("left", "right"), DIFFERENT_PAIRS)
def test_different_answers_have_different_keys(left: str, right: str) -> None:
    assert canonical_key(left) != canonical_key(right)


@pytest.mark.parametrize(
    "text",
    [
        "<b>",
        "<no answer>",
        "< 5",
        "",
        "   ",
        "$$",
        "\x00",
        "\ud800",
        "½",
        "-1<iz",
        "¹",
        "x¹",
        "٣½",
        "1٣/¹",
        "x" * 30_000,
    ],
)
def test_every_text_has_a_key_that_is_no_reserved_label(text: str) -> None:
    assert not canonical_key(text).startswith("<")


# Properties.

ANSWERS = st.one_of(
    st.integers().map(str),
    st.fractions().map(str),
    st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str),
    st.text(max_size=12),
    st.text(alphabet="0123456789xy+-*/^(){}[],.=<>\\ fracsqrtpi", max_size=25),
)


@settings(max_examples=200, deadline=None)
@given(st.integers(), st.integers(min_value=1), st.integers(min_value=1, max_value=10**6))
def test_fractions_of_any_size_are_equal_exactly_when_their_values_are(above: int, below: int, factor: int) -> None:
    plain, latex = f"{above}/{below}", rf"\frac{{{above * factor}}}{{{below * factor}}}"
    assert canonical_key(plain) == canonical_key(latex) == canonical_key(str(Fraction(above, below)))
    assert canonical_key(plain) != canonical_key(f"{above + 1}/{below}")


@pytest.mark.parametrize("digits", [20, 4299, 4301, 15_000])
def test_integers_longer_than_str_allows(digits: int) -> None:
    text = "1" + "0" * (digits - 1)
    assert exact(text, f"10^{{{digits - 1}}}")
    assert not exact(text, text[:-1] + "1")


@settings(max_examples=300, deadline=None)
@given(ANSWERS, ANSWERS, ANSWERS)
def test_equality_is_an_equivalence_relation(a: str, b: str, c: str) -> None:
    for grade in (exact,):
        assert grade(a, a)
        assert grade(a, b) == grade(b, a)
        assert not (grade(a, b) and grade(b, c)) or grade(a, c)


def test_classes_do_not_depend_on_the_order_of_rollouts() -> None:
    """mathruler calls 1/2 and 0.5, and 0.5 and 2/4, equal, but not 1/2 and 2/4."""
    answers = ["1/2", "0.5", "2/4", "x", "(1,2)", "1,2", "2,1", "50%", "50"]
    classes = {answer: canonical_key(answer) for answer in answers}
    for seed in range(20):
        order = random.Random(seed).sample(answers, len(answers))
        assert {answer: canonical_key(answer) for answer in order} == classes
    assert len(set(classes.values())) == 5


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(-99, 99), min_size=2, max_size=6), st.randoms())
def test_lists_are_unordered_and_tuples_ordered(numbers: list[int], rng: random.Random) -> None:
    shuffled = rng.sample(numbers, len(numbers))
    assert exact(", ".join(map(str, numbers)), rf"\{{{','.join(map(str, shuffled))}\}}".replace(",", ", "))
    tuples = [f"({', '.join(map(str, values))})" for values in (numbers, shuffled)]
    assert exact(*tuples) == (numbers == shuffled)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-9, 9), min_size=2, max_size=4), st.integers(-5, 5))
def test_polynomials_are_known_in_every_form(coefficients: list[int], shift: int) -> None:
    """p(x) and its expansion around another centre, by an independent formula."""
    degree = len(coefficients) - 1
    plain = "+".join(f"({c})x^{{{k}}}" for k, c in enumerate(coefficients))
    taylor = [
        sum(c * math.comb(k, j) * shift ** (k - j) for k, c in enumerate(coefficients) if k >= j) for j in range(degree + 1)
    ]
    shifted = "+".join(f"({t})(x-({shift}))^{{{j}}}" for j, t in enumerate(taylor))
    assert exact(plain, shifted)
    assert not exact(plain, shifted + "+1")


# Nothing hangs.

HOSTILE = [
    "9**9**9", "(10**8)!", "100000000!", "2**(10**9)", "(x+1)**5000", "[1]*10**9", "(1,2)*10^9", "5^(5^(5^(5^(5^5))))",
    "9^{9^{9}}", "((((((((9^9)^9)^9)^9)^9)^9)^9)^9)^9", "((((10!)!)!)!)!", r"\binom{10^{18}}{10^{9}}", "1e999999999",
    "(" * 5000 + "1" + ")" * 5000, "{" * 3000 + "1" + "}" * 3000, r"\frac{1}{" * 2000, r"\sqrt{" * 4000, "1+" * 9000,
    "x^" * 5000 + "1", "1" * 100_000, "1/" + "3" * 19_000, r"\sin " * 3000 + "x", r"\pm 1" + r"\pm 2" * 50, "f(" * 3000,
    "2^{99999}/3^{60000}+" * 900 + "1", r"(\sqrt{2}+1)^{1000000000}", "e^{e^{e^{e^{e}}}}", r"\gcd(2^{99999},3^{60000})",
    r"\begin{pmatrix}" * 2000, r"\begin{pmatrix}1&2\\3&4\end{pmatrix}" * 400, "(0,1)\\cup(2,3)" * 400,
    "-" * 19_000 + "1",
    "5" + "!" * 50, r"0.\overline{" + "1" * 19_000 + "}", "a<" * 3000 + "b", "x=1," * 4000, " " * 19_999, "3^9^9^9",
    "(x+y+z)^{150}", "sin(" * 300 + "x" + ")" * 300, "5 miles " * 2000,
]  # fmt: skip


SLOW_FUNCTIONS = [  # all of them finite, and slow in sympy
    "+".join(f"({i}i)!" for i in range(1, 60)), r"\binom{x}{y}" * 60, r"\sin x" * 900, "x^x" * 600, "(x!)," * 600,
    "5" + " a" * 9000, r"5\text{ m} " * 1500, "0." + "12" * 9000 + "...",
]  # fmt: skip


def test_many_functions_take_no_time() -> None:
    for text in SLOW_FUNCTIONS:
        start = time.process_time()
        canonical_key(text)
        assert time.process_time() - start < 2, text[:60]


@pytest.mark.parametrize("grader", GRADERS)
def test_hostile_answers_are_wrong_at_once(grader: str) -> None:
    for text in HOSTILE:
        start = time.process_time()
        assert GRADERS[grader](text, "x") is False
        assert time.process_time() - start < 2, text[:60]


def test_rewards_are_the_same_in_a_thread() -> None:
    """Where signal.alarm cannot be used."""
    failures: list[RuntimeError] = []

    def work() -> None:
        try:
            for grader in GRADERS:
                MathVerifier(grader).self_test()
        except RuntimeError as error:  # handed to the main thread
            failures.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert not failures


# The verifier.


@pytest.mark.parametrize("grader", GRADERS)
def test_verdicts(grader: str) -> None:
    verifier = MathVerifier(grader)
    problem = Problem("p", "What is 1+1?", "2")
    right = verifier(problem, r"It is \boxed{2}.")
    assert (right.status, right.label, right.key) == (RIGHT, "", "2")
    wrong = verifier(problem, r"It is \boxed{6/2}.")
    assert (wrong.status, wrong.label, wrong.key) == (WRONG, "3", "3")
    assert verifier(problem, "It is 2.").label == NO_ANSWER
    assert verifier(problem, r"It is \boxed{ }.").label == EMPTY_ANSWER
    assert verifier(problem, r"It is \boxed{2").label == NO_ANSWER


def test_the_text_none_is_not_an_answer() -> None:
    """mathruler's extractor returns the text "None" for a response without a box, which then equals "None"."""
    assert MathVerifier()(Problem("p", "", "None"), "no box").label == NO_ANSWER


def test_the_self_test_catches_a_grader_that_accepts_or_refuses_everything() -> None:
    for verdict in (True, False):
        verifier = MathVerifier()
        verifier.grade = lambda answer, gold, verdict=verdict: verdict
        with pytest.raises(RuntimeError, match="is not judged"):
            verifier.self_test()


def test_unknown_grader() -> None:
    with pytest.raises(ValueError, match="mathruler, math_verify"):
        MathVerifier("sympy")


def test_an_error_in_a_grader_is_not_a_wrong_answer() -> None:
    verifier = MathVerifier()

    def broken(answer: str, gold: str) -> bool:
        raise ZeroDivisionError

    verifier.grade = broken
    with pytest.raises(ZeroDivisionError):
        verifier(Problem("p", "", "2"), r"\boxed{2}")


def test_mathruler_keeps_its_verdicts() -> None:
    from mathruler.grader import grade_answer

    pairs = [pair for pair in EQUAL_PAIRS + DIFFERENT_PAIRS if all(map(terminates, pair))]
    assert len(pairs) > 150
    assert [mathruler(*pair) for pair in pairs] == [grade_answer(*pair) for pair in pairs]
    assert mathruler("9**9**9", "9**9**9")
    assert mathruler("0.5", "1/2")
    assert not mathruler("2/4", "1/2")


def test_gold_answers_that_cannot_be_read_are_reported() -> None:
    for good in ("5", r"\frac{1}{2}", "Evelyn", r"\text{no solution}", "(C)", "204_5", "7:32", "x>5", r"\{1,2\}", "A"):
        assert check_gold(good) is None
    assert "empty" in str(check_gold(" "))
    assert "cannot be read" in str(check_gold(r"x \models 1"))
    assert "cannot be read" in str(check_gold("3 +"))


def test_no_heavy_import() -> None:
    code = (
        "import sys; from minirl.verify.math.verifier import MathVerifier; from minirl.verify.types import Problem\n"
        "MathVerifier()(Problem('p', '', 'x+1'), r'\\boxed{1+x}')\n"
        "print([m for m in ('torch', 'transformers', 'sympy', 'mathruler', 'math_verify') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# Where the answer may stand.


@pytest.mark.parametrize(
    ("response", "options", "status"),
    [
        (r"<think>\boxed{2}</think> So \boxed{2}.", {}, RIGHT),
        (r"<think>\boxed{2}</think> I do not know.", {}, NO_ANSWER),
        (r"<think>it is \boxed{2}, but", {}, NO_ANSWER),  # cut inside the thinking
        (r"\boxed{2}</think>", {}, NO_ANSWER),  # the prompt opened it
        (r"\boxed{3}</think>\boxed{2}", {}, RIGHT),
        (r"a</think>\boxed{3} b</think>\boxed{2}", {}, RIGHT),
        (r"a</think>\boxed{2}<think>b", {}, NO_ANSWER),
        (r"It is \boxed{2}.", {}, RIGHT),  # a model that does not think
        (r"It is \boxed{2}.", {"thinking": True}, NO_ANSWER),  # one that was still thinking
        (r"It is</think>\boxed{2}.", {"thinking": True}, RIGHT),
        (r"<think>\boxed{2}", {"after": None}, RIGHT),
        (r"\boxed{3} FINAL: \boxed{2}", {"after": "FINAL:"}, RIGHT),
        (r"\boxed{2} FINAL: none", {"after": "FINAL:"}, NO_ANSWER),
        (r"</think> 2", {"answer": "whole"}, RIGHT),
        ("<think> it is 2", {"answer": "lenient"}, NO_ANSWER),
        ("</think> The answer is 2.", {"answer": "lenient"}, RIGHT),
    ],
)
def test_only_what_stands_after_the_thinking_may_answer(response: str, options: dict, status: str) -> None:
    verdict = MathVerifier(**options)(Problem("p", "", "2"), response)
    assert (verdict.label or verdict.status) == status


@pytest.mark.parametrize(
    ("options", "words"),
    [({"after": ""}, "None"), ({"after": None, "thinking": True}, "after must"), ({"answer": "any"}, "boxed, whole, lenient")],
)
def test_options_that_make_no_sense(options: dict, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        MathVerifier(**options)


def test_order_counts_where_the_option_or_the_problem_says_so() -> None:
    lists = (
        Problem("p", "", "3, 1, 2"),
        Problem("p", "", "3, 1, 2", {"ordered": True}),
        Problem("p", "", "3, 1, 2", {"ordered": False}),
    )
    response = r"\boxed{1, 2, 3}"
    assert [MathVerifier()(problem, response).status for problem in lists] == [RIGHT, WRONG, RIGHT]
    assert [MathVerifier(ordered=True)(problem, response).status for problem in lists] == [WRONG, WRONG, RIGHT]
    assert MathVerifier(ordered=True)(lists[0], r"\boxed{3, 1, 2}").status == RIGHT
    with pytest.raises(ValueError, match="need the grader exact"):
        MathVerifier("mathruler")(lists[1], response)


@pytest.mark.parametrize("grader", ["mathruler", "math_verify"])
def test_what_a_library_cannot_read_is_wrong_and_what_we_break_raises(grader: str, monkeypatch) -> None:
    from minirl.verify.math import verifier as module

    problem = Problem("p", "", "12")
    for text in (
        "１２",
        "\\frac{１}{２}",
        "x^{１２}",
        "\ud800",
        "\\frac{",
        "٣",
        "=" * 50,
        "\\sqrt[0]{5}",
        "1/0",
        "\\begin{pmatrix}",
    ):
        assert MathVerifier(grader)(problem, rf"\boxed{{{text}}}").status in (RIGHT, WRONG)

    def broken(answer: str, gold: str) -> bool:
        raise OSError("the library is not there")

    monkeypatch.setattr(module, f"{grader}_of", broken)
    with pytest.raises(OSError, match="not there"):
        MathVerifier(grader)(problem, r"\boxed{12}")


def test_an_answer_that_makes_a_library_raise_is_wrong(monkeypatch) -> None:
    from minirl.verify.math import verifier as module

    def picky(answer: str, gold: str) -> bool:
        if answer == "bad":
            raise TypeError(answer)
        return answer == gold

    monkeypatch.setattr(module, "math_verify_of", picky)
    assert MathVerifier("math_verify")(Problem("p", "", "5"), r"\boxed{bad}").status == WRONG
    with pytest.raises(TypeError):  # a gold answer that it cannot read is a fault of the data
        MathVerifier("math_verify")(Problem("p", "", "bad"), r"\boxed{bad}")
