"""What an answer says, as a tree whose key is equal for equal answers: numbers, expressions, tuples and intervals, sets,
equations, inequalities, matrices, text. Equality is equality of keys, so it is symmetric and transitive.

The conventions are listed in docs/verifiers.md. Time is bounded for every text.
"""

import hashlib
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import product

from minirl.verify import values
from minirl.verify.clean import clean, split, strip, without_commas, without_unit
from minirl.verify.latex import MAX_DEPTH, Node, Unreadable, add, integer, mul, negative, number, parse
from minirl.verify.values import Undefined, Unbounded, Value

MAX_LENGTH = 20_000  # characters of an answer that is read; longer ones are compared as text
MAX_ITEMS = 500


@dataclass(frozen=True)
class Tree:
    """kind: "number", "expression", "infinity", "sequence", "set", "region", "relation", "matrix", "ratio" or "text"."""

    kind: str
    key: str
    items: tuple["Tree", ...] = ()
    value: Value = None  # of a number


INTEGER = re.compile(r"-?\d{1,4000}")
SIMPLE = re.compile(r"([-+]?)(\d*\.?\d+|\d+\.)(?:/(\d+))?|([-+]?)\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")
OUTER = re.compile(r";|(?<![A-Za-z\\])or(?![a-z])|\\\\")
INNER = re.compile(r",|(?<![A-Za-z\\])and(?![a-z])")
RELATION = re.compile(r"[=<>≤≥≠≈]")
UNION = re.compile(r"∪|∖|∩|(?<=[)\]}])\s*U\s*(?=[(\[\\{])")
COLON = re.compile(r":")
WORDS = re.compile(r"[A-Za-z][A-Za-z .'\-]*")
BASE = re.compile(r"((?=[A-F]*\d)[0-9A-F]+)\s*_\s*\{?\s*(\d{1,2})\s*\}?")
CLOCK = re.compile(r"\d{1,2}:[0-5]\d")
MATRIX = re.compile(r"\\begin\s*\{([pbvBV]?matrix|array|smallmatrix)\}(?:\s*\{[clr|\s]*\})?(.*?)\\end\s*\{\1\}")
LETTER = r"(?:\\Delta ?)?(?:\\(?!frac|sqrt|text|sin|cos|tan|log|ln)[a-zA-Z]+|[A-Za-z])'*(?:_(?:\{[^{}]*\}|\w))?'*"
PRODUCT = re.compile(r"[abcd]{2,4}|[xyz]{2,3}|[pqrs]{2,4}")  # letters side by side that are factors, not a word
NAME = re.compile(
    rf"(?P<head>{LETTER})(?:\([^()=<>]*\))?|\|?[A-Z]{{2,}}\|?|m?\\(?:angle|triangle)[A-Z]+"
    rf"|(?!(?:{PRODUCT.pattern})$)(?:\\text\{{)?[A-Za-z]{{3,}}\}}?(?:\([^()]*\))?"
)
LOGIC_WORDS = {"sin", "cos", "tan", "log", "sqrt", "exp", "abs", "pi", "infty", "oo", "inf", "infinity", "ln"}


def text_tree(text: str) -> Tree:
    """An answer compared as text: spaces do not count, nor does case in words of three letters and more."""
    squeezed = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)
    squeezed = re.sub(r"\s+", "", squeezed)
    squeezed = re.sub(r"(?<![A-Za-z\\])[A-Za-z]{3,}", lambda m: m.group().lower(), squeezed)
    if len(squeezed) > 200:
        squeezed = squeezed[:100] + "#" + hashlib.sha256(squeezed.encode("utf-8", "surrogatepass")).hexdigest()[:24]
    return Tree("text", "text:" + squeezed)


def number_tree(value: Fraction) -> Tree:
    return Tree("number", values.rational_text(value), value=value)


INFINITY, MINUS_INFINITY = Tree("infinity", "oo"), Tree("infinity", "-oo")


def value_tree(found: list[Value | None]) -> Tree:
    """Of the values of an expression at the two points."""
    if all(value is None for value in found):
        raise Unreadable("no value")
    prints = ["undefined" if value is None else values.fingerprint(value) for value in found]
    if len(set(prints)) == 1 and found[0] is not None:  # a constant, although there may be variables in it
        return Tree("number", prints[0], value=found[0])
    return Tree("expression", "expression:" + "|".join(prints))


