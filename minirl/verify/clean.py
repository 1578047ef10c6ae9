"""Brings the many spellings of an answer to one: LaTeX wrappers, signs, separators, units, currency, percent.

Only spelling is changed here, by regular expressions that run in linear time; the conventions are in docs/verifiers.md.
"""

import re
from collections.abc import Callable

# fmt: off
SIGNS = str.maketrans({
    "−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "⩽": "≤", "⩾": "≥", "，": ",", "；": ";",
    "（": "(", "）": ")", "％": "%", "º": "°", "’": "'", "′": "'", "²": "^{2}", "³": "^{3}", "½": r"\frac12 ",
    "π": r"\pi ", "∞": r"\infty ",
})
SPELLINGS = {  # commands by what they are replaced with
    "*": ("times", "cdot", "ast", "cdotp"), "/": ("div",), ":": ("colon",), "°": ("degree",),
    "<": ("lt",), "≤": ("le", "leq", "leqslant"), ">": ("gt",), "≥": ("ge", "geq", "geqslant"), "≠": ("ne", "neq"),
    "≈": ("approx", "simeq"),
    "∈": ("in",), "∪": ("cup",), "∩": ("cap",), "∖": ("setminus", "backslash"), "±": ("pm",), "∓": ("mp",),
    "∅": ("emptyset", "varnothing"), "(": ("langle",), ")": ("rangle",), "[": ("lbrack",), "]": ("rbrack",),
    r"\{": ("lbrace",), r"\}": ("rbrace",), "|": ("lvert", "rvert", "vert", "lVert", "rVert"),
    r"\frac": ("dfrac", "tfrac", "cfrac"), r"\binom": ("dbinom", "tbinom"),
    " or ": ("lor", "vee"), " and ": ("land", "wedge"), " ": ("quad", "qquad", "enspace", "thinspace"),
    r"\text": (
        "text", "textbf", "textit", "textrm", "textnormal", "textsf", "mathrm", "mathit", "mathsf", "mbox",
        "mathbf", "operatorname", "hbox", "bold",
    ),
    "": (
        "displaystyle", "textstyle", "limits", "nolimits", "left", "right", "big", "Big", "bigg", "Bigg", "bigl",
        "bigr", "Bigl", "Bigr", "biggl", "biggr", "mleft", "mright", "hline", "rm", "bf", "it",
    ),
}
# fmt: on
COMMANDS = {command: spelling for spelling, commands in SPELLINGS.items() for command in commands}
COMMAND = re.compile(r"\\([a-zA-Z]+)\*?")
GLUED_SPACE = re.compile(r"\\q?quad(?=[a-zA-Z])")
DOUBLED = re.compile(r"\\\\(?=[a-zA-Z{}%$])")
SPACES = re.compile(r"(?<!\\)\\[,;:> ]|~")
REWRITES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"(?<!\\)\\!\s*"), ""),
    (re.compile(r"\s*\{\s*,\s*\}\s*"), ","),  # 1{,}000
    (re.compile(r"(\d)(?:\\[,;: ]|~)+(?=\d{3}(?!\d))"), r"\1"),  # 1\,000
    (SPACES, " "),
    (re.compile(r"\$\s*,\s*\$"), ", "),
    (re.compile(r"\\[$€£]|[$€£¥]|\\text\s*\{\s*\}"), ""),
    (re.compile(r"\\%|％"), "%"),
    (re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})"), "°"),
    (re.compile(r"\\text\s*\{\s*,?\s*(and|or|degrees?|percent|pct|hundred|thousand|[mbtr]+illion)\s*\}"), r" \1 "),
    (re.compile(r"(?<![\d.])(\d{1,3}(?: \d{3})+)(?![\d/.,])"), lambda m: m.group().replace(" ", "")),  # 10 000
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"<=|=<"), "≤"),
    (re.compile(r">="), "≥"),
    (re.compile(r"!="), "≠"),
    (re.compile(r"\\text\s*\{\s*\(?([A-Za-z])\)?\s*\}"), r" \1 "),  # one letter: a variable, a choice
    (re.compile(r"(?<=[\d)}.])\s*(?:%|percent(?:age)?(?: points?)?\b|pct\b)"), ""),
    (re.compile(r"(?<=[\d)}])\s*degrees?\b|°\s*[CF]\b"), "°"),
]
WRAPPER = re.compile(r"\\(?:boxed|fbox|text(?=\s*\{[^{}]*[^{}A-Za-z]))\s*\{")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
MULTIPLIERS = {"hundred": 2, "thousand": 3, "million": 6, "billion": 9, "trillion": 12}
MULTIPLIER = re.compile(r"(?<=[\d})])\s*(hundred|thousand|million|billion|trillion)\b")
# A unit follows a number, a bracket, a degree sign or pi, at the end: a known abbreviation, words of three letters and
# more with a vowel, or any \text{...}, unless it has a digit or a word after which the number is not the whole answer.
# One letter, as in 0.64N, is a variable.
ABBREVIATION = (
    r"(?:mm|cm|dm|km|mg|kg|ml|mL|ft|in|lbs?|oz|mph|kmh|hrs?|mins?|secs?|sq|cu|Hz|kHz|dB|kJ|eV|mol|nm|USD|rad|deg|"
    r"m/s|km/h|m/min|ft/s|mi/h|kg/m)(?![A-Za-z])"
)
LINK = r"\b(?:and|or|if|iff|not|to|when|for|where|but|unless|except|otherwise)\b"
TEXT = rf"\\text\s*\{{(?![^{{}}]*(?:[,;\d]|{LINK}))[^{{}}]*\}}"
WORD = rf"(?!{LINK}|(?:sqrt|sin|cos|tan|log|exp|pi|abs|infty|inf|oo)\b)(?=[A-Za-z]*[aeiouy])[A-Za-z]{{3,}}"
UNIT = re.compile(
    rf"(?:(?<=[\d}})\]°])|(?<=\\pi))\s*(?:{TEXT}|(?<![A-Za-z])(?:{ABBREVIATION}|(?<=\s){WORD}|(?<=\d)[a-z]{{4,}}))"
    rf"(?:\s*(?:/|{TEXT}|(?<=[\s/])(?!{LINK})[A-Za-z]{{1,12}}\b\.?))*\.?\s*(?:\^\s*\{{?\s*-?[1-3]\s*\}}?)?\s*$"
)


