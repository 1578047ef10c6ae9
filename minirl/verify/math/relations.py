"""Equations and inequalities. The functions that need the tree of a side are given `read`, which makes it."""

import re
from collections.abc import Callable
from fractions import Fraction

from minirl.verify.math import values
from minirl.verify.math.clean import CHANGED
from minirl.verify.math.latex import Node, Unreadable, add, negative, parse
from minirl.verify.math.trees import (
    INFINITY,
    LINE,
    MINUS_INFINITY,
    Tree,
    complement,
    digest,
    intersection,
    intervals,
    region_tree,
    sequence_tree,
    structure_key,
    value_tree,
)
from minirl.verify.math.values import Unbounded, Undefined, Value

Read = Callable[[str], Tree]
LETTER = r"(?:\\Delta ?)?(?:\\(?!frac|sqrt|text|sin|cos|tan|log|ln)[a-zA-Z]+|[A-Za-z])'*(?:_(?:\{[^{}]*\}|\w))?'*"
PRODUCT = re.compile(r"[abcd]{2,4}|[xyz]{2,3}|[pqrs]{2,4}")  # letters side by side that are factors, not a word
NAME = re.compile(
    rf"(?P<head>{LETTER})(?:(?:\^\{{?-1\}}?)?\([^()=<>]*\))?|\|?[A-Z]{{2,}}\|?|m?\\(?:angle|triangle)[A-Z]+(?:_\{{?\d\}}?)?"
    r"|Pr?\([^()]*\)|\\(?:sin|cos|tan)(?:\(?[A-Z]\)?|\(?\\(?:theta|alpha|beta|gamma)\)?|\\angle[A-Z]+)"
    rf"|(?!(?:{PRODUCT.pattern})$)(?:\\text\{{)?[A-Za-z]{{3,}}\}}?(?:\([^()]*\))?"
)
RELATION = re.compile(r"[=<>≤≥≠≈]")
LOGIC_WORDS = {"sin", "cos", "tan", "log", "sqrt", "exp", "abs", "pi", "infty", "oo", "inf", "infinity", "ln"}


def single_name(text: str) -> bool:
    """Whether the text names one quantity: x, a_3, f(x), AB, |AB|, \\angle ABC, Area."""
    return NAME.fullmatch(text) is not None and text not in {*LOGIC_WORDS, "e", "i", r"\pi", r"\infty"}


def lone_name(text: str) -> str | None:
    """The text without spaces if it names one quantity, or several in a ratio, fraction or tuple: S_1:S_2, (p,q)."""
    if re.search(r"[A-Za-z}]\s", text.strip()) and CHANGED.search(text):
        return None  # x squared, not x
    squeezed = re.sub(r"\s+", "", text)
    inside = squeezed[1:-1] if squeezed[:1] == "(" and squeezed[-1:] == ")" else squeezed
    fraction = re.fullmatch(r"\\frac\{([^{}]*)\}\{([^{}]*)\}", inside)
    if fraction and all(re.fullmatch(r"d[a-zA-Z]", part) for part in fraction.groups()):
        return squeezed  # dy/dx
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
    random_place = values.pseudo_random("place")
    places = [Fraction(0), Fraction(1), random_place, -random_place, random_place * 10**12, -random_place * 10**12]
    found: list[Value | None] = []
    slopes = []
    for point in values.POINTS if len(values.symbols(node)) > 1 else values.POINTS[:1]:
        evaluators = [values.Evaluator(lambda n, p=p, point=point: p if n == name else point(n)) for p in places]  # type: ignore[misc]
        at = [evaluate(node) for evaluate in evaluators]
        total = evaluators[0].total
        slope = total([at[1], -at[0]])
        if slope == 0 or evaluators[0].positive:  # an absolute value has two slopes
            return None
        for place, value in zip(places[2:], at[2:], strict=True):  # on one line with the first two?
            if total([values.real(value), values.real(-at[0]), -values.real(slope) * place]) != 0:
                return None
        slopes.append(values.fingerprint(slope))
        exact = isinstance(slope, Fraction) and isinstance(at[0], Fraction)
        found.append(-at[0] / slope if exact else values.real(-at[0]) / values.real(slope))
    return found if len(set(slopes)) == 1 else None


def solved(node: Node) -> Tree | None:
    """The value of the unknown in an equation in one variable, or of z, else y, in one in several, when it is linear in it."""
    names = values.symbols(node)
    unknown = min(names) if len(names) == 1 else next((name for name in "zy" if name in names), None)
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
        return structure_key(node)
    scale = next((value for value in found if value is not None and value != 0), None)
    if scale is None:
        raise Unreadable("relation without content")
    divisor = abs(values.real(scale)) if sign_matters else values.real(scale)
    prints = ("undefined" if v is None else values.fingerprint(values.real(v) / divisor) for v in found)
    return digest("|".join(prints))


def record(pairs: list[tuple[str, Tree]]) -> Tree:
    """The tuple of named values, in the order of their names: Latin before Greek letters, x_2 before x_10."""

    def place(name: str) -> tuple[bool, list[str]]:
        return name[0] == "\\", [part.zfill(9) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]

    if len({name for name, _ in pairs}) < len(pairs):
        raise Unreadable("a name with two values")
    return sequence_tree([tree for _, tree in sorted(pairs, key=lambda pair: place(pair[0]))])