def expression_tree(node: Node) -> Tree:
    if node == ("sym", "oo"):
        return INFINITY
    if node == ("mul", ("num", Fraction(-1)), ("sym", "oo")):
        return MINUS_INFINITY
    try:
        return value_tree(values.values_at_points(node))
    except Unbounded:
        text = values.structure(node)
        return Tree("expression", "structure:" + hashlib.sha256(text.encode()).hexdigest()[:32])
    except Undefined as error:
        raise Unreadable(str(error)) from error


def set_tree(items: list[Tree]) -> Tree:
    """Unordered, repetitions do not count; the set of one element is that element."""
    unique = {item.key: item for item in items}
    if len(unique) == 1:
        return items[0]
    return Tree("set", "{" + ",".join(sorted(unique)) + "}", tuple(unique.values()))


def sequence_tree(items: list[Tree], opening: str = "(", closing: str = ")") -> Tree:
    return Tree("sequence", opening + ",".join(item.key for item in items) + closing, tuple(items))


# Regions of the real line: lists of intervals (low end, whether it belongs, high end, whether it belongs).
Interval = tuple[Tree, bool, Tree, bool]
LINE: Interval = (MINUS_INFINITY, False, INFINITY, False)


def position(end: Tree) -> Value:
    if end.kind == "infinity":
        return values.context.inf if end is INFINITY or end.key == "oo" else -values.context.inf
    value = values.real(end.value) if end.kind == "number" else None
    if value is None or isinstance(value, values.context.mpc):
        raise Unreadable("end of an interval is no real number")
    return value


def intervals(tree: Tree) -> list[Interval]:
    """What a tree says as part of the real line."""
    if tree.kind == "region":
        return [(i.items[0], i.key[0] == "[", i.items[1], i.key[-1] == "]") for i in tree.items]
    if tree.kind == "sequence" and len(tree.items) == 2:
        low, high = tree.items
        if position(low) < position(high) or (low.key == high.key and tree.key[0] + tree.key[-1] == "[]"):
            return [(low, tree.key[0] == "[", high, tree.key[-1] == "]")]
    points = tree.items if tree.kind == "set" else (tree,)
    if all(point.kind == "number" for point in points):
        return [(point, True, point, True) for point in points]
    raise Unreadable("not a part of the real line")


def region_tree(parts: list[Interval]) -> Tree:
    """Overlapping and touching intervals are merged; single points make a set."""
    merged: list[Interval] = []
    for low, low_in, high, high_in in sorted(parts, key=lambda part: (position(part[0]), not part[1])):
        if merged:
            last_low, last_low_in, last_high, last_high_in = merged[-1]
            same = last_high.key == low.key
            if (same and (last_high_in or low_in)) or (not same and position(low) < position(last_high)):
                if last_high.key == high.key:
                    merged[-1] = (last_low, last_low_in, high, high_in or last_high_in)
                elif position(high) > position(last_high):
                    merged[-1] = (last_low, last_low_in, high, high_in)
                continue
        merged.append((low, low_in, high, high_in))
    if all(low.key == high.key for low, _, high, _ in merged):
        return set_tree([low for low, *_ in merged]) if merged else Tree("set", "{}")
    pieces = [
        sequence_tree([low, high], "[" if low_in else "(", "]" if high_in else ")")
        for low, low_in, high, high_in in merged
    ]
    return pieces[0] if len(pieces) == 1 else Tree("region", "U".join(p.key for p in pieces), tuple(pieces))


def intersection(left: list[Interval], right: list[Interval]) -> list[Interval]:
    found = []
    for (a, a_in, b, b_in), (c, c_in, d, d_in) in product(left, right):
        low, low_in = max(((a, a_in), (c, c_in)), key=lambda end: (position(end[0]), not end[1]))
        high, high_in = min(((b, b_in), (d, d_in)), key=lambda end: (position(end[0]), end[1]))
        if position(low) < position(high) or (low.key == high.key and low_in and high_in):
            found.append((low, low_in, high, high_in))
    return found


def complement(parts: list[Interval]) -> list[Interval]:
    result = [LINE]
    for low, low_in, high, high_in in parts:
        outside: list[Interval] = []
        if low.kind != "infinity":
            outside.append((MINUS_INFINITY, False, low, not low_in))
        if high.kind != "infinity":
            outside.append((high, not high_in, INFINITY, False))
        result = intersection(result, outside)
    return result


# Equations and inequalities.


def single_name(text: str) -> bool:
    """Whether the text names one quantity: x, a_3, f(x), AB, |AB|, \\angle ABC, Area."""
    return NAME.fullmatch(text) is not None and text not in {*LOGIC_WORDS, "e", "i", r"\pi", r"\infty"}


