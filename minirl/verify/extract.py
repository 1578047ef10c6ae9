"""Finds the final answer in a response. Every function returns None when there is none, never a stand-in text."""

import re

from minirl.verify.clean import matching

BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![a-zA-Z])\s*")
BARE = re.compile(r"-?\d+(?:\.\d+)?|-?\\?[a-zA-Z]")


def boxes(text: str) -> list[tuple[int, int, str]]:
    """Start, end and content of each complete box that is not inside another: \\boxed{5}, \\boxed {5}, \\boxed 5."""
    found = []
    end = 0
    for match in BOX.finditer(text):
        if match.start() < end:
            continue
        if text[match.end() : match.end() + 1] == "{":
            close = matching(text, match.end())
            if close >= 0:
                end = close + 1
                found.append((match.start(), end, text[match.end() + 1 : close].strip()))
        elif bare := BARE.match(text, match.end()):
            end = bare.end()
            found.append((match.start(), end, bare.group()))
    return found


def boxed(text: str) -> str | None:
    """Content of the last complete box. A box cut off by the end of the text does not hide the one before it.

    >>> boxed(r"so \\boxed{\\frac{1}{2}} or \\boxed{2")
    '\\\\frac{1}{2}'
    """
    found = boxes(text)
    return found[-1][2] if found else None


# Responses without a box, as data sets and older models write them. Only for reading files of (gold, pred) texts: in
# training an answer has to stand in a box.
SEPARATOR = re.compile(r"\b(?:and|or)\b|[,;]")
SENTENCE = re.compile(
    r"(?:final answer\s*(?:is)?\s*:?|answer\s+is\s*:?|answer\s*:|####|^A:)[ \t]*([^\n]*)", re.IGNORECASE | re.MULTILINE
)
ENDING = re.compile(r"\s*(?:I hope it is correct.*|<\|.*|Note:.*)$", re.DOTALL)
MATH = re.compile(r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|(?<![\\$])\$((?:\\.|[^$\\\n])+?)\$|\\\(([^\n]+?)\\\)", re.DOTALL)
NUMBER = re.compile(r"(?<![A-Za-z\d])[-+]?\d[\d,]*(?:\.\d+)?(?:/\d+)?(?![A-Za-z\d])|[-+]?\.\d+")
PROSE = re.compile(r"(?<![\\\w])[A-Za-z]{2,}(?!\w)")
CONNECTED = re.compile(r"[\s,.;]*(?:(?:and|or)[\s,.;]*)*")


def answer(text: str) -> str | None:
    """The final answer of a text that may lack a box: boxes standing together at the end, else what follows "answer is"
    or "A:", else the last formula, else a short text as a whole, else its last number."""
    found = boxes(text)
    if found:
        return joined_boxes(text, found)
    if unclosed := re.search(r"\\boxed\s*\{(.*)$", text):
        return unclosed.group(1)
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
        return text or None
    rest = text[math[-1].end() :] if math else text
    numbers = NUMBER.findall(rest)
    return numbers[-1].rstrip(",") if numbers else contents[-1] if math else text


def joined_boxes(text: str, found: list[tuple[int, int, str]]) -> str:
    """The last box, with those before it when only a separator or a few characters lie between."""
    parts = [found[-1][2]]
    for before, after in zip(found[-2::-1], found[:0:-1], strict=True):
        between = text[before[1] : after[0]]
        close = len(between) < 10 or (len(between) < 70 and SEPARATOR.search(between) is not None)
        if not close or before[2] == after[2]:
            break
        parts.append(before[2])
    return ", ".join(reversed(parts))
