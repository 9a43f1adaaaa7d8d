"""The shards of a placed program: their layouts in a feed, their bytes, and cores that are too small for them."""

from __future__ import annotations

import dataclasses

import jax
import pytest

import anytpu as tpu
from anytpu.engine import Loop
from anytpu.engine.shards import bytes_per_core, feed_layouts, row_layout
from anytpu.engine.virtual import VirtualBackend
from anytpu.errors import BackendError
from anytpu.program import REPLICATED, ROWS, Layout, Program
from anytpu.system.topologies import row_of_cores
from engine import samples

MESH = (("data", 4), ("model", 2))


def test_the_layouts_of_a_feed():
    sequences = Layout(0, (("data",), ("model",)), MESH)
    flags = Layout(None, (), MESH)
    batch = {"x": sequences, "flags": flags}
    whole = Layout(mesh=MESH)
    assert row_layout(batch) == Layout(0, (("data",),), MESH)
    assert feed_layouts(batch, Loop(2, "batches")) == {
        "x": Layout(1, ((), ("data",), ("model",)), MESH),
        "flags": Layout(None, ((),), MESH),
    }
    assert feed_layouts(batch, Loop(2, "rows")) == ({"x": whole, "flags": whole}, Layout(1, ((), ("data",)), MESH))
    assert feed_layouts((ROWS, REPLICATED), Loop(2, "rows")) == ((REPLICATED, REPLICATED), Layout(1))
    assert row_layout({"flags": flags}) == whole


def test_the_bytes_of_each_core():
    weights, counter, rows = (48 * 24 + 24) * 4 * 2, 4, (24 * 48 + 24) * 4
    expected = {"data": weights + rows // 8, "fsdp": weights // 8 + rows // 8, "tensor": weights // 2 + rows // 4}
    found = {layout: bytes_per_core(samples.placed(layout, 8)[0].program, 8) for layout in expected}
    assert found == {layout: size + counter for layout, size in expected.items()}


def test_cores_that_are_too_small():
    program = samples.placed("fsdp", 8)[0].program
    cores = tuple(dataclasses.replace(core, memory_bytes=1024) for core in row_of_cores(8).cores)
    with pytest.raises(BackendError) as caught:
        VirtualBackend(cores).compile(program)
    assert str(caught.value) == (
        "the state and the batch of 'network/train' take 1.73 KiB on each core of a mesh of 8 devices (data=4, "
        "model=2), and a core has 1 KiB: 744 B are missing, before any activation. Split more of the weights; "
        "as they are split, the smallest slice that holds them is v2-8, tpu.connect('v2-8')"
    )


def test_cores_that_are_too_small_without_a_layout():
    # Whole weights and the rows of a core; the state of per-replica code and the rows of a replica.
    programs = {4096: samples.placed("fsdp", 8)[1].program, 32: samples.gradients(8).program}
    expected = (
        "the state and the batch of 'network/train' take 9.77 KiB on each core, and a core has 4 KiB: 5.77 KiB are "
        "missing, before any activation. ",
        "the state and the batch of 'gradients/train' take 36 B on each core, and a core has 32 B: 4 B are missing, "
        "before any activation. ",
    )
    for text, (memory_bytes, program) in zip(expected, programs.items(), strict=True):
        cores = tuple(dataclasses.replace(core, memory_bytes=memory_bytes) for core in row_of_cores(8).cores)
        with pytest.raises(BackendError) as caught:
            VirtualBackend(cores).compile(program)
        assert str(caught.value) == text + (
            "Without a layout each core holds all weights: split them in fit or run_steps, tpu.connect(..., "
            "layout=\"fsdp\"). Whole, the smallest slice that holds them is v2-8, tpu.connect('v2-8')"
        )


def test_a_named_slice_has_its_memory():
    state, row = jax.ShapeDtypeStruct((1 << 38,), "float32"), jax.ShapeDtypeStruct((8,), "float32")
    program = Program("sums", lambda state, row: (state + row.sum(), {}), state, row, ROWS)
    with pytest.raises(BackendError) as caught:
        tpu.connect("v2-8").compile(program)
    assert str(caught.value) == (
        "the state and the batch of 'sums' take 1 TiB on each core, and a core has 8 GiB: 1,016 GiB are missing, "
        "before any activation. Without a layout each core holds all weights: split them in fit or run_steps, "
        'tpu.connect(..., layout="fsdp"). Whole, no slice holds them'
    )
