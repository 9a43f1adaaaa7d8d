"""Programs and notebooks that `anytpu port` reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from anytpu.migrate.port.files import ported_file
from fuzz.battery import Battery
from fuzz.damage import JSON, TEXT

PROGRAMS = Path(__file__).parents[2] / "migrate/port/programs"


def programs() -> list[bytes]:
    """Return programs of TensorFlow."""
    return [path.read_bytes() for path in sorted(PROGRAMS.rglob("*.py"))][:8]


def notebooks() -> list[bytes]:
    """Return a notebook of some cells."""
    codes = ["import tensorflow as tf\n%matplotlib inline", "strategy = tf.distribute.TPUStrategy(tf.x)", "print(1)"]
    cells = [{"cell_type": "code", "source": code.splitlines(keepends=True), "outputs": []} for code in codes]
    cells.append({"cell_type": "markdown", "source": "# text"})
    return [json.dumps({"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}, indent=1).encode()]


def read_program(path: Path) -> Any:
    """Port a program, and return its new text."""
    file = ported_file(path)
    return [file.content, file.program.new, [str(finding) for finding in file.program.findings]]


BATTERIES = (
    Battery("port_program", programs, read_program, suffix=".py", damage=TEXT, limit_s=60, share=0.05),
    Battery("port_notebook", notebooks, read_program, suffix=".ipynb", damage=JSON, limit_s=60),
)