def equation(left: str, right: str, read: Read) -> Tree:
    """A name on one side: the value on the other; else an equation up to a constant factor, solved if it is linear."""
    names = lone_name(left), lone_name(right)
    for name, value, other in ((names[0], right, names[1]), (names[1], left, names[0])):
        if not name or mentions(value, name) or (other and "(" not in name):
            continue
        if name in ("x", "y", "z") and any(mentions(value, letter) for letter in "xyz"):
            continue  # a line or a plane
        tree, listed = read(value), name[1:-1].split(",")
        if name[0] == "(" and tree.kind == "sequence" and len(listed) == len(tree.items) > 1:
            return record(list(zip(listed, tree.items, strict=True)))
        return tree
    node = add(parse(left), negative(parse(right)))
    return solved(node) or Tree("relation", "equation:" + proportional(node, sign_matters=False))


FLIP = {"<": ">", ">": "<", "≤": "≥", "≥": "≤", "≠": "≠"}


def inequality(left: str, sign: str, right: str, read: Read) -> Tree:
    """One comparison: a part of the real line when it is linear in one variable, else a relation."""
    for name, value, direction in ((left, right, sign), (right, left, FLIP[sign])):
        if (known := lone_name(name)) and single_name(known):
            bound = read(value)
            if bound.kind in ("number", "infinity"):
                return half_line(bound, direction)
    sides = parse(left), parse(right)
    for bars, bound_node, direction in ((*sides, sign), (*sides[::-1], FLIP[sign])):
        if bars[:2] == ("fn", "abs") and len(values.symbols(bars)) == 1 and not values.symbols(bound_node):
            parts = [compared(add(inside, negative(bound_node)), direction) for inside in (bars[2], negative(bars[2]))]
            if all(part.kind != "relation" for part in parts):  # |u| < c when u < c and -u < c, |u| > c when u > c or -u > c
                return common(parts) if direction in "<≤≠" else region_tree([i for part in parts for i in intervals(part)])
    return compared(add(sides[0], negative(sides[1])), sign)


def compared(node: Node, sign: str) -> Tree:
    """node > 0 and the like: a part of the real line when node is linear in one variable, else a relation."""
    names = values.symbols(node)
    if len(names) == 1 and (solution := solved(node)) is not None:
        at_zero, at_one = (values.Evaluator(lambda _, at=at: at)(node) for at in (Fraction(0), Fraction(1)))  # type: ignore[misc]
        slope = values.real(at_one) - values.real(at_zero)
        if isinstance(slope, values.context.mpc):
            raise Unreadable("comparison of complex numbers")
        return half_line(solution, sign if slope > 0 else FLIP[sign])
    if sign == "≠":
        return Tree("relation", "unequal:" + proportional(node, sign_matters=False))
    if sign in "<≤":
        node, sign = negative(node), FLIP[sign]
    return Tree("relation", sign + ":" + proportional(node, sign_matters=True))


def half_line(bound: Tree, sign: str) -> Tree:
    if sign == "≠":
        return region_tree(complement([(bound, True, bound, True)]))
    above = (bound, sign == "≥", INFINITY, False)
    below = (MINUS_INFINITY, False, bound, sign == "≤")
    return region_tree([above if sign in ">≥" else below])


def relation(pieces: list[str], signs: list[str], read: Read) -> Tree:
    """Of pieces with the signs between them: x = 1/3 ≈ 0.33, a = b = 5, 0 < x ≤ 1, f(2) < f(1)."""
    rounded = "≈" in signs
    if rounded:  # an exact value before the sign counts, and the rounded one only after a mere name
        at = signs.index("≈")
        if at == 0 and lone_name(pieces[0]):
            return read(pieces[1])
        pieces, signs = pieces[: at + 1], signs[:at]
        if not signs:
            return read(pieces[0])
    if set(signs) == {"="}:
        if len(pieces) > 2 and (lone_name(pieces[-2]) or (rounded and lone_name(pieces[0]))):
            return read(pieces[-1])  # ... = x = 5 says 5, whatever stands before
        return chain(pieces, read)
    if "=" in signs:
        raise Unreadable("equality and inequality mixed")
    trees = [inequality(pieces[i], sign, pieces[i + 1], read) for i, sign in enumerate(signs)]
    if len(trees) == 1:
        return trees[0]
    if any(tree.kind == "relation" for tree in trees):
        if not (set(signs) <= set("<≤") or set(signs) <= set(">≥")):
            raise Unreadable("chain of mixed directions")
        links = [tree.key for tree in trees]
        return Tree("relation", "chain:" + "&".join(links if signs[0] in "<≤" else links[::-1]))
    return common(trees)


def chain(pieces: list[str], read: Read) -> Tree:
    """2+3 = 5 and x = 1+2+3 = 6 say 5 and 6, if they are true: parts without variables must have one value."""
    if len(pieces) == 2 and (any(map(lone_name, pieces)) or any(map(values.symbols, map(parse, pieces)))):
        return equation(pieces[0], pieces[1], read)
    if lone_name(pieces[0]):  # of the other parts, which may hold more names, those that are numbers count
        trees = [tree for piece in pieces[1:] if (tree := number_in(piece, read))]
        if not (trees and lone_name(pieces[-1])):  # x = 5 = y says 5
            trees.append(read(pieces[-1]))
    else:
        trees = [read(piece) for piece in pieces]
    if len({tree.key for tree in trees if tree.kind == "number"}) > 1:
        raise Unreadable("an equation that is false")
    return trees[-1]


def number_in(text: str, read: Read) -> Tree | None:
    """The number that a part of a chain says; None for names, expressions and what cannot be read."""
    if lone_name(text):
        return None
    try:
        tree = read(text)
    except (Unreadable, Unbounded, Undefined):
        return None
    return tree if tree.kind == "number" else None


def common(trees: list[Tree]) -> Tree:
    """The part of the real line where all of the conditions hold."""
    found = [LINE]
    for tree in trees:
        found = intersection(found, intervals(tree))
    return region_tree(found)
