"""Problems, prompts and their order."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minirl.config.options import DataConfig
from minirl.data import arithmetic, fewshot
from minirl.data.problems import load_problems, unreadable_answers
from minirl.data.prompts import Order, encode_prompts
from minirl.tiny import make as tiny
from minirl.utils.errors import ConfigError
from minirl.verify.types import Problem


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture
def rows():
    return [{"id": f"q{i}", "problem": f"What is {i} + {{1}}?", "answer": str(i + 1)} for i in range(20)]


def dataset(train, **more):
    return DataConfig(task="dataset", train=train, **more)


@pytest.mark.parametrize("make", [arithmetic.problems, fewshot.problems])
def test_generated_splits_are_right_and_never_overlap(make):
    train, test = make("train"), make("test")
    assert len({p.prompt for p in train} | {p.prompt for p in test}) == len(train) + len(test)
    assert train == make("train"), "the same at every call"
    for p in train + test:
        question = p.prompt.splitlines()[-1].removesuffix("=").replace(" ", "")
        a, b = question.replace("+", "*").split("*")
        assert int(p.answer) == (int(a) * int(b) if "*" in question else int(a) + int(b))


def test_few_shots_are_right_and_never_held_out():
    asked = {p.prompt.splitlines()[-1] for p in fewshot.problems("test")}
    for p in fewshot.problems("train") + fewshot.problems("test"):
        for shot in p.prompt.splitlines()[:-1]:
            question, answer = shot.split("=")
            assert eval(question) == int(answer)
            assert f"{question}=" not in asked


def test_jsonl_with_columns_and_held_out_part(tmp_path, rows):
    train, test, _ = load_problems(dataset(write(tmp_path / "a.jsonl", rows), test_size=5))
    assert (len(train), len(test)) == (15, 5)
    assert not {p.prompt for p in train} & {p.prompt for p in test}
    assert all(p.answer == str(int(p.prompt.split()[2]) + 1) for p in train + test)
    shuffled = write(tmp_path / "b.jsonl", rows[::-1])
    assert {p.id for p in load_problems(dataset(shuffled, test_size=5))[1]} == {p.id for p in test}, "held out by content"


def test_parquet_and_other_column_names(tmp_path, rows):
    import pyarrow as pa
    import pyarrow.parquet as pq

    renamed = [{"question": r["problem"], "solution": f"so\n#### {r['answer']}", "level": 3} for r in rows]
    pq.write_table(pa.Table.from_pylist(renamed), tmp_path / "a.parquet")
    config = dataset(
        str(tmp_path / "a.parquet"), prompt_column="question", answer_column="solution", answer_pattern=r"####\s*(\S+)",
        extra_info_columns=["level"], test_size=1,
    )  # fmt: skip
    train, _, _ = load_problems(config)
    assert train[0].answer == str(int(train[0].prompt.split()[2]) + 1)
    assert train[0].extra_info == {"level": 3}


def test_problems_of_the_test_set_are_dropped_from_training_and_said(tmp_path, rows):
    config = dataset(write(tmp_path / "a.jsonl", [*rows, rows[0]]), test=write(tmp_path / "t.jsonl", rows[:3]))
    train, test, notes = load_problems(config)
    assert (len(train), len(test)) == (17, 3)
    assert any("3 training problems" in n for n in notes)
    assert any("1 repeated" in n for n in notes)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"train": "no.jsonl"}, "no data file no.jsonl"),
        ({"prompt_column": "question"}, "row 1 has no column 'question' .*problem"),
        ({"extra_info_columns": ["tests"]}, "'tests'"),
        ({"test_size": 20}, "too few"),
        ({"answer_pattern": "x(y"}, "regular expression"),
        ({"answer_pattern": "####(.*)"}, "row 1: data.answer_pattern"),
        ({"answer_pattern": r"\d+( apples)?"}, r"row 1: data.answer_pattern=.* finds no group in the answer '1'"),
    ],
)  # fmt: skip
def test_bad_data_is_named(tmp_path, rows, change, says):
    config = replace(dataset(write(tmp_path / "a.jsonl", rows), test_size=5), **change)
    with pytest.raises(ConfigError, match=says):
        load_problems(config)


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "has no rows"), ('{"problem": "a", "answer": "1"}\n{"problem": ', "line 2"), ("[1]\n", "line 1"), ("\xff", "line 1")],
)  # fmt: skip
def test_bad_files_are_named(tmp_path, text, says):
    (tmp_path / "a.jsonl").write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match=says):
        load_problems(dataset(str(tmp_path / "a.jsonl")))


GOOD = b'{"problem": "a", "answer": "1"}\n'


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (GOOD + b'\n{"problem": "b", "ans', r"line 3 is not JSON .*cut off there"),
        (GOOD + b"\x00" * 40 + b"\n" + GOOD, "line 2 is not JSON"),
        (GOOD + b'{"problem": "b", "answer": "2", "answer": "3"}\n', "line 2 .*key 'answer' stands in it twice"),
        (GOOD + b'{"problem": "b\xe2", "answer": "2"}\n', "line 2 .*utf-8"),
        (GOOD + b"[" * 100_000 + b"\n", "line 2 is not JSON"),
        (GOOD + b'{"problem": "b", "answer": ' + b"9" * 5000 + b"}\n", "line 2 is not JSON"),
        (GOOD + b'\n{"problem": "b\\u0000", "answer": "2"}\n', r"row 3: column 'problem' .*'\\x00' at place 2"),
        (GOOD + b'{"problem": "b", "answer": "\\ud800"}\n', r"row 2: column 'answer' .*'\\ud800' at place 1"),
        (GOOD + b'{"problem": "b", "answer": NaN}\n', "row 2: column 'answer' holds nan"),
    ],
)
def test_damaged_and_hand_edited_rows_are_named_by_their_line(tmp_path, content, says):
    (tmp_path / "a.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        load_problems(dataset(str(tmp_path / "a.jsonl"), test_size=1))


def test_a_byte_order_mark_and_empty_lines_are_no_damage_and_repeats_are_said(tmp_path):
    lines = [b"\xef\xbb\xbf" + GOOD.strip(), b"", b'{"problem": "b", "answer": "2"}\r', GOOD.strip(), b"  "]
    (tmp_path / "a.jsonl").write_bytes(b"\n".join(lines))
    train, test, notes = load_problems(dataset(str(tmp_path / "a.jsonl"), test_size=1))
    assert {(p.id, p.prompt, p.answer) for p in train + test} == {("1", "a", "1"), ("3", "b", "2")}
    assert notes == ["1 repeated problems were dropped"]


def test_a_broken_parquet_file_is_named(tmp_path):
    (tmp_path / "a.parquet").write_text("not parquet")
    with pytest.raises(ConfigError, match="parquet"):
        load_problems(dataset(str(tmp_path / "a.parquet")))


def test_gold_answers_that_cannot_be_read_are_reported_with_their_row():
    problems = [Problem("a", "", "3/4"), Problem("b", "", ""), Problem("c", "", "2^")]
    (note,) = unreadable_answers(problems, "training")
    assert note.startswith("2 of 3 training problems")
    assert "b: the gold answer is empty" in note
    assert "c: " in note
    assert unreadable_answers(arithmetic.problems("test"), "held-out") == []


# ---- prompts ---------------------------------------------------------------------------------------------------------------


def test_prompts_go_through_the_chat_template_once():
    notes: list[str] = []
    (prompt,) = encode_prompts([Problem("1", "12*3=", "36")], tiny.tokenizer(), DataConfig(), notes, "training")
    assert prompt.text == "<user>12*3=<assistant>"
    assert tiny.tokenizer().decode(prompt.ids) == prompt.text
    assert notes == []


def test_the_template_does_not_touch_braces_of_the_problem():
    config = DataConfig(chat=False, template="{problem}=")
    (prompt,) = encode_prompts([Problem("1", "\\boxed{1}*2", "")], tiny.tokenizer(), config, [], "training")
    assert prompt.text == "\\boxed{1}*2="


def test_long_prompts_are_dropped_counted_and_said():
    notes: list[str] = []
    config = DataConfig(max_prompt_tokens=6, chat=False)
    kept = encode_prompts([Problem("1", "1*2", ""), Problem("2", "1*2*3*4*5", "")], tiny.tokenizer(), config, notes, "training")
    assert [p.problem.id for p in kept] == ["1"]
    assert notes == ["1 of 2 training prompts are empty or longer than data.max_prompt_tokens=6 and were dropped"]
    with pytest.raises(ConfigError, match="every training prompt"):
        encode_prompts([Problem("2", "1*2*3*4*5", "")], tiny.tokenizer(), config, [], "training")


def test_a_tokenizer_without_chat_template_is_refused():
    tokenizer = tiny.tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(ConfigError, match=r"data\.chat=false"):
        encode_prompts([Problem("1", "1*2", "")], tokenizer, DataConfig(), [], "training")


# ---- order -----------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.integers(0, 5), st.lists(st.integers(0, 20), max_size=8))
def test_order_is_a_permutation_an_epoch_however_it_is_drawn(size, seed, counts):
    whole = Order(size, seed).draw(3 * size)
    for epoch in range(3):
        assert sorted(i for _, i in whole[epoch * size : (epoch + 1) * size]) == list(range(size))
    order, drawn = Order(size, seed), []
    for count in counts:
        drawn += order.draw(count)
    assert drawn == Order(size, seed).draw(sum(counts))
    resumed = Order(size, seed, position=sum(counts))
    assert resumed.draw(size) == order.draw(size), "the position is all the state"


def test_seeds_and_epochs_give_other_orders():
    assert Order(50, 0).draw(50) != Order(50, 1).draw(50)
    order = Order(50, 0)
    assert [i for _, i in order.draw(50)] != [i for _, i in order.draw(50)]


def test_the_same_problem_in_other_white_space_is_in_one_split_only(tmp_path, rows):
    spaced = [{**r, "problem": f"  {r['problem']}\n"} for r in rows[:4]]
    train, test, notes = load_problems(dataset(write(tmp_path / "a.jsonl", rows), test=write(tmp_path / "t.jsonl", spaced)))
    assert (len(train), len(test)) == (16, 4)
    assert any("4 training problems" in n for n in notes)


def test_a_problem_with_two_answers_is_dropped_and_said(tmp_path, rows):
    train, test, notes = load_problems(dataset(write(tmp_path / "a.jsonl", [*rows, {**rows[0], "answer": "99"}]), test_size=2))
    assert len(train) + len(test) == 19
    assert any("1 problems with several different answers" in n and "q0" in n for n in notes)


@pytest.mark.parametrize(
    ("row", "says"),
    [({"problem": ["a", "b"], "answer": "1"}, "holds a list"), ({"problem": "a", "answer": {"value": 1}}, r"as in answer\.key"),
     ({"problem": "a", "answer": None}, "row 1 has no value in column 'answer'"),
     ({"problem": "a", "answer": True}, "row 1: column 'answer' holds true, which has no one text"),
     ({"problem": False, "answer": "1"}, "row 1: column 'problem' holds false")],
)  # fmt: skip
def test_cells_that_are_no_text_are_refused(tmp_path, row, says):
    with pytest.raises(ConfigError, match=says):
        load_problems(dataset(write(tmp_path / "a.jsonl", [row, {"problem": "b", "answer": "2"}]), test_size=1))


def test_a_prompt_that_the_tokenizer_cannot_express_is_said():
    notes: list[str] = []
    encode_prompts([Problem("1", "What is 1*2?", "2")], tiny.tokenizer(), DataConfig(), notes, "training")
    assert any("do not survive tokenising" in n for n in notes)


def test_verl_rows_with_messages_and_nested_columns(tmp_path):
    row = {
        "prompt": [{"role": "system", "content": "be brief"}, {"role": "user", "content": "Write f."}],
        "reward_model": {"style": "rule", "ground_truth": '{"functional": "assert f() == 1"}'},
    }
    rows = [row, {**row, "prompt": [{"role": "user", "content": "Write g."}]}]
    config = dataset(
        write(tmp_path / "a.jsonl", rows), prompt_column="prompt", answer_column="",
        extra_info_columns=["tests=reward_model.ground_truth"], test_size=1,
    )  # fmt: skip
    train, test, _ = load_problems(config)
    assert {p.prompt for p in train + test} == {"Write f.", "Write g."}
    assert sorted([m["role"] for m in p.messages] for p in train + test) == [["system", "user"], ["user"]]
    assert train[0].extra_info == {"tests": '{"functional": "assert f() == 1"}'}
    from minirl.verify.code.verifier import parse_tests

    assert parse_tests(train[0]).script == "assert f() == 1"


def test_conversations_that_differ_only_before_the_last_message_are_different_problems(tmp_path):
    def row(*texts):
        roles = ["user", "assistant"] * 3
        return {"problem": [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)], "answer": "1"}

    rows = [row("a", "b", "c"), row("a", "x", "c"), row("a ", "b\n", " c"), {"problem": "c", "answer": "1"}, row("c")]
    train, test, notes = load_problems(dataset(write(tmp_path / "a.jsonl", rows), test_size=1))
    assert len(train) + len(test) == 3, "white space does not make another problem, and one message is a plain problem"
    assert notes == ["2 repeated problems were dropped"]
    held_out = write(tmp_path / "t.jsonl", [row("a", "x", "c")])
    train, test, notes = load_problems(dataset(write(tmp_path / "b.jsonl", rows), test=held_out))
    assert (len(train), len(test)) == (2, 1)


@pytest.mark.parametrize(("rows", "held_out"), [(2, 1), (9, 1), (300, 30), (1279, 127), (1280, 128), (3000, 128)])
def test_a_tenth_is_held_out_and_at_most_128_unless_it_is_set(tmp_path, rows, held_out):
    file = write(tmp_path / "a.jsonl", [{"problem": f"q{i}", "answer": "1"} for i in range(rows)])
    assert len(load_problems(dataset(file))[1]) == held_out
    if rows > 200:
        assert len(load_problems(dataset(file, test_size=200))[1]) == 200


def test_a_null_id_is_the_number_of_the_row(tmp_path):
    rows = [{"id": name, "problem": f"{i} + 1", "answer": "1"} for i, name in enumerate([None, None, "x", 0, None])]
    train, test, _ = load_problems(dataset(write(tmp_path / "a.jsonl", rows), test_size=1))
    assert {p.prompt: p.id for p in train + test} == {"0 + 1": "1", "1 + 1": "2", "2 + 1": "x", "3 + 1": "0", "4 + 1": "5"}


def test_problems_that_differ_only_in_extra_info_are_disputed_not_repeated(tmp_path, rows):
    rows = [{**row, "tests": [f"f() == {i}"]} for i, row in enumerate(rows)]
    data = write(tmp_path / "a.jsonl", [*rows, {**rows[0], "tests": ["f() == 99"]}, rows[1]])
    train, test, notes = load_problems(dataset(data, test_size=2, extra_info_columns=["tests"]))
    assert {p.id for p in train + test} == {f"q{i}" for i in range(1, 20)}
    assert any("1 problems with several different answers or extra_info were dropped, such as q0" in note for note in notes)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("'a', 'one', 1", r"problem 2 of 'train' \(id 'a'\): answer must be of type str, not int \('1'\)"),
        ("7, 'one', '1'", r"\(id 7\): id must be of type str, not int"),
        ("'a', ['one'], '1'", "prompt must be of type str, not list"),
        ("'a', 'one', '1', None", "extra_info must be of type dict, not NoneType"),
        ("'a', 'one', '1', {}, 'one'", "messages must be of type list, not str"),
    ],
)
def test_a_field_of_a_task_of_the_user_s_own_is_named_when_it_has_another_type(tmp_path, fields, says):
    (tmp_path / "mine.py").write_text(
        "from minirl.verify.types import Problem\n\ndef task(split):\n"
        f"    return [Problem('first', split, '0'), Problem({fields})]\n"
    )
    with pytest.raises(ConfigError, match=f"data.task={tmp_path}/mine.py:task, .*{says}"):
        load_problems(DataConfig(task=f"{tmp_path}/mine.py:task"))