def lone_name(text: str) -> str | None:
    """The text without spaces if it names one quantity, or several in a ratio, fraction or tuple: S_1:S_2, (p,q)."""
    squeezed = re.sub(r"\s+", "", text)
    inside = squeezed[1:-1] if squeezed[:1] == "(" and squeezed[-1:] == ")" else squeezed
    fraction = re.fullmatch(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", inside)
    parts = list(fraction.groups()) if fraction else re.split(r"[,:](?![^({]*[)}])", inside)
    return squeezed if all(map(single_name, parts)) else None


def mentions(value: str, name: str) -> bool:
    """Whether the quantity named stands in the value: x = x^2 defines nothing."""
    match = NAME.fullmatch(name)
    head = ((match and match.group("head")) or name).rstrip("'")
    return head in (
        re.sub(r"\\[a-zA-Z]+|sqrt|sin|cos|tan|log|exp|pi", " ", value) if len(head) == 1 else value.replace(" ", "")
    )


def isolated(node: Node, name: str) -> list[Value | None] | None:
    """Values at the points of the solution for `name` of node = 0, when node is linear in it with a constant slope."""
    found: list[Value | None] = []
    slopes = []
    for point in values.POINTS:
        places = [Fraction(0), Fraction(1), values.positive_point("place"), values.negative_point("place")]
        at = [
            values.Evaluator(lambda n, place=place, point=point: place if n == name else point(n))(node)  # type: ignore[misc]
            for place in places
        ]
        total = values.Evaluator(point).total
        slope = total([at[1], -at[0]])
        if slope == 0:
            return None
        for place, value in zip(places[2:], at[2:], strict=True):  # on one line with the first two?
            if total([values.real(value), values.real(-at[0]), -values.real(slope) * place]) != 0:
                return None
        slopes.append(values.fingerprint(slope))
        exact = isinstance(slope, Fraction) and isinstance(at[0], Fraction)
        found.append(-at[0] / slope if exact else values.real(-at[0]) / values.real(slope))
    return found if slopes[0] == slopes[1] else None


def solved(node: Node) -> Tree | None:
    """The value of the unknown in a linear equation in one variable, or of z or y in one of a line or a plane."""
    names = values.symbols(node)
    unknown = max(names) if names and (len(names) == 1 or names <= {"x", "y", "z"}) else None
    if unknown is None or unknown.startswith("of:"):
        return None
    try:
        found = isolated(node, unknown)
    except (Unbounded, Undefined):
        return None
    return None if found is None else value_tree(found)


def proportional(node: Node, sign_matters: bool) -> str:
    """Text equal for trees that are the same up to a constant factor (a positive one if the sign matters)."""
    if not values.symbols(node):
        raise Unreadable("relation between constants")
    try:
        found = values.values_at_points(node)
    except Unbounded:
        return "structure:" + hashlib.sha256(values.structure(node).encode()).hexdigest()[:32]
    scale = next((value for value in found if value is not None and value != 0), None)
    if scale is None:
        raise Unreadable("relation without content")
    divisor = abs(values.real(scale)) if sign_matters else values.real(scale)
    return "|".join("undefined" if v is None else values.fingerprint(values.real(v) / divisor) for v in found)


def equation(left: str, right: str) -> Tree:
    """A name on one side: the value on the other; else an equation up to a constant factor, solved if it is linear."""
    names = lone_name(left), lone_name(right)
    for name, value, other in ((names[0], right, names[1]), (names[1], left, names[0])):
        if not name or mentions(value, name) or (other and "(" not in name):
            continue
        if name in ("x", "y", "z") and any(mentions(value, letter) for letter in "xyz"):
            continue  # a line or a plane
        return element(value)
    node = add(parse(left), negative(parse(right)))
    return solved(node) or Tree("relation", "equation:" + proportional(node, sign_matters=False))


FLIP = {"<": ">", ">": "<", "≤": "≥", "≥": "≤", "≠": "≠"}


def inequality(left: str, sign: str, right: str) -> Tree:
    """One comparison: a part of the real line when it is linear in one variable, else a relation."""
    for name, value, direction in ((left, right, sign), (right, left, FLIP[sign])):
        if single_name(re.sub(r"\s+", "", name)):
            bound = element(value)
            if bound.kind in ("number", "infinity"):
                return half_line(bound, direction)
    node = add(parse(left), negative(parse(right)))
    names = values.symbols(node)
    if len(names) == 1 and (bound_tree := solved(node)) is not None:
        (name,) = names
        two = [values.Evaluator(lambda _, at=Fraction(at): at)(node) for at in (0, 1)]  # type: ignore[misc]
        rising = values.real(two[1] - two[0]) > 0
        return half_line(bound_tree, sign if rising else FLIP[sign])
    if sign == "≠":
        return Tree("relation", "unequal:" + proportional(node, sign_matters=False))
    if sign in "<≤":
        node, sign = negative(node), FLIP[sign]
    return Tree("relation", sign + ":" + proportional(mul(node), sign_matters=True))


def half_line(bound: Tree, sign: str) -> Tree:
    if sign == "≠":
        return region_tree(complement([(bound, True, bound, True)]))
    above = (bound, sign == "≥", INFINITY, False)
    below = (MINUS_INFINITY, False, bound, sign == "≤")
    return region_tree([above if sign in ">≥" else below])


def relation(text: str, pieces: list[str], signs: list[str]) -> Tree:
    if "≈" in signs:  # x = 1/3 ≈ 0.33 says 1/3; x ≈ 11 says 11
        at = signs.index("≈")
        if at == 0 and lone_name(pieces[0]):
            return element(pieces[1])
        return element(text[: text.index("≈")])
    if set(signs) == {"="}:
        if len(signs) > 1:  # a chain of equalities says its last part
            return element(pieces[-1])
        return equation(*pieces)
    if "=" in signs:
        raise Unreadable("equality and inequality mixed")
    comparisons = [(pieces[i], sign, pieces[i + 1]) for i, sign in enumerate(signs)]
    if len(comparisons) == 1:
        return inequality(*comparisons[0])
    trees = [inequality(*comparison) for comparison in comparisons]
    if any(tree.kind == "relation" for tree in trees):
        if not (set(signs) <= set("<≤") or set(signs) <= set(">≥")):
            raise Unreadable("chain of mixed directions")
        links = [tree.key for tree in trees]
        return Tree("relation", "chain:" + "&".join(links if signs[0] in "<≤" else links[::-1]))
    found = [LINE]
    for tree in trees:
        found = intersection(found, intervals(tree))
    return region_tree(found)


# Elements and whole answers.


def matrix(text: str) -> Tree | None:
    """A product of matrices and scalar factors; None when the text has another form."""
    found = list(MATRIX.finditer(text))
    rows: list[list[Node]] | None = None
    for match in found:
        lines = [line for line in match.group(2).split(r"\\") if line.replace(r"\hline", "").strip()]
        entries = [[parse(strip(entry)) for entry in line.split("&")] for line in lines]
        if not entries or len({len(line) for line in entries}) != 1 or len(entries) * len(entries[0]) > MAX_ITEMS:
            raise Unreadable("not a matrix")
        if rows is None:
            rows = entries
        elif len(rows[0]) != len(entries):
            raise Unreadable("matrices that cannot be multiplied")
        else:
            columns = list(zip(*entries, strict=True))
            rows = [[add(*(mul(a, b) for a, b in zip(row, column, strict=True))) for column in columns] for row in rows]
    rest = re.sub(r"^[(\[{]\s*(.*?)\s*[)\]}]$", r"\1", strip(MATRIX.sub(" ", text)).strip())
    rest = "" if re.fullmatch(r"[()\[\]{}\s]*", rest) else rest.rstrip("([{ *").strip()
    if rows is None:
        raise Unreadable("unfinished matrix")
    if rest:
        if re.search(r"[+=<>]", rest) or text.strip().startswith(r"\begin"):
            raise Unreadable("expression with a matrix")
        factor = negative(("num", Fraction(1))) if rest == "-" else parse(rest)
        rows = [[mul(factor, entry) for entry in row] for row in rows]
    trees = [sequence_tree([expression_tree(entry) for entry in row]) for row in rows]
    return Tree("matrix", "matrix[" + ";".join(tree.key for tree in trees) + "]", tuple(trees))


def bracketed(text: str) -> Tree | None:
    """A tuple, an interval, a set; None when the brackets do not enclose the whole or hold a single expression."""
    for opening, closing in ((r"\{", r"\}"), ("(", ")"), ("(", "]"), ("[", ")"), ("[", "]")):
        if text.startswith(opening) and text.endswith(closing):
            inside = text[len(opening) : len(text) - len(closing)]
            if not encloses(text):
                return None
            if opening == r"\{" and (built := re.split(r"\\mid|\||(?<=[a-zA-Z ]):", inside, maxsplit=1))[1:]:
                return element(built[1])  # {x | condition}
            if re.search(r",\s", inside):  # in "1,000, 2,000" only the commas before a space separate
                inside = without_commas(inside)
            pieces, _ = split(inside, re.compile(r"[,;]"))
            if len(pieces) > MAX_ITEMS:
                raise Unreadable("too many elements")
            if opening == r"\{":
                items = [element(piece) for piece in pieces if piece.strip()]
                return set_tree(items) if items else Tree("set", "{}")
            if len(pieces) == 1:
                return None if opening + closing in ("()", "[]") else element_error(text)
            return sequence_tree([element(piece) for piece in pieces], opening, closing)
    return None


def element_error(text: str) -> Tree:
    raise Unreadable(f"unbalanced {text[:20]!r}")


def encloses(text: str) -> bool:
    """Whether the first bracket is closed by the last character only."""
    level = 0
    matches = list(re.finditer(r"\\[a-zA-Z]+|\\[{}]|[()\[\]{}]", text))
    for i, match in enumerate(matches):
        level += 1 if match.group() in ("(", "[", "{", r"\{") else -1 if match.group() in (")", "]", "}", r"\}") else 0
        if level == 0:
            return i == len(matches) - 1
    return False


def element(text: str) -> Tree:
    """One element of a list, or the whole answer. Raises Unreadable."""
    text = strip(without_unit(strip(text)))
    if not text:
        raise Unreadable("nothing")
    if simple := SIMPLE.fullmatch(text):
        return simple_tree(simple)
    if "±" in text or "∓" in text:
        signs = [("+", "-"), ("-", "+")]
        return set_tree([element(text.replace("±", plus).replace("∓", minus)) for plus, minus in signs])
    plain = strip(re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text))
    if word := words(plain, wrapped=plain != text):
        return word
    if "∈" in text:
        name, _, rest = text.partition("∈")
        if lone_name(name):
            return element(rest)
        raise Unreadable("membership of no name")
    pieces, signs_ = split(text, RELATION)
    if signs_:
        return relation(text, pieces, signs_)
    pieces, signs_ = split(text, UNION)
    if signs_:
        return union(pieces, signs_)
    if r"\begin" in text and (found := matrix(text)):
        return found
    if text in ("∅", r"\{\}"):
        return Tree("set", "{}")
    if re.fullmatch(r"\\mathbb\s*\{?\s*R\s*\}?", text):
        return region_tree([LINE])
    if (found := bracketed(text)) is not None:
        return found
    pieces, signs_ = split(text, COLON)
    if signs_:
        return ratio(text, pieces)
    if base := BASE.fullmatch(text):
        digits, radix = base.groups()
        if radix == "10" and digits.isdigit():
            return number_tree(Fraction(integer(digits)))
        return Tree("text", f"base {radix}: {digits.lstrip('0') or '0'}")
    return expression_tree(parse(without_commas(text)))


