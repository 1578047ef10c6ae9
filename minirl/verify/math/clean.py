"""Brings the many spellings of an answer to one: LaTeX wrappers, signs, separators, units, currency, percent.

Only spelling is changed here, by regular expressions that run in linear time; the conventions are in docs/verifiers.md.
"""

import re
import sys
import unicodedata
from collections.abc import Callable


def repeating(decimals: str) -> str:
    """Digits before an ellipsis: a block that stands there three times repeats for ever, 1666 -> 1\\overline{6}."""
    found = re.fullmatch(r"(\d*?)(\d{1,12}?)\2{2,}", decimals)
    return rf"{found[1]}\overline{{{found[2]}}}" if found else decimals + "…"


# fmt: off
SIGNS: dict[int, str | None] = {ord(sign): spelling for sign, spelling in {
    "−": "-", "–": "-", "×": "*", "·": "*", "⋅": "*", "∗": "*", "∙": "*", "÷": "/", "⩽": "≤", "⩾": "≥", "≦": "≤", "≧": "≥",
    "、": ",", "。": ".", "º": "°", "˚": "°", "℃": "°", "℉": "°", "’": "'", "‘": "'", "′": "'", "“": '"', "”": '"',
    "∕": "/", "⁄": "/", "∶": ":", "∣": "|", "‖": r"\|", "⟨": "(", "⟩": ")", "〈": "(", "〉": ")", "⋯": "…", "≒": "≈",
    "π": r"\pi ", "∞": r"\infty ", "ℓ": r"\ell ", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]",
    "→": r"\to ", "⇒": r"\Rightarrow ", "⟹": r"\Rightarrow ", "⇔": r"\Leftrightarrow ", "⟺": r"\Leftrightarrow ",
    "⊂": r"\subset ", "⊃": r"\supset ", "⊆": r"\subseteq ", "⊇": r"\supseteq ", "∥": r"\parallel ", "⊥": r"\perp ",
    "∠": r"\angle ", "△": r"\triangle ", "≡": r"\equiv ", "≅": r"\cong ", "∼": r"\sim ", "∘": r"\circ ", "⊕": r"\oplus ",
    "⊗": r"\otimes ", "∂": r"\partial ", "¬": r"\neg ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ",
    "⌉": r"\rceil ", "∆": r"\Delta ", "∇": r"\nabla ", "∑": r"\sum ", "∏": r"\prod ", "∫": r"\int ", "∀": r"\forall ",
    "∃": r"\exists ",
    "∉": r"\notin ", "∝": r"\propto ", "≪": r"\ll ", "≫": r"\gg ", "↦": r"\mapsto ", "↔": r"\leftrightarrow ",
    "←": r"\leftarrow ", "⟶": r"\to ", "∎": r"\blacksquare ", "■": r"\blacksquare ", "□": r"\square ", "″": "''",
}.items()}
SIGNS |= {ord(letter): rf"\mathbb{{{plain}}}" for letter, plain in zip("ℝℤℕℚℂ", "RZNQC", strict=True)}
SIGNS |= {ord(sign): "$" for sign in "€£¥￥₹₽₩₪₫₱฿¢"}  # which currency does not count
SIGNS |= {ord(dash): "-" for dash in "‐‑‒—―﹣－"}
SIGNS |= {ord(mark): None for mark in "\ufe0f✓✔☑✅∴"}
SIGNS |= {code: None for code in range(0x2100) if unicodedata.category(chr(code)) == "Cf"}  # of no width
SIGNS[0xFEFF] = None
SIGNS |= {code: chr(code - 0xFEE0) for code in range(0xFF01, 0xFF5F) if code not in SIGNS}  # full width
SIGNS |= {ord(sign): rf"\{name} " for sign, name in zip(
    "ΓΔΘΛΞΣΦΨΩ", ("Gamma", "Delta", "Theta", "Lambda", "Xi", "Sigma", "Phi", "Psi", "Omega"), strict=True)}
RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎", "0123456789+-=()ni0123456789+-=()")
SPELLINGS = {  # commands by what they are replaced with
    "*": ("times", "cdot", "ast", "cdotp"), "/": ("div",), ":": ("colon",), "°": ("degree", "textdegree", "celsius"),
    "<": ("lt",), "≤": ("le", "leq", "leqslant"), ">": ("gt",), "≥": ("ge", "geq", "geqslant"), "≠": ("ne", "neq"),
    "≈": ("approx", "simeq"),
    "∈": ("in",), "∪": ("cup",), "∩": ("cap",), "∖": ("setminus", "backslash"), "±": ("pm",), "∓": ("mp",),
    "∅": ("emptyset", "varnothing"), "…": ("dots", "ldots", "cdots", "dotsc", "dotsb"),
    "(": ("langle",), ")": ("rangle",), "[": ("lbrack",), "]": ("rbrack",), "$": (
        "euro", "texteuro", "pounds", "textsterling", "yen", "textyen", "textdollar", "cent", "textcent", "rupee"),
    r"\{": ("lbrace",), r"\}": ("rbrace",), "|": ("lvert", "rvert", "vert", "lVert", "rVert"),
    r"\frac": ("dfrac", "tfrac", "cfrac", "nicefrac", "sfrac", "xfrac", "flatfrac"), r"\binom": ("dbinom", "tbinom"),
    r"\tan": ("tg",), r"\cot": ("ctg", "cotg"), r"\arctan": ("arctg",), r"\angle": ("measuredangle", "sphericalangle"),
    r"\mod": ("pmod", "bmod"),
    r"\to": ("rightarrow", "longrightarrow"), r"\Rightarrow": ("implies", "Longrightarrow"), r"\neg": ("lnot",),
    r"\Leftrightarrow": ("iff", "Longleftrightarrow"), r"\Omega": ("ohm",),
    "∨": ("lor", "vee"), "∧": ("land", "wedge"), " ": (
        "quad", "qquad", "enspace", "thinspace", "medspace", "thickspace", "enskip", "space", "nobreakspace", "hfill",
        "strut", "mathstrut", "relax", "null", "noindent", "newline", "checkmark", "therefore", "because",
    ),
    r"\text": (
        "text", "textbf", "textit", "textrm", "textnormal", "textsf", "texttt", "textsc", "textup", "textmd", "emph",
        "mathrm", "mathit", "mathsf", "mathtt", "mathup", "mathnormal", "mbox", "mathbf", "operatorname", "hbox", "bold",
    ),
    "": (
        "displaystyle", "textstyle", "scriptstyle", "limits", "nolimits", "left", "right", "middle", "big", "Big", "bigg",
        "Bigg", "bigl", "bigr", "bigm", "Bigl", "Bigr", "biggl", "biggr", "mleft", "mright", "hline", "boldsymbol", "bm",
        "pmb", "underline", "uline", "ensuremath", "tiny", "scriptsize", "footnotesize", "small", "normalsize", "large",
        "Large", "LARGE", "huge", "Huge",
    ),
}
# fmt: on
FONT = r"\\(?:rm|bf|it|sf|tt|cal|em|sl)(?![a-zA-Z])"
LENGTH = r"-?\d*\.?\d+\s*(?:pt|em|ex|mu|mm|cm|in|sp)"
BOLD = r"\\(?:vec|mathbf|boldsymbol|bm|overrightarrow|hat|mathbb)(?![a-zA-Z])"
BRACES = r"\{(?:[^{}]|\{[^{}]*\})*\}"
LINES = "equation|align|aligned|alignat|flalign|gather|gathered|split|multline|eqnarray|displaymath|math|center"
PREFIXES = "kilo|centi|milli|micro|nano|deci|mega|giga"
Rewrites = list[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]]]


def siunitx(unit: str) -> str:
    """\\meter\\per\\second and m.s^{-1} as words: "meter/second"."""
    words = re.sub(r"\\per(?![a-zA-Z])", "/", unit).replace(".", "*").replace("~", " ")
    words = re.sub(rf"\\({PREFIXES})\s*\\", r"\\\1", words)
    words = re.sub(r"\\([a-zA-Z]+)", r" \1 ", words).strip()
    return rf" \text{{{words}}}"


