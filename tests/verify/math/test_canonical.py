"""Kinds of answers that are easy to judge wrongly: presentation, units, signs that do not commute, digits side by side."""

import json
import time
from pathlib import Path

import pytest
from sympy.core.cache import clear_cache

from minirl.verify.math.canonical import canonical_key, read
from minirl.verify.math.verifier import check_gold, exact, note_list

DATA = Path(__file__).resolve().parents[4] / "shared" / "data"

# One line for each pair: two answers, worked out by hand. \\u stands for a character by its number.
EQUAL = r"""
\boldsymbol{73} ~ 73
\bm{-73} ~ -73
\pmb{7} ~ 7
\underline{73} ~ 73
\uline{\frac12} ~ 0.5
\textcolor{red}{73} ~ 73
\textcolor[rgb]{1,0,0}{73} ~ 73
{\color{blue} 73} ~ 73
\color{blue}73 ~ 73
\colorbox{yellow}{73} ~ 73
\large 73 ~ 73
{\Large 73} ~ 73
{\huge x+1} ~ 1+x
\scriptstyle 5 ~ 5
73\checkmark ~ 73
73 \; \checkmark ~ 73
73 ✓ ~ 73
✅ 73 ~ 73
\therefore 73 ~ 73
\therefore x=73 ~ 73
∴ 73 ~ 73
\Rightarrow x = 5 ~ 5
\implies 5 ~ 5
\left\{x\middle|x>1\right\} ~ (1,\infty)
\left\{x\;\middle|\;x\ge 1\right\} ~ [1,\infty)
\texttt{12} ~ 12
\textsc{yes} ~ yes
\emph{12} ~ 12
\mathtt{12} ~ 12
\ensuremath{\pi} ~ \pi
\boldsymbol{\frac{1}{2}} ~ 1/2
\boldsymbol{\alpha} ~ \alpha
\mathbf{x}+1 ~ x+1
5\hskip 2pt\text{cm} ~ 5
5\kern1pt\text{cm} ~ 5
\vphantom{1}5 ~ 5
5\mathstrut ~ 5
\Bigl(\frac12\Bigr) ~ 1/2
5\tag{1} ~ 5
\textup{5} ~ 5
\bf{5} ~ 5
{\it 5} ~ 5
{\rm 5} ~ 5
5 \, \text{m} ~ 5
5 \; \text{kg} ~ 5
5~\text{s} ~ 5
5\ \mathrm{cm} ~ 5
5 \quad \mathrm{cm} ~ 5
5 \: \mathrm{N} ~ 5
5 \,\mathrm{m\,s^{-1}} ~ 5
5 \, \frac{\text{m}}{\text{s}} ~ 5
5 \, \frac{\mathrm{kg}}{\mathrm{m}^3} ~ 5
5\,\frac{\text{km}}{\text{h}} ~ 5
5\frac{\text{m}}{\text{s}^{2}} ~ 5
5 {\rm cm} ~ 5
5\,{\rm m/s} ~ 5
5 \rm{kg} ~ 5
5\rm\, cm ~ 5
\qty{5}{\meter\per\second} ~ 5
\SI{5}{\kilo\gram} ~ 5
\SI{9.8}{m.s^{-2}} ~ 9.8
\num{1234} ~ 1234
\num{1.5e3} ~ 1500
\ang{30} ~ 30
5\,\si{\newton} ~ 5
5 (units) ~ 5
5\text{ (units)} ~ 5
12 (students) ~ 12
5\ (\text{cm}) ~ 5
12 (square cm) ~ 12
12元 ~ 12
12 个 ~ 12
5厘米 ~ 5
3小时 ~ 3
5万 ~ 50000
12人 ~ 12
30 度 ~ 30
5\ \Omega ~ 5
5\,k\Omega ~ 5
5 kΩ ~ 5
5 µm ~ 5
5\,\mu\text{m} ~ 5
5\,\mu\mathrm{s} ~ 5
5\,\text{μs} ~ 5
€5 ~ 5
5€ ~ 5
£3.50 ~ 3.5
₹500 ~ 500
500₩ ~ 500
\pounds 5 ~ 5
5\text{€} ~ 5
25℃ ~ 25
5 \text{ m}^3 ~ 5
(3\,\text{cm}, 4\,\text{cm}) ~ (3,4)
3 \; \text{s}, 4 \; \text{s} ~ 3,4
{3 \over 4} ~ 3/4
{x+1 \over 2} ~ (x+1)/2
{3\over4}\pi ~ \frac{3\pi}{4}
\frac{dy}{dx} ~ dy/dx
CD \parallel AB ~ AB \parallel CD
AB\perp CD ~ CD \perp AB
AB \parallel DC ~ CD \parallel AB
AB\cdot CD ~ CD\cdot AB
AB\cdot CD ~ BA \cdot CD
\frac{AB}{CD} ~ \frac{AB}{DC}
\angle ABC ~ \angle CBA
p\Rightarrow q ~ p \implies q
p \iff q ~ q \Leftrightarrow p
A\subset B ~ A \subset B
\mathbf{a}\times\mathbf{b} ~ \mathbf{a} \times \mathbf{b}
(3)(4) ~ 12
2^{3} 5! ~ 960
2\cdot3 ~ 6
0b101 ~ 101_2
0xFF ~ FF_{16}
0xff ~ 0xFF
\begin{pmatrix}1\\[4pt]2\end{pmatrix} ~ \begin{pmatrix}1\\2\end{pmatrix}
\begin{bmatrix} a \\[1ex] b \end{bmatrix} ~ \begin{bmatrix} a \\ b \end{bmatrix}
\begin{bmatrix} 1 & 0 \\[0.5em] 0 & 1 \end{bmatrix} ~ \begin{pmatrix}1&0\\0&1\end{pmatrix}
2+3=5 ~ 5
1+2+3=3+3=6 ~ 6
\frac{6}{4} = \frac{3}{2} ~ 1.5
\sqrt{16}=4 ~ 4
6 = 2\cdot 3 ~ 6
5! = 120 ~ 120
5\text{ lakhs} ~ 500000
2 crore ~ 20000000
3 quadrillion ~ 3\times10^{15}
2 thousand ~ 2000
5 millions ~ 5000000
x⁵ ~ x^5
2x⁻¹ ~ 2/x
10⁻³ ~ 0.001
xⁿ ~ x^n
x₁ ~ x_1
log₂8 ~ 3
1010₂ ~ 1010_2
¼ ~ 0.25
2¾ ~ 11/4
⅓ ~ 1/3
⅞ ~ 7/8
1⁄2 ~ 1/2
³⁄₄ ~ 3/4
5\u200b ~ 5
\ufeff5 ~ 5
－5 ~ -5
—5 ~ -5
‑5 ~ -5
１２．５ ~ 12.5
（１，２） ~ (1,2)
1,000.99m² ~ 1000.99
12 m² ~ 12
12cm³ ~ 12
]0,1[ ~ (0,1)
]0,1] ~ (0,1]
[0,1[ ~ [0,1)
]-\infty, 2[ ~ (-\infty,2)
]-\infty,1[\cup]2,\infty[ ~ (-\infty,1)\cup(2,\infty)
\left]0,1\right[ ~ (0,1)
\mathbb{R}^+ ~ (0,\infty)
\mathbb R^{-} ~ (-\infty,0)
\mathbb{R}_{>0} ~ (0,\infty)
\mathbb{R}_{\ge 0} ~ [0,\infty)
\mathbb{R}^* ~ \mathbb{R}\setminus\{0\}
ℝ ~ (-\infty,\infty)
ℝ\{0} ~ \mathbb{R}\setminus\{0\}
\text{all negative real numbers} ~ (-\infty,0)
\text{all nonnegative real numbers} ~ [0,\infty)
\text{all real numbers except } 2 ~ \mathbb{R}\setminus\{2\}
𝟓 ~ 5
√2/2 ~ \frac{\sqrt2}{2}
∛8 ~ 2
\textbf{(E)}\ 12 ~ E
\text{(E) } 12 ~ E
(E) 12 ~ E
(C)\ \frac{1}{2} ~ C
E: text ~ E
B. 12 cm ~ B
Option E ~ E
\text{Option E} ~ E
option (B) ~ B
Choice C ~ C
Answer: D ~ D
Answer: (D) ~ D
E) ~ E
D) 15 ~ D
\mathbf{(A)} 3 ~ A
The answer is C ~ C
f(x)=cx \text{ for any } c ~ cx
f(x)=cx \text{ for any real constant } c ~ cx
cx \text{ for some constant } c ~ cx
cx, c\in\mathbb{R} ~ cx
x=\frac\pi4+k\pi, k\in\mathbb Z ~ \frac{\pi}{4}+k\pi
x=\frac\pi4+k\pi \; (k\in\mathbb{Z}) ~ \frac{\pi}{4}+k\pi
\frac\pi4+k\pi, \text{ where } k \in \mathbb{Z} ~ \frac{\pi}{4}+k\pi
\frac\pi4+k\pi \text{ for } k\in\mathbb{Z} ~ \frac{\pi}{4}+k\pi
k\pi, \text{ where } k \text{ is an integer} ~ k\pi
k\pi \text{ for all integers } k ~ k\pi
f(x)=2x \text{ for all } x ~ 2x
f(x)=x+1 \text{ for all real } x ~ x+1
1.234.567 ~ 1234567
1'234'567 ~ 1234567
1'000 ~ 1000
5:30 PM ~ 17:30
12:00 \text{ noon} ~ 12:00 PM
12 noon ~ 12:00 p.m.
12:00 midnight ~ 12:00 AM
0:30 ~ 12:30 am
5 o'clock ~ 5:00
5 oclock ~ 5:00
March 14 ~ 14 March
March 14th, 2020 ~ 14 March 2020
Mar. 14 ~ March 14
January 5, 2024 ~ 2024-01-05
3 to 2 ~ 3:2
6\text{ to }4 ~ 3:2
C(5,2) ~ 10
{}_{5}C_{2} ~ 10
^{5}C_2 ~ 10
\tg x ~ \tan x
\operatorname{tg} x ~ \tan x
\operatorname{lcm}(4,6) ~ 12
\operatorname{arctg} 1 ~ \frac{\pi}{4}
f^{\prime}(x)=2x ~ f'(x)=2x
5 ft. 3 in. ~ 5 ft 3 in
x<1 ∪ x>2 ~ (-\infty,1)\cup(2,\infty)
5\,\text{square units} ~ 5
∠ABC = 60° ~ 60
x ≥ 3 ~ [3,\infty)
\fcolorbox{red}{white}{$73$} ~ 73
\underbrace{73}_{\text{total}} ~ 73
\begin{align*}73\end{align*} ~ 73
\begin{aligned}x&=1+1\\&=2\end{aligned} ~ 2
\begin{cases}x=1\\y=2\end{cases} ~ x=1,y=2
\text{Answer: }73 ~ 73
\text{The answer is }\frac12 ~ 1/2
\text{Therefore, } x = 73 ~ 73
\text{So the answer is 73} ~ 73
__73__ ~ 73
*73* ~ 73
12*18*11 ~ 2376
Rs. 500 ~ 500
US\$ 5 ~ 5
12 EUR ~ 12
negative 5 ~ -5
\text{minus }\frac12 ~ -1/2
3\text{ k}\Omega ~ 3
3\,\mathrm{k\Omega} ~ 3
5 rad/s ~ 5
5 [units] ~ 5
5 \text{ times} ~ 5
x\equiv 5 \pmod{7} ~ 5 \pmod 7
x\equiv 5 \pmod{7} ~ x\equiv 5 \bmod 7
p\equiv 1\ (\text{mod } 4) ~ p\equiv1\pmod4
5\mathbf{6} ~ 56
\begin{pmatrix} 1 & 2 \cr 3 & 4\end{pmatrix} ~ \begin{pmatrix} 1 & 2 \\ 3 & 4\end{pmatrix}
\begin{bmatrix}1\\*2\end{bmatrix} ~ \begin{bmatrix}1\\2\end{bmatrix}
x=2+2=4,y=5 ~ x=4,y=5
x = 5 = y ~ 5
\mathbb{R}_+^* ~ (0,\infty)
\R ~ \mathbb{R}
⌊2.5⌋ ~ 2
x̄ ~ \bar x
∆ ~ \Delta
5⁦ ~ 5
ℤ⁺ ~ \mathbb{Z}^+
The correct answer is (C) ~ C
(C)12 ~ C
\frac{\pi}{4}+k\pi \text{ for integer } k ~ \frac\pi4+k\pi
f(x)=ax+b, a,b\in\mathbb{R} ~ ax+b
f(x)=ax+b \text{ for any } a, b ~ ax+b
\{2k \mid k\in\mathbb{Z}\} ~ \{2k : k\in\mathbb{Z}\}
"""
DIFFERENT = r"""
{3 \over 4} ~ {4 \over 3}
A\subset B ~ B\subset A
A \supseteq B ~ B \supseteq A
p\Rightarrow q ~ q\Rightarrow p
p\to q ~ q\to p
a \mid b ~ b \mid a
a \nmid b ~ b \nmid a
a\circ b ~ b\circ a
f\circ g ~ g\circ f
\vec{a}\times\vec{b} ~ \vec{b}\times\vec{a}
\hat{i}\times\hat{j} ~ \hat{j}\times\hat{i}
\mathbb{Z}\times\mathbb{Q} ~ \mathbb{Q}\times\mathbb{Z}
\vec a\times\vec b ~ \vec a\cdot\vec b
AB\parallel CD ~ AC\parallel BD
AB\perp CD ~ AC\perp BD
\triangle ABC\cong\triangle DEF ~ \triangle ABC\cong\triangle EDF
\triangle ABC ~ \triangle BCA
\frac{dy}{dx} ~ \frac{y}{x}
\frac{dy}{dx} ~ \frac{dx}{dy}
dy/dx ~ y/x
\frac{d^2y}{dx^2} ~ \frac{y}{x^2}
\frac{\partial u}{\partial t} ~ \frac{u}{t}
AC\cdot BD ~ AB\cdot CD
\frac{AB}{BC} ~ \frac{A}{C}
\frac{AB}{CD} ~ \frac{AC}{BD}
AB+CD ~ AC+BD
AB:CD ~ AC:BD
\overrightarrow{AB} ~ \overrightarrow{BA}
\angle ABC ~ \angle ACB
\det A ~ A\det
\dim V ~ V
\ker f ~ f
\nabla f ~ f
\nabla\times F ~ F\times\nabla
a\ltimes b ~ b\ltimes a
a \ll b ~ b \ll a
a\mapsto b ~ b\mapsto a
\mathbb{Z}/2\mathbb{Z} ~ \mathbb{Z}/4\mathbb{Z}
\frac{\mathbb{Z}}{2\mathbb{Z}} ~ 1/2
5{6} ~ 30
$5$$6$ ~ 30
$5$$6$ ~ 56
5$6 ~ 56
5\text{}6 ~ 56
5\%6 ~ 56
5\% 6 ~ 56
1.2.3 ~ 0.36
1.2.3 ~ 1.23
.2.3 ~ 0.06
0xFF ~ 0
0x10 ~ 0
0b11 ~ 0
0b11 ~ 11
0b11 ~ 3
0o17 ~ 0
0xFF ~ 255
2018-2019 ~ -1
2018–2019 ~ -1
1-800-555 ~ -1354
12/25/2024 ~ 12/50600
{2}{3} ~ 6
{5}6 ~ 30
x2 ~ 2x
\begin{pmatrix}1\\[4pt]2\end{pmatrix} ~ \begin{pmatrix}1\\8\end{pmatrix}
4=6=5 ~ 5
3=5 ~ 5
2+2=5 ~ 5
1+1=3=3 ~ 3
5 lakhs ~ 5
5 crores ~ 5
5 quadrillions ~ 5
5 quintillion ~ 5
5 gross ~ 5
5 km northeast ~ 5
5 degrees below zero ~ 5
5 miles upstream ~ 5
5 units downward ~ 5
5 steps back ~ 5
5 floors down ~ 5
5万 ~ 5
]0,1[ ~ [0,1]
]0,1] ~ [0,1]
\mathbb{R}^+ ~ \mathbb{R}
\mathbb{R}^2 ~ \mathbb{R}
\mathbb{Z}^+ ~ \mathbb{Z}
(A) or (B) ~ A
(A) and (B) ~ A
A: 5, B: 7 ~ A
(A) is wrong ~ A
not A ~ A
(A), (B) ~ A
A or B ~ A
(E) 12 ~ (D) 12
Option E ~ Option D
cx \text{ for any } c ~ cx^2 \text{ for any } c
k\pi, k\in\mathbb{Z} ~ k\pi, k\in\mathbb{N}
2k\pi, k\in\mathbb{Z} ~ k\pi, k\in\mathbb{Z}
cx, c>0 ~ cx
5:30 PM ~ 5:30 AM
5:30 ~ 17:30
March 14 ~ March 15
March 14 ~ April 14
3 to 2 ~ 2 to 3
C(5,2) ~ C(5,1)
{}_{5}P_{2} ~ 10
\phantom{5} ~ 5
\cancel{5} ~ 5
\mathop{5} ~ 5
\textcolor{red}{73} ~ 72
5 \, \text{m} ~ m
x \, \text{m} ~ x
5 (or 6) ~ 5
5(x) ~ 5
5 (m) ~ 5
5⁶ ~ 56
x⁵ ~ 5x
½ ~ 12
1¼ ~ 1/4
5–6 ~ 56
5–6 ~ -1
1.234.56 ~ 123456
1.234 ~ 1234
12,34 ~ 1234
\max_x (f) ~ f
\gcd(a,b) ~ \operatorname{lcm}(a,b)
\text{all real numbers except }2 ~ \mathbb{R}
\frac{\text{opposite}}{\text{hypotenuse}} ~ \frac{\text{hypotenuse}}{\text{opposite}}
5* ~ 5
*5 ~ 5
x=2+3=6 ~ 6
P=1-0.3=0.6 ~ 0.6
x=2+2=5,y=5 ~ x=5,y=5
\{x\} ~ x
\{2k : k\in\mathbb{Z}\} ~ \{2k : k\in\mathbb{N}\}
\{a+b: a\in\mathbb Z\} ~ \{a+b: b\in\mathbb Z\}
x\equiv 5 \pmod{7} ~ x\equiv 5\pmod{8}
5 \pmod 7 ~ 5
2x\equiv 4\pmod 6 ~ x\equiv 4\pmod 6
a+b, a,b\in\mathbb{N} ~ a+b
The answer is not 5 ~ 5
The answer is 5 ~ 5
\text{The answer is not }5 ~ 5
5 x/s ~ 5
(A)+1 ~ A
\begin{cases} x & x>0\\ -x & x<0\end{cases} ~ x
"""


