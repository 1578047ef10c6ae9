"""Brings the many spellings of an answer to one: LaTeX wrappers, signs, separators, units, currency, percent.

Only spelling is changed here, by regular expressions that run in linear time; the conventions are in docs/verifiers.md.
"""

import re
import sys
from collections.abc import Callable


def repeating(decimals: str) -> str:
    """Digits before an ellipsis: a block that stands there three times repeats for ever, 1666 -> 1\\overline{6}."""
    found = re.fullmatch(r"(\d*?)(\d{1,12}?)\2{2,}", decimals)
    return rf"{found[1]}\overline{{{found[2]}}}" if found else decimals + "…"


# fmt: off
SIGNS = str.maketrans({
    "−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "∗": "*", "÷": "/", "⩽": "≤", "⩾": "≥", "，": ",", "；": ";",
    "（": "(", "）": ")", "％": "%", "º": "°", "’": "'", "′": "'", "²": "^{2}", "³": "^{3}", "½": r"\frac12 ",
    "π": r"\pi ", "∞": r"\infty ", "“": '"', "”": '"',
})
SPELLINGS = {  # commands by what they are replaced with
    "*": ("times", "cdot", "ast", "cdotp"), "/": ("div",), ":": ("colon",), "°": ("degree",),
    "<": ("lt",), "≤": ("le", "leq", "leqslant"), ">": ("gt",), "≥": ("ge", "geq", "geqslant"), "≠": ("ne", "neq"),
    "≈": ("approx", "simeq"),
    "∈": ("in",), "∪": ("cup",), "∩": ("cap",), "∖": ("setminus", "backslash"), "±": ("pm",), "∓": ("mp",),
    "∅": ("emptyset", "varnothing"), "…": ("dots", "ldots", "cdots", "dotsc", "dotsb"),
    "(": ("langle",), ")": ("rangle",), "[": ("lbrack",), "]": ("rbrack",),
    r"\{": ("lbrace",), r"\}": ("rbrace",), "|": ("lvert", "rvert", "vert", "lVert", "rVert"),
    r"\frac": ("dfrac", "tfrac", "cfrac"), r"\binom": ("dbinom", "tbinom"),
    "∨": ("lor", "vee"), "∧": ("land", "wedge"), " ": ("quad", "qquad", "enspace", "thinspace"),
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
SPACES = re.compile(r"(?:(?<!\\)\\[,;:> ]|~)+")
WORDS = r"\\text\s*\{[^{}]*\}"
REWRITES: list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]] = [
    (re.compile(r"(?<!\\)\\!\s*"), ""),
    (re.compile(r"\s*\{\s*([,:])\s*\}\s*"), r"\1"),  # 1{,}000
    (re.compile(r"(\d)(?:\\[,;: ]|~)+(?=\d{3}(?!\d))"), r"\1"),  # 1\,000
    (SPACES, " "),
    (re.compile(r"\$\s*,\s*\$"), ", "),
    (re.compile(r"\\text\s*\{\s*\\?[$€£¥]?\s*\}|\\?[$€£¥]"), ""),
    (re.compile(r"\\%|％"), "%"),
    (re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})"), "°"),
    (
        re.compile(r"\\text\s*\{\s*,?\s*(and|or|degrees?|percent|pct|dozen|hundred|thousand|[mbtr]+illion|infinity)\s*\}"),
        r" \1 ",
    ),
    (re.compile(r"(?<![\d.])(\d{1,3}(?: \d{3})+)(?![\d/.,])"), lambda m: m.group().replace(" ", "")),  # 10 000
    (re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3})+,\d\d?(?![\d.,])"), lambda m: m.group().replace(".", "").replace(",", ".")),
    (re.compile(r"\.(?:\s?\.){2,}"), "…"),
    (re.compile(r"\.(\d{1,60})\s*…"), lambda m: "." + repeating(m.group(1))),
    (re.compile(r"(?<![\d.])0?\.\((\d+)\)"), r"0.\\overline{\1}"),  # 0.(6)
    (re.compile(r"\\dot\s*\{(\d)\}(\d*)\\dot\s*\{(\d)\}"), r"\\overline{\1\2\3}"),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"<=|=<"), "≤"),
    (re.compile(r">="), "≥"),
    (re.compile(r"!="), "≠"),
    (re.compile(rf"\\frac\s*\{{\s*({WORDS})\s*\}}\s*\{{\s*({WORDS}(?:\^(?:\d|\{{\d\}}))?)\s*\}}"), r"\1/\2"),
    # One letter is a variable or a choice, but it may be a unit behind a number.
    (re.compile(r"(?<![\d}°/*])(?<![\d}°/*] )(?<!\\pi)(?<!\\pi )\\text\s*\{\s*\(?([A-Za-z])\)?\s*\}"), r" \1 "),
    (re.compile(r"(?<=[\d)}.])\s*(?:%|percent(?:age)?(?: points?)?\b|pct\b)(?!\s*(?:\\text\s*\{\s*)?of\b)"), ""),
    (re.compile(r"(?<=[\d)}])\s*degrees?\b|°\s*[CF]\b"), "°"),
]
WRAPPER = re.compile(r"\\(?:boxed|fbox|text(?=\s*\{[^{}]*[^{}A-Za-z]))\s*\{")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
MULTIPLIERS = {"dozen": "12", "hundred": "10^2", "thousand": "10^3", "million": "10^6", "billion": "10^9", "trillion": "10^12"}
MULTIPLIER = re.compile(rf"(?<=[\d}})])\s*({'|'.join(MULTIPLIERS)})\b")

