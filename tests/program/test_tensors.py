"""The values of a state as .npy files."""

from __future__ import annotations

import io

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.errors import ProgramError
from anytpu.program import Program, spec_of
from anytpu.program.tensors import npy_to_tensors, tensor_part, tensors_to_npy
from program_samples import assert_same_bits

TYPES = ["float32", "float16", "bfloat16", "float8_e4m3fn", "int4", "int8", "uint8", "uint32", "bool", "complex64"]


def program_of(state) -> Program:
    return Program("p/train", lambda state, batch: (state, {}), spec_of(state), (), ())


def through_files(state):
    program = program_of(state)
    stored = tensors_to_npy(program, state)
    return npy_to_tensors(program, [content for _, content in stored], [generator for generator, _ in stored])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_round_trip(dtype: str, shape: tuple[int, ...]):
    state = {"w": jnp.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)}
    assert_same_bits(through_files(state), state)


def test_not_contiguous():
    state = np.arange(12, dtype="float32").reshape(3, 4).T[::2]
    assert_same_bits(through_files(state), state)


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_typed_keys(generator: str):
    key = jax.random.split(jax.random.key(3, impl=generator), 2)
    back = through_files((key,))[0]
    assert jax.random.bits(back[1]) == jax.random.bits(key[1])


def test_numpy_alone_reads_them():
    ((generator, content),) = tensors_to_npy(program_of(jnp.ones(3)), jnp.ones(3))
    assert generator is None
    assert np.load(io.BytesIO(content)).tolist() == [1, 1, 1]


def test_part_names():
    assert [tensor_part(index) for index in (0, 12, 1234)] == [
        "tensors/000.npy",
        "tensors/012.npy",
        "tensors/1234.npy",
    ]


def test_strings_are_not_tensors():
    with pytest.raises(ProgramError) as caught:
        tensors_to_npy(program_of(np.zeros(2, "float32")), np.array(["a", "b"]))
    assert str(caught.value) == "The tensor 'state' of 'p/train' must be float32[2], not str32[2]."
