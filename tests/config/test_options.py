"""The tree of options itself; how it is filled is in test_command_line.py, what it must not hold in test_checks.py."""

import yaml

from minirl import advantages
from minirl.config import options as config
from minirl.config.command_line import load


def test_what_is_saved_reads_back_to_the_same_config(tmp_path):
    c = load(
        ["--algorithm.estimator=pkpo", "--estimator.pkpo.k=4", '--rollout.stop=["\\n", x]', "--data.chat_arguments={a: false}"]
    )
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.as_tree(c)))
    assert load([str(tmp_path / "config.yaml")]) == c


def test_a_new_strategy_needs_one_class_and_one_line():
    # The registry is read when the config module is made; the section of each registered name is there.
    sections = {key.split(".")[1] for key, *_ in config.every_option() if key.startswith("estimator.")}
    assert sections == {*advantages.WITH_OPTIONS, "custom"}
    assert {"grpo", "dapo", "pkpo", "edas", "entropy"} <= sections