# What is dropped behind a number: a measure (a word or symbol listed here, with powers, products and quotients), or a
# counted noun, which is a plural or one of a few singulars, with at most two words before it. Words of CHANGING say
# that the number is not the whole answer (5 squared, 2 thirds, 3 miles north, 5 is wrong). A single letter is a unit in
# \text{...} only; elsewhere, as in 0.64N, it is a variable.
PREFIX = "(?:kilo|centi|milli|micro|nano|deci|mega|giga)?"
MEASURES = rf"""
    {PREFIX}(?:met(?:er|re)|gram|lit(?:er|re)|second|watt|joule|newton|volt|amp(?:ere)?|pascal|hertz|byte|calorie|mole|ohm)
    sec minute min hour hr day week month year yr decade inch foot feet yard mile acre hectare pound lb ounce ton tonne
    gallon quart pint cup tablespoon teaspoon dollar cent buck penny nickel dime euro yuan yen rupee degree radian
    kelvin celsius fahrenheit unit point centur(?:y|ie) penn(?:y|ie) pence coulomb knot bit
"""
SYMBOLS = """
    mm cm dm km mg kg ml mL ft in oz mph kph kmh rpm yd mi gal Hz kHz MHz GHz dB kJ kN kW kWh kV kPa MPa eV mol nm USD
    rad deg m/s km/h m/min m/h ft/s mi/h kg/m mol/L g/L
"""
LETTERS = "[mghsNJWVACFKLlT] m?Pa m[sAVW] atm cal"  # in \text only
SINGULARS = """
    apple ball book box boy girl man woman person child student car coin cookie egg item number page pencil piece
    solution text ticket time way word
"""
IRREGULAR = "people children men women mice fish sheep feet teeth geese dice"
CHANGING = r"""
    half halves thirds? quarters? one two three four five six seven eight nine ten tens ones twos threes fours fives
    sixes sevens eights nines nths? dozens? scores? hundreds? thousands? [mbtr]+illions? percents? decimals? squared
    cubed square cubic factorials? plus minus times divided multiplied over modulo mod power powers root radicals?
    exponents? base bases negatives? imaginary infinit[ey] equals exceeds divides north south east west left right up
    down above below \w+wards? clockwise counterclockwise anticlockwise sideways ahead behind more less fewer greater
    smaller larger most least under beyond than ago later earlier early late before after away is are was were has have
    had does did not never none can could will would may might must should gives makes means seems remains fails works
    holds exists repeats implies yields satisfies goes and or if iff but when where while unless until because since
    though although otherwise for with without from into onto that which who this these those others? else also except
    perhaps maybe always sometimes about around approx approximately roughly nearly almost only wrong incorrect false
    true correct undefined impossible unknown invalid loss(?:es)? gains? profits? debts? deficits? surplus credits?
    debits? sqrt sin cos tan log exp abs
    (?:four|fif|six|seven|eigh|nin|ten|eleven|twelf|\w+teen|\w+tie|hundred|thousand|[mbtr]+illion)ths?
"""


