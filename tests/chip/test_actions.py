"""What a function of the user's file returns, to be compiled for the chip."""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

import pytest

from anytpu.chip.actions import ChipJob, chip_job
from anytpu.errors import SettingError
from refusals import refusal

SCRIPT = """\
    def predict(weights, x):
        return x @ weights


    def triple():
        return predict, [1.0], [2.0]


    def function():
        return predict


    def without_weights():
        return predict, [1.0]


    def number():
        return 5


    def weights_of_a_file():
        return "net.anytpu", [1.0], [2.0]


    def file():
        return "net.anytpu"
    """


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nets.py").write_text(textwrap.dedent(SCRIPT))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_a_function_with_examples_and_weights():
    found = chip_job("nets.py:triple")
    assert (found.job.__name__, found.examples, found.weights) == ("predict", [1.0], [2.0])


def test_a_program_file():
    assert chip_job("net.anytpu") == chip_job("nets.py:file") == ChipJob("net.anytpu")


@pytest.mark.parametrize(
    ("name", "returned"),
    [
        ("number", "5 (int)"),
        ("function", "a function"),
        ("without_weights", "a tuple"),
        ("weights_of_a_file", "('net.anytpu', [1.0], [2.0]) (tuple)"),
    ],
)
def test_what_cannot_be_compiled(name: str, returned: str):
    with pytest.raises(SettingError) as caught:
        chip_job(f"nets.py:{name}")
    said = re.sub(r"<function predict at \w+> \(function\)", "a function", str(caught.value))
    said = re.sub(r"\(<function predict at \w+>, \[1.0\]\) \(tuple\)", "a tuple", said)
    assert said == (
        f"{name}() in nets.py returned {returned}, which cannot be compiled; it must return a Keras or "
        "PyTorch model, a pair (model, examples), or a triple (function, examples, weights) with a JAX function "
        "outputs = function(weights, x)"
    )


@pytest.mark.parametrize("typed", ["nets.py", ":file"])
def test_what_names_no_function(typed: str):
    assert refusal(SettingError, chip_job, typed) == (
        "name the job to compile: a function in a file, like train.py:create_model, a program file, .anytpu, or a "
        "quantized file, .onnx or .mlir"
    )