LATEX: Rewrites = [  # before commands are brought to one spelling
    (
        re.compile(r"\\(?:qty|SI)\s*(?:\[[^\[\]]*\])?\s*\{([^{}]*)\}\s*\{((?:[^{}]|\{[^{}]*\})*)\}"),
        lambda m: m[1] + siunitx(m[2]),
    ),
    (re.compile(r"\\(?:si|unit)\s*\{((?:[^{}]|\{[^{}]*\})*)\}"), lambda m: siunitx(m[1])),
    (re.compile(r"\\num\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\ang\s*\{([^{}]*)\}"), r"\1°"),
    (re.compile(r"\\(?:hspace|vspace|[hv]?phantom|label|tag|color)\*?\s*\{[^{}]*\}"), " "),
    (re.compile(rf"\\(?:hskip|kern|mskip|mkern)\s*{LENGTH}"), " "),
    (re.compile(r"\\(?:textcolor|colorbox|fcolorbox\s*\{[^{}]*\})\s*(?:\[[^\[\]]*\])?\s*\{[^{}]*\}"), ""),
    (re.compile(rf"\\(?:under|over)brace\s*({BRACES})(?:\s*[_^]\s*(?:{BRACES}|\w))?"), r"\1"),
    (
        re.compile(rf"\\begin\s*\{{({LINES})\*?\}}(.*?)\\end\s*\{{\1\*?\}}"),
        lambda m: m[2].replace("&", " ").replace(r"\\", r" \\ "),
    ),
    (re.compile(r"\\begin\s*\{cases\}([^&]*?)\\end\s*\{cases\}"), lambda m: m[1].replace(r"\\", r" \\ ")),
    (re.compile(r"\\cr(?![a-zA-Z])|\\\\\*"), r"\\\\ "),
    (re.compile(r"(?<=[^\s$])[\s$~]*(?:\\[,;:! ])*\s*\\(?:qed|qedhere)[\s$.]*$"), ""),  # the end of a proof
    (re.compile(r"\\([RZNQC])(?![a-zA-Z])"), r"\\mathbb{\1}"),
    (
        re.compile(
            r"\\(?:text|mathrm|textrm)\s*\{\s*(?:\\[,;: ]|~)?\s*([kM]?)\s*"
            r"(?:\}\s*\\(?:Omega|ohm)(?![a-zA-Z])|\\(?:Omega|ohm)\s*\})"
        ),
        r" \\text{\1ohm}",
    ),
    (re.compile(rf"\{{\s*{FONT}([^{{}}]*)\}}"), r"\\text{\1}"),
    (re.compile(rf"{FONT}\s*\{{"), r"\\text{"),
    (re.compile(rf"{FONT}\s*([a-zA-Z]+)"), r"\\text{\1}"),
    (re.compile(FONT), ""),
    (re.compile(rf"({BOLD}\s*(?:\{{[^{{}}]*\}}|[A-Za-z])\s*)(?:\\times(?![a-zA-Z])|\*)(?=\s*{BOLD})"), r"\1\\cross "),
    (re.compile(r"\\mu\s*\\(?:text|mathrm|textrm)\s*\{\s*"), r"\\text{µ"),
    (re.compile(r"(?<=[\d})])\s*(?:\\[,;: ]|~)\s*([kM]?)\\(?:Omega|ohm)(?![a-zA-Z])"), r" \\text{\1ohm}"),
    (re.compile(r"\^\s*(?:\{\s*((?:\\prime\s*)+)\}|((?:\\prime(?![a-zA-Z]))))"), lambda m: "'" * m[0].count("prime")),
    (re.compile(r"\\not\s*(?:=|\\eq(?![a-zA-Z]))"), "≠"),
    (re.compile(r"(\\mathbb\s*\{?\s*[RZNQC]\s*\}?)\s*\\\{([^{}\\]*)\}"), r"\1∖\\{\2\\}"),  # R\{0}
    (re.compile(r"\^\s*\{?\s*\\(?:top|intercal)(?![a-zA-Z])\s*\}?"), "^{T}"),
]
ACCENTED = {"\u0302": "hat", "\u0303": "tilde", "\u0304": "bar", "\u0305": "bar", "\u20d7": "vec"}  # marks above a letter
CHINESE = """
    元 角 分 个 個 米 厘米 毫米 分米 千米 公里 克 千克 公斤 吨 升 毫升 人 名 位 岁 天 日
    小时 分钟 秒 度 次 种 種 本 只 支 块 年 月 周 页 件 台 辆 条 双 棵 张 箱 组 盒 朵
    头 篇 道 题 步 圈 枚 匹 袋 瓶 杯 平方米 平方厘米 平方千米 立方米 立方厘米 円 通り 回 원
    개 명
"""
UNICODE: Rewrites = [
    (re.compile(r"(?<=\d)\s*[–—]\s*(?=\d)"), r"\\endash "),  # a range is no difference
    (
        re.compile(r"(?<![⁰¹²³⁴⁵⁶⁷⁸⁹])([⁰¹²³⁴⁵⁶⁷⁸⁹]++)[⁄∕/]([₀-₉]+)"),
        lambda m: rf"\frac{{{m[1].translate(RAISED)}}}{{{m[2].translate(RAISED)}}}",
    ),
    (re.compile(r"(?<=\d)\s*(k?m|cm|mm)([²³])(?!\w)"), lambda m: rf" \text{{{m[1]}^{m[2].translate(RAISED)}}}"),
    (re.compile(r"(?<=\d)\s*([µμ][a-zA-Z]{1,3})(?!\w)"), r" \\text{\1}"),
    (re.compile(r"(?<=\d)\s*([kM]?)Ω(?!\w)"), r" \\text{\1ohm}"),
    (re.compile("[⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ⁿⁱ]+"), lambda m: f"^{{{m[0].translate(RAISED)}}}"),
    (re.compile("([A-Za-z])([\u0302\u0303\u0304\u0305\u20d7])"), lambda m: rf"\{ACCENTED[m[2]]}{{{m[1]}}}"),
    (re.compile("[₀-₎]+"), lambda m: f"_{{{m[0].translate(RAISED)}}}"),
    (re.compile("[¼½¾⅐-⅞]"), lambda m: "\\frac{{{}}}{{{}}}".format(*unicodedata.normalize("NFKC", m[0]).split("⁄"))),
    (re.compile("[\U0001d400-\U0001d7ff]+"), lambda m: unicodedata.normalize("NFKC", m[0])),
    (re.compile(r"(?<=\d)\s*(万|亿)"), lambda m: "*10^4" if m[1] == "万" else "*10^8"),
    (re.compile(rf"(?<=[\d)}}\]])\s*(?:{'|'.join(sorted(CHINESE.split(), key=len, reverse=True))})\s*。?$"), ""),
]
COMMANDS = {command: spelling for spelling, commands in SPELLINGS.items() for command in commands}
COMMAND = re.compile(r"\\([a-zA-Z]+)\*?")
GLUED_SPACE = re.compile(r"\\q?quad(?=[a-zA-Z])")
DOUBLED = re.compile(r"\\\\(?=[a-zA-Z{}%$])")
EMPHASIS = re.compile(r"^(\*{1,3}|_{2,3})(?![\s*])([^*]*[^\s*])\1$")
DOUBLE_ASTERISKS = re.compile(r"^\*{2,}|\*{2,}$")
SPACES = re.compile(r"(?:(?<!\\)\\[,;:> ]|~)+")
WORDS = r"\\text\s*\{[^{}]*\}"
ANSWER = r"(?:(?:the|our|my)\s+)?(?:(?:final|correct)\s+)?(?:answer|result|solution|option|choice)\s*(?:is\b\s*:?|:|=)"
CURRENCY = r"(?:USD|EUR|GBP|JPY|INR|CNY|RMB|CAD|AUD|Rs\.?|(?:US|HK|A|C)(?=\s*\\?\$))"
# What stands before an answer and says nothing of it: \text{So the answer is}, Rs.; and a sign in words. Words count in
# \text only: an answer that is a sentence is read leniently where that is asked for, and is otherwise a text.
BEFORE: Rewrites = [
    (
        re.compile(
            rf"^\\text\s*\{{\s*(?:(?:(?:so|thus|hence|therefore)\b,?\s+)?{ANSWER}|(?:so|thus|hence|therefore)\b,?)"
            r"\s*(?:(\})(?=\s*\S)|(?=[^\s}]))",
            re.IGNORECASE,
        ),
        lambda m: "" if m[1] else r"\text{",
    ),
    (re.compile(rf"^(?:{CURRENCY}|\\text\s*\{{\s*{CURRENCY}\s*\}})\s*(?=(?:\\?\$\s*)?[\d.])"), ""),
    (
        re.compile(r"^(?:negative|minus|\\text\s*\{\s*(?:negative|minus)\s*\})\s*(?=[\d.]|\\frac|\\sqrt)", re.IGNORECASE),
        "-",
    ),
]
MULTIPLIERS = {
    "dozen": "12", "hundred": "10^2", "thousand": "10^3", "lakh": "10^5", "lac": "10^5", "million": "10^6", "crore": "10^7",
    "billion": "10^9", "trillion": "10^12", "quadrillion": "10^15", "quintillion": "10^18",
}  # fmt: skip
NAMED_FUNCTIONS = tuple(
    "sin cos tan cot sec csc arcsin arccos arctan log ln max min gcd lcm tg ctg arctg".split()  # noqa: SIM905
)


