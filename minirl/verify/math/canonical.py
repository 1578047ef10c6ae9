"""What an answer says, as a tree whose key is equal for equal answers: numbers, expressions, tuples, intervals, sets,
equations, inequalities, matrices, text. Equality is equality of keys, so it is symmetric and transitive.

The conventions are listed in docs/verifiers.md. Time is bounded for every text.
"""

import re
from fractions import Fraction
from functools import lru_cache

from minirl.verify.math.clean import rewritten, spelled, split, strip, without_commas, without_unit
from minirl.verify.math.latex import MAX_DEPTH, Node, Unreadable, add, integer, mul, negative, number, parse
from minirl.verify.math.relations import (
    LOGIC_WORDS,
    PRODUCT,
    RELATION,
    common,
    half_line,
    lone_name,
    record,
    relation,
)
from minirl.verify.math.trees import (
    LINE,
    Tree,
    complement,
    expression_tree,
    intersection,
    intervals,
    number_tree,
    region_tree,
    sequence_tree,
    set_tree,
    text_tree,
    value_tree,
)
from minirl.verify.math.values import TooMuchWork, Unbounded, Undefined, inexact, work
from minirl.verify.math.verbal import CLOCK, CONDITION_WORD, chosen_letter, conditional, moment, numeral

MAX_LENGTH = 20_000  # characters of an answer that is read; longer ones are compared as text
MAX_ITEMS = 500
MAX_PARTS = 200  # of a union, a ratio, a chain of relations
MAX_TERMS = 1000  # of all sums that a product of matrices makes
# Functions cost up to 5 ms each, factorials of what is no number up to 50 ms.
FUNCTION = re.compile(r"\^|√|sqrt|sin|cos|tan|cot|sec|csc|log|ln|lg|exp")
FACTORIAL = re.compile(r"[^\d\s]\s*!|choose|binom(?!\s*\{\s*\d+\s*\}\s*\{\s*\d+|\s*\d)")
MAX_FUNCTIONS, MAX_FACTORIALS = 200, 12


PRINTED = re.compile(r"\d*+(?:(?:\\text\s*+)?\{\d++\}\d*+)+")  # 5{6} and 5\mathbf{6} print as 56
INTEGER = re.compile(r"-?\d{1,4000}")
SIMPLE = re.compile(r"([-+]?)(\d+(?:\.\d*)?|\.\d+)(?:/(\d+))?|([-+]?)\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")
OUTER = re.compile(r";|(?<![A-Za-z\\])or(?![a-z])|∨|\\\\")
INNER = re.compile(r",|(?<![A-Za-z\\])and(?![a-z])|∧")
UNION = re.compile(r"∪|∖|∩|-(?=\s*\\\{)|(?<=[)\]}])\s*U\s*(?=[(\[\\{])")
COLON = re.compile(r":")
ROMAN = {"II", "IV", "VI", "IX", "XI"}
SYNONYMS = {"doesnotexist": "dne", "nosolutions": "nosolution", "norealsolutions": "norealsolution"}
WORDS = re.compile(r"[A-Za-z][A-Za-z .'\-]*")
# Digits with signs between them that are no arithmetic: 2024-01-05, 1-800-5, 1/2/2024, 2018-2019.
CODE = re.compile(r"\d+(?:-\d+){2,}|\d+(?:/\d+){2,}|[12]\d{3}-[12]\d{3}")
CONGRUENT = re.compile(r"((.{1,40}?)\\equiv(?![a-zA-Z]))?([^=\\]{1,200}?)\\mod(?![a-zA-Z])([^=\\]{1,200})")  # x ≡ 5 mod 7
IN_WORDS = re.compile(r"(\S+)\s+to\s+(\S+)")
REALS = re.compile(
    r"\\mathbb\s*\{?\s*R\s*\}?\s*(?:\^\s*\{?\s*([-+*])\s*\}?|_\s*\{\s*([<>≤≥≠])\s*0\s*\}|_\s*\{?\s*\+\+\s*\}?"
    r"|(?:_\s*\{?\s*\+\s*\}?\s*\^\s*\{?\s*\*|\^\s*\{?\s*\*\s*\}?\s*_\s*\{?\s*\+)\s*\}?)?"
    r"|(?:the set of |the )?(?:all )?(positive|negative|non-?negative|non-?positive|non-?zero|)\s*(?:real numbers|reals)"
    r"(?: (?:except|other than|not equal to) (?:for )?(.{1,40}))?",
    re.IGNORECASE | re.ASCII,
)
SIGN_OF = {
    "": None, "+": ">", "-": "<", "*": "≠", "positive": ">", "negative": "<", "nonnegative": "≥", "nonpositive": "≤",
    "nonzero": "≠",
} | {sign: sign for sign in "<>≤≥≠"}  # fmt: skip
STRUCTURE = re.compile(  # \mathbb{Z}_8
    r"\\math(?:bb|cal|frak)\s*(?:\w|\{\s*\w\s*\})(?:\s*[_^]\s*(?:\w|\{\s*\w+\s*\})){0,2}"
)
SYMMETRIC = re.compile(r"\\(?:parallel|perp|oplus|cong|sim|Leftrightarrow)(?![A-Za-z])")
MEMBER = re.compile("∈")
ROW_SPACE = re.compile(r"\s*\[\s*-?\d*\.?\d+\s*(?:pt|em|ex|mu|mm|cm|in|sp)\s*\]")

