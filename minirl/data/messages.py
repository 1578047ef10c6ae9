"""Prompts that are conversations, in common formats: [{"role": ..., "content": ...}], also as JSON text, or with
contents such as [{"type": "text", "text": ...}], and ShareGPT's [{"from": ..., "value": ...}]."""

import json
from contextlib import suppress
from typing import Any

from minirl.data.rows import text_of
from minirl.utils.errors import ConfigError, require

ROLES = {role: role for role in ("system", "developer", "user", "assistant", "tool")} | {"human": "user", "gpt": "assistant"}


def read_prompt(value: Any, column: str, source: str, row: int) -> tuple[str, list[dict[str, Any]]]:
    """(text, messages) of a prompt column's value: a plain text and [], or a conversation's last user message and all its
    messages, each with role, content and its other keys. ConfigError for anything else, such as a message with an image."""
    found = value
    if isinstance(value, str) and value.lstrip().startswith("[{"):
        with suppress(ValueError, RecursionError):
            found = json.loads(value)
    if not (isinstance(found, list) and found and all(isinstance(m, dict) and {"role", "from"} & m.keys() for m in found)):
        return text_of(value, column, source, row), []
    messages = [read_message(message, column, source, row) for message in found]
    user = [message["content"] for message in messages if message["role"] == "user"]
    require(bool(user), f"{source}, row {row}: the messages in column {column!r} have none of the user: mend or remove the row")
    return user[-1], messages


def read_message(message: dict[str, Any], column: str, source: str, row: int) -> dict[str, Any]:
    """A message in the "role" and "content" format. Null values, which parquet adds for missing keys, are left out."""
    rest = {
        key: value for key, value in message.items() if value is not None and key not in ("role", "from", "content", "value")
    }
    role = message.get("role") or message.get("from")
    content = message.get("content") if message.get("content") is not None else message.get("value")
    if not isinstance(role, str) or role not in ROLES:
        raise ConfigError(f"{source}, row {row}: column {column!r} has a message of {role!r}; known are {', '.join(ROLES)}")
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type", "text") != "text" or not isinstance(part.get("text"), str):
                kind = part.get("type") if isinstance(part, dict) else type(part).__name__
                raise ConfigError(f"{source}, row {row}: column {column!r} has a part of type {kind!r}; only text can be read")
        content = "".join(part["text"] for part in content)
    return {"role": ROLES[role], "content": text_of(content, column, source, row), **rest}
