"""The program in a response. Read line by line and with patterns of linear time: this runs outside the sandbox, on text
that a candidate wrote, so nothing here may parse it as Python. The same rule for training and evaluation.
"""

import bisect
import re
import textwrap
from dataclasses import dataclass, field

from minirl.verify.code.needed import ASSIGNED, DEFINITION, defined_in, with_needed, words_of

RESPONSE_CHARACTERS = 500_000  # of a response; what comes before its last so many is not looked at
BLOCKS = 64  # the last ones of a response
AFTER_TEXT = re.compile(r"([^\s`~>])[ \t]*+(```(?:python3?|py)[ \t]*+\n)")  # a fence at the end of a line of text
QUOTED, QUOTED_FENCE = re.compile(r"^ {0,3}> ?", re.MULTILINE), re.compile(r"^ {0,3}> ?(?:```|~~~)", re.MULTILINE)
SENTENCE = re.compile(r"[A-Z][\w']*+,?(?: [`(]?[\w'.()]++[`),;:]*){2,}")
FENCE = re.compile(r"([ \t]*+)(`{3,}+|~{3,}+)[ \t]*+([^`]*+)")
PYTHON = re.compile(r"\{?\.?(?:py|py3|ipython3?|python[\d.]*)(?![\w-])", re.IGNORECASE)
# Strings and comments of a line, as far as they hide triple quotes from each other.
TOKEN = re.compile(r"#.*|\"\"\"|'''|\"(?:\\.|[^\"\\])*+\"?|'(?:\\.|[^'\\])*+'?|\\.")
READS = re.compile(r"\binput\s*+\(|\binput\b(?=\s*+[,)])|\bstdin\b|\bfileinput\b|\bopen\s*+\(\s*+0\b|\bos\.read\s*+\(")
PRINTS = re.compile(r"\bprint\s*+\(|\bstdout\b|\bos\.write\s*+\(")
# A line at the left margin that does something when the program runs, beside defining, importing and assigning.
RUNS = re.compile(r"(?!(?:async\s+def|def|class|import|from)\b|@|#|\"\"\"|''')[^\s)\]}]")
CODE_LINE = re.compile(r"(?:def |class |import |from [\w.]+ import |@|async def )")
# What else the first line of a program without a fence looks like.
STATEMENT = re.compile(
    r"(?:\"\"\"|'''|(?:for|while|if|with|try|print|input|global|assert|del|raise|match)\b.*[:)]\s*+(?:#.*)?$"
    r"|[\w.]++\(.*[)\]}(\[{,:]\s*+(?:#.*)?$|[\w.]++\[.*\]\s*+=(?!=)|(?:return|yield)\b|pass$)"
)


@dataclass
class Block:
    """A fenced block: the word after its fence, its lines, and whether the fence was closed."""

    language: str
    indent: int
    fence: str
    lines: list[str] = field(default_factory=list)
    closed: bool = False
    continues: bool = False  # opened before the text began

    @property
    def text(self) -> str:
        return textwrap.dedent("".join(self.lines))  # blocks in lists are indented as a whole


def extract_code(response: str, prompt: str = "", entry_point: str | None = None, program: bool = False) -> str | None:
    """The program in a response, or None.

    Of the fenced blocks those marked as Python, else the unmarked ones. entry_point: the last of them that defines it (a
    usage example after it is not the answer); several names in one text: the last that defines any. program: the last that
    reads its input, else that prints. Else the last block. Names that it uses and does not define are looked for in the
    other blocks, the earlier ones first, and those that define them are put before it.

    A fence that the prompt left open counts as opened here; one that never closes ends with the text. Without any fence:
    the text, if its first line looks like Python; after the prompt, if it goes on with a function that the prompt begins;
    else the text from its first line that starts a definition or an import.
    """
    response = response[-RESPONSE_CHARACTERS:].replace("\r\n", "\n").replace("\r", "\n").replace("\ufeff", "")
    response = AFTER_TEXT.sub(r"\1\n\2", response)
    prompt = prompt.replace("\r\n", "\n")
    opened = next((block for block in blocks_of(prompt)[-1:] if not block.closed), None)
    blocks = blocks_of(response, opened) or blocks_of(QUOTED.sub("", response) if QUOTED_FENCE.search(response) else "")
    if not blocks:
        return without_fence(response, prompt, program)
    if blocks[0].continues and indented(blocks[0].lines):  # the body of a function that the prompt began
        begun = opened.lines if opened is not None else prompt.splitlines(keepends=True)
        blocks[0].lines = begun + blocks[0].lines if any(CODE_LINE.match(line) for line in begun) else blocks[0].lines
    marked = [block.text for block in blocks if PYTHON.match(block.language)]
    unmarked = [block.text for block in blocks if not block.language]
    texts = [text for text in marked or unmarked if text.strip()][-BLOCKS:]
    if len(blocks) == 1 and texts and indented(blocks[0].lines) and not CODE_LINE.match(texts[0]):
        begun = prompt.splitlines(keepends=True)  # the body of a function that the prompt begins, in a block of its own
        if opened is None and looks_like_code(begun) and any(CODE_LINE.match(line) for line in begun):
            texts = ["".join([*begun, *blocks[0].lines])]
    if entry_point and not any(defines(text, entry_point) for text in texts):
        others = unmarked[-BLOCKS:]
        texts = others if any(defines(text, entry_point) for text in others) else texts
    return with_needed(texts, choose(texts, entry_point, program)) if texts else None


