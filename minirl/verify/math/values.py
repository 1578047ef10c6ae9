"""Values of expressions: exact rationals where they stay small, otherwise 1000-bit numbers.

A constant is known by its value. An expression with variables is known by its values at six fixed points, where the
variables have pseudo-random real values, of either sign and of several sizes, that depend on their names only. Two
expressions that agree there to 400 bits are equal; ones that differ do differ. Functions in pieces (absolute value,
floor, minimum) of variables count as unknown functions where the points do not show their pieces. Sums in which a term
could hide below that precision (one term 2^160 times smaller than another), powers too large to write down, rationals of
so many digits that rounding would lose some, and values close to a rational, raise Unbounded, and are then known by
their structure. So nothing here takes long, whatever the expression.
"""

import hashlib
import math
import threading
from collections.abc import Callable, Set
from fractions import Fraction
from functools import lru_cache
from typing import Any

import mpmath

from minirl.verify.math.latex import Node

MAX_BITS = 1 << 17  # exact integers beyond this are kept as 1000-bit numbers
MAX_LOG2 = 1 << 62  # and beyond this the value is Unbounded
MAX_HYPERBOLIC = 100  # tanh differs from 1 by 2^-288 there
MAX_FACTORIAL = 5000  # exact up to here
MAX_LARGE_OPERATIONS = 60  # exact operations on more than 4096 bits, gamma functions, in one expression
KEY_BITS = 400
TINY = 160  # bits
MAX_ODD_BITS = 350  # of an exact rational that meets an irrational number: two of them differ in 400 bits

MAX_WORK = 22_000  # about a microsecond each, for all expressions of one answer
COST = {"tan": 160, "cot": 160, "!": 700, "!!": 700, "binom": 1300}  # of a value of a function, else FUNCTION_COST
NODE_COST, FUNCTION_COST, POWER_COST, PRINT_COST, LIMIT_COST = 7, 60, 50, 110, 25

context = mpmath.MPContext()
context.prec = 1000
for argument in ("0.3", "1234.3"):  # the first factorials make tables, which takes longer than any answer may
    context.factorial(context.mpf(argument))
PIECEWISE = frozenset(("abs", "floor", "ceil", "max", "min", "gcd", "lcm"))
HALF: Node = ("num", Fraction(1, 2))
Value = Any  # Fraction, context.mpf or context.mpc


class Unbounded(ValueError):
    """The value is too large, or a part of it too small beside the rest, to be told from others by its digits."""


class Undefined(ValueError):
    """No value: division by zero, logarithm of zero, floor of a complex number."""


class TooMuchWork(Exception):
    """An answer whose reading would take too long: it is then text."""


class Work(threading.local):
    """What reading the present answer has cost. A count and not a clock, so that a key depends on the answer alone."""

    done = 0


work = Work()


def spend(cost: int) -> None:
    """Counts work, in about microseconds. TooMuchWork when it is too much for one answer."""
    work.done += cost
    if work.done > MAX_WORK:
        raise TooMuchWork


@lru_cache(maxsize=4096)
def pseudo_random(name: str) -> Any:
    """A number in (1, 2) of 1000 random bits, a function of the name only."""
    digest = hashlib.shake_256(name.encode()).digest(125)
    return 1 + context.mpf(int.from_bytes(digest, "big")) / context.mpf(2) ** 1000