MATRIX = re.compile(
    r"\\begin\s*\{([pbB]?matrix|array|smallmatrix)\}(?:\s*\{[clr|\s]*\})?(.*?)\\end\s*\{\1\}"
    r"(?P<transposed>\s*\^\s*\{?\s*(?:T|\\top)\s*\}?)?"
)


def matrix(text: str) -> Tree | None:
    """A product of matrices and scalar factors; None when the text has another form."""
    found = list(MATRIX.finditer(text))
    rows: list[list[Node]] | None = None
    terms = 1  # of a sum that multiplying out makes
    for match in found:
        first, *others = match.group(2).split(r"\\")
        lines = [line for line in (first, *(ROW_SPACE.sub("", line, 1) for line in others)) if line.strip()]
        entries = [[parse(strip(entry)) for entry in line.split("&")] for line in lines]
        if not entries or len({len(line) for line in entries}) != 1 or len(entries) * len(entries[0]) > MAX_ITEMS:
            raise Unreadable("not a matrix")
        if match.group("transposed"):
            entries = [list(column) for column in zip(*entries, strict=True)]
        if rows is None:
            rows = entries
        elif len(rows[0]) != len(entries):
            raise Unreadable("matrices that cannot be multiplied")
        elif (terms := terms * len(entries)) * len(rows) * len(entries[0]) > MAX_TERMS:
            raise Unreadable("a product of too many terms")
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
    return matrix_tree([[expression_tree(entry) for entry in row] for row in rows])


def matrix_tree(rows: list[list[Tree]]) -> Tree:
    if len({len(row) for row in rows}) != 1:
        raise Unreadable("rows of different lengths")
    trees = [sequence_tree(row) for row in rows]
    return Tree("matrix", "matrix[" + ";".join(tree.key for tree in trees) + "]", tuple(trees))


def bracketed(text: str) -> Tree | None:
    """A tuple, an interval, a set; None when the brackets do not enclose the whole or hold a single expression."""
    opening = r"\{" if text.startswith(r"\{") else text[:1]
    closing = r"\}" if text.endswith(r"\}") else text[-1:]
    if (opening == r"\{") != (closing == r"\}") or opening not in (r"\{", "(", "[") or closing not in (r"\}", ")", "]"):
        return None
    if not encloses(text):
        return None
    inside = text[len(opening) : len(text) - len(closing)]
    if opening == r"\{" and (built := re.split(r"\\mid(?![a-z])|\||(?<=[a-zA-Z}) ]):|(?<=\^\d):", inside, maxsplit=1))[1:]:
        if not lone_name(re.sub(r"∈\s*\\mathbb\s*\{?\s*R\s*\}?\s*$", "", built[0])):
            element_key = (text_tree if "∈" in built[0] else element)(built[0]).key
            return Tree("relation", f"all {element_key} where {text_tree(built[1]).key}")
        return whole(built[1])  # {x | condition, condition}
    if re.search(r",\s", inside):  # in "1,000, 2,000" only the commas before a space separate
        inside = without_commas(inside)
    pieces = [piece for piece in split(inside, re.compile(r"[,;]"))[0] if piece.strip() or opening != r"\{"]
    if len(pieces) > MAX_ITEMS:
        raise Unreadable("too many elements")
    if opening == r"\{":
        return set_tree(flat_elements(pieces))
    if len(pieces) == 1:
        return None
    trees = [element(piece) for piece in pieces]
    if opening == "[" and all(tree.key[0] + tree.key[-1] == "[]" and tree.kind == "sequence" for tree in trees):
        return matrix_tree([list(tree.items) for tree in trees])
    return sequence_tree(trees, opening, closing)


