"""Reads one mathematical expression, in LaTeX or plain notation, into a small tree. Evaluates nothing.

Nodes are tuples: ("num", Fraction), ("sym", name), ("add", *nodes), ("mul", *nodes), ("pow", base, exponent),
("deg", node) and ("fn", name, *nodes). Whatever is not understood as a whole raises Unreadable; nothing is skipped.
Time is linear in the text, and nesting is bounded.

A parser of our own, because latex2sympy2-extended 1.11 takes 2 to 20 ms an expression (the whole of mathruler takes
0.4 ms), merges upper and lower case, reads 111_2 as 111 and refuses \\frac94\\pi.
"""

import re
from fractions import Fraction
from itertools import pairwise
from typing import Any

MAX_DEPTH = 60  # nested brackets, fractions, exponents
MAX_TOKENS = 2000
MAX_POWER_OF_TEN = 20_000  # in "1e99"

Node = tuple[Any, ...]

TOKEN = re.compile(
    r"\s*(?:(?P<num>(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+(?![\d.]))?)"
    r"|(?P<cmd>\\[a-zA-Z]+|\\.)|(?P<word>[a-zA-Z]+)|(?P<op>\S))"
)
# fmt: off
FUNCTIONS = frozenset((
    "sin", "cos", "tan", "cot", "sec", "csc", "arcsin", "arccos", "arctan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "ln", "log", "lg", "exp", "sqrt", "abs", "floor", "ceil", "arccot", "max", "min", "gcd", "lcm",
))
GREEK = (
    "alpha", "beta", "gamma", "delta", "epsilon", "varepsilon", "zeta", "eta", "theta", "vartheta", "iota",
    "kappa", "lambda", "mu", "nu", "xi", "rho", "sigma", "tau", "upsilon", "phi", "varphi", "chi", "psi", "omega",
)
SYMBOLS = frozenset((  # commands that are names of quantities; any other command that is not read below makes a text
    *GREEK, "Gamma", "Delta", "Theta", "Lambda", "Xi", "Pi", "Sigma", "Upsilon", "Phi", "Psi", "Omega", "varGamma",
    "varDelta", "varTheta", "varLambda", "varXi", "varPi", "varSigma", "varUpsilon", "varPhi", "varPsi", "varOmega",
    "varpi", "varrho", "varsigma", "pi", "ell", "hbar", "imath", "jmath", "aleph",
))
ACCENTS = frozenset((
    r"\overline", r"\dot", r"\ddot", r"\widehat", r"\hat", r"\bar", r"\tilde", r"\vec", r"\overrightarrow",
))
NAMING = ACCENTS | {"_", r"\text"}  # what stands in braces after these is a name
# fmt: on
UNICODE_GREEK = {"ϕ": "phi", "ε": "epsilon", "ϵ": "epsilon"} | dict(
    zip("αβγδζηθικλμνξρστυφχψω", (name for name in GREEK if not name.startswith(("eps", "var"))), strict=True)
)
LETTER_FUNCTIONS = frozenset(("f", "g", "h", "F", "G", "phi", "varphi", "Phi", "psi", "Psi", "Gamma", "zeta"))
# Short words that are no products of letters: "3 to 4", "2 mod n".
NO_PRODUCTS = frozenset("to of off out per not nor the for and are was has mod than vs via but yes".split())  # noqa: SIM905
SEGMENT = re.compile(r"(?<![A-Za-z\\])[A-Z]{2,}(?![A-Za-z])")  # AB in AB/AC; alone it is a product
DERIVATIVE = re.compile(r"d(?:\^\d)?[A-Za-z]*"), re.compile(r"(?:d[A-Za-z](?:\^\d)?)+")  # above, below
WORDS = sorted((*FUNCTIONS, *GREEK, "pi", "infty", "inf", "oo", "infinity", "binom"), key=len, reverse=True)
CLOSING = {"(": ")", "[": "]", "{": "}", "|": "|", r"\{": r"\}", r"\lfloor": r"\rfloor", r"\lceil": r"\rceil"}
STOP = frozenset([*CLOSING.values(), "+", "-", "*", "/", ",", ";", ":", "=", "&", "", r"\choose", r"\over"])


