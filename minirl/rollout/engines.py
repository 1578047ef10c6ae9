"""Builds the sampling engine and finds its stop token ids."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from minirl.config.options import Config
from minirl.data.prompts import TEMPLATE_ERRORS
from minirl.rollout.types import Engine, EnginePolicy


def stop_ids(tokenizer: Any, generation_config: Any, stop: Sequence[str]) -> list[int]:
    """Token ids that end a response: the EOS tokens of tokenizer and model, the special token with which the chat template
    closes a turn, and every token whose text contains a text of `stop`."""
    ends = generation_config.eos_token_id if generation_config is not None else None
    ids = {tokenizer.eos_token_id, *(ends if isinstance(ends, list) else [ends])} - {None}
    after = tokenizer(closing_text(tokenizer), add_special_tokens=False)["input_ids"][:1]
    # A base model's EOS token often differs from the one of its template (Qwen3-4B-Base: <|endoftext|>, <|im_end|>).
    ids |= {i for i in after if i in tokenizer.added_tokens_decoder and tokenizer.added_tokens_decoder[i].special}
    if stop:
        texts = tokenizer.batch_decode([[i] for i in range(len(tokenizer))])
        ids |= {i for i, text in enumerate(texts) if any(s in text for s in stop)}
    return sorted(ids)


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
