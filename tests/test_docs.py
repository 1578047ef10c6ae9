"""README and docs/ say what is there: links, commands, options, messages, pictures, the reference of options, the site."""

import ast
import importlib.util
import itertools
import re
import shlex
import shutil
import subprocess
from functools import cache
from types import SimpleNamespace

import pytest
import yaml

from minirl.advantages import BASES, WRAPPERS
from minirl.config.__main__ import reference
from minirl.config.command_line import load
from minirl.config.options import every_option
from minirl.losses import LOSSES
from tests.conftest import ROOT

DOCS = ROOT / "docs"
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]


def named(page):
    return str(page.relative_to(ROOT))


# ---- README -----------------------------------------------------------------------------------------------------------------


def test_the_readme_is_two_screens():
    assert README.count("\n") <= 120
    assert max(len(line) for line in README.splitlines() if not line.startswith("|")) <= 150


def test_the_readme_s_tables_name_every_estimator_and_loss_with_its_source():
    for name, cls in itertools.chain(BASES.items(), WRAPPERS.items()):
        row = next(line for line in README.splitlines() if line.startswith("|") and f"(docs/algorithms/{name}.md)" in line)
        first = re.search(r"(\d{4}\.\d{5})", cls.source)
        assert first is None or first[1] in row, f"{name}: {cls.source}"
    assert all(f"`{name}`" in README for name in LOSSES)


def test_pictures_are_shown_and_small():
    shown = {target for page in PAGES for target in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text(encoding="utf-8"))}
    pictures = list((DOCS / "images").glob("*.png"))
    assert len(pictures) >= 2
    for picture in pictures:
        assert picture.stat().st_size < 150_000
        assert any(target.endswith(f"images/{picture.name}") for target in shown), f"{picture.name} is on no page"


# ---- links and commands -----------------------------------------------------------------------------------------------------


def anchors(page):
    """The names that GitHub and mkdocs give the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!\w+:)([^)#\s]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
        path = (page.parent / target).resolve() if target else page
        assert path.exists(), target
        assert path.is_relative_to(ROOT), target
        assert not anchor or anchor in anchors(path), f"{target}#{anchor}"


def commands(page):
    """The lines of the page's bash blocks without comments, continued lines joined; of tables, what stands in backticks."""
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"```(?:bash)?\n(.*?)```", text, re.DOTALL)).replace("\\\n", " ")
    prose = " ".join(re.sub(r"```.*?```", "", text, flags=re.DOTALL).split())
    inline = re.findall(r"`((?:python|accelerate|torchrun) [^`]+)`", prose)
    for line in [*blocks.splitlines(), *inline]:
        for part in re.split(r" && | \| |; ", line):
            if re.match(r"(python|accelerate|torchrun|train\.py|eval\.py) ?", part.strip()) and "..." not in part:
                yield part.strip()


def arguments(command, program):
    """What a command gives to the program; None for another command. Placeholders are left as they are."""
    words = shlex.split(command, comments=True)
    at = next((i for i, word in enumerate(words) if word.endswith(program)), None)
    return None if at is None else words[at + 1 :]


