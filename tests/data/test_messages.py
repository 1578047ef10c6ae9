"""Prompts that are conversations: every form in which data sets hold them, and what cannot be read."""

import json

import pytest

from minirl.data.messages import read_prompt
from minirl.utils.errors import ConfigError

TURNS = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "1+1"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "2+2"},
]


def read(value):
    return read_prompt(value, "prompt", "a.jsonl", 3)


@pytest.mark.parametrize(
    "value",
    [
        TURNS,
        json.dumps(TURNS),
        [{**turn, "content": [{"type": "text", "text": turn["content"]}]} for turn in TURNS],
        [
            {"role": t["role"], "content": [{"text": t["content"][:1]}, {"type": "text", "text": t["content"][1:]}]}
            for t in TURNS
        ],
        [{"from": {"user": "human", "assistant": "gpt"}.get(t["role"], "system"), "value": t["content"]} for t in TURNS],
        [{**turn, "tool_calls": None, "value": None, "from": None} for turn in TURNS],  # parquet: keys of other rows
    ],
)
def test_every_form_of_a_conversation_is_the_same_conversation(value):
    assert read(value) == ("2+2", TURNS)


def test_what_else_a_message_has_reaches_the_template():
    calls = [{"role": "user", "content": "x", "name": "Ann"}]
    assert read(calls) == ("x", calls)


@pytest.mark.parametrize("text", ["[1, 2]", "[{1}, {2}]", '[{"a": 1}]', "Solve [{x}]", "[{", "12", '[{"role": "user"'])
def test_a_text_that_looks_like_a_list_stays_a_text(text):
    assert read(text) == (text, [])


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "a.png"}]}], "part of type 'image_url'"),
        ([{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what?"}]}], "part of type 'image'"),
        ([{"role": "user", "content": ["bare"]}], "part of type 'str'"),
        ([{"role": "user", "content": {"a": 1}}], "holds a dict"),
        ([{"role": "user"}], "holds a NoneType"),
        ([{"role": "moderator", "content": "x"}], "message of 'moderator'; known are system, "),
        ([{"role": "system", "content": "x"}], "none of the user"),
        ([{"role": "user", "content": "a\ud800"}], "place 2"),
        ([{"role": "user", "content": "x"}, {"content": "y"}], "holds a list"),
        ([], "holds a list"),
        ({"role": "user", "content": "x"}, "holds a dict"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_row(value, says):
    with pytest.raises(ConfigError, match=says) as caught:
        read(value)
    assert "a.jsonl, row 3" in str(caught.value)
