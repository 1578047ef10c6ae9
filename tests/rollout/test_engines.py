"""The tokens that end a response, whatever the chat template does with the messages that are tried on it."""

import pytest

from minirl.rollout.engines import closing_text, stop_ids
from minirl.tiny import make as tiny

NEEDS_SYSTEM = "{% if messages[0].role != 'system' %}{{ raise_exception('no system message') }}{% endif %}" + tiny.CHAT_TEMPLATE


@pytest.mark.parametrize(
    ("template", "closing"),
    [
        (tiny.CHAT_TEMPLATE, "<eos>"),
        (NEEDS_SYSTEM, "<eos>"),
        ("{% for m in messages %}{% if m.role == 'assistant' %}{{ raise_exception('no') }}{% endif %}{% endfor %}", ""),
        ("{{ messages[5].content }}", ""),
        ("{{ 1 / 0 }}", ""),
        ("{% for m in messages %}<user>{{ m.content | upper }}<eos>{% endfor %}", ""),
        ("{% for m in messages if m.role == 'user' %}<user>{{ m.content }}{% endfor %}", ""),
        (None, ""),
    ],
)
def test_stop_ids_come_from_any_template(template, closing):
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = template
    assert closing_text(tokenizer) == closing
    assert stop_ids(tokenizer, None, []) == [tokenizer.eos_token_id]
