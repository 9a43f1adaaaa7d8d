"""`anytpu.program.of`: whatever somebody wants to run, as a Program."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from anytpu.errors import ProgramError, SettingError
from anytpu.program import of, write
from anytpu.program.makers import is_job
from error_texts import error_text
from forked import python
from program_samples import assert_same_bits, linear

GIVE = (
    "Give a Keras model, a JAX function step(state, batch) with input_specs=(state, batch), a step compiled by nnx.jit "
    "or eqx.filter_jit, the path of a '.anytpu' or '.mlir' file, or an anytpu.program.Program."
)


error_of = functools.partial(error_text, of, kind=ProgramError)


def test_a_program_passes_through():
    program = linear().program
    assert of(program) is program
    assert of(program, mode="train") is program


@pytest.mark.parametrize("kind", [str, Path])
def test_a_file(kind, tmp_path: Path):
    sample = linear()
    write(sample.program, tmp_path / "a.anytpu", tensors=sample.state)
    job = kind(tmp_path / "a.anytpu")
    assert of(job).tensors is None
    assert of(job).state == sample.program.state
    assert_same_bits(of(job, tensors=True).tensors, sample.state)


@pytest.mark.parametrize(("job", "kind"), [(3, "int"), (None, "NoneType"), ("model.h5", "str"), ([1], "list")])
def test_nobody_claims_it(job, kind: str):
    assert error_of(job).startswith(f"No Program can be made of {job!r} ({kind}). {GIVE}")


@pytest.mark.parametrize(("job", "expected"), [(3, False), ("a.py", False), ("a.mlir", True), (len, True)])
def test_what_is_a_job(job, expected: bool):
    assert is_job(job) is expected
    assert is_job(linear().program)


def test_mode_that_is_none():
    with pytest.raises(SettingError) as caught:
        of(linear().program, mode="test")  # pyright: ignore[reportArgumentType]
    assert str(caught.value) == "mode must be 'train' or 'infer', or None for the job's own, not 'test'."


def test_mode_that_it_does_not_have(tmp_path: Path):
    text = "The program '_linear/train' has the mode 'train', not 'infer'."
    write(linear().program, tmp_path / "a.anytpu")
    assert error_of(linear().program, mode="infer") == text
    assert error_of(tmp_path / "a.anytpu", mode="infer") == text


def test_shapes_that_are_fixed(tmp_path: Path):
    assert error_of(linear().program, (1, 2)) == (
        "The shapes of the program '_linear/train' are fixed: leave input_specs out."
    )
    assert error_of("a.anytpu", (1, 2)) == (
        "The shapes of the program file 'a.anytpu' are fixed in the file: leave input_specs out."
    )


def test_tensors_that_a_program_does_not_carry():
    assert error_of(linear().program, tensors=True) == (
        "The program '_linear/train' does not carry the values of its state. Make it with "
        "anytpu.program.of(job, tensors=True)."
    )


@pytest.mark.parametrize("batch_size", [0, -8, 2.0, True, "8", 2**31])
def test_a_batch_size_that_is_none(batch_size):
    with pytest.raises(SettingError) as caught:
        of(linear().program, batch_size=batch_size)
    assert str(caught.value) == (
        f"batch_size must be a positive integer below 2**31, the rows of a global batch, not {batch_size!r}."
    )


def test_a_precision_that_is_none():
    with pytest.raises(SettingError) as caught:
        of(linear().program, precision="float16")  # pyright: ignore[reportArgumentType]
    assert str(caught.value) == "precision must be 'float32' or 'bfloat16', or None for the job's own, not 'float16'."


@pytest.mark.parametrize(
    ("asked", "said"), [({"batch_size": 3}, "batch_size=3"), ({"precision": "bfloat16"}, "precision='bfloat16'")]
)
def test_what_a_program_is_made_for_is_fixed(asked: dict, said: str, tmp_path: Path):
    sample = linear()
    rows = sample.program.rows
    write(sample.program, tmp_path / "a.anytpu")
    told = (
        f" has one batch of {rows} rows and one precision, and cannot be changed to {said}. Give the model or the "
        f"function instead: anytpu.program.of(model, {said})."
    )
    assert error_of(sample.program, **asked) == "The program '_linear/train'" + told
    assert error_of(tmp_path / "a.anytpu", **asked) == f"The program file {str(tmp_path / 'a.anytpu')!r}" + told
    assert of(sample.program, batch_size=rows) is sample.program


PLUG_IN = """
from anytpu.program import of

class Maker:
    def claims(self, job):
        return job == "a plug-in's job"

    def make(self, job, input_specs, mode, tensors):
        return of(lambda state, batch: (state, {}), (0.0, 0.0), mode)

MAKER = Maker()
"""

USE_PLUG_IN = """
from anytpu.errors import ProgramError
from anytpu.program import of

print(of("a plug-in's job", mode="infer").name)
try:
    of(3)
except ProgramError as error:
    print(error)
try:
    of("a plug-in's job", batch_size=8, precision="bfloat16")
except ProgramError as error:
    print(error)
"""


def test_makers_are_found_by_entry_points(tmp_path: Path):
    """A distribution of its own on the path: one maker that works, one that cannot be loaded."""
    (tmp_path / "plug_in.py").write_text(PLUG_IN)
    (tmp_path / "plug_in-1.0.dist-info").mkdir()
    (tmp_path / "plug_in-1.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: plug-in\nVersion: 1.0\n")
    (tmp_path / "plug_in-1.0.dist-info" / "entry_points.txt").write_text(
        "[anytpu.programs]\nplug_in = plug_in:MAKER\nbroken = plug_in:NOBODY\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*python(), "-c", USE_PLUG_IN], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    name, error, older = done.stdout.splitlines()
    assert name == "<lambda>/infer"
    assert error.startswith(f"No Program can be made of 3 (int). {GIVE} These makers could not be loaded: ")
    assert "'broken' (AttributeError: module 'plug_in' has no attribute 'NOBODY')" in error
    assert older == (
        "A job of the kind 'plug_in' takes no batch_size and no precision. Leave them out, and give "
        '"a plug-in\'s job" input_specs of the batch wanted.'
    )


def test_a_function_and_a_file_need_no_keras(tmp_path: Path):
    code = (
        "import sys\nfrom anytpu.program import of, write\n"
        "write(of(lambda state, batch: (state, {}), (0.0, 0.0)), sys.argv[1])\nof(sys.argv[1])\n"
        "print('keras' in sys.modules)"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "a.anytpu")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "False\n"


def test_arrays_of_a_step_stay_where_they_are():
    state = np.ones(3, "float32")
    of(lambda state, batch: (state * 2, {}), (state, ()))
    assert state.tolist() == [1, 1, 1]