def clean(text: str) -> str:
    """The answer with one spelling for each sign: "$\\dfrac{1}{2}\\%.$" -> "\\frac{1}{2}". Never raises."""
    text = " ".join(text.translate(SIGNS).split()).strip("`* ")
    if "\\" in text:
        if r"\begin" not in text:
            text = DOUBLED.sub(r"\\", text)
        text = text.replace(r"\left.", "").replace(r"\right.", "")
        text = GLUED_SPACE.sub(" ", text)
        text = COMMAND.sub(lambda m: COMMANDS.get(m.group(1), m.group()), text)
    for pattern, replacement in REWRITES:
        text = pattern.sub(replacement, text)
    text = strip(text)
    return MULTIPLIER.sub(lambda m: f"*10^{MULTIPLIERS[m.group(1)]}", text)


def strip(text: str) -> str:
    """Without surrounding spaces, math delimiters, final punctuation and braces around the whole."""
    while True:
        before = text
        text = text.strip(" `*").rstrip(".,;: ").lstrip(",;: ")
        if text.endswith("\\") and not text.endswith("\\\\"):
            text = text[:-1]
        for opening, closing in ((r"\(", r"\)"), (r"\[", r"\]")):
            if text.startswith(opening):
                text = text[2:]
            if text.endswith(closing):
                text = text[:-2]
        if text[:1] == "{" and matching(text, 0) == len(text) - 1:
            text = text[1:-1]
        wrapper = WRAPPER.match(text)
        if wrapper and matching(text, wrapper.end() - 1) == len(text) - 1:
            text = text[wrapper.end() : -1]
        if text == before:
            return text


def matching(text: str, start: int) -> int:
    """Position of the brace that closes the one at start; -1 when none does. Escaped braces do not count."""
    level = 0
    for match in BRACE.finditer(text, start):
        level += {"{": 1, "}": -1}.get(match.group(), 0)
        if level == 0:
            return match.start()
    return -1


def without_commas(text: str) -> str:
    """ "1,234,567" -> "1234567"; "1,23" and "12, 345" stay."""
    return THOUSANDS.sub(lambda m: m.group().replace(",", ""), text)


def without_unit(text: str) -> str:
    """ "5 cm^2" -> "5", "17\\text{ any text}" -> "17"; "0.64N" stays."""
    return UNIT.sub("", text)


def split(text: str, separators: re.Pattern[str]) -> tuple[list[str], list[str]]:
    """Pieces between separators that stand outside all brackets, and the separators."""
    pieces, found, start, level = [], [], 0, 0
    at = 0
    for match in re.finditer(
        rf"(?P<open>\\begin\b|\\\{{|[(\[{{])|(?P<close>\\end\b|\\\}}|[)\]}}])|(?P<sep>{separators.pattern})", text
    ):
        if match.start() < at:
            continue
        if match.lastgroup == "open":
            level += 1
        elif match.lastgroup == "close":
            level -= 1
        elif level == 0:
            pieces.append(text[start : match.start()])
            found.append(match.group("sep").strip())
            start = match.end()
    return [*pieces, text[start:]], found
