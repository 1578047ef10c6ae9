"""Problems as token ids, and the seeded order in which a run draws them."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

import numpy as np
from jinja2 import TemplateError

from minirl.config.options import DataConfig
from minirl.data.problems import same_text
from minirl.utils.errors import ConfigError, require
from minirl.verify.types import Problem

# What the code of a chat template raises; the last ones are mistakes in it, or messages that it is not made for.
TEMPLATE_ERRORS = (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
HIDDEN = "\ue000"  # a character of private use, in place of each one of a special token's text


@dataclass(frozen=True)
class Prompt:
    """A problem ready to be sampled: its text after the template, and that text's token ids."""

    problem: Problem
    text: str
    ids: list[int]


def encode_prompts(
    problems: Sequence[Problem], tokenizer: Any, config: DataConfig, notes: list[str], what: str
) -> list[Prompt]:
    """The problems as token ids, through the template and, if asked, the tokenizer's chat template; long ones are dropped.

    Special tokens in a problem's text are encoded as the text that they are: a problem cannot end the user's turn.
    """
    if config.chat and not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            "the tokenizer has no chat template: use a chat model, or set data.chat=false and write the whole prompt in "
            "data.template"
        )
    texts = [prompt_text(p, tokenizer, config) for p in problems]
    # A chat template writes its own special tokens: adding them again would double the BOS.
    ids = tokenizer(texts, add_special_tokens=not config.chat)["input_ids"] if texts else []
    controls = control_tokens(tokenizer)
    found = [i for i, p in enumerate(problems) if any(map(controls.search, contents(p)))]
    for i in found:
        ids[i] = ids_as_text(problems[i], texts[i], controls, tokenizer, config)
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
    if len(kept) < len(prompts):
        notes.append(
            f"{len(prompts) - len(kept)} of {len(prompts)} {what} prompts are empty or longer than data.max_prompt_tokens="
            f"{config.max_prompt_tokens} and were dropped"
        )
    if found:
        notes.append(
            f"{len(found)} of {len(prompts)} {what} problems contain special tokens, which were encoded as text, such as "
            f"{problems[found[0]].id}"
        )
    if begun := sum(p.messages[-1]["role"] == "assistant" for p in problems if p.messages):
        notes.append(f"{begun} of {len(prompts)} {what} problems end with an assistant message, which responses continue")
    begin = "" if config.chat else tokenizer.bos_token or ""
    if odd := [p for p in kept[:500] if same_text(tokenizer.decode(p.ids).removeprefix(begin)) != same_text(p.text)]:
        notes.append(
            f"{len(odd)} of the first {min(500, len(kept))} {what} prompts do not survive tokenising, such as "
            f"{odd[0].text[:80]!r}, which the model sees as {tokenizer.decode(odd[0].ids)[:80]!r}"
        )
    return kept


def contents(problem: Problem) -> list[str]:
    """The texts of a problem, before any template."""
    return [message["content"] for message in problem.messages] or [problem.prompt]


def prompt_text(problem: Problem, tokenizer: Any, config: DataConfig) -> str:
    """What the model sees of a problem, as text. data.template shapes the last message of the user."""
    messages = [dict(message) for message in problem.messages] or [{"role": "user", "content": problem.prompt}]
    asked = [message for message in messages if message["role"] == "user"][-1]
    asked["content"] = config.template.replace("{problem}", asked["content"])  # not str.format: problems are full of braces
    if not config.chat:
        require(
            len(messages) == 1, f"problem {problem.id} has {len(messages)} messages, which need a chat template: set data.chat"
        )
        return str(asked["content"])
    if config.system and messages[0]["role"] not in ("system", "developer"):
        messages.insert(0, {"role": "system", "content": config.system})
    begun = messages[-1]["role"] == "assistant"
    return rendered(messages, tokenizer, config, add_generation_prompt=not begun, continue_final_message=begun)


def rendered(messages: Sequence[dict[str, Any]], tokenizer: Any, config: DataConfig, **more: bool) -> str:
    """The messages through the chat template, on the day `data.template_date`. ConfigError when it refuses them."""
    day = datetime.fromisoformat(config.template_date) if config.template_date else datetime.now()
    arguments = {"strftime_now": day.strftime, **config.chat_arguments, **more}
    try:
        return str(tokenizer.apply_chat_template(list(messages), tokenize=False, **arguments))
    except TEMPLATE_ERRORS as error:
        text = str(messages[-1]["content"])
        raise ConfigError(
            f"the chat template refuses {text[-80:]!r}: {error}; see data.system and data.chat_arguments"
        ) from None


def control_tokens(tokenizer: Any) -> re.Pattern[str]:
    """A pattern for the texts of the tokenizer's special tokens."""
    texts = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")


def ids_as_text(problem: Problem, text: str, controls: re.Pattern[str], tokenizer: Any, config: DataConfig) -> list[int]:
    """The ids of a prompt's text, those of special tokens in the problem itself replaced by the ids of their text."""

    def hide(content: str) -> str:
        return controls.sub(lambda match: HIDDEN * len(match[0]), content)

    hidden_messages = [{**message, "content": hide(message["content"])} for message in problem.messages]
    hidden = prompt_text(replace(problem, prompt=hide(problem.prompt), messages=hidden_messages), tokenizer, config)
    special = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    whole = tokenizer(text, add_special_tokens=not config.chat, return_offsets_mapping=True)
    ids: list[int] = []
    for i, (start, end) in zip(whole["input_ids"], whole["offset_mapping"], strict=True):
        own = i in special and HIDDEN in hidden[start:end]
        part = tokenizer(text[start:end], add_special_tokens=False, split_special_tokens=True)["input_ids"] if own else [i]
        if len(hidden) != len(text) or (own and special & set(part)):
            raise ConfigError(
                f"problem {problem.id} contains a special token, {text[start:end]!r}, which its tokenizer or chat template "
                "does not take as text: mend or remove the problem"
            )
        ids += part
    return ids


class Order:
    """An endless seeded order over `size` items: one permutation an epoch. `position` counts draws and is all its state."""

    def __init__(self, size: int, seed: int, position: int = 0) -> None:
        self.size, self.seed, self.position = size, seed, position
        self._epoch, self._permutation = -1, np.empty(0, dtype=np.int64)

    def draw(self, count: int) -> list[tuple[int, int]]:
        """The next `count` pairs (draw number, item index). Draw numbers never repeat in a run: they name groups and seeds."""
        drawn = []
        for number in range(self.position, self.position + count):
            epoch, place = divmod(number, self.size)
            if epoch != self._epoch:
                self._epoch, self._permutation = epoch, np.random.default_rng([self.seed, epoch]).permutation(self.size)
            drawn.append((number, int(self._permutation[place])))
        self.position += count
        return drawn
