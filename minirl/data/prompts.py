"""Prompts: problems as token ids, and the seeded order in which a run draws them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from jinja2 import TemplateError

from minirl.config.options import DataConfig
from minirl.data.problems import same_text
from minirl.utils.errors import ConfigError, require
from minirl.verify.types import Problem

# What rendering a chat template can raise: its own refusals, and errors in its code.
TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
MASK = "\ue000"  # a private-use character
DATE = re.compile(r"""strftime_now\((["'])(.*?)\1\)""")  # the call of a chat template that prints the date


@dataclass(frozen=True)
class Prompt:
    """A problem with the text that the model sees and its token ids."""

    problem: Problem
    text: str
    ids: list[int]


def encode_prompts(
    problems: Sequence[Problem], tokenizer: Any, config: DataConfig, notes: list[str], what: str
) -> list[Prompt]:
    """The problems as prompts, by data.template and, with data.chat, the tokenizer's chat template; long ones are dropped.

    Special tokens in a problem are encoded as plain text, so that a problem cannot end the user's turn. notes: is extended;
    what: "training" or "held-out", for these notes.
    """
    if config.chat and not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            "the tokenizer has no chat template: use a chat model, or set data.chat=false and write the whole prompt in "
            "data.template"
        )
    texts = [prompt_text(messages_of(p), tokenizer, config) for p in problems]
    # A chat template adds the special tokens itself; a second BOS would be wrong.
    ids = tokenizer(texts, add_special_tokens=not config.chat)["input_ids"] if texts else []
    special = {i: token.content for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    pattern = re.compile("|".join(map(re.escape, sorted(special.values(), key=len, reverse=True))) or "(?!)")
    with_special = [i for i, p in enumerate(problems) if any(pattern.search(message["content"]) for message in messages_of(p))]
    for i in with_special:
        ids[i] = ids_as_text(problems[i], texts[i], special, pattern, tokenizer, config)
    prompts = [Prompt(*row) for row in zip(problems, texts, ids, strict=True)]
    kept = [p for p in prompts if 0 < len(p.ids) <= config.max_prompt_tokens]
    if not any(p.ids for p in prompts):
        raise ConfigError("the tokenizer turns every prompt into nothing: the model folder lacks its tokenizer files")
    if not kept:
        shortest = min(len(p.ids) for p in prompts)
        raise ConfigError(
            f"every {what} prompt is longer than data.max_prompt_tokens={config.max_prompt_tokens} (the shortest has "
            f"{shortest} tokens): raise it"
        )
    prefilled = [p for p in problems if messages_of(p)[-1]["role"] == "assistant"]
    bos = "" if config.chat else tokenizer.bos_token or ""
    changed = [p for p in kept[:500] if same_text(tokenizer.decode(p.ids).removeprefix(bos)) != same_text(p.text)]
    dropped, example = len(prompts) - len(kept), problems[with_special[0]].id if with_special else ""
    for count, note in (
        (dropped, f"are empty or longer than data.max_prompt_tokens={config.max_prompt_tokens} and were dropped"),
        (len(with_special), f"contain special tokens, which were encoded as text, such as {example}"),
        (len(prefilled), "end with an assistant message, which responses continue"),
    ):
        if count:
            notes.append(f"{count} of {len(prompts)} {what} prompts {note}")
    if changed:
        notes.append(
            f"{len(changed)} of the first {min(500, len(kept))} {what} prompts do not survive tokenising, such as "
            f"{changed[0].text[:80]!r}, which the model sees as {tokenizer.decode(changed[0].ids)[:80]!r}"
        )
    return kept


def messages_of(problem: Problem) -> list[dict[str, Any]]:
    """The problem as a conversation; a plain text is one user message."""
    return problem.messages or [{"role": "user", "content": problem.prompt}]


def prompt_text(messages: list[dict[str, Any]], tokenizer: Any, config: DataConfig) -> str:
    """A conversation as the text that the model sees. data.template is applied to the last user message; chat templates that
    print the date get data.template_date. ConfigError for messages that the chat template refuses."""
    last = max(i for i, message in enumerate(messages) if message["role"] == "user")
    text = config.template.replace("{problem}", messages[last]["content"])  # not str.format: problems are full of braces
    if not config.chat:
        require(
            len(messages) == 1, f"a conversation of {len(messages)} messages needs data.chat=true, the last is {text[-80:]!r}"
        )
        return text
    messages = [*messages[:last], {**messages[last], "content": text}, *messages[last + 1 :]]
    if config.system and messages[0]["role"] not in ("system", "developer"):
        messages.insert(0, {"role": "system", "content": config.system})
    prefilled = messages[-1]["role"] == "assistant"
    day = datetime.fromisoformat(config.template_date) if config.template_date else datetime.now()
    given = config.chat_arguments
    try:
        template = tokenizer.get_chat_template(given.get("chat_template"), given.get("tools"))
        dated = DATE.sub(lambda call: repr(day.strftime(call[2])), template)  # no function reaches it from transformers 5.24 on
        arguments = {"add_generation_prompt": not prefilled, "continue_final_message": prefilled} | given
        return str(tokenizer.apply_chat_template(messages, tokenize=False, **(arguments | {"chat_template": dated})))
    except TEMPLATE_ERRORS as error:
        raise ConfigError(
            f"the chat template refuses {text[-80:]!r}: {error}; see data.system and data.chat_arguments"
        ) from None


def ids_as_text(
    problem: Problem, text: str, special: dict[int, str], pattern: re.Pattern[str], tokenizer: Any, config: DataConfig
) -> list[int]:
    """Token ids of a prompt in which special tokens of the problem itself are encoded as plain text.

    Rendering the prompt again with these tokens masked in the problem tells them from those that the template adds.
    """
    found = {token for message in messages_of(problem) for token in pattern.findall(message["content"])}
    spelled = {
        i: tokenizer(token, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        for i, token in special.items()
        if token in found
    }
    messages = [
        {**message, "content": pattern.sub(lambda token: MASK * len(token[0]), message["content"])}
        for message in messages_of(problem)
    ]
    masked = prompt_text(messages, tokenizer, config)
    if not tokenizer.is_fast or len(masked) != len(text) or any(special.keys() & set(ids) for ids in spelled.values()):
        raise ConfigError(
            f"problem {problem.id} contains a special token, {min(found)!r}, which its tokenizer or chat template does not "
            "take as text: mend or remove the problem"
        )
    whole = tokenizer(text, add_special_tokens=not config.chat, return_offsets_mapping=True)
    parts = zip(whole["input_ids"], whole["offset_mapping"], strict=True)
    return [j for i, (a, b) in parts for j in (spelled[i] if i in spelled and MASK in masked[a:b] else [i])]


class Order:
    """An endless seeded order of `size` items, a permutation for each epoch. position: draws so far, its only state."""

    def __init__(self, size: int, seed: int, position: int = 0) -> None:
        self.size, self.seed, self.position = size, seed, position
        self._epoch, self._permutation = -1, np.empty(0, dtype=np.int64)

    def draw(self, count: int) -> list[tuple[int, int]]:
        """The next `count` pairs (draw number, item index). Draw numbers are unique in a run: group ids, and parts of seeds."""
        drawn = []
        for number in range(self.position, self.position + count):
            epoch, index = divmod(number, self.size)
            if epoch != self._epoch:
                self._epoch, self._permutation = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.size)
            drawn.append((number, int(self._permutation[index])))
        self.position += count
        return drawn
