"""How an interpreter of this package's own is started."""

import sys
from pathlib import Path

# The package is loaded from its own folder, whatever lies in the working folder: a random.py or token.py there, or beside
# the package, must not stand in for Python's. (-P keeps the working folder off sys.path; PYTHONPATH would come first.)
START = """
import importlib.util, os, sys
folder, module = sys.argv.pop(1), sys.argv.pop(1)
file = os.path.join(folder, "__init__.py")
spec = importlib.util.spec_from_file_location("minirl", file, submodule_search_locations=[folder])
sys.modules["minirl"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(sys.modules["minirl"])
importlib.import_module(module).main()
"""


def python_command(module: str, *flags: str) -> list[str]:
    """The command that runs `main` of a module of this package; arguments may follow it."""
    return [sys.executable, "-P", *flags, "-c", START, str(Path(__file__).parents[2]), module]
