import pytest

import train
from minirl.config.command_line import load
from minirl.policy.plan import measure
from minirl.run.dry_run import known_shape

from ..conftest import ROOT


@pytest.mark.parametrize(
    ("path", "billions"),  # of the models' cards
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", 0.135), ("Qwen/Qwen3-0.6B", 0.596), ("Qwen/Qwen3-1.7B-Base", 1.72),
        ("Qwen/Qwen3-4B", 4.02), ("Qwen/Qwen3-4B-Base", 4.02), ("Qwen/Qwen3-8B", 8.19), ("Qwen/Qwen3-14B", 14.77),
    ],
)  # fmt: skip
def test_known_shapes_have_the_parameters_of_their_cards(path, billions):
    assert measure(known_shape(path)).parameters / 1e9 == pytest.approx(billions, rel=0.005)


def dry(capsys, *options):
    code = train.main(load(["--dry-run", str(ROOT / "configs" / "qwen3-8b-math.yaml"), *options]))
    return code, capsys.readouterr()


def test_without_the_hub_a_preset_is_planned_and_what_is_missing_is_named(capsys):
    code, (printed, _) = dry(capsys)
    assert code == 0
    assert printed.count("not looked up:") == 2
    for text in ("'open-r1/DAPO-Math-17k-Processed'", "--data.train=FILE.jsonl", "--model.path=FOLDER", "data not known",
                 "run 1,000 steps", "model 8.191B parameters", "GiB a GPU"):  # fmt: skip
        assert text in printed
    assert "passes over the data" not in printed


def test_a_model_that_nobody_knows_has_no_memory_plan_and_data_that_are_here_have_sizes(capsys):
    code, (printed, _) = dry(capsys, "--data.task=rules", "--model.path=nobody/nothing")
    assert code == 0
    assert printed.count("not looked up:") == 1
    assert "there is no memory plan" in printed
    assert "GiB" not in printed
    assert "16,984 problems to train on, 512 held out; 8 ranks" in printed


def test_what_is_wrong_here_ends_a_dry_run_as_ever(capsys):
    code, (_, said) = dry(capsys, "--data.train=nowhere.jsonl")
    assert (code, said) == (2, "train.py: there is no data file nowhere.jsonl\n")
