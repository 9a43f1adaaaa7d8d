"""Whole programs: what they become, what is left of them to do, and that what they become trains.

`programs/NAME.py` is a program for TensorFlow, `NAME.ported` what the porter makes of it, `NAME.findings` what it says.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from anytpu.migrate.port import ported
from anytpu.migrate.replaced.table import Replacement, replacements
from forked import python

FOLDER = Path(__file__).parent / "programs"
PROGRAMS = sorted(path.stem for path in FOLDER.glob("*.ported"))
IMPORTS = """\
import os
import tensorflow as tf
import tensorflow_datasets as tfds
from tensorflow.contrib.tpu.python.tpu import tpu_function
from tensorflow.keras import backend as K
"""
GIVEN = """resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
strategy = tf.distribute.TPUStrategy(resolver)
model = tf.keras.Sequential()
optimizer = tf.keras.optimizers.Adam()
pairs = tf.data.Dataset.from_tensor_slices((x, y))
"""
"""Values whose classes the porter knows."""
OF_FIRST = "from tensorflow.contrib.tpu.python.tpu import tpu_function\n"
"""An import that makes a program one for TensorFlow 1. There a summary is part of the graph."""
ROWS = [row for rows in replacements().values() for row in rows if row.how != "hand" and "import " not in row.old]


def unbound(code: str) -> set[str]:
    """Return the packages that a program names and does not import."""
    tree = ast.parse(code)
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    aliases = [
        alias for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names
    ]
    imported = {alias.asname or alias.name.partition(".")[0] for alias in aliases}
    return named & {"tf", "tfds", "tpu", "anytpu", "keras", "optax", "logging", "K"} - imported


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_program_becomes(name: str):
    outcome = ported((FOLDER / f"{name}.py").read_text())
    findings = "".join(
        f"{finding.line}: {finding.kind}: {finding.old}: {finding.advice}\n" for finding in outcome.findings
    )
    assert outcome.new == (FOLDER / f"{name}.ported").read_text()
    assert findings == (FOLDER / f"{name}.findings").read_text()
    compile(outcome.new, name, "exec")


@pytest.mark.parametrize("name", PROGRAMS)
def test_porting_twice_changes_nothing(name: str):
    text = (FOLDER / f"{name}.ported").read_text()
    again = ported(text)
    assert again.new == text
    assert bool(again.by_hand) == ("tensorflow" in text)


@pytest.mark.parametrize("size", [20, 1], ids=["twenty in a program", "each alone"])
def test_every_old_line_becomes_its_new_one(size: int):
    # A summary and the name of a variable become other lines by what else the program has.
    alone = [row for row in ROWS if any(word in row.old for word in ("tf.summary.", "TensorBoard", "variable.name"))]
    rows = [row for row in ROWS if row not in alone]
    faults = [fault for start in range(0, len(rows), size) for fault in faults_of(rows[start : start + size])]
    faults += [fault for row in alone for fault in faults_of([row], IMPORTS.replace(OF_FIRST, ""))]
    assert not faults, "\n".join(faults)


def faults_of(rows: list[Replacement], imports: str = IMPORTS) -> Iterator[str]:
    """Yield what is wrong with the port of the old lines of rows, in one program."""
    outcome = ported(imports + GIVEN + "".join(f"the_row = 0\n{row.old}\n" for row in rows))
    bodies = re.split(r"^the_row = 0\n", outcome.new, flags=re.MULTILINE)[1:]
    for row, body in zip(rows, bodies, strict=True):
        if body.strip("\n") != row.new:
            yield f"{row.old}\n  becomes {body}, not {row.new}"
    if outcome.by_hand:
        yield f"{outcome.by_hand} is left"
    if "tensorflow" in outcome.new or unbound(outcome.new):
        yield f"{rows[0].old} ...\n  imports tensorflow, or not {unbound(outcome.new)}"
    if ported(outcome.new).is_changed:
        yield f"{rows[0].old} ...\n  is ported twice"


@pytest.mark.parametrize("name", ["tf1_estimator", "tf1_sentiment", "tf2_detection", "tf2_loops"])
def test_what_a_program_becomes_trains(name: str, tmp_path: Path):
    (tmp_path / f"{name}.py").write_text((FOLDER / f"{name}.ported").read_text())
    run = subprocess.run([*python(), f"{name}.py"], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    lines = run.stdout.splitlines()
    if name == "tf1_estimator":
        assert float(lines[-1].removeprefix("right: ")) > 0.9
    elif name == "tf1_sentiment":
        assert float(next(line for line in lines if line.startswith("accuracy ")).split()[1]) > 0.9
        assert (tmp_path / "tpu_model.h5").is_file()
    elif name == "tf2_detection":
        first, last = ast.literal_eval(lines[-1].removeprefix("losses: "))
        assert last < first
    else:
        assert "PerReplica:{" in lines
        steps = [line for line in lines if line.startswith("Current step: ")]
        assert [line.split(",")[0] for line in steps] == ["Current step: 20", "Current step: 40"]
        first, last = (float(re.search(r"loss: ([\d.]+)", line)[1]) for line in steps)  # pyright: ignore
        assert last < first
        assert lines[-1] == "sum of the replicas' numbers: 28.0"