def flat_elements(pieces: list[str]) -> list[Tree]:
    """The elements, of one with a double sign both."""
    pairs = [(re.search("^[^{]*[±∓]", piece), element(piece)) for piece in pieces]
    return [t for double, tree in pairs for t in (tree.items if tree.kind == "set" and double else (tree,))]


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
    text = strip(without_unit(strip(text))[0])
    if not text:
        raise Unreadable("nothing")
    if simple := SIMPLE.fullmatch(text):
        return simple_tree(simple)
    if ("±" in text or "∓" in text) and not text.startswith(r"\{"):
        signs = [("+", "-"), ("-", "+")]
        return set_tree([element(text.replace("±", plus).replace("∓", minus)) for plus, minus in signs])
    plain = strip(re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text))
    if found := moment(plain) or numeral(plain) or part_of_reals(plain) or words(plain, wrapped=plain != text):
        return found
    if congruent := CONGRUENT.fullmatch(text):
        _, left, right, modulus = congruent.groups()
        if left is not None and (" " in left.strip() or not lone_name(left)):
            raise Unreadable("a congruence of more than a name")
        return Tree("relation", f"{element(right).key} mod {element(modulus).key}")
    if (said := IN_WORDS.fullmatch(plain)) and all(SIMPLE.fullmatch(side) for side in said.groups()):
        return ratio(plain, list(said.groups()))
    pieces, signs_ = split(text, SYMMETRIC)
    if signs_:
        return symmetric(pieces, signs_)
    pieces, signs_ = split(text, MEMBER)
    if signs_:
        if len(pieces) == 2 and lone_name(pieces[0]):
            return element(pieces[1])
        raise Unreadable("membership of no name")
    pieces, signs_ = split(text, UNION)
    if signs_ and all(RELATION.search(piece) for piece in pieces):  # x<1 ∪ x>2
        return union(pieces, signs_)
    relations, compared = split(text, RELATION)
    if len(pieces) > MAX_PARTS or len(relations) > MAX_PARTS:
        raise Unreadable("too many parts")
    if compared:
        return relation(relations, compared, element)
    if signs_:
        return union(pieces, signs_)
    if r"\begin" in text and (found := matrix(text)):
        return found
    if text in ("∅", r"\{\}"):
        return Tree("set", "{}")
    if (found := bracketed(text)) is not None:
        return found
    if STRUCTURE.fullmatch(text):
        return Tree("text", "name " + re.sub(r"[{}\s]", "", text))
    pieces, signs_ = split(text, COLON)
    if signs_:
        return ratio(text, pieces)
    if CODE.fullmatch(text):
        return text_tree(text)
    if PRINTED.fullmatch(text):
        return number_tree(Fraction(integer(re.sub(r"\\text\s*|[{}]", "", text))))
    return expression_tree(parse(without_commas(text)))


def part_of_reals(text: str) -> Tree | None:
    """The real numbers, those of one sign, or those but a few: \\mathbb{R}^+, "all real numbers except 2"."""
    found = REALS.fullmatch(text)
    if not found:
        return None
    symbol, compared, word, excepted = found.groups()
    sign = SIGN_OF.get((symbol or compared or word or "").lower().replace("-", "") or (symbol or ""))
    sign = ">" if re.search(r"\+\+|\+\s*\}?\s*\^|\*\s*\}?\s*_", text) else sign
    region = region_tree([LINE]) if sign is None else half_line(number_tree(Fraction(0)), sign)
    if excepted is None:
        return region
    return region_tree(intersection(intervals(region), complement(intervals(whole(excepted)))))


def symmetric(pieces: list[str], signs: list[str]) -> Tree:
    """Two things in a relation that reads the same from either side, such as AB ∥ CD; each is its text if it is not read."""
    if len(signs) != 1:
        raise Unreadable("a chain of relations")
    keys = []
    for piece in pieces:
        try:
            keys.append(element(piece).key)
        except (Unreadable, Unbounded, Undefined):
            keys.append(text_tree(piece).key)
    return Tree("relation", signs[0].join(sorted(keys)))


