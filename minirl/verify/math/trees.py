"""Trees of answers, with keys that are equal for equal answers, and the arithmetic of parts of the real line."""

import hashlib
import re
from dataclasses import dataclass
from fractions import Fraction
from itertools import product

from minirl.verify.math import values
from minirl.verify.math.latex import Node, Unreadable
from minirl.verify.math.values import Unbounded, Value


@dataclass(frozen=True)
class Tree:
    """kind: number, expression, infinity, sequence, set, region, relation, matrix, ratio or text."""

    kind: str
    key: str
    items: tuple["Tree", ...] = ()
    value: Value = None  # of a number


def text_tree(text: str) -> Tree:
    """An answer compared as text: spaces do not count, nor does case in words of three letters and more."""
    squeezed = re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text)
    squeezed = re.sub(r"(?<=[a-z])\.(?![a-z])", "", re.sub(r"\s+", "", squeezed))  # in. and in
    squeezed = re.sub(r"\{(\w+|[+*-])\}", r"\1", squeezed)
    squeezed = re.sub(r"(?<![A-Za-z\\])[A-Za-z]{3,}", lambda m: m.group().lower(), squeezed)
    if len(squeezed) > 200:
        squeezed = squeezed[:100] + "#" + digest(squeezed)
    return Tree("text", "text:" + squeezed)


def number_tree(value: Fraction) -> Tree:
    return Tree("number", values.rational_text(value), value=value)


INFINITY, MINUS_INFINITY = Tree("infinity", "oo"), Tree("infinity", "-oo")


def value_tree(found: list[Value | None]) -> Tree:
    """Of the values of an expression at the points, or of a constant."""
    if all(value is None for value in found):
        raise Unreadable("no value")
    prints = ["undefined" if value is None else values.fingerprint(value) for value in found]
    if len(set(prints)) == 1 and found[0] is not None:  # a constant, although there may be variables in it
        return Tree("number", prints[0], value=found[0])
    return Tree("expression", "expression:" + digest("|".join(prints)))


def digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def expression_tree(node: Node) -> Tree:
    if node == ("sym", "oo"):
        return INFINITY
    if node == ("mul", ("num", Fraction(-1)), ("sym", "oo")):
        return MINUS_INFINITY
    try:
        return value_tree(values.values_at_points(node))
    except Unbounded:
        return Tree("expression", structure_key(node))


def structure_key(node: Node) -> str:
    return "structure:" + digest(values.structure(node))


def set_tree(items: list[Tree]) -> Tree:
    """Unordered, repetitions do not count."""
    unique = {item.key: item for item in items}
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
        return set_tree([low for low, *_ in merged])
    pieces = [
        sequence_tree([low, high], "[" if low_in else "(", "]" if high_in else ")") for low, low_in, high, high_in in merged
    ]
    return pieces[0] if len(pieces) == 1 else Tree("region", "U".join(p.key for p in pieces), tuple(pieces))


def intersection(left: list[Interval], right: list[Interval]) -> list[Interval]:
    found = []
    values.spend(values.LIMIT_COST * len(left) * len(right))
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
