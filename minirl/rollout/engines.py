"""Builds the sampling engine and finds its stop token ids."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from minirl.config.options import Config
from minirl.data.prompts import TEMPLATE_ERRORS
from minirl.rollout.types import Engine, EnginePolicy
from minirl.utils.errors import ConfigError


def stop_ids(tokenizer: Any, generation_config: Any, stop: Sequence[str]) -> list[int]:
    """Token ids that end a response: the EOS tokens of tokenizer and model, the special token with which the chat template
    closes a turn, and every token whose text contains a text of `stop`. ConfigError for a text that no token contains."""
    ends = generation_config.eos_token_id if generation_config is not None else None
    ids = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
    after = tokenizer(closing_text(tokenizer), add_special_tokens=False)["input_ids"][:1]
    # A base model's EOS token often differs from the one of its template (Qwen3-4B-Base: <|endoftext|>, <|im_end|>).
    ids |= {i for i in after if i in tokenizer.added_tokens_decoder and tokenizer.added_tokens_decoder[i].special}
    return sorted(ids.union(*tokens_containing(tokenizer, stop).values()))


def tokens_containing(tokenizer: Any, stop: Sequence[str]) -> dict[str, list[int]]:
    """The ids of the tokens that contain each text of `stop`. ConfigError when there is none: engines end a response at tokens,
    so that such a text would never end one, and what follows it would be trained on though no verifier reads it."""
    texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))]) if stop else []
    found = {text: [i for i, token in enumerate(texts) if text in token] for text in stop}
    if missing := [text for text, ids in found.items() if not ids]:
        ids = [tokenizer(text, add_special_tokens=False)["input_ids"] for text in missing]
        spread = "; ".join(
            f"{t!r} is encoded as {', '.join(repr(texts[i]) for i in row)}" for t, row in zip(missing, ids, strict=True)
        )
        raise ConfigError(
            f"rollout.stop (eval.py: --stop): no single token of the tokenizer contains {', '.join(map(repr, missing))}, and a "
            f"response ends at a token: {spread}; name a text that lies within one token, or leave it out and let the model "
            f"end its response with {tokenizer.eos_token!r}"
        )
    return found


def closing_text(tokenizer: Any) -> str:
    """The text that the chat template puts after an assistant message; "" without a template or where it refuses one."""
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "the answer"}]
    for messages in (turns, [{"role": "system", "content": "b"}, *turns]) if tokenizer.chat_template else ():
        with suppress(*TEMPLATE_ERRORS):
            _, found, text = str(tokenizer.apply_chat_template(messages, tokenize=False)).rpartition("the answer")
            if found:
                return text
    return ""


def build_engine(config: Config, policy: EnginePolicy, tokenizer: Any, longest_prompt: int) -> Engine:
    """The engine that `rollout.engine` names, holding the policy's weights. longest_prompt: tokens."""
    rollout = config.rollout
    ends = stop_ids(tokenizer, policy.model.generation_config, rollout.stop)
    if rollout.engine == "vllm":
        from minirl.rollout.vllm import VllmEngine

        return VllmEngine(config, policy, ends, longest_prompt)
    from minirl.rollout.hf import TransformersEngine

    engine = TransformersEngine(policy.model, ends, policy.vocabulary, rollout.max_sequences, policy.autocast)
    engine.sync(policy)
    return engine