def union(pieces: list[str], signs: list[str]) -> Tree:
    total = intervals(element(pieces[0]))
    for sign, piece in zip(signs, pieces[1:], strict=True):
        part = intervals(element(piece))
        if sign == "∖":
            total = intersection(total, complement(part))
        else:
            total = intersection(total, part) if sign == "∩" else total + part
    return region_tree(total)


def ratio(text: str, pieces: list[str]) -> Tree:
    """2:4 is 1:2, yet 12:00 and other clock times stay as they are."""
    items = [element(piece) for piece in pieces]
    if all(item.kind == "number" and isinstance(item.value, Fraction) for item in items) and not CLOCK.fullmatch(text):
        scale = next((item.value for item in items if item.value), None)
        if scale:
            first = [item.value / scale for item in items]
            items = [number_tree(value) for value in first]
            return Tree("ratio", "ratio " + ":".join(item.key for item in items), tuple(items))
    if CLOCK.fullmatch(text):
        return Tree("text", "text:" + text)
    return Tree("ratio", "ratio " + ":".join(item.key for item in items), tuple(items))


def simple_tree(match: re.Match[str]) -> Tree:
    sign, decimal, below, frac_sign, frac_above, frac_below = match.groups()
    value = number(decimal) if decimal else Fraction(integer(frac_above.lstrip("-")))
    divisor = integer(below or frac_below or "1")
    if divisor == 0:
        raise Unreadable("division by zero")
    minus = (sign == "-") ^ (frac_sign == "-") ^ bool(frac_above and frac_above[0] == "-")
    value /= divisor
    return number_tree(-value if minus else value)