def any_of(*words: str) -> str:
    return f"(?:{'|'.join(' '.join(words).split())})"


CHANGED = re.compile(rf"(?<![\\a-z]){any_of(CHANGING)}\b", re.IGNORECASE)
WORD = rf"(?!{CHANGED.pattern})[a-z]{{3,}}"
PLURAL = rf"(?!{CHANGED.pattern})(?:[a-z]{{3,}}(?<![siu])s|{any_of(IRREGULAR, SINGULARS)})"


def unit_pattern(*symbols: str) -> re.Pattern[str]:
    measure = rf"(?:(?i:{any_of(MEASURES)}(?:e?s)?)|{any_of(*symbols)})(?![a-zA-Z])"
    power = r"(?:\s*\^\s*\{?\s*-?[1-3]\s*\}?|\s+(?:squared|cubed))"
    term = rf"(?:(?:square|cubic|sq\.?|cu\.?)\s*)?{measure}\.?{power}?"
    compound = rf"{term}(?:(?:\s*[/*\-]\s*|\s+(?:per\s+|an?\s+)?){term})*"
    noun = rf"(?i:(?:{WORD}\s+){{0,2}}{PLURAL})"
    detail = rf"(?i:\s*/\s*{WORD}|\s+of\s+{WORD}(?:\s+{WORD})?|\s+(?:old|long|wide|high|tall|deep))"
    share = rf"(?i:(?:^|\s+)(?:(?:per|an?|each|every)\s+{WORD}|each|total|in total|altogether|in all))"
    return re.compile(rf"(?:(?:{compound}|{noun})(?:{detail})?)?(?:{share}){{0,2}}")


IN_TEXT, BARE = unit_pattern(SYMBOLS, LETTERS), unit_pattern(SYMBOLS)
TEXT = re.compile(r"\\text\s*\{((?:[^{}]|\^\s*\{[^{}]*\})*)\}")
NUMBER_END = re.compile(r"(?:(?<=[\d})\]°!])|(?<=\\pi))(?=\s*[A-Za-z/\\])")
MAX_UNIT = 80  # characters


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
    return MULTIPLIER.sub(lambda m: f"*{MULTIPLIERS[m.group(1)]}", text)


def strip(text: str) -> str:
    """Without surrounding spaces, math delimiters, final punctuation and braces around the whole."""
    while True:
        before = text
        text = text.strip(' `*"').rstrip(".,;: ").lstrip(",;:=≈ ")
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


def matching(text: str, start: int, end: int = sys.maxsize) -> int:
    """Position of the brace that closes the one at start, before end; -1 when none does. Escaped braces do not count."""
    level = 0
    for match in BRACE.finditer(text, start, end):
        level += {"{": 1, "}": -1}.get(match.group(), 0)
        if level == 0:
            return match.start()
    return -1


def without_commas(text: str) -> str:
    """ "1,234,567" -> "1234567"; "1,23" and "12, 345" stay."""
    return THOUSANDS.sub(lambda m: m.group().replace(",", ""), text)


def without_unit(text: str) -> tuple[str, str]:
    """What stands before a unit, and the unit: "5 cm^2" -> ("5", "cm^2"), "17\\text{ miles}" -> ("17", "miles").

    "0.64N" has none.
    """
    for start in NUMBER_END.finditer(text, max(0, len(text) - MAX_UNIT)):
        tail = text[start.end() :]
        symbols = BARE if re.search("[A-Za-z]", TEXT.sub("", tail)) else IN_TEXT
        unit = " ".join(TEXT.sub(r" \1 ", tail).split())
        if unit and symbols.fullmatch(unit):
            return text[: start.end()], unit
    return text, ""


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
