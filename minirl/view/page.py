"""The HTML of the page: page.html with the library of charts and the runs' contents put in."""

import base64
import json
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any

from minirl.view.read import Contents, pack


@cache
def library() -> str:
    """plotly.js out of the plotly package, deflated, as base64."""
    return base64.b64encode(zlib.compress((files("plotly") / "package_data" / "plotly.min.js").read_bytes(), 9)).decode()


def page(runs: Sequence[Contents]) -> str:
    """The page of one run or two. Its text is ASCII: whatever a response contains is JSON in which "<" is escaped too, or
    base64."""
    contents = []
    for run in runs:
        content: dict[str, Any] = asdict(run)
        contents.append(content | {"curves": pack(content["curves"])})
    data = {"runs": contents, "differences": differences(runs), "written": f"{datetime.now():%Y-%m-%d %H:%M}"}
    template = (files("minirl.view") / "page.html").read_text(encoding="utf-8")
    before, _, rest = template.partition("@DATA@")
    between, _, after = rest.partition("@LIBRARY@")
    text = json.dumps(data, allow_nan=False).replace("<", "\\u003c")
    return f"{before}{text}{between}{library()}{after}"


def differences(runs: Sequence[Contents]) -> list[list[Any]]:
    """[option, its value in each run] where two runs differ; the run folder is no difference."""
    if len(runs) < 2:
        return []
    names = dict.fromkeys(name for run in runs for name in run.options)
    values = {name: [run.options.get(name) for run in runs] for name in names if name != "run.dir"}
    return [[name, *pair] for name, pair in values.items() if pair[0] != pair[1]]
