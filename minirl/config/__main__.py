"""The reference of all options as Markdown: python -m minirl.config > docs/configuration.md"""

import json
from collections.abc import Mapping
from typing import Any

from minirl.config.options import every_option

HEAD = """# Configuration

Every option of `train.py`, as `python -m minirl.config > docs/configuration.md` writes it from the dataclasses in
`minirl/config/options.py`. They stand in a YAML file by section, or on the command line as `--section.key=value`, which wins.
`null` leaves the choice to the estimator, or means what the text says. `python train.py --help` has the same as text.
"""
LIMITS = {"minimum": "at least", "above": "above", "maximum": "at most", "below": "below"}


def reference() -> str:
    """The page."""
    sections: dict[str, list[str]] = {}
    for key, default, about in every_option():
        section, _, name = key.rpartition(".")
        rows = sections.setdefault(section, [f"## {section}\n", "| option | default | meaning |", "|---|---|---|"])
        rows.append(f"| `{name}` | {code(default)} | {meaning(about)} |")
    return "\n".join([HEAD, *("\n".join([*rows, ""]) for rows in sections.values())])


def code(value: Any) -> str:
    """A value as it is written in YAML."""
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def meaning(about: Mapping[str, Any]) -> str:
    """The help text, what may be chosen, and the limits, for one cell of a table."""
    text = about["help"] + (f": {', '.join(f'`{choice}`' for choice in about['choices'])}" if "choices" in about else "")
    limits = [f"{words} {about[limit]}" for limit, words in LIMITS.items() if limit in about]
    return (text + (f" ({', '.join(limits)})" if limits else "")).replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    print(reference(), end="")
