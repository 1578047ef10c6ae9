"""Answers that are no expressions but are understood: times and days, numerals with a base, the letter of a choice, and
conditions that stand behind a value."""

import re
from fractions import Fraction

from minirl.verify.math.latex import integer
from minirl.verify.math.relations import mentions
from minirl.verify.math.trees import Tree, number_tree

RADICES = {"two": "2", "three": "3", "five": "5", "eight": "8", "ten": "10", "sixteen": "16"}
BASE = re.compile(
    r"\(?\s*((?=[A-Fa-f]*\d)[0-9A-Fa-f]+|[A-F]{2,}(?=[\s)]*_[\s{]*16))\s*\)?\s*"
    rf"(?:_|\bbase)[\s{{(]*(\d{{1,2}}|{'|'.join(RADICES)})[\s)}}]*"
)
PREFIXED = re.compile(r"0(?:x([0-9a-f]+)|b([01]+)|o([0-7]+))", re.IGNORECASE | re.ASCII)
CLOCK = re.compile(r"(\d{1,2}):([0-5]\d)")
TIME = re.compile(
    r"(1[0-2]|0?[1-9])(?::([0-5]\d))?\s*(?:([ap])\.?\s*m\.?|(noon|midnight|o'?\s*clock))", re.IGNORECASE | re.ASCII
)
MONTHS = (
    "jan(?:uary)?|feb(?:ruary)?|mar(?:ch)?|apr(?:il)?|may|june?|july?|aug(?:ust)?|sept?(?:ember)?|oct(?:ober)?"
    "|nov(?:ember)?|dec(?:ember)?"
)
DAY = r"([0-3]?\d)(?:st|nd|rd|th)?"
DATE = re.compile(
    rf"({MONTHS})\.?\s+{DAY}(?:\s*,?\s*(\d{{4}}))?|{DAY}\s+(?:of\s+)?({MONTHS})\.?(?:\s*,?\s*(\d{{4}}))?",
    re.IGNORECASE | re.ASCII,
)
ISO_DATE = re.compile(r"\d{4}-[01]\d-[0-3]\d")
MONTH_NAMES = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]

# A choice with what it says: "(E) 12", "E: text", "Option E", "E)". Not two of them, and none that is taken back.
CHOICE = re.compile(
    r"[\s$]*(?:(?i:the )?(?i:correct |final )?(?i:option|choice|answer)\s*(?:is\b)?\s*:?\s*\(?([A-H])\)?\.?[\s$]*"
    r"|([A-H])\s*\)[\s$]*|(?:\(([A-H])\)\s*[.:]?|([A-H])\s*[.:)])(?:[\s$~\\,;]*\s[\s$]*|(?<=\))(?=\d|\\frac|\\text))(?![+*/^=<>≤≥_!,;&)]|-(?!\d))(\S.*))"
)
CHOSEN = re.compile(r"[A-H]\s*[).:]|(?i:option|choice|answer)")
HEDGE = re.compile(r"\b(?:or|not|neither|nor|isn't|wrong|incorrect)\b|(?:^|[\s(,;/&])\(?[A-H]\)?(?:[\s).,:;]|$)")

# "k\\pi, k \\in Z", "cx for any c": what stands behind the value says which values its letter takes.
LETTERS = r"\\?[A-Za-z]+(?:_\{?\w\}?)?"
NUMBERS = r"\\mathbb\s*\{?\s*(?P<set>[NZQRC])\s*\}?(?P<part>\s*\^?\s*[+*])?"
KIND = r"(?:(?:real|integer|arbitrary|numbers?|constants?|values?|integers|reals|of)\s+)"
OF_ALL, SOME = r"(?:any|all|every|each|some)\s+", r"(?:any|all|every|each|some|an?\s+arbitrary)\s+"
NAMES = rf"{LETTERS}(?:\s*(?:,|\band\b)\s*{LETTERS})*"
TRAILING = re.compile(
    rf"[\s,;(]+(?:(?:where|with|for|and)\s+)?(?:{OF_ALL})?(?P<kind1>{KIND}*)(?P<name1>{NAMES})\s*∈\s*{NUMBERS}[\s)]*"
    rf"|[\s,;(]+(?:where\s+|with\s+)?(?:for\s+)?(?:{SOME}(?={KIND}*)|(?={KIND}))(?P<kind2>{KIND}*)(?P<name2>{NAMES})[\s)]*"
    rf"|[\s,;(]+(?:where\s+|with\s+)?(?P<name3>{LETTERS})\s+is\s+(?:an?|any|some)\s+"
    rf"(?P<kind3>{KIND}*(?:real|integer|number|constant))[\s)]*"
)
CONDITION_WORD = re.compile(r"\b(?:any|all|every|each|some|arbitrary|constants?|integers?|real|is an?)\b")
MAX_CONDITION = 80  # characters
INTEGER_LETTERS = frozenset("kmnlprst") | {"k_1", "k_2"}


