"""The tokens that end a response, whatever the chat template does with the messages that are tried on it."""

import pytest

from minirl.rollout.engines import closing_text, stop_ids, tokens_containing
from minirl.tiny import make as tiny
from minirl.utils.errors import ConfigError

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


def test_a_stop_text_ends_a_response_at_every_token_that_contains_it():
    tokenizer = tiny.tokenizer()
    seven, plus = tokenizer.convert_tokens_to_ids(["7", "+"])
    assert tokens_containing(tokenizer, ["7", "+"]) == {"7": [seven], "+": [plus]}
    assert stop_ids(tokenizer, None, ["7", "+"]) == sorted([tokenizer.eos_token_id, seven, plus])


def test_a_stop_text_that_no_token_contains_is_refused_with_its_tokens():
    with pytest.raises(ConfigError) as error:
        stop_ids(tiny.tokenizer(), None, ["7", "12", "34"])
    assert "rollout.stop (eval.py: --stop): no single token of the tokenizer contains '12', '34', and" in str(error.value)
    assert "'12' is encoded as '1', '2'; '34' is encoded as '3', '4'; name a text" in str(error.value)