def words(text: str, wrapped: bool) -> Tree | None:
    """A verbal answer: at least one word of three letters that is no function, or a word in \\text."""
    if not WORDS.fullmatch(text):
        return None
    if re.fullmatch(r"(?:all )?(?:real numbers|reals)", text, re.IGNORECASE):
        return region_tree([LINE])
    found = re.findall(r"[A-Za-z]+", text)
    if any(word in LOGIC_WORDS or word in ("arcsin", "arccos", "arctan") for word in found):
        return None
    if PRODUCT.fullmatch(text) and not wrapped:
        return None
    if wrapped and len(text) > 1 or max(map(len, found)) >= 3 or text.lower() == "no":
        return Tree("text", "text:" + re.sub(r"[\s.]+", "", text).lower())
    return None


def named(piece: str) -> tuple[str | None, str]:
    """("x", "5") of "x = 5"; (None, piece) when there is no single name before a single equals sign."""
    parts, signs = split(piece, RELATION)
    name = lone_name(parts[0]) if signs == ["="] else None
    return (name, parts[1]) if name and not name.startswith("(") else (None, piece)


def whole(text: str) -> Tree:
    groups, outer = split(text, OUTER)
    lists = [[piece for piece in split(group, INNER)[0] if piece.strip()] for group in groups if group.strip()]
    flat = [piece for group in lists for piece in group]
    if len(flat) > MAX_ITEMS:
        raise Unreadable("too many elements")
    if not flat:
        raise Unreadable("nothing")
    if len(flat) == 1:
        return element(flat[0])
    names = [[named(piece)[0] for piece in group] for group in lists]
    distinct = [len(group) > 1 and None not in group and len(set(group)) == len(group) for group in names]
    if len(lists) > 1 and all(distinct):
        return set_tree([record(group) for group in lists])
    flat_names = [name for group in names for name in group]
    if None not in flat_names and len(set(flat_names)) == len(flat_names) and not numbered(flat_names):
        return record(flat)
    trees = [element(piece) for piece in flat]
    if any(re.search("[<>≤≥≠]", piece) for piece in flat):
        if "or" in outer and len(lists) == len(flat):
            return region_tree([part for tree in trees for part in intervals(tree)])
        if len(lists) == 1 and "and" in split(text, INNER)[1]:
            found = [LINE]
            for tree in trees:
                found = intersection(found, intervals(tree))
            return region_tree(found)
    return set_tree([part for tree in trees for part in (tree.items if tree.kind == "set" else (tree,))])