class Unreadable(ValueError):
    """The text is not an expression that this module understands."""


def integer(digits: str) -> int:
    """The value of a run of decimal digits of any length: int() refuses more than 4300."""
    value = 0
    for start in range(0, len(digits), 4000):
        piece = digits[start : start + 4000]
        value = value * 10 ** len(piece) + int(piece)
    return value


def number(text: str) -> Fraction:
    """Exact value of a decimal literal such as "12", ".5" or "3.20e-4"."""
    mantissa, _, power = text.lower().partition("e")
    if power and (len(power) > 7 or abs(int(power)) > MAX_POWER_OF_TEN):
        raise Unreadable("exponent out of range")
    whole, _, decimals = mantissa.partition(".")
    scale = (int(power) if power else 0) - len(decimals)
    value = integer(whole + decimals)
    return Fraction(value * 10**scale) if scale >= 0 else Fraction(value, 10**-scale)


def add(*nodes: Node) -> Node:
    return nodes[0] if len(nodes) == 1 else ("add", *nodes)


def mul(*nodes: Node) -> Node:
    """A product; one that begins with a product is continued, so that long ones are not deep."""
    first, *rest = nodes
    return first if not rest else ("mul", *(first[1:] if first[0] == "mul" else nodes[:1]), *rest)


def negative(node: Node) -> Node:
    return ("num", -node[1]) if node[0] == "num" else ("mul", ("num", Fraction(-1)), node)


def divide(above: Node, below: Node) -> Node:
    return mul(above, ("pow", below, ("num", Fraction(-1))))


def tokens(text: str) -> list[str]:
    """Splits into numbers, commands, names and single characters: "2ab\\pi" -> ["2", "a", "b", "\\pi"].

    Four letters and more side by side are a product in alphabetical order only: "abcd", but not "feet". Where capitals
    stand side by side twice, each is a segment, of the same length from either end: "AB/CA" is "AB", "/", "AC".
    """
    segments = len(SEGMENT.findall(text)) > 1
    found: list[str] = []
    for match in TOKEN.finditer(text):
        if len(found) > MAX_TOKENS:
            raise Unreadable("too many tokens")
        kind = match.lastgroup
        piece = match.group(kind) if kind else ""
        if kind != "word":
            found.append("\\" + UNICODE_GREEK[piece] if piece in UNICODE_GREEK else piece)
            continue
        if piece in NO_PRODUCTS or (piece == "by" and re.match(r"\s+\d", text[match.end() : match.end() + 9])):
            raise Unreadable("a word")
        part_of_name = found[-1:] == ["{"] and found[-2:-1] and found[-2] in NAMING
        if (
            found[-1:] == ["0"]
            and len(piece) > 1
            and text[match.start()].isalpha()
            and re.match(r"0[xXbBoO]", text[match.start() - 1 :])
        ):
            raise Unreadable("a numeral with a base")
        if segments and not part_of_name and SEGMENT.fullmatch(piece):
            found.append("".join(sorted(piece)) if len(piece) == 2 else piece)
            continue
        letters = ""
        while piece:
            word = next((w for w in WORDS if piece.startswith(w)), None)
            found.append("\\" + word if word else piece[0])
            letters += "" if word else piece[0]
            piece = piece[len(word) if word else 1 :]
        if len(letters) > 3 and not part_of_name and not all(a < b for a, b in pairwise(letters)):
            raise Unreadable("a word")
    return found


