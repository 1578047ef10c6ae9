"""The folder of an evaluation, where it cannot be used."""

import pytest

from minirl.evaluation.folder import Folder
from minirl.utils.errors import ConfigError


@pytest.mark.parametrize("text", ["{}", "[]", "null", "3", '{"models": ["a"], "benchmarks": {}}', '{"models": {}}'])
def test_json_that_is_no_evaluation_of_ours_is_said_in_a_sentence(tmp_path, text):
    (tmp_path / "evaluation.json").write_text(text)
    (tmp_path / "samples.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match=r"evaluation\.json is not what an evaluation writes: choose another --out"):
        Folder(tmp_path).check({"models": {"a": {}}, "benchmarks": {}})
    assert (tmp_path / "evaluation.json").read_text() == text


@pytest.mark.parametrize("name", ["x" * 300, "ä" * 200])
def test_a_name_that_is_too_long_for_the_file_system_is_bad_input(tmp_path, name):
    with pytest.raises(ConfigError, match=r"cannot use the folder .*too long"):
        Folder(tmp_path / name).check({})
