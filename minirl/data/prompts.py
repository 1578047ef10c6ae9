"""Problems as token ids, and the seeded order in which a run draws them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from jinja2 import TemplateError

from minirl.config.options import DataConfig
from minirl.data.problems import same_text
from minirl.utils.errors import ConfigError
from minirl.verify.types import Problem


@dataclass(frozen=True)
class Prompt:
    """A problem ready to be sampled: its text after the template, and that text's token ids."""

    problem: Problem
    text: str
    ids: list[int]


def encode_prompts(
    problems: Sequence[Problem], tokenizer: Any, config: DataConfig, notes: list[str], what: str
) -> list[Prompt]:
    """The problems as token ids, through the template and, if asked, the tokenizer's chat template; long ones are dropped."""
    if config.chat and not getattr(tokenizer, "chat_template", None):
        raise ConfigError(
            "the tokenizer has no chat template: use a chat model, or set data.chat=false and write the whole prompt in "
            "data.template"
        )
    texts = []
    for p in problems:
        # Not str.format: problems are full of braces.
        text = config.template.replace("{problem}", p.prompt)
        if config.chat:
            messages = [{"role": "system", "content": config.system}] if config.system else []
            messages.append({"role": "user", "content": text})
            try:
                text = tokenizer.apply_chat_template(
                    messages, tokenize=False, add_generation_prompt=True, **config.chat_arguments
                )
            except (TemplateError, TypeError) as error:
                raise ConfigError(
                    f"the chat template refuses the messages of problem {p.id}: {error}; see data.system"
                ) from None
        texts.append(text)
    # A chat template writes its own special tokens: adding them again would double the BOS.
    ids = tokenizer(texts, add_special_tokens=not config.chat)["input_ids"] if texts else []
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
    odd = [p for p in kept[:500] if same_text(tokenizer.decode(p.ids)) != same_text(p.text)]
    if odd:
        notes.append(
            f"{len(odd)} of the first {min(500, len(kept))} {what} prompts do not survive tokenising, such as "
            f"{odd[0].text[:80]!r}, which the model sees as {tokenizer.decode(odd[0].ids)[:80]!r}"
        )
    return kept


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
