"""The irises: the example on the TPU is the plain one with three changed lines, and computes the same."""

from __future__ import annotations

import ast
import difflib
import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import anytpu as tpu
from forked import python

EXAMPLES = Path(__file__).parents[3] / "examples"


def code_of(name: str) -> list[str]:
    """Return the lines of an example below its docstring."""
    text = (EXAMPLES / f"{name}.py").read_text()
    return text.splitlines()[ast.parse(text).body[0].end_lineno :]


def module_of(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_three_lines_are_changed():
    changes = [
        line
        for line in difflib.unified_diff(code_of("03_iris_plain"), code_of("03_iris"), n=0, lineterm="")
        if not line.startswith(("---", "+++", "@@"))
    ]
    assert changes == [
        "+import anytpu as tpu",
        "-optimizer = optax.sgd(LEARNING_RATE)",
        "+optimizer = tpu.CrossShardOptimizer(optax.sgd(LEARNING_RATE))",
        "-    _, history = jax.jit(train)(weights, *flowers())",
        "+    _, history = tpu.rewrite(train, [weights, *flowers()])",
    ]


@pytest.mark.parametrize(("kind", "cores"), [("virtual", 8), ("twin", 2)])
def test_the_weights_are_those_of_plain_jax(kind, cores):
    tpu.connect(kind, cores=cores)
    ours, plain = module_of("03_iris"), module_of("03_iris_plain")
    keys = jax.random.split(jax.random.key(1))
    weights = ours.init_weights(keys[0], (5, 256)), ours.init_weights(keys[1], (3, 256))
    got = tpu.rewrite(ours.train, [weights, *ours.flowers()])
    expected = jax.jit(plain.train)(weights, *plain.flowers())
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=1e-5), got, list(expected))
    assert np.asarray(got[1][1])[-1] >= 0.9


def test_it_prints_what_the_post_of_2018_prints(monkeypatch, capsys):
    program = [*python(), EXAMPLES / "03_iris.py", "--smoke"]
    ran = subprocess.run(program, capture_output=True, text=True, check=True)
    lines = ran.stdout.splitlines()
    assert [line.split(",")[0] for line in lines] == ["Epoch = 1", "Epoch = 2", "Epoch = 3"]
    assert all(line.endswith("%") and "test accuracy = " in line for line in lines)
    assert "virtual" in ran.stderr
    monkeypatch.setattr(sys, "argv", ["03_iris_plain.py", "--smoke"])
    module_of("03_iris_plain").main()
    assert capsys.readouterr().out == ran.stdout
