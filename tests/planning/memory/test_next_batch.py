"""The batch that travels while the devices compute is part of the memory."""

from __future__ import annotations

import dataclasses

import jax

from anytpu.planning.memory import with_next_batch
from anytpu.planning.records.memory import Buffer, Memory
from anytpu.planning.target import target_named
from anytpu.program.program import REPLICATED, ROWS, Program
from anytpu.units import GIB, MIB

V3 = target_named("v3-8")
STATE = jax.ShapeDtypeStruct((64, 64), "float32")
IMAGES = jax.ShapeDtypeStruct((8192, 1024, 64), "float32")  # 2 GiB, 256 MiB a device
MASK = jax.ShapeDtypeStruct((8, 64), "float32")
PROGRAM = Program("net/train", lambda s, b: (s, b), STATE, (IMAGES, MASK), (ROWS, REPLICATED), state_names=("w",))


def test_what_is_split_travels_and_what_each_device_holds_does_not():
    memory = with_next_batch(Memory(2 * GIB, 4 * GIB, 3 * GIB), PROGRAM, V3)
    assert (memory.peak_bytes, memory.upper_bound_bytes) == (2 * GIB + 256 * MIB, 3 * GIB + 256 * MIB)
    assert memory.buffers == (Buffer("the next batch", "batch", 256 * MIB, 256 * MIB, ""),)


def test_it_is_padded_as_the_compiler_lays_it():
    padded = Buffer("batch/0", "batch", 512 * MIB, 256 * MIB, "f32[1024,1024,64]")
    memory = with_next_batch(Memory(2 * GIB, 4 * GIB, buffers=(padded,)), PROGRAM, V3)
    assert (memory.peak_bytes, memory.upper_bound_bytes) == (2 * GIB + 512 * MIB, None)


def test_what_fits_alone_may_not_fit_with_it():
    alone = Memory(4 * GIB - MIB, 4 * GIB)
    assert alone.fits
    assert with_next_batch(alone, PROGRAM, V3).missing_bytes == 255 * MIB


def test_code_without_rows_has_no_next_batch():
    memory = Memory(2 * GIB, 4 * GIB)
    assert with_next_batch(memory, dataclasses.replace(PROGRAM, layout=(REPLICATED, REPLICATED)), V3) == memory
