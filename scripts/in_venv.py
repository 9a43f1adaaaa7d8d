"""Run a script with the packages of .venv, whichever Python started it."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

VENV = Path(__file__).resolve().parent.parent / ".venv"
MISSING = """\
No module named {module!r}: {script} needs the dependency group {group}. In the repository, type:
    make demo    # it makes .venv, if there is none
    .venv/bin/python -m pip install --upgrade pip
    .venv/bin/python -m pip install --group {group}"""


def in_venv(group: str, *modules: str) -> None:
    """Start the script again with the Python of .venv if a module is missing here; end it if it is missing there."""
    missing = [module for module in modules if importlib.util.find_spec(module) is None]
    if not missing:
        return
    python = VENV / "bin/python"
    if Path(sys.prefix).resolve() != VENV.resolve() and python.exists():
        os.execv(python, [str(python), *sys.argv])
    sys.exit(MISSING.format(module=missing[0], script=Path(sys.argv[0]).name, group=group))