def pairs(text: str) -> list[tuple[str, str]]:
    lines = text.replace(r"\u200b", "\u200b").replace(r"\ufeff", "\ufeff").strip().splitlines()
    return [(left, right) for left, right in (line.split(" ~ ") for line in lines)]


@pytest.mark.parametrize(("left", "right"), pairs(EQUAL))
def test_equal_answers_share_a_key(left: str, right: str) -> None:
    assert canonical_key(left) == canonical_key(right)


@pytest.mark.parametrize(("left", "right"), pairs(DIFFERENT))
def test_different_answers_have_different_keys(left: str, right: str) -> None:
    assert canonical_key(left) != canonical_key(right)


UNKNOWN = [
    r"\nabla",
    r"\det",
    r"\ltimes",
    r"\star",
    r"\bowtie",
    r"\models",
    r"\vdash",
    r"\preceq",
    r"\hookrightarrow",
    r"\madeup",
]


@pytest.mark.parametrize("command", UNKNOWN)
def test_a_command_that_is_not_known_makes_a_text_and_check_gold_says_so(command: str) -> None:
    assert canonical_key(f"a {command} b") != canonical_key(f"b {command} a")
    assert canonical_key(f"a {command} b") == canonical_key(f"a{command} b")
    assert "only the same text" in str(check_gold(f"a {command} b"))