def without_marks(match: re.Match[str]) -> str:
    """1.234.567 and 1'234'567 without what parts their thousands."""
    return re.sub("[.']", "", match.group())


def fraction_of_units(match: re.Match[str]) -> str:
    """A fraction of units behind a number is a unit; of other words, in this order, it is a text."""
    return f"{match[1]}/{match[2]}" if re.search(r"[\d})]\s*$", match.string[: match.start()]) else match.group()


def chosen(match: re.Match[str]) -> str:
    """C(5, 8) is a point, C(8, 5) a number."""
    above, below = (match[1], match[2]) if match[1] else (match[3], match[4])
    if match[1] and (len(above) > 9 or len(below) > 9 or int(above) < int(below)):
        return match.group()
    return rf"\binom{{{above}}}{{{below}}}"


SEPARATE = r"(?:\\?\$)+"
REWRITES: Rewrites = [
    (re.compile(r"(?<!\\)\\!\s*"), ""),
    (re.compile(r"\s*\{\s*([,:])\s*\}\s*"), r"\1"),  # 1{,}000
    (re.compile(r"(\d)(?:\\[,;: ]|~)+(?=\d{3}(?!\d))"), r"\1"),  # 1\,000
    (SPACES, " "),
    (re.compile(r" {2,}"), " "),
    (re.compile(r"\$\s*,\s*\$"), ", "),
    (re.compile(r"\\text\s*\{\s*(\\?[$%])\s*\}"), r"\1"),
    (re.compile(r"(?<![\d ])\s*\\text\s*\{\s*\}|\\text\s*\{\s*\}(?!\s*\d)"), ""),
    (re.compile(rf"(?<![\d$])(?<![\d$] ){SEPARATE}|{SEPARATE}(?!\s*[\d$])"), ""),  # 5$6 is not 56
    (re.compile(r"\\%"), "%"),
    (re.compile(r"\^\s*(?:\\circ|\{\s*\\circ\s*\})"), "°"),
    (
        re.compile(rf"\\text\s*\{{\s*,?\s*(and|or|to|degrees?|percent|pct|infinity|(?:{'|'.join(MULTIPLIERS)})s?)\s*\}}"),
        r" \1 ",
    ),
    (re.compile(rf"\\text\s*\{{\s*({'|'.join(NAMED_FUNCTIONS)})\s*\}}"), lambda m: COMMANDS.get(m[1], "\\" + m[1]) + " "),
    (re.compile(r"(?<![\d.])(\d{1,3}(?: \d{3})+)(?![\d/.,])"), lambda m: m.group().replace(" ", "")),  # 10 000
    (re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3})+,\d\d?(?![\d.,])"), lambda m: m.group().replace(".", "").replace(",", ".")),
    (re.compile(r"(?<![\d.,])\d{1,3}(?:\.\d{3}){2,}(?![\d.,])|(?<![\d.,'])\d{1,3}(?:'\d{3})+(?![\d'])"), without_marks),
    (re.compile(r"\.(?:\s?\.){2,}"), "…"),
    (re.compile(r"\.(\d{1,60})\s*…"), lambda m: "." + repeating(m.group(1))),
    (re.compile(r"(?<![\d.])0?\.\((\d+)\)"), r"0.\\overline{\1}"),  # 0.(6)
    (re.compile(r"\\dot\s*\{(\d)\}(\d*)\\dot\s*\{(\d)\}"), r"\\overline{\1\2\3}"),
    (re.compile(r"(?<=\d)--(?=\d)"), r"\\endash "),
    (
        re.compile(
            r"\(?\s*\\mod(?![a-zA-Z])\s*(?:\{\s*(\w+)\s*\}|(\w+))\s*\)?|\(\s*(?:mod|\\text\s*\{\s*mod\s*\})\s+(\w+)\s*\)"
        ),
        lambda m: rf"\mod {m[1] or m[2] or m[3]}",
    ),
    (re.compile(r"\*\*"), "^"),
    (re.compile(r"^\s*(?:\\Rightarrow(?![a-zA-Z])|=>)"), ""),
    (re.compile(r"<=|=<"), "≤"),
    (re.compile(r">="), "≥"),
    (re.compile(r"!="), "≠"),
    (re.compile(rf"\\frac\s*\{{\s*({WORDS})\s*\}}\s*\{{\s*({WORDS}(?:\^(?:\d|\{{\d\}}))?)\s*\}}"), fraction_of_units),
    (re.compile(r"(?<![A-Za-z\\])d([a-z])\s*/\s*d([a-z])(?![A-Za-z])"), r"\\frac{d\1}{d\2}"),
    (  # 10 choose 5 as C(10,5), _{10}C_5, ^{10}C_5
        re.compile(
            r"(?<![A-Za-z\\])C\s*\(\s*(\d+)\s*,\s*(\d+)\s*\)|(?:^|(?<=[\s=+*/-]))(?:\{\s*\})?\s*[_^]\{?(\w+)\}?\s*C\s*_\s*\{?(\w+)\}?"
        ),
        chosen,
    ),
    # One letter is a variable or a choice, but it may be a unit behind a number.
    (re.compile(r"(?<![\d}°/*])(?<![\d}°/*] )(?<!\\pi)(?<!\\pi )\\text\s*\{\s*\(?([A-Za-z])\)?\s*\}"), r" \1 "),
    (
        re.compile(r"(?<=[\d)}.])\s*(?:%|percent(?:age)?(?: points?)?\b|pct\b)(?!\s*(?:[\d.]|(?:\\text\s*\{\s*)?of\b))"),
        "",
    ),
    (re.compile(r"(?<=[\d)}])\s*degrees?\b|°\s*[CF]\b"), "°"),
]
WRAPPER = re.compile(r"\\(?:boxed|fbox|text(?=\s*\{[^{}]*[^{}A-Za-z]))\s*\{")
BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
THOUSANDS = re.compile(r"(?<![\d.,])\d{1,3}(?:,\d{3})+(?!\d|,\d)")
MULTIPLIER = re.compile(rf"(?<=[\d}})])\s*({'|'.join(MULTIPLIERS)})s?\b")

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
    [µμ][mgsLlAVWFCJ] [kM]ohm rad deg m/s km/h m/min m/h ft/s mi/h kg/m mol/L g/L EUR GBP INR CNY RMB Rs
    (?:rad|rev|[kcm]m|[km]g|[kM]?[JCLN]|mi|in|yd|mol|g)/s g/c?m J/(?:kg|mol|K) N/m V/m L/(?:min|h) W/m C/mol