def union(pieces: list[str], signs: list[str]) -> Tree:
    """Parts of the real line, or all unions or all intersections of names: A∪B is B∪A."""
    trees = [element(piece) for piece in pieces]
    if any(tree.kind == "expression" for tree in trees) and len(set(signs)) == 1 and signs[0] in "∪∩":
        return Tree("relation", signs[0].join(sorted({tree.key for tree in trees})), tuple(trees))
    total = intervals(trees[0])
    for sign, tree in zip(signs, trees[1:], strict=True):
        part = intervals(tree)
        if sign in "∖-":
            total = intersection(total, complement(part))
        else:
            total = intersection(total, part) if sign == "∩" else total + part
    return region_tree(total)


def ratio(text: str, pieces: list[str]) -> Tree:
    """2:4 is 1:2, yet 12:00 and other clock times stay as they are."""
    if len(pieces) > MAX_PARTS:
        raise Unreadable("too many parts")
    items = [element(piece) for piece in pieces]
    found = [item.value for item in items if item.kind == "number"]
    if len(found) == len(items) and found[0] != 0 and not CLOCK.fullmatch(text):
        exact = all(isinstance(value, Fraction) for value in found)
        found = found if exact else [inexact(value) for value in found]
        items = [value_tree([value / found[0]]) for value in found]
    if clock := CLOCK.fullmatch(text):
        return Tree("text", f"clock {int(clock[1])}:{clock[2]}")
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
    found = re.findall(r"[A-Za-z]+", text)
    if any(word in LOGIC_WORDS or word in ("arcsin", "arccos", "arctan") for word in found):
        return None
    if PRODUCT.fullmatch(text) and not wrapped:
        return None
    if (wrapped and len(text) > 1) or max(map(len, found)) >= 3 or text.lower() == "no" or text in ROMAN:
        squeezed = re.sub(r"[\s.]+", "", text).lower()
        return Tree("text", "text:" + SYNONYMS.get(squeezed, squeezed))
    return None


def named(piece: str) -> tuple[str | None, str]:
    """("x", "5") of "x = 5", ("x", "2+3=5") of a chain; (None, piece) when no single name stands before an equals sign."""
    parts, signs = split(piece, RELATION)
    name = lone_name(parts[0]) if set(signs) == {"="} else None
    return (name, "=".join(parts[1:])) if name and not name.startswith("(") else (None, piece)


def whole(text: str, ordered: bool = False) -> Tree:
    if "," in text and (found := moment(re.sub(r"\\text\s*\{([^{}]*)\}", r"\1", text).strip())):
        return found  # March 14, 2020
    if "∈" in text or CONDITION_WORD.search(text):
        value, condition = conditional(text)
        if value != text:
            tree = whole(value, ordered)
            return Tree("relation", tree.key + condition) if condition else tree
    groups, outer = split(text, OUTER)
    lists = [[piece for piece in split(group, INNER)[0] if piece.strip()] for group in groups if group.strip()]
    flat = [piece for group in lists for piece in group]
    if len(flat) > MAX_ITEMS:
        raise Unreadable("too many elements")
    if not flat:
        raise Unreadable("nothing")
    if len(flat) == 1:
        return element(flat[0])
    units = {re.sub(r"[\W_]|s\b", "", without_unit(strip(piece))[1]) for piece in flat} - {""}
    if len(units) > 1:
        raise Unreadable("values with different units")
    names = [named(piece)[0] for piece in flat]
    if len(set(names) - {None}) > 1 and not numbered(names):
        if None in names:
            raise Unreadable("some values have names, some have none")
        records = in_records(flat, names)
        return records[0] if len(records) == 1 else set_tree(records)
    comparisons = all(re.search("[<>≤≥≠]", piece) for piece in flat)
    either = bool({"or", "∨"} & set(outer))
    if comparisons and len(unknowns(flat)) > 1:
        return system(flat, either)
    if comparisons:
        return conditions([element(piece) for piece in flat], either, strict=bool({"and", "∧"} & set(split(text, INNER)[1])))
    if "∨" in text or "∧" in text:
        raise Unreadable("a formula of logic")
    return sequence_tree(flat_elements(flat)) if ordered else set_tree(flat_elements(flat))


def conditions(trees: list[Tree], either: bool, strict: bool) -> Tree:
    """Conditions on one unknown. With mere commas between them all hold, or any when all together are impossible."""
    if either and strict:
        raise Unreadable("conditions joined by both and and or")
    both = common(trees)
    if either or (both.key == "{}" and not strict):
        return region_tree([part for tree in trees for part in intervals(tree)])
    return both