def numbered(names: list[str | None]) -> bool:
    """x_1, x_2, ...: several values of one unknown, in no order that matters."""
    found = [re.fullmatch(r"(.+?)_?\{?(\d+)\}?", name or "") for name in names]
    stems = {match.group(1) for match in found if match}
    indices = sorted(int(match.group(2)[:6]) for match in found if match)
    return len(stems) == 1 and indices == list(range(1, len(names) + 1))


def record(pieces: list[str]) -> Tree:
    """x = 1, y = 2 is (1, 2): the values in the order of the names."""
    pairs = sorted(named(piece) for piece in pieces)
    return sequence_tree([element(value) for _, value in pairs])


def nesting(text: str) -> int:
    """The deepest nesting of brackets."""
    level = deepest = 0
    for match in re.finditer(r"[(\[{]|[)\]}]", text):
        level += 1 if match.group() in "([{" else -1
        deepest = max(deepest, level)
    return deepest


def read(answer: str) -> Tree:
    """The tree of an answer; what cannot be read is text. Never raises, and never takes a part for the whole."""
    if len(answer) > MAX_LENGTH or nesting(answer) > MAX_DEPTH:
        return text_tree(answer)
    stripped = answer.strip()
    if INTEGER.fullmatch(stripped):
        return number_tree(Fraction(int(stripped)))
    text = clean(answer)
    if not re.search(r"[(\[{]", text):
        text = without_commas(text)
    try:
        return whole(text)
    except (Unreadable, Unbounded, Undefined):
        return text_tree(text)


def canonical_key(answer: str) -> str:
    """Text that two answers share exactly when the default grader calls them equal. Never starts with "<"."""
    return cached_key(answer) if len(answer) <= 500 else read(answer).key


@lru_cache(maxsize=16_384)
def cached_key(answer: str) -> str:
    return read(answer).key
