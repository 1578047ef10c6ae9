"""Finds the final answer in a response. Every function returns None when there is none, never a stand-in text."""

import re
from collections.abc import Iterator
from itertools import pairwise

from minirl.verify.math.clean import matching

BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s*")
BARE = re.compile(r"-?\d+(?:,\d{3})*(?:\.\d+)?(?:/\d+)?|-?[a-zA-Z](?![a-zA-Z])")


def boxes(text: str) -> Iterator[tuple[int, int, str]]:
    """Start, end and content of each complete box, from the last to the first, in linear time.

    A box is \\boxed{5}, \\boxed {5}, \\fbox{5} or, with one number or letter, \\boxed 5. Of nested ones the inner one
    counts.
    """
    end = len(text)
    for match in reversed(list(BOX.finditer(text))):
        if text.startswith("{", match.end()):
            close = matching(text, match.end(), end)
            if close >= 0:
                yield match.start(), close + 1, text[match.end() + 1 : close].strip()
        elif bare := BARE.match(text, match.end(), end):
            yield match.start(), bare.end(), bare.group()
        end = match.start()  # a box that is open here is open in every text that goes on from here


def boxed(text: str) -> str | None:
    r"""Content of the last complete box. A box cut off by the end of the text does not hide the one before it.

    >>> boxed(r"so \boxed{\frac{1}{2}} or \boxed{2")
    '\\frac{1}{2}'
    """
    return next((content for _, _, content in boxes(text)), None)


def whole(text: str) -> str:
    r"""A text that is nothing but an answer: without the boxes around it.

    >>> whole(r" $\boxed{5}$ "), whole(r"\boxed{5} cm")
    ('5', '\\boxed{5} cm')
    """
    text = text.strip()
    for _ in range(3):
        inside = text.strip("$ \n")
        box = BOX.match(inside)
        if not box or not inside.startswith("{", box.end()) or matching(inside, box.end()) != len(inside) - 1:
            break
        text = inside[box.end() + 1 : -1].strip()
    return text


# Responses without a box, as data sets and older models write them. Training reads none of this unless it is asked to.
MAX_TEXT = 20_000  # characters, from the end
SEPARATOR = re.compile(r"\b(?:and|or)\b|[,;]")
SENTENCE = re.compile(
    r"(?:final answer\s*(?:is)?\s*:?|answer\s+is\s*:?|answer\s*:|####|^A:)[ \t]*([^\n]*)", re.IGNORECASE | re.MULTILINE
)
ENDING = re.compile(r"(?:I hope it is correct.*|<\|.*|Note:.*)$", re.DOTALL)
MATH = re.compile(
    r"\$\$(.+?)\$\$|\\\[((?:(?!\\\[).)+?)\\\]|(?<![\\$])\$((?:\\.|[^$\\\n])+?)\$|\\\(((?:(?!\\\()[^\n])+?)\\\)",
    re.DOTALL,
)
# "It is 1 000", "Total: 12": what says that an answer follows, before one with a digit or command.
SAID = re.compile(
    r"^(?:[A-Za-z]\w*[ \t]+){0,3}(?:[A-Za-z]\w+[ \t]*:"
    r"|(?:is|are|was|were|has|have|had|equals|gives|gets?|total|result)\b)[ \t]*(?=[^\n]*[\d\\])"
)
PROSE = re.compile(r"(?<![\\\w])[A-Za-z]{2,}(?!\w)")
CONNECTED = re.compile(r"[\s,.;]*(?:(?:and|or)[\s,.;]*)*")
OPERATORS = r"[-−–+*/^=<>≤≥≠≈×·÷]"
TERM = re.compile(r"\d|[)\]}°!%]$|\\|^[B-HJ-Zb-z]$")  # a word that may stand beside an operator
OPENS = re.compile(rf"(?:{OPERATORS}|[({{\[_]|\\[a-zA-Z]+)$")  # what stands here goes on in the next word
CONTINUES = re.compile(rf"{OPERATORS}$|\\|[^\w\s$(\[,.;:?'\"-]")  # what stands here belongs to the word before


def answer(text: str) -> str | None:
    """The final answer of a text that may lack a box: boxes standing together at the end, else what follows "answer is"
    or "A:", else the last formula, else a short text as a whole, else its last number."""
    if found := list(boxes(text)):
        return joined_boxes(text, found)
    text = text[-MAX_TEXT:]
    for match in reversed(list(SENTENCE.finditer(text))):
        rest = ENDING.sub("", match.group(1)).strip()
        if rest:
            return last_statement(rest)
    return last_statement(ENDING.sub("", text).strip())


def last_statement(text: str) -> str | None:
    """The whole of a text without prose; of prose the last formula, or the last number if it stands behind that."""
    math = list(MATH.finditer(text))
    contents = [next(group for group in match.groups() if group is not None) for match in math]
    if math and CONNECTED.fullmatch(MATH.sub("", text)):
        return ", ".join(contents)
    if not math and len(PROSE.findall(text)) < 3:
        return SAID.sub("", text) or None
    return last_number(text[math[-1].end() :] if math else text) or (contents[-1] if math else text)


def last_number(text: str) -> str | None:
    """The last number with all that belongs to it, so that no part of a number is ever taken for the whole.

    >>> last_number("so 1 000 000 people"), last_number("it is 2 * 10^5."), last_number("of 1.2.3")
    ('1 000 000', '2 * 10^5', '1.2.3')
    """
    words = text.split()
    last = next((i for i in reversed(range(len(words))) if re.search(r"\d", words[i])), None)
    if last is None:
        return None
    start = end = last
    while start and together(words[start - 1], words[start]):
        start -= 1
    while end + 1 < len(words) and together(words[end], words[end + 1]):
        end += 1
    found = " ".join(words[start : end + 1]).strip("*`\"'").rstrip(".,;:!? =-").lstrip("= ")
    for opening, closing in ("()", "[]"):
        if found.startswith(opening) and closing not in found:
            found = found[1:]
        if found.endswith(closing) and opening not in found:
            found = found[:-1]
    return found


def together(left: str, right: str) -> bool:
    """Whether two words are of one number or formula: 1 000, 1 1/2, 2 + 3, 10^ 3."""
    if re.search(r"\d$", left) and re.match(r"\d{3}(?!\d)|\d+/\d", right):
        return True
    if OPENS.search(left):
        return bool(TERM.search(right) or OPENS.search(right))
    return bool(TERM.search(left) and CONTINUES.match(right))


def joined_boxes(text: str, found: list[tuple[int, int, str]]) -> str:
    """The last box, with those before it when only a separator or a few characters lie between."""
    parts = [found[0][2]]
    for after, before in pairwise(found):
        between = text[before[1] : after[0]]
        close = len(between) < 10 or (len(PROSE.findall(between)) <= 3 and SEPARATOR.search(between) is not None)
        if not close or before[2] == after[2]:
            break
        parts.append(before[2])
    return ", ".join(reversed(parts))
