"""The shards of a placed program: their layouts in a feed, and whether they fit the cores.

Idea: a placement is checked before a backend compiles it, on every backend alike. So virtual cores reject what the real
mesh would reject: a state that it does not divide, and shards larger than a core's memory.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable

import jax

from anytpu.engine.backend import Loop
from anytpu.engine.slices import smallest_slice
from anytpu.errors import BackendError, ProgramError
from anytpu.program.placed import axes_text, check_divides
from anytpu.program.program import Layout, Program, Tree, array_layouts
from anytpu.program.unplaced import unplaced
from anytpu.system.cores import Core
from anytpu.units import format_bytes


def row_layout(batch_layout: Tree) -> Layout:
    """Return the layout of an array with one value for each example.

    Args:
        batch_layout: tree of `Layout` of a batch.
    """
    layouts = jax.tree.leaves(batch_layout)
    rows = next((layout for layout in layouts if layout.axis is not None), None)
    if rows is None:
        return whole_layout(layouts)
    return Layout(0, rows.spec[rows.axis : rows.axis + 1] if rows.mesh else (), rows.mesh)


def whole_layout(layouts: Iterable[Layout]) -> Layout:
    """Return the layout of an array that every core holds, on the mesh of these layouts."""
    return Layout(mesh=next(iter(layouts), Layout()).mesh)


def feed_layouts(batch_layout: Tree, loop: Loop) -> Tree:
    """Return the layouts of the feed of a call; see `Executable.steps`.

    Args:
        batch_layout: tree of `Layout` of one batch.
        loop: form of the loop.
    """
    if loop.feed == "batches":
        return jax.tree.map(Layout.stacked, batch_layout)
    whole = whole_layout(jax.tree.leaves(batch_layout))
    return jax.tree.map(lambda _: whole, batch_layout), row_layout(batch_layout).stacked()


def bytes_per_core(program: Program, cores: int) -> int:
    """Return the bytes of state and batch that each core holds.

    Args:
        program: whole-batch code.
        cores: number of cores.
    """
    return sum(
        math.prod(_shard_shape(leaf.shape, layout, cores)) * leaf.dtype.itemsize
        for tree, layouts in zip((program.state, program.batch), array_layouts(program), strict=True)
        for leaf, layout in zip(jax.tree.leaves(tree), jax.tree.leaves(layouts), strict=True)
    )


def check_placement(program: Program, cores: tuple[Core, ...]) -> None:
    """Check that a placed program fits the cores; a program without a placement always passes.

    Raises:
        BackendError: the mesh has another number of devices, or a core has less memory than its shards take.
        ProgramError: the mesh does not divide an axis of the state that it splits, or has axes of
            `jax.sharding.AxisType.Explicit`.
    """
    placement = program.placement
    if placement is None:
        return
    mesh = f"a mesh of {placement.devices} devices ({axes_text(placement.axes)})"
    if placement.devices != len(cores):
        raise BackendError(
            f"the program {program.name!r} is placed on {mesh}, and the system has {len(cores)} cores: give the mesh "
            "as many devices as there are cores"
        )
    if placement.explicit:
        raise ProgramError(
            f"the mesh axes {' and '.join(map(repr, placement.explicit))} of {program.name!r} have "
            "jax.sharding.AxisType.Explicit, which anytpu plans and does not run: make the mesh with "
            f"axis_types=(jax.sharding.AxisType.Auto,) * {len(placement.axes)}"
        )
    # The specs of the state come first, then those of the batch.
    states = len(jax.tree.leaves(program.state))
    check_divides(program.name, program.state, (), dataclasses.replace(placement, specs=placement.specs[:states]))
    held_bytes = bytes_per_core(program, len(cores))
    room_bytes = min((core.memory_bytes for core in cores if core.memory_bytes is not None), default=held_bytes)
    if held_bytes > room_bytes:
        holding = smallest_slice(program)
        advice = (
            f"the smallest slice that holds them is {holding}, tpu.connect({holding!r})"
            if holding
            else "no slice holds them in this layout"
        )
        raise BackendError(
            f"the state and the batch of {program.name!r} take {format_bytes(held_bytes)} on each core of {mesh}, and "
            f"a core has {format_bytes(room_bytes)}: {format_bytes(held_bytes - room_bytes)} are missing, before any "
            f"activation. Split more of the weights; as they are split, {advice}"
        )


def for_one_device(program: Program, cores: tuple[Core, ...]) -> Program:
    """Check a program's placement, and return the program without it, for virtual cores.

    Raises:
        BackendError, ProgramError: as `check_placement` raises them.
    """
    check_placement(program, cores)
    return unplaced(program)


def _shard_shape(shape: tuple[int, ...], layout: Layout, cores: int) -> list[int]:
    pieces = layout.pieces(cores)
    return [-(-size // pieces.get(axis, 1)) for axis, size in enumerate(shape)]
