"""What a block of code uses and another one defines. By lines and patterns of linear time: candidates wrote the text."""

import builtins
import keyword
import re

CODE_CHARACTERS = 200_000  # of a program; longer ones are not run
DEFINITION = re.compile(r"(?:async\s++def|def|class)\s++(\w++)")
ASSIGNED = re.compile(r"(\w++(?:\s*+,\s*+\w++)*+)\s*+(?::[^=\n]*+)?[-+*/%&|^@<>]{0,2}=(?!=)")
IMPORTED = re.compile(r"(?:from\s++\S++\s++)?import\s++(.++)")
MANY_LINES = re.compile(r"^(from[ \t]++\S++[ \t]++import[ \t]*+)\(([^()]{0,2000})\)", re.MULTILINE)
WORD = re.compile(r"[^\W\d]\w*+")
USED = re.compile(r"(?<![\w.])[^\W\d]\w*+")
COMMENT = re.compile(r"#.*")
# Names that a block binds for itself: loops, parameters, lambdas, "as", the walrus.
BOUND = re.compile(
    r"\bfor\s++([\w\s,()*]{1,200}?)\s++in\b|\bdef\s++\w++\s*+\(([^)]{0,500})\)|\blambda\s++([^:\n]{0,100}):|\bas\s++(\w++)"
    r"|\b(\w++)\s*+:="
)
PARAMETER = re.compile(r"(?:^|,)[\s*]*+(\w++)")
GOES_ON = re.compile(r"[\s)\]}#]|(?:else|elif|except|finally)\b")
NOT_NEEDED = frozenset(keyword.kwlist) | frozenset(dir(builtins))


def with_needed(texts: list[str], chosen: int) -> str:
    """A block, after the definitions of other blocks that it needs: earlier blocks are asked first, the nearest before the
    farthest, then later ones. Of a block only the functions, classes, imports and values in question are taken, so that a
    usage example in it does not run."""
    text = texts[chosen]
    if len(texts) == 1 or sum(map(len, texts)) > CODE_CHARACTERS:
        return text
    own = defined_in(text)
    missing = free_names(text) - own
    parts: dict[tuple[int, int], str] = {}
    homes: dict[str, list[tuple[int, int]]] = {}
    for index in [*range(chosen - 1, -1, -1), *range(chosen + 1, len(texts))]:
        here: dict[str, list[tuple[int, int]]] = {}
        for number, part in enumerate(parts_of(texts[index])):
            parts[index, number] = part
            first = WORD.match(part)
            runs_early = not DEFINITION.match(part) and not IMPORTED.match(part) and part[0] != "@" and words_of(part) & own
            for name in () if runs_early else defined_in(part) | ({first[0]} if first else set()):
                here.setdefault(name, []).append((index, number))
        for name, places in here.items():
            homes.setdefault(name, places)
    taken: set[tuple[int, int]] = set()
    seen = set(own)
    pending = list(missing)
    while pending:
        name = pending.pop()
        if name in seen or name not in homes:
            continue
        seen.add(name)
        if not any(name in defined_in(parts[place]) for place in homes[name]):
            continue  # used there at the left margin, but not defined
        for place in homes[name]:
            if place not in taken:
                taken.add(place)
                pending += free_names(parts[place])
    stars = [
        place for place, part in parts.items() if place[0] < chosen and IMPORTED.match(part) and part.rstrip().endswith("*")
    ]
    return "".join([*(parts[place] for place in sorted(taken.union(stars))), text])


def parts_of(text: str) -> list[str]:
    """The statements at the left margin, each with the lines that belong to it, and a function with its decorators."""
    parts: list[list[str]] = []
    for line in text.split("\n"):
        decorated = bool(parts) and all(before[:1] == "@" for before in parts[-1])
        if line and not GOES_ON.match(line) and not decorated:
            parts.append([line])
        elif parts:
            parts[-1].append(line)
    return ["".join(f"{line}\n" for line in part) for part in parts]


def defined_in(text: str, imports: bool = True) -> set[str]:
    """The names that lines at the left margin define, assign or import."""
    found: set[str] = set()
    for line in MANY_LINES.sub(lambda m: m[1] + m[2].replace("\n", " "), text).split("\n"):
        if line[:1] in ("", " ", "\t", "#", "@"):
            continue
        if match := DEFINITION.match(line):
            found.add(match[1])
        elif match := IMPORTED.match(line):
            found |= imported(match[1]) if imports else set()
        elif match := ASSIGNED.match(line):
            found |= words_of(match[1])
    return found


def imported(names: str) -> set[str]:
    """The names that `import ...` binds."""
    return {part.split(" as ")[-1].strip(" ()\\").partition(".")[0] for part in COMMENT.sub("", names).split(",")} - {"", "*"}


def free_names(text: str) -> set[str]:
    """Names that a text uses, but for those that it binds for itself somewhere, and Python's own."""
    bound: set[str] = set()
    for line in text.split("\n"):
        line = line.strip()
        if match := ASSIGNED.match(line):
            bound |= words_of(match[1])
        elif match := IMPORTED.match(line):
            bound |= imported(match[1])
    for match in BOUND.finditer(text):
        loop, parameters, arguments, *names = match.groups()
        bound |= words_of(loop or "") | {name for name in names if name}
        bound |= set(PARAMETER.findall(parameters or "")) | set(PARAMETER.findall(arguments or ""))
    return set(USED.findall("\n".join(COMMENT.sub("", line) for line in text.split("\n")))) - bound - NOT_NEEDED


def words_of(text: str) -> set[str]:
    return set(WORD.findall(text))
