"""A hook of mkdocs: links that lead out of docs/, to code, become links into `repo_url`, or plain text while there is none."""

import posixpath
import re
from typing import Any

LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!\w+:|#)([^)#\s]+)(#[^)]*)?\)")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """The text of a page with those links changed; a page's path is relative to docs/."""
    folder = posixpath.dirname(page.file.src_uri)

    def changed(found: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(folder, found[2]))
        if not path.startswith("../"):
            return found[0]
        return f"[{found[1]}]({config.repo_url.rstrip('/')}/blob/main/{path[3:]})" if config.repo_url else found[1]

    return LINK.sub(changed, markdown)