@pytest.mark.parametrize(
    "answer", [r"\mathbb{Z}_8", r"\mathfrak{c}", "5 o'clock", "March 14", "2024-01-05", "0xFF", r"\mathbb{R}^+"]
)
def test_what_is_known_as_a_whole_is_no_unread_text(answer: str) -> None:
    assert check_gold(answer) is None


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        ("1, 2, 3", "1,2,3", True),
        ("1, 2, 3", "3, 2, 1", False),
        ("1, 2, 2", "1, 2", False),
        ("(1, 2, 3)", "1, 2, 3", True),
        (r"\{1, 2\}", "1, 2", True),
        (r"\{1, 2\}", r"\{2, 1\}", False),
        ("1/2", "0.5", True),
        ("C, A, B", "A, B, C", False),
    ],
)
def test_lists_in_order(left: str, right: str, equal: bool) -> None:
    assert (canonical_key(left, ordered=True) == canonical_key(right, ordered=True)) is equal


def test_gold_answers_that_are_lists_are_named() -> None:
    assert "list of 3" in str(note_list("3, 1, 2"))
    assert "list of 2" in str(note_list(r"\{a, b\}"))
    for other in ("5", "(1,2)", r"\pm 3", "x>5", "Evelyn", "[0,1]"):
        assert note_list(other) is None