"""
LETTERS = "[mghsNJWVACFKLlT] m?Pa m[sAVW] atm cal"  # in \text only
SINGULARS = """
    apple ball book box boy girl man woman person child student car coin cookie egg item number page pencil piece
    solution text ticket time way word
"""
IRREGULAR = "people children men women mice fish sheep feet teeth geese dice"
CHANGING = r"""
    half halves thirds? quarters? one two three four five six seven eight nine ten tens ones twos threes fours fives
    sixes sevens eights nines nths? dozens? scores? gross hundreds? thousands? \w*illi(?:on|ard)s? lakhs? lacs?
    crores? googols? myriads? percents? decimals? squared cubed square cubic factorials? plus minus times divided
    multiplied over modulo mod power powers root radicals? exponents? base bases negatives? imaginary infinit[ey]
    equals exceeds divides (?:north|south)(?:east|west)?(?:ern|erly)? (?:east|west)(?:ern|erly)? left right up down
    upstream downstream uphill downhill upstairs downstairs inland forth back inside outside above below \w+wards?
    clockwise counterclockwise anticlockwise sideways ahead behind more less fewer greater smaller larger higher lower
    older younger longer shorter taller wider deeper faster slower heavier lighter closer further farther cheaper most
    least under beyond than ago later earlier early late before after away is are was were has have had does did not
    never none can could will would may might must should gives makes means seems remains fails works holds exists
    repeats implies yields satisfies goes and or if iff but when where while unless until because since though
    although otherwise for with without from into onto that which who this these those others? else also except
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
    return re.compile(rf"times|(?:(?:{compound}|{noun})(?:{detail})?)?(?:{share}){{0,2}}")


