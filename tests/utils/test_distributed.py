"""What a launcher's environment says, and what no launcher leaves behind."""

import pytest

from minirl.utils.distributed import asked_processes
from minirl.utils.errors import ConfigError

NAMES = ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "ACCELERATE_USE_CPU", "ACCELERATE_MIXED_PRECISION")
ADDRESS = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}


@pytest.fixture
def environment(monkeypatch):
    for name in NAMES:
        monkeypatch.delenv(name, raising=False)

    def put(**variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return put


@pytest.mark.parametrize(
    ("variables", "size"),
    [
        ({}, 1),
        ({"WORLD_SIZE": "1"}, 1),
        ({"WORLD_SIZE": "1", "RANK": "0"}, 1),
        (ADDRESS, 1),
        ({"ACCELERATE_USE_CPU": "False", "ACCELERATE_MIXED_PRECISION": "no"}, 1),
        ({"WORLD_SIZE": "2", "RANK": "1", "LOCAL_RANK": "1", **ADDRESS}, 2),
        ({"WORLD_SIZE": "16", "RANK": "9", "ACCELERATE_USE_CPU": "False", **ADDRESS}, 16),
    ],
)
def test_processes_of_a_launcher_and_without_one(environment, variables, size):
    environment(**variables)
    assert asked_processes("float32") == size


@pytest.mark.parametrize("cpu", ["True", "False"])
def test_accelerate_that_started_one_process_of_several_is_refused(environment, cpu):
    environment(ACCELERATE_USE_CPU=cpu, ACCELERATE_MIXED_PRECISION="no", **ADDRESS)
    with pytest.raises(ConfigError, match="torchrun --nproc_per_node"):
        asked_processes("float32")


@pytest.mark.parametrize(
    "variables",
    [
        {"WORLD_SIZE": "2"},
        {"WORLD_SIZE": "2", "RANK": "0"},
        {"WORLD_SIZE": "2", "MASTER_ADDR": "10.0.0.1", "RANK": "0"},
        {"WORLD_SIZE": ""},
        {"WORLD_SIZE": "two", "RANK": "0", **ADDRESS},
        {"RANK": "1"},
        {"RANK": "0", **ADDRESS},
        {"LOCAL_RANK": "0"},
        {"WORLD_SIZE": "1", "LOCAL_RANK": "0"},
    ],
)
def test_a_stray_variable_is_named(environment, variables):
    environment(**variables)
    with pytest.raises(ConfigError, match="unset them for a run of one process") as caught:
        asked_processes("float32")
    assert next(iter(variables)) in str(caught.value)


@pytest.mark.parametrize(
    ("precision", "dtype", "fits"),
    [("bf16", "float32", False), ("bf16", "bfloat16", True), ("fp16", "bfloat16", False), ("fp8", "float32", False)],
)
def test_a_precision_that_would_be_ignored_is_refused(environment, precision, dtype, fits):
    environment(ACCELERATE_MIXED_PRECISION=precision)
    if fits:
        assert asked_processes(dtype) == 1
    else:
        with pytest.raises(ConfigError, match=f"{precision} would be ignored, as model.dtype={dtype}"):
            asked_processes(dtype)