def real(value: Value) -> Any:
    """As a number of the context; a real or imaginary part that is rounding noise beside the other becomes 0."""
    if isinstance(value, Fraction):
        return context.mpf(value.numerator) / value.denominator
    if isinstance(value, context.mpc):
        noise = context.ldexp(1, -int(context.prec // 2))
        if abs(value.imag) <= abs(value.real) * noise:
            return value.real
        if abs(value.real) <= abs(value.imag) * noise:
            return context.mpc(0, value.imag)
    return value


def inexact(value: Value) -> Any:
    """As real(), for a number that enters an operation with rounding; of a rational no digit may be lost in it."""
    large = isinstance(value, Fraction) and bits(value) > MAX_ODD_BITS
    if large and odd_bits(value.numerator) + odd_bits(value.denominator) > MAX_ODD_BITS:
        raise Unbounded("a rational number of too many digits beside an irrational one")
    return real(value)


def odd_bits(number: int) -> int:
    """Bits of the largest odd factor."""
    return number.bit_length() - (number & -number).bit_length() + 1


def bits(value: Fraction) -> int:
    return value.numerator.bit_length() + value.denominator.bit_length()


def log2(value: Value) -> float:
    """log2 |value| of a non-zero value, cheaply, to about one bit."""
    if isinstance(value, Fraction):
        return value.numerator.bit_length() - value.denominator.bit_length()
    return float(max(context.mag(value.real), context.mag(value.imag)))


class Evaluator:
    """Evaluates trees at one point: point(name) is the value of a variable."""

    def __init__(self, point: Callable[[str], Value], opaque: Set[Node] = frozenset()):
        self.point = point
        self.opaque = opaque  # absolute values to be taken as unknown functions
        self.positive: dict[Node, bool] = {}  # whether what stands inside an absolute value is positive here
        self.large_operations = 0

    def exact(self, *values: Value) -> bool:
        """Whether an operation on these may be done with exact rationals."""
        if not all(isinstance(v, Fraction) for v in values):
            return False
        self.large_operations += sum(map(bits, values)) > 4096
        return self.large_operations <= MAX_LARGE_OPERATIONS and sum(map(bits, values)) <= 2 * MAX_BITS

    def __call__(self, node: Node, in_angle: bool = False) -> Value:
        kind = node[0]
        if kind == "num":
            return node[1]
        if kind == "sym":
            return self.symbol(node[1])
        spend(NODE_COST * len(node))
        if kind == "add":
            return self.total([self(part, in_angle) for part in node[1:]])
        if kind == "mul":
            product: Value = Fraction(1)
            for part in node[1:]:
                factor = self(part, in_angle)
                product = product * factor if self.exact(product, factor) else inexact(product) * inexact(factor)
            return product
        if kind == "pow":
            if node[2] == HALF and node[1][0] == "pow" and node[1][2][0] == "num" and node[1][2][1] % 2 == 0:
                return self.power(self(("fn", "abs", node[1][1])), node[1][2][1] / 2)  # the root of a square
            return self.power(self(node[1]), self(node[2]))
        if kind == "deg":  # degrees count as radians' multiples only where an angle is wanted: 90 degrees is 90
            value = self(node[1])
            return inexact(value) * context.pi / 180 if in_angle else value
        return self.function(node[1], node[2:])

    def symbol(self, name: str) -> Value:
        if name == "pi":
            return +context.pi
        if name == "e":
            return +context.e
        if name == "i":
            return context.mpc(0, 1)
        if name == "oo":
            raise Undefined("infinity inside an expression")
        return self.point(name)

    def total(self, terms: list[Value]) -> Value:
        if self.exact(*terms):
            return sum(terms, Fraction(0))
        terms = [inexact(t) for t in terms if t != 0]
        if not terms:
            return Fraction(0)
        total = context.fsum(terms)
        largest = max(map(log2, terms))
        if largest - min(map(log2, terms)) > TINY:
            raise Unbounded("a term far smaller than another")
        if total == 0 or log2(total) < largest - context.prec / 2:
            return Fraction(0)
        if log2(total) < largest - TINY:
            raise Unbounded("terms that nearly cancel")
        return total

    def power(self, base: Value, exponent: Value) -> Value:
        if exponent == 0:
            return Fraction(1)
        if base == 0:
            if not isinstance(exponent, Fraction) or exponent < 0:
                raise Undefined("zero to a negative power")
            return Fraction(0)
        if base == 1:
            return base
        if isinstance(base, Fraction) and isinstance(exponent, Fraction):
            size = bits(base) * abs(exponent)
            self.large_operations += size > 4096
            if exponent.denominator == 1 and size <= MAX_BITS and self.exact(base):
                return base**exponent
            if exponent.denominator <= 64 and bits(base) <= 8192 and size <= MAX_BITS:
                root = exact_root(base, exponent.denominator)
                if root is not None:
                    return root**exponent.numerator
        size_log2 = abs(log2(base)) + 1
        if log2(exponent) > 62 or size_log2 * abs(real(exponent)) > MAX_LOG2:
            raise Unbounded("power too large")
        if log2(exponent) < -TINY:
            raise Unbounded("power close to 1")
        if isinstance(exponent, Fraction):
            number = inexact(base)
            spend(5 if exponent.denominator == 1 and abs(exponent) < 9 else POWER_COST)
            odd_root = exponent.denominator % 2 == 1 and exponent.denominator > 1
            if odd_root and isinstance(number, context.mpf) and number < 0:  # the real cube root of a negative number
                sign = -1 if exponent.numerator % 2 else 1
                return sign * context.power(-number, inexact(exponent))
            if exponent.denominator == 1:
                return real(context.power(number, int(exponent)))
        spend(2 * POWER_COST)
        return real(context.power(inexact(base), inexact(exponent)))

    def function(self, name: str, nodes: tuple[Node, ...]) -> Value:
        if name.startswith("of:") or (name in PIECEWISE and any(map(symbols, nodes))):
            if name != "abs":
                return self.unknown(name, [self(node) for node in nodes])
            value = self(nodes[0])
            self.positive[nodes[0]] = not isinstance(value, context.mpc) and value > 0
            return self.unknown(name, [value * value]) if nodes[0] in self.opaque else abs(value)
        angle = name in ("sin", "cos", "tan", "cot", "sec", "csc")
        values = [self(node, in_angle=angle) for node in nodes]
        if name in ("!", "!!", "binom"):
            return self.combinatorial(name, values)
        if name in ("floor", "ceil", "max", "min", "gcd", "lcm"):
            return arithmetic(name, values)
        (value,) = values
        if name == "abs":
            return abs(value)
        if name in ("sinh", "cosh", "tanh") and not symbols(nodes[0]) and abs(value) > MAX_HYPERBOLIC:
            raise Unbounded(f"{name} close to its asymptote")
        spend(COST.get(name, FUNCTION_COST))
        return real(analytic(name, inexact(value)))

    def unknown(self, name: str, arguments: list[Value]) -> Value:
        """A pseudo-random value for each function and arguments; their order counts if the function has a real name."""
        prints = [fingerprint(argument) for argument in arguments]
        return self.point(f"{name}({','.join(prints if name.startswith('of:') else sorted(prints))})")

    def combinatorial(self, name: str, values: list[Value]) -> Value:
        if all(isinstance(v, Fraction) and v.denominator == 1 and v >= 0 for v in values):
            n = int(values[0])
            if name == "!" and n <= MAX_FACTORIAL:
                return Fraction(math.factorial(n))
            if name == "!!" and n <= MAX_FACTORIAL:
                return Fraction(math.prod(range(n, 0, -2)))
            if name == "binom" and (k := int(values[1])) > n:
                return Fraction(0)
            if name == "binom" and n.bit_length() * min(k, n - k) <= MAX_BITS:
                return Fraction(math.comb(n, k))
        numbers = [real(v) for v in values]
        spend(COST[name] * (8 if any(isinstance(n, context.mpc) for n in numbers) else 1))
        self.large_operations += 1
        if self.large_operations > MAX_LARGE_OPERATIONS or any(n != 0 and log2(n) > 50 for n in numbers):
            raise Unbounded("too many or too large factorials")
        function = {"!": context.factorial, "!!": context.fac2, "binom": context.binomial}[name]
        try:
            return real(function(*numbers))
        except ValueError as error:
            raise Undefined("factorial of a negative integer") from error


def exact_root(base: Fraction, degree: int) -> Fraction | None:
    """The rational root of a rational number; of a negative one for odd degrees only. None when irrational."""
    if base < 0:
        root = exact_root(-base, degree) if degree % 2 else None
        return None if root is None else -root
    parts = []
    for part in (base.numerator, base.denominator):
        guess = math.isqrt(part) if degree == 2 else int(context.nint(context.root(context.mpf(part), degree)))
        if guess**degree != part:
            return None
        parts.append(guess)
    return Fraction(parts[0], parts[1])


def arithmetic(name: str, values: list[Value]) -> Value:
    if any(isinstance(v, context.mpc) for v in values):
        raise Undefined(f"{name} of a complex number")
    if name in ("max", "min"):
        return (max if name == "max" else min)(values, key=real)
    if name in ("floor", "ceil"):
        value = values[0] if isinstance(values[0], Fraction) else as_rational(values[0]) or values[0]
        if value != 0 and log2(value) > KEY_BITS:
            raise Unbounded("floor of a large number")
        if isinstance(value, Fraction):
            return Fraction(math.floor(value) if name == "floor" else math.ceil(value))
        return Fraction(int(context.floor(value) if name == "floor" else context.ceil(value)))
    if not all(isinstance(v, Fraction) and v.denominator == 1 for v in values):
        raise Undefined(f"{name} of numbers that are not integers")
    return Fraction((math.gcd if name == "gcd" else math.lcm)(*map(int, values)))


def analytic(name: str, value: Value) -> Value:
    """Elementary functions; log without a base is the natural logarithm. Results that are zero by theory become 0."""
    if value != 0 and name not in ("ln", "log") and not -TINY < log2(value) < (61 if name == "exp" else TINY):
        raise Unbounded(f"argument of {name} too large or too small")
    function = {"log": "ln", "arcsin": "asin", "arccos": "acos", "arctan": "atan", "arccot": "acot"}.get(name, name)
    try:
        result = getattr(context, function)(value)
    except (ValueError, ZeroDivisionError) as error:
        raise Undefined(f"{name} has no value there") from error
    if result == 0 or log2(result) < -context.prec / 2:
        return Fraction(0)
    if abs(log2(result)) > TINY and function not in ("exp", "sinh", "cosh"):
        if log2(result) > 0:
            raise Undefined(f"pole of {name}")
        raise Unbounded(f"{name} close to zero")
    return result


def as_rational(value: Value) -> Fraction | None:
    """The rational number of small denominator that a 1000-bit value is, if it is one. Raises Unbounded when it is near."""
    if isinstance(value, Fraction):
        return value
    spend(PRINT_COST)
    value = real(value)
    if value == 0:
        return Fraction(0)
    if isinstance(value, context.mpc) or not -KEY_BITS < context.mag(value) < KEY_BITS - 60:
        return None
    sign, mantissa, exponent, _ = value._mpf_
    whole = Fraction(-mantissa if sign else mantissa) * Fraction(2) ** exponent
    # Any number has a fraction of denominator 2^n within 2^-2n of it: with this n none lies near a number by chance.
    guess = whole.limit_denominator(1 << min(TINY, (KEY_BITS - 60 - max(int(context.mag(value)), 0)) // 2))
    distance = abs(whole - guess)
    if distance * 2**KEY_BITS > abs(whole):
        return None
    if distance * 2 ** (context.prec - TINY) > abs(whole):
        raise Unbounded("close to a rational number")
    return guess


def fingerprint(value: Value) -> str:
    """Text that is the same for values that agree to KEY_BITS: "-3/4" for a rational, digits and a digest otherwise."""
    rational = as_rational(value)
    if rational is not None:
        return rational_text(rational)
    value = real(value)
    parts = (mpmath.libmp.mpf_pos(part._mpf_, KEY_BITS, "n") for part in (value.real, value.imag))
    rounded = (f"{'-' if sign else ''}{mantissa:x}p{exponent}" for sign, mantissa, exponent, _ in parts)
    digest = hashlib.sha256(" ".join(rounded).encode()).hexdigest()[:24]
    return f"{context.nstr(value, 15)}#{digest}".replace(" ", "")


def rational_text(value: Fraction) -> str:
    """Decimal, or hexadecimal for what is longer than str() of an int allows."""
    parts = [value.numerator] if value.denominator == 1 else [value.numerator, value.denominator]
    return "/".join(str(part) if part.bit_length() < 14_000 else hex(part) for part in parts)


def point(size: int, sign: int) -> Callable[[str], Any]:
    return lambda name: sign * size * pseudo_random(f"{size} {name}")


# In pairs of opposite points, so that a linear form without constant changes its sign.
POINTS = [point(size, sign) for size in (1, 7, 40) for sign in (1, -1)]


def symbols(node: Node) -> set[str]:
    """Names of the variables and unknown functions in a tree."""
    if node[0] == "sym":
        return set() if node[1] in ("pi", "e", "i", "oo") else {node[1]}
    found: set[str] = {node[1]} if node[0] == "fn" and node[1].startswith("of:") else set()
    for part in node[1:]:
        if isinstance(part, tuple):
            found |= symbols(part)
    return found


def structure(node: Node) -> str:
    """The tree as text, with the terms of sums and the factors of products in a fixed order."""
    if node[0] == "num":
        return rational_text(node[1])
    parts = [structure(part) if isinstance(part, tuple) else str(part) for part in node[1:]]
    return f"{node[0]}({','.join(sorted(parts) if node[0] in ('add', 'mul') else parts)})"


def values_at_points(node: Node) -> list[Value | None]:
    """Values at the points, None where undefined; one value when there is no variable. Raises Unbounded."""
    if not symbols(node):
        return [value_at(Evaluator(POINTS[0]), node)]
    evaluators = [Evaluator(point) for point in POINTS]
    found = [value_at(evaluator, node) for evaluator in evaluators]
    signs = [evaluator.positive for evaluator in evaluators]
    opaque = {inside for inside in signs[0] if len({sign.get(inside) for sign in signs}) == 1}
    return [value_at(Evaluator(point, opaque), node) for point in POINTS] if opaque else found


def value_at(evaluator: Evaluator, node: Node) -> Value | None:
    try:
        return evaluator(node)
    except Undefined:
        return None