LONG = [
    "1" * 19_000 + "_2", "(" + "1" * 19_000 + ")_2", "1" * 9000 + "_" + "1" * 9000, "F" * 19_000, "A1" * 9000 + "_2",
    ",".join(rf"x\ne {i}" for i in range(400)), ",".join(rf"|x-{i}|\ne 1" for i in range(200)),
    " \\cup ".join(f"({2 * i},{2 * i + 1})" for i in range(400)),
    r"\mathbb{R}\setminus\{" + ",".join(map(str, range(400))) + r"\}",
    "<".join("abcdefgh" * 100), "=".join(["x+1"] * 400), ",".join(rf"\frac{{{i}}}{{x+{i}}}" for i in range(400)),
    ",".join(f"{i}x+y=z" for i in range(300)), r"\tan x," * 190, r"\sqrt[3]{x+1}+" * 190 + "1", "12:" * 3000, "x^{y^{z}}" * 50,
    "⁵" * 9000, "¼" * 5000, "]0,1[∪" * 1000, "{5}" * 6000, "5$" * 9000, r"\rm a" * 4000, "(E) " * 4000, "for any c " * 1500,
]  # fmt: skip


def matrix(size: int, entry: str) -> str:
    rows = (r"&".join(entry.format(i=i, j=j) for j in range(size)) for i in range(size))
    return r"\begin{pmatrix}" + r"\\".join(rows) + r"\end{pmatrix}"