IN_TEXT, BARE = unit_pattern(SYMBOLS, LETTERS), unit_pattern(SYMBOLS)
TEXT = re.compile(r"\\text\s*\{((?:[^{}]|\^\s*\{[^{}]*\})*)\}")
NUMBER_END = re.compile(r"(?:(?<=[\d})\]°!])|(?<=\\pi))(?=\s*[A-Za-z/\\(\[])")
MAX_UNIT = 80  # characters


def clean(text: str) -> str:
    """The answer with one spelling for each sign: "$\\dfrac{1}{2}\\%.$" -> "\\frac{1}{2}". Never raises."""
    return rewritten(spelled(text))


def spelled(text: str) -> str:
    """With one spelling for each character and command, and without what only changes its look: "\\textbf{½}" ->
    "\\text{\\frac{1}{2}}"."""
    if not text.isascii():
        for pattern, replacement in UNICODE:
            text = pattern.sub(replacement, text)
        text = text.translate(SIGNS)
    text = without_emphasis(" ".join(text.replace("^*", "^{*}").split()))
    if "\\" in text:
        if r"\begin" not in text:
            text = DOUBLED.sub(r"\\", text)
        text = text.replace(r"\left.", "").replace(r"\right.", "")
        text = GLUED_SPACE.sub(" ", text)
        for pattern, replacement in LATEX:
            text = pattern.sub(replacement, text)
        text = COMMAND.sub(lambda m: COMMANDS.get(m.group(1), m.group()), text)
    for pattern, replacement in BEFORE:
        text = pattern.sub(replacement, text, 1)
    return text


def without_emphasis(text: str) -> str:
    """Without quotation marks and what Markdown puts around a text: **5**, `5`. But 5* is not 5."""
    while (bare := EMPHASIS.sub(r"\2", text.strip(' `"'))) != text:
        text = bare
    return DOUBLE_ASTERISKS.sub("", text).strip(' `"')


def rewritten(text: str) -> str:
    for pattern, replacement in REWRITES:
        text = pattern.sub(replacement, text)
    text = strip(text)
    return MULTIPLIER.sub(lambda m: f"*{MULTIPLIERS[m.group(1)]}", text)


def strip(text: str) -> str:
    """Without surrounding spaces, math delimiters, final punctuation and braces around the whole."""
    while True:
        before = text
        text = without_emphasis(text).rstrip(".,;: ").lstrip(",;:=≈ ")
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
        if unit[:1] + unit[-1:] in ("()", "[]"):  # 5 (square units)
            unit = unit[1:-1].strip()
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