class _Parser:
    def __init__(self, text: str):
        self.tokens = tokens(text)
        self.at = 0
        self.depth = 0
        self.in_bars = False  # whether the next "|" closes an absolute value

    def peek(self) -> str:
        return self.tokens[self.at] if self.at < len(self.tokens) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def expect(self, token: str) -> None:
        if self.take() != token:
            raise Unreadable(f"expected {token}")

    def expression(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("nested too deeply")
        terms = [self.term()]
        while self.peek() in ("+", "-"):
            terms.append(self.term())
        self.depth -= 1
        return add(*terms)

    def term(self) -> Node:
        """A product with its sign, read from left to right: 1/2x is (1/2)x."""
        minus = False
        while self.peek() in ("+", "-"):
            minus ^= self.take() == "-"
        product = self.power()
        while True:
            token = self.peek()
            if token in ("*", "/"):
                self.take()
                factor = self.signed()
                product = divide(product, factor) if token == "/" else mul(product, factor)
            elif token not in STOP or (token == "|" and not self.in_bars):
                product = self.mixed(product) or mul(product, self.beside(product))
            else:
                return negative(product) if minus else product

    def signed(self) -> Node:
        minus = False
        while self.peek() in ("+", "-"):
            minus ^= self.take() == "-"
        node = self.power()
        return negative(node) if minus else node

    def beside(self, before: Node) -> Node:
        """The next factor of a product without a sign. Digits there may print as one number with what stands before them:
        5{6}, x2, 1.2.3; only behind a bracket or an exponent, as in (3)2 and 2^{25} 26!, they are a factor."""
        digits = self.tokens[self.at + (self.peek() == "{")] if self.at + 1 < len(self.tokens) else self.peek()
        if digits[:1] in tuple("0123456789.") and self.tokens[self.at - 1] != ")":
            factor = before[-1] if before[0] == "mul" else before
            if self.tokens[self.at - 1] != "}" or factor[0] != "pow" or factor[2] == ("num", Fraction(-1)):
                raise Unreadable("digits side by side")
        return self.power()

    def mixed(self, whole: Node) -> Node | None:
        """2\\frac{1}{3} and 2 1/3 are mixed numbers; None when the next factor does not make one."""
        if whole[0] != "num" or not self.tokens[self.at - 1].isdecimal():
            return None
        start = self.at
        if self.peek() == r"\frac":
            self.take()
            above, below = self.argument(), self.argument()
            if above[0] == below[0] == "num" and below[1] and self.peek() not in ("^", "!"):
                return ("num", whole[1] + above[1] / below[1])
            self.at = start
        elif self.peek()[:1].isdecimal():
            above_below = self.tokens[start : start + 3]
            if above_below[1:2] != ["/"] or not all(part.isdecimal() for part in above_below[::2]) or len(above_below) < 3:
                raise Unreadable("two numbers side by side")
            self.at += 3
            below_value = integer(above_below[2])
            if below_value:
                return ("num", whole[1] + Fraction(integer(above_below[0]), below_value))
            raise Unreadable("division by zero")
        return None

    def power(self) -> Node:
        node = self.postfix(self.atom())
        if self.peek() != "^":
            return node
        self.take()
        exponent = self.exponent()
        if self.peek() == "_" and node[0] == "sym":  # v^2_0 is v_0 squared
            node = self.subscript(node)
        return self.postfix(("pow", node, exponent))

    def exponent(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("nested too deeply")
        minus = False
        while self.peek() in ("+", "-"):
            minus ^= self.take() == "-"
        node = self.atom()
        if self.peek() == "^":
            self.take()
            node = ("pow", node, self.exponent())
        exponent = negative(node) if minus else node
        self.depth -= 1
        return exponent

    def postfix(self, node: Node) -> Node:
        start = self.at
        while (token := self.peek()) in ("!", "°", "'", "_"):
            if self.at > start + MAX_DEPTH:
                raise Unreadable("too many signs behind")
            if token == "_":
                node = self.subscript(node)
                continue
            self.take()
            if token == "!":
                double = self.peek() == "!"
                self.at += double
                node = ("fn", "!!" if double else "!", node)
            elif token == "°":
                node = ("deg", node)
            elif token == "'":
                if node[0] != "sym":
                    raise Unreadable("prime after no name")
                node = ("sym", node[1] + "'")
        return node

    def subscript(self, node: Node) -> Node:
        self.expect("_")
        if node[0] != "sym":
            raise Unreadable("subscript after no name")
        return ("sym", f"{node[1]}_{self.raw()}")

    def raw(self) -> str:
        """The next token or braced group as text without spaces or braces."""
        if self.peek() != "{":
            return self.take()
        start, level = self.at, 0
        while self.at < len(self.tokens):
            level += {"{": 1, "}": -1}.get(self.take(), 0)
            if level == 0:
                return "".join(t for t in self.tokens[start : self.at] if t not in "{}")
        raise Unreadable("unclosed brace")

    def argument(self) -> Node:
        """What TeX takes as an argument: a braced group or one token, of a number its first digit."""
        token = self.peek()
        if len(token) > 1 and token[0].isdecimal():
            self.tokens[self.at : self.at + 1] = [token[0], token[1:]]
        if token == "{":
            return self.group("{")
        return self.atom()

    def group(self, opening: str) -> Node:
        self.expect(opening)
        outside, self.in_bars = self.in_bars, opening == "|"
        node = self.chosen(self.expression())
        self.in_bars = outside
        self.expect(CLOSING[opening])
        return node

    def chosen(self, node: Node) -> Node:
        """5 \\choose 2, 1 \\over 2"""
        if self.peek() not in (r"\choose", r"\over"):
            return node
        choose = self.take() == r"\choose"
        below = self.expression()
        return ("fn", "binom", node, below) if choose else divide(node, below)

    def atom(self) -> Node:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise Unreadable("nested too deeply")
        node = self.atom_inside()
        self.depth -= 1
        return node

    def atom_inside(self) -> Node:
        token = self.peek()
        if token in ("(", "[", "{"):
            return self.group(token)
        if token == "|":
            return ("fn", "abs", self.group(token))
        if token in (r"\lfloor", r"\lceil"):
            return ("fn", "floor" if token == r"\lfloor" else "ceil", self.group(token))
        self.take()
        if token[:1].isdecimal() or (token[:1] == "." and len(token) > 1):
            return self.decimal(token)
        if token.isalpha() and token.isascii():
            return self.name(token)
        if token == r"\text":
            name = self.raw()
            if not name.isalpha() or len(name) > 1:
                raise Unreadable("text inside an expression")
            return self.name(name)
        if token == r"\frac" and (derivative := self.derivative()):
            return ("sym", derivative)
        if token in (r"\angle", r"\triangle"):
            return ("sym", self.figure(token))
        if token in (r"\frac", r"\binom"):
            above, below = self.argument(), self.argument()
            return divide(above, below) if token == r"\frac" else ("fn", "binom", above, below)
        if token == r"\sqrt":
            index = self.group("[") if self.peek() == "[" else ("num", Fraction(2))
            root = ("num", 1 / index[1]) if index[0] == "num" and index[1] else divide(("num", Fraction(1)), index)
            return ("pow", self.argument(), root)
        if token in (r"\infty", r"\inf", r"\oo", r"\infinity"):
            return ("sym", "oo")
        if token[1:] in FUNCTIONS:
            return self.function(token[1:])
        if token in ACCENTS:
            return ("sym", token + self.raw())
        if token == "√":
            return ("pow", self.argument(), ("num", Fraction(1, 2)))
        if token[1:] in SYMBOLS and self.peek() != "{":
            if token == r"\Delta" and len(self.peek()) == 1 and self.peek().isalpha():  # Delta p is one quantity
                return ("sym", token + self.take())
            return self.name(token[1:])
        raise Unreadable(f"unexpected {token!r}")

    def derivative(self) -> str | None:
        """The name dy/dx of a derivative, in which nothing cancels; None for any other fraction."""
        start = self.at
        if self.tokens[start : start + 2] == ["{", "d"]:
            above, below = self.raw(), self.raw()
            if DERIVATIVE[0].fullmatch(above) and DERIVATIVE[1].fullmatch(below):
                return f"{above}/{below}"
        self.at = start
        return None

    def figure(self, kind: str) -> str:
        """The name of an angle or a triangle, whose letters are not factors: ABC and CBA are the same angle."""
        letters = self.raw() if self.peek() == "{" else ""
        while not letters or (letters.isalpha() and self.peek().isalpha() and self.peek().isupper()):
            letters += self.take()
            if not letters:
                raise Unreadable(f"{kind} of nothing")
        if not letters.isalnum():
            raise Unreadable(f"{kind} of more than letters")
        return f"{kind} " + (min(letters, letters[::-1]) if kind == r"\angle" else letters)

    def decimal(self, token: str) -> Node:
        value = number(token)
        if "." in token and self.peek() in (r"\overline", r"\bar", r"\dot"):  # 0.1\overline{6} = 1/6
            self.take()
            period = self.raw()
            if not period.isdecimal() or len(period) > 1000:
                raise Unreadable("repeating part is no number")
            if self.peek()[:1].isdecimal():
                raise Unreadable("digits behind the repeating part")
            places = len(token.partition(".")[2])
            value += Fraction(integer(period), (10 ** len(period) - 1) * 10**places)
        return ("num", value)

    def name(self, letter: str) -> Node:
        """A variable, or the value of an unknown function: f(x+1), P(A), W(2), phi(n), but not x(x+1) or P(1+r)."""
        while letter in LETTER_FUNCTIONS and self.peek() == "'":
            letter += self.take()
        if self.peek() == "(" and (letter.rstrip("'") in LETTER_FUNCTIONS or self.simple_argument(letter)):
            return ("fn", "of:" + letter, *self.arguments())
        return ("sym", letter)

    def simple_argument(self, letter: str) -> bool:
        """Whether a bracket holds only numbers, or after a capital letter only numbers and single letters."""
        inside = self.tokens[self.at + 1 : self.at + 9]
        inside = inside[: inside.index(")")] if ")" in inside else ["+"]
        atoms, commas = inside[::2], inside[1::2]
        known = all(a[:1].isdecimal() or (letter.isupper() and len(a) == 1 and a.isalpha()) for a in atoms)
        return bool(atoms) and known and all(comma == "," for comma in commas) and len(atoms) == len(commas) + 1

    def arguments(self) -> list[Node]:
        opening = self.take()
        if opening not in ("(", r"\{"):
            raise Unreadable("arguments without brackets")
        found = [self.expression()]
        while self.peek() == ",":
            self.take()
            found.append(self.expression())
        self.expect(CLOSING[opening])
        return found

    def function(self, name: str) -> Node:
        """sin x, sin^2 x, sin^{-1} x (the inverse), log_2 8, sin(x), sin 2x; sin x cos y is a product."""
        exponent: Node | None = None
        base: Node | None = None
        while self.peek() in ("^", "_"):
            if self.take() == "^":
                exponent = self.exponent()
            else:
                base = self.argument()
        if name in ("max", "min", "gcd", "lcm"):
            if base is not None or exponent is not None:
                raise Unreadable(f"{name} with a range or a power")
            return ("fn", name, *self.arguments())
        if self.peek() in ("(", "[", "{"):
            argument = self.postfix(self.group(self.peek()))
            if exponent is None and self.peek() == "^" and name != "sqrt":
                self.take()
                exponent = self.exponent()
        else:
            argument = self.bare_argument()
        if exponent == ("num", Fraction(-1)) and name in ("sin", "cos", "tan"):
            name, exponent = "arc" + name, None
        if base is not None and name != "log":
            raise Unreadable("subscript of a function")
        node: Node = ("fn", name, argument)
        if name == "sqrt":
            node = ("pow", argument, ("num", Fraction(1, 2)))
        if base is not None or name == "lg":
            node = divide(("fn", "ln", argument), ("fn", "ln", base or ("num", Fraction(10))))
        return node if exponent is None else ("pow", node, exponent)

    def bare_argument(self) -> Node:
        factors = [self.signed()]
        while (token := self.peek()) not in STOP and token[1:] not in FUNCTIONS and token not in ("(", "|", r"\lfloor"):
            factors.append(self.beside(factors[-1]))
        return mul(*factors)


def parse(text: str) -> Node:
    """The tree of a whole expression. Raises Unreadable."""
    parser = _Parser(text)
    node = parser.chosen(parser.expression())
    if parser.peek():
        raise Unreadable(f"unexpected {parser.peek()!r}")
    return node