def system(pieces: list[str], either: bool) -> Tree:
    """Conditions on several unknowns, in no order."""
    trees = [(",".join(sorted(unknowns([piece]))), element(piece)) for piece in pieces]
    joined = "&".join(sorted(f"{names} {tree.key}" for names, tree in trees))
    return Tree("relation", f"{'any' if either else 'all'} of {joined}")


def unknowns(pieces: list[str]) -> set[str]:
    """The letters in the pieces that may be variables."""
    return set(re.findall(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])|\\(?!frac|sqrt|infty|pi)[a-z]+", " ".join(pieces))) - {"e", "i"}


def numbered(names: list[str | None]) -> bool:
    """x_1, x_2, ...: several values of one unknown, in no order that matters."""
    found = [re.fullmatch(r"(.+?)_?\{?(\d+)\}?", name or "") for name in names]
    stems = {match.group(1) for match in found if match}
    indices = sorted(int(match.group(2)[:6]) for match in found if match)
    return len(stems) == 1 and indices == list(range(1, len(names) + 1))


def in_records(pieces: list[str], names: list[str | None]) -> list[Tree]:
    """x = 1, y = 2 is (1, 2): values in the order of their names. A name that comes again begins the next solution."""
    size = names.index(names[0], 1) if names[0] in names[1:] else len(names)
    records = []
    for start in range(0, len(pieces), size):
        pairs = [named(piece) for piece in pieces[start : start + size]]
        if len(pairs) != size or {name for name, _ in pairs} != set(names[:size]):
            raise Unreadable("solutions that name different quantities")
        records.append(record([(str(name), element(value)) for name, value in pairs]))
    return records


def nesting(text: str) -> int:
    """The deepest nesting of brackets."""
    level = deepest = 0
    for match in re.finditer(r"[(\[{]|[)\]}]", text):
        level += 1 if match.group() in "([{" else -1
        deepest = max(deepest, level)
    return deepest


FRENCH = re.compile(r"^(?:x\s*∈\s*)?\]|\[$|\[\s*[∪∩]|[∪∩]\s*\]")
INTERVAL = re.compile(r"([\[\]])([^\[\],;()]+[,;][^\[\],;()]+)([\[\]])")  # ]0,1[ is open


def read(answer: str, ordered: bool = False) -> Tree:
    """The tree of an answer; what cannot be read is text. Never raises, and never takes a part for the whole.

    ordered: a list or set is the tuple of its elements as they are written.
    """
    if len(answer) > MAX_LENGTH or nesting(answer) > MAX_DEPTH:
        return text_tree(answer)
    stripped = answer.strip()
    if INTEGER.fullmatch(stripped):
        return number_tree(Fraction(int(stripped)))
    text = spelled(answer)
    if len(text) > MAX_LENGTH:
        return text_tree(answer)
    if (choice := chosen_letter(text)) is not None:
        return expression_tree(("sym", choice))
    text = rewritten(text)
    if ("[" in text or "]" in text) and FRENCH.search(text):
        text = INTERVAL.sub(lambda m: f"{'(' if m[1] == ']' else '['}{m[2]}{')' if m[3] == '[' else ']'}", text)
    if not re.search(r"[(\[]|\\\{", text):
        text = without_commas(text)
    if len(FUNCTION.findall(text)) > MAX_FUNCTIONS or len(FACTORIAL.findall(text)) > MAX_FACTORIALS:
        return text_tree(text)
    if ordered and text.startswith(r"\{") and text.endswith(r"\}") and encloses(text):
        text = text[2:-2]
    work.done = 0
    try:
        tree = whole(text, ordered)
        single = tree.kind == "set" and len(tree.items) == 1 and tree.items[0].kind not in ("set", "expression")
        # {5} is 5, but {{5}} and {{}} are no numbers and no sets of numbers, and {x} may be a fractional part.
        return tree.items[0] if single else tree
    except (Unreadable, Unbounded, Undefined, TooMuchWork):
        return text_tree(text)


def canonical_key(answer: str, ordered: bool = False) -> str:
    """Text that two answers share exactly when the default grader calls them equal. Never starts with "<"."""
    return cached_key(answer, ordered) if len(answer) <= 500 else read(answer, ordered).key


@lru_cache(maxsize=16_384)
def cached_key(answer: str, ordered: bool) -> str:
    return read(answer, ordered).key