def blocks_of(text: str, opened: Block | None = None) -> list[Block]:
    """The fenced blocks of a text. opened: the block that the text may begin in.

    A fence closes a block if it is as long, says nothing after it, is not indented more than three blanks beyond the one that
    opened it, and does not stand in a string of three quotes; a fence marked as Python always begins a new block.
    """
    lines = text.splitlines(keepends=True)
    fences = {number: match for number, line in enumerate(lines) if (match := FENCE.fullmatch(line.rstrip("\n")))}
    numbers = list(fences)
    blocks: list[Block] = []
    start = 0
    current = first_block(lines, fences, opened)
    while True:
        if current is None:
            place = bisect.bisect_left(numbers, start)
            if place == len(numbers):
                return blocks
            match = fences[numbers[place]]
            current = Block(match[3].strip(), len(match[1].expandtabs(4)), match[2])
            start = numbers[place] + 1
        end, reopens = end_of_block(lines, start, current)
        current.lines = lines[start:end]
        current.closed = end < len(lines)
        blocks.append(current)
        start = end if reopens else end + 1
        current = None


def first_block(lines: list[str], fences: dict[int, re.Match[str]], opened: Block | None) -> Block | None:
    """The block that a text begins in: the prompt's, or one that a template opened where the prompt does not show it."""
    first = next(iter(fences), len(lines))
    if first in fences and fences[first][3].strip():
        return None  # the first fence opens a block
    odd, code = len(fences) % 2 == 1, looks_like_code(lines[:first])
    if opened is not None and (odd or code or not fences):
        return Block(opened.language, opened.indent, opened.fence, continues=True)
    return Block("", 0, fences[first][2], continues=True) if odd and code else None


def end_of_block(lines: list[str], start: int, block: Block) -> tuple[int, bool]:
    """The line that ends a block, and whether it begins another. The first fence outside of strings, else the first."""
    quote, first = "", None
    for number in range(start, len(lines)):
        line = lines[number]
        match = FENCE.fullmatch(line.rstrip("\n"))
        if match is not None:
            near = len(match[1].expandtabs(4)) <= block.indent + 3
            closes = near and not match[3].strip() and match[2].startswith(block.fence)
            reopens = near and match[2].startswith(block.fence) and PYTHON.match(match[3]) is not None
            if closes or reopens:
                if not quote:
                    return number, reopens
                first = first or (number, reopens)
                continue
        quote = quote_after(line, quote)
    return first or (len(lines), False)


def quote_after(line: str, quote: str) -> str:
    """The kind of triple quotes that are open after a line, "" when none are."""
    position = 0
    while True:
        if quote:
            found = line.find(quote, position)
            if found < 0:
                return quote
            position, quote = found + 3, ""
        match = TOKEN.search(line, position)
        if match is None:
            return ""
        position = match.end()
        quote = match[0] if match[0] in ('"""', "'''") else ""


def choose(texts: list[str], entry_point: str | None, program: bool) -> int:
    """The block that answers."""
    backwards = range(len(texts) - 1, -1, -1)
    if program:
        reading = [index for index in backwards if READS.search(texts[index])]
        for index in reading:
            if runs(texts[index]):
                return index
        for index in reading:  # functions only: the block that calls them
            names = defined_in(texts[index])
            callers = [later for later in range(index + 1, len(texts)) if runs(texts[later]) and names & words_of(texts[later])]
            if not callers and not PRINTS.search(texts[index]):  # step by step: one block reads, another prints
                callers = [later for later in range(index + 1, len(texts)) if PRINTS.search(texts[later])]
            return callers[0] if callers else index
        return next((index for index in backwards if PRINTS.search(texts[index])), len(texts) - 1)
    if entry_point:
        return next((index for index in backwards if defines(texts[index], entry_point)), len(texts) - 1)
    return len(texts) - 1


def defines(text: str, entry_point: str) -> bool:
    """Whether a block defines any of the names in `entry_point`; for "Solution.f" and f a method of Solution counts too."""
    wanted = words_of(entry_point)
    wanted = wanted - {"Solution"} or wanted
    found = defined_in(text, imports=False)  # an example may import the answer
    if "Solution" in found:
        found |= {match[1] for line in text.splitlines() if (match := DEFINITION.match(line.lstrip()))}
    return bool(wanted & found)


def runs(text: str) -> bool:
    return any(RUNS.match(line) and not ASSIGNED.match(line) for line in text.splitlines())


def indented(lines: list[str]) -> bool:
    """Whether it begins inside of something: with two blanks or a tab (one blank is a habit of models)."""
    return next((line for line in lines if line.strip()), "").startswith(("  ", "\t"))


def looks_like_code(lines: list[str]) -> bool:
    first = next((line.strip() for line in lines if line.strip() and line.strip()[0] != "#"), "")
    return any(pattern.match(first) for pattern in (CODE_LINE, ASSIGNED, STATEMENT))


def until_prose(lines: list[str]) -> str:
    """A program without what is said after it: from the first sentence at the left margin on, outside of strings."""
    quote = ""
    for number, line in enumerate(lines):
        if number and not quote and SENTENCE.match(line) and not looks_like_code([line]):
            return "".join(lines[:number])
        quote = quote_after(line, quote)
    return "".join(lines)


def without_fence(response: str, prompt: str, program: bool = False) -> str | None:
    """The program in a text without fences, or None."""
    lines, begun = response.splitlines(keepends=True), prompt.splitlines(keepends=True)
    inside = indented(lines) or (begun and begun[-1] != "" and not begun[-1].strip() and begun[-1][-1:] != "\n")
    if looks_like_code(lines):
        begins = inside and looks_like_code(begun) and any(CODE_LINE.match(line) for line in begun)
        return prompt + until_prose(lines) if begins else until_prose(lines)
    for number, line in enumerate(lines):
        if CODE_LINE.match(line) or (program and READS.search(line) and looks_like_code([line])):
            return until_prose(lines[number:])
    return None