def test_no_answer_takes_long() -> None:
    """Most take under 50 ms on an idle core; the test leaves room for a busy one, of which processor time too can be lost to
    a pause or a neighbour: the fastest of three counts."""

    def seconds(text: str) -> float:
        clear_cache()
        start = time.process_time()
        read(text)
        return time.process_time() - start

    texts = [*LONG, matrix(22, "{i}") * 2, matrix(22, "x_{i}+{j}"), matrix(10, "{j}") * 5, matrix(10, "x+{i}") * 2]
    for text in texts:
        assert any(seconds(text) < 0.25 for _ in range(3)), text[:60]


def test_a_key_does_not_depend_on_what_was_read_before() -> None:
    """The bound on work counts the present answer only."""
    key = read(r"\tan x + \sqrt{x}").key
    for text in LONG[-10:]:
        read(text)
        assert read(r"\tan x + \sqrt{x}").key == key


@pytest.mark.skipif(not (DATA / "answer_pairs_hard.jsonl").is_file(), reason=f"no labelled pairs in {DATA}")
def test_accuracy_on_hard_pairs() -> None:
    """These pairs were seen while the grader was written."""
    rows = [json.loads(line) for line in (DATA / "answer_pairs_hard.jsonl").read_text(encoding="utf-8").splitlines()]
    verdicts = [(exact(row["pred"], row["gold"]), row["expected"]) for row in rows]
    assert sum(verdict == expected for verdict, expected in verdicts) >= 655
    assert sum(verdict and not expected for verdict, expected in verdicts) <= 1