def moment(text: str) -> Tree | None:
    """A time of day or a day of the year. 5:30 PM is 17:30, 5 o'clock 5:00, which may be morning or evening."""
    if time := TIME.fullmatch(text):
        hour, minute, half, named = time.groups()
        if named and named.lower() in ("noon", "midnight"):
            half = "p" if named.lower() == "noon" else "a"
        if half is None:
            return Tree("text", f"clock {int(hour)}:{minute or '00'}")
        return Tree("text", f"time {int(hour) % 12 + 12 * (half.lower() == 'p')}:{minute or '00'}")
    if (clock := CLOCK.fullmatch(text)) and not 1 <= int(clock[1]) <= 12:
        return Tree("text", f"{'time' if int(clock[1]) < 24 else 'clock'} {int(clock[1])}:{clock[2]}")
    if ISO_DATE.fullmatch(text):
        return Tree("text", "date " + text)
    if date := DATE.fullmatch(text):
        month, day, year = date.groups()[:3] if date[1] else (date[5], date[4], date[6])
        return Tree("text", f"date {year + '-' if year else ''}{1 + MONTH_NAMES.index(month[:3].lower()):02}-{int(day):02}")
    return None


def numeral(text: str) -> Tree | None:
    """A numeral with a base: 101_2, 101 base two, 0b101, FF_{16}, 0xFF."""
    if base := BASE.fullmatch(text):
        digits, radix = base.group(1), int(RADICES.get(base.group(2), base.group(2)))
    elif prefixed := PREFIXED.fullmatch(text):
        digits = next(filter(None, prefixed.groups()))
        radix = {"x": 16, "b": 2, "o": 8}[text[1].lower()]
    else:
        return None
    digits = digits.upper().lstrip("0") or "0"
    if radix == 10 and digits.isdecimal():
        return number_tree(Fraction(integer(digits)))
    return Tree("text", f"base {radix}: {digits}") if all(int(digit, 16) < radix for digit in digits) else None


def chosen_letter(text: str) -> str | None:
    """The letter of a multiple choice with more beside it than the letter."""
    if len(text) < 2 or not CHOSEN.search(text):
        return None
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text) if r"\text" in text else text
    if not (found := CHOICE.fullmatch(plain)) or (found[5] and HEDGE.search(found[5])):
        return None
    return next(letter for letter in found.groups() if letter)


def conditional(text: str) -> tuple[str, str]:
    """The value and the condition of "k\\pi, k ∈ Z". No condition where it says what one expects: k is an integer, c any
    number."""
    plain = re.sub(r"\\text\s*\{([^{}]*)\}", r" \1 ", text) if r"\text" in text else text
    for match in TRAILING.finditer(plain, max(0, len(plain) - MAX_CONDITION)):
        if match.end() != len(plain):
            continue
        group = match.groupdict()
        name = group["name1"] or group["name2"] or group["name3"]
        kind = (group["kind1"] or group["kind2"] or group["kind3"] or "") + " "
        value, names = plain[: match.start()], re.split(r"\s*(?:,|\band\b)\s*", name)
        if not all(mentions(value, name) and (len(name) == 1 or name[0] == "\\" or "_" in name) for name in names):
            continue
        numbers = (group["set"] or "") + (group["part"] or "").strip().strip("^ ")
        numbers = numbers or ("Z" if "integer" in kind else "R" if "real" in kind else "")
        usual = all(numbers in ("", "Z" if name in INTEGER_LETTERS else "R") for name in names)
        return value, "" if usual else f" where {','.join(sorted(names))} in {numbers}"
    return text, ""