def own_files(text):
    """Whether a command reads something of the reader's, such as mine.py, a run folder or CONFIG."""
    return re.search(r"\bmine\.py|\bmy\b|runs/|RUN|CONFIG|FILE|\$", text) is not None


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_commands_of_train_py_are_accepted(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    known = {key for key, *_ in every_option()} | {"run-dir", "resume", "stop-after", "dry-run", "replay", "estimators", "help"}
    for command in commands(page):
        words = arguments(command, "train.py")
        if words is None:
            continue
        for word in words:
            if word.startswith("--"):
                assert word[2:].partition("=")[0] in known, command
        if "--help" not in words and not own_files(re.sub(r"--run-dir[ =]\S+", "", " ".join(words))):
            trackers = re.search(r"run\.trackers=\[(.*?)\]", command)
            names = [name.strip() for name in trackers[1].split(",") if ".py:" not in name] if trackers else []
            if any(importlib.util.find_spec(name) is None for name in names):
                continue  # this environment lacks a tracker
            load([word for word in words if not re.fullmatch(r"[;&|].*", word)])


def program_of(command):
    """The file of the program that a command starts, train.py excepted; None for another command."""
    if module := re.search(r"python -m (minirl[\w.]*|benchmarks[\w.]*)", command):
        path = ROOT / module[1].replace(".", "/")
        return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")
    script = re.search(r"(?:^|\s)(eval\.py|(?:benchmarks|examples)/\w+\.py)(?:\s|$)", command)
    return ROOT / script[1] if script else None


def test_other_programs_in_commands_exist_and_have_their_options():
    known = {key for key, *_ in every_option()}
    found = {(program, command) for page in PAGES for command in commands(page) if (program := program_of(command))}
    assert len({program for program, _ in found}) > 12
    for program, command in found:
        assert program.is_file(), command
        after = command[command.index(program.stem if program.stem != "__main__" else program.parent.name) :]
        for option in re.findall(r"\s--([a-z][\w.-]*)", after.partition("#")[0]):
            assert option in known or f'"--{option}"' in program.read_text(encoding="utf-8"), f"--{option}: {command}"


# ---- configuration and messages ---------------------------------------------------------------------------------------------


def test_the_reference_of_options_is_fresh():
    text = (DOCS / "configuration.md").read_text(encoding="utf-8")
    assert text == reference(), "python -m minirl.config > docs/configuration.md"
    for key, _, about in every_option():
        section, _, name = key.rpartition(".")
        assert f"| `{name}` |" in text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        assert about["help"].split(":")[0].replace("|", "\\|") in text


@cache
def messages():
    """The texts of the code that a reader may see, with a zero character for what is filled in."""
    found = []
    for file in [ROOT / "train.py", *(ROOT / "minirl").rglob("*.py")]:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                found.append("".join(part.value if isinstance(part, ast.Constant) else "\0" for part in node.values))
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append(node.value)
    return found


LISTED = re.findall(r"^\| `([^`]+)` \|", (DOCS / "troubleshooting.md").read_text(encoding="utf-8"), re.MULTILINE)


def test_there_are_many_messages():
    assert len(LISTED) == len(set(LISTED)) > 30


@pytest.mark.parametrize("message", LISTED)
def test_a_message_of_the_troubleshooting_page_is_in_the_code(message):
    pattern = ".*".join(re.escape(part.strip(" ")) for part in message.split("..."))
    assert len(message.replace(".", "")) > 12
    assert any(re.search(pattern, text) for text in messages())


# ---- the site ---------------------------------------------------------------------------------------------------------------


def pages_of(nav):
    for entry in nav:
        value = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from pages_of(value) if isinstance(value, list) else [value]


def test_every_page_is_in_the_site_s_navigation_once():
    nav = list(pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]))
    assert sorted(nav) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


def test_the_site_builds_without_a_warning(tmp_path):
    if shutil.which("mkdocs") is None:
        pytest.skip("mkdocs is not installed: pip install 'minirl-llm[docs]'")
    command = ["mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_links_out_of_the_docs_lead_to_the_repository_or_are_plain_text():
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = SimpleNamespace(file=SimpleNamespace(src_uri="algorithms/edas.md"))
    text = "[`loss.py`](../../minirl/loss.py#L3), [v](../verifiers.md), [o](README.md#a), [w](https://a.b/c), ![p](../../x.png)"
    plain = hooks.on_page_markdown(text, page, SimpleNamespace(repo_url=None))
    assert plain == text.replace("[`loss.py`](../../minirl/loss.py#L3)", "`loss.py`")
    linked = hooks.on_page_markdown(text, page, SimpleNamespace(repo_url="https://h/r/"))
    assert linked == text.replace("../../minirl/loss.py#L3", "https://h/r/blob/main/minirl/loss.py")


def test_the_snippet_of_the_grader_page_prints_what_it_says(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", (DOCS / "grader.md").read_text(encoding="utf-8"), re.DOTALL)
    exec(block, {})
    assert capsys.readouterr().out.strip() == re.search(r"print\(.*\)  # (.*)", block)[1]
