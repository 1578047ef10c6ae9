"""What pyproject.toml cannot say: the wheel carries the scripts and configs of a checkout, as minirl/train.py, minirl/eval.py
and minirl/configs, so that `accelerate launch -m minirl.train` works without one."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class WithScripts(build_py):
    """The package, and beside its modules what lies next to it."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "minirl"
            for name in ("train.py", "eval.py"):
                shutil.copy(name, target / name)
            shutil.copytree("configs", target / "configs", dirs_exist_ok=True)


setup(cmdclass={"build_py": WithScripts})
