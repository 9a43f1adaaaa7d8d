"""`anytpu kernel` with real kernels."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anytpu.cli import main

FILE = """
import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl


def body(x, out):
    out[...] = 2 * x[...]


def double(x):
    return pl.pallas_call(body, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)


def create_kernel():
    return double, (jax.ShapeDtypeStruct((8, 128), "float32"),), lambda x: 2 * x


def create_wrong():
    return (lambda x: double(x)), jax.ShapeDtypeStruct((8, 128), "float32"), lambda x: 3 * x


def create_pair():
    return double, (jax.ShapeDtypeStruct((8, 128), "float32"),)
"""


@pytest.fixture
def file(tmp_path: Path) -> str:
    (tmp_path / "kernel.py").write_text(FILE)
    return str(tmp_path / "kernel.py")


def test_a_sound_kernel(file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    assert main(["kernel", f"{file}:create_kernel", "--tpu", "v5e-1", "--json", str(tmp_path / "a.json")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("double, float32[8,128]\n") and shown.endswith("a.json\n")
    assert json.loads((tmp_path / "a.json").read_text())["passed"]


def test_a_wrong_kernel(file: str, capsys: pytest.CaptureFixture[str]):
    assert main(["kernel", f"{file}:create_wrong", "--tpu", "v5e-1"]) == 1
    assert capsys.readouterr().out.startswith("create_wrong, float32[8,128]\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["create_kernel"], "name the kernel: a function in a file, like kernel.py:create_kernel"),
        (
            ["{file}:create_pair"],
            "create_pair() in {file} returned a tuple, which cannot be checked; it must return a triple (kernel, "
            "inputs, reference): the function that calls pl.pallas_call, a tuple of arrays or jax.ShapeDtypeStruct, "
            "and a function with the same outputs, or None",
        ),
        (
            ["{file}:create_kernel", "--tpu", "v7x-1"],
            "'v7x-1' is not a TPU that exists: the number counts TensorCores, and the nearest is \"v7x-2\".",
        ),
    ],
)
def test_bad_input(words: list[str], message: str, file: str, capsys: pytest.CaptureFixture[str]):
    assert main(["kernel", *(word.format(file=file) for word in words)]) == 2
    assert capsys.readouterr().err.strip() == f"anytpu: {message.format(file=file)}"
