"""The shards of a program: their layouts in a feed, and whether they fit the cores.

Idea: a program is checked before a backend compiles it, on every backend alike. So virtual cores reject what the real
ones would reject: a state that their mesh does not divide, and shards larger than a core's memory.
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
from anytpu.program.program import Layout, Placement, Program, Tree, array_layouts
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
        program: the program.
        cores: number of cores.
    """
    return sum(
        math.prod(_shard_shape(leaf.shape, layout, cores)) * leaf.dtype.itemsize
        for tree, layouts in zip((program.state, program.batch), array_layouts(program), strict=True)
        for leaf, layout in zip(jax.tree.leaves(tree), jax.tree.leaves(layouts), strict=True)
    )


def check_fits(program: Program, cores: tuple[Core, ...]) -> None:
    """Check that a program fits the cores: its placement their number, and its shards their memory.

    Raises:
        BackendError: the mesh has another number of devices, or a core has less memory than its shards take.
        ProgramError: the mesh does not divide an axis of the state that it splits, or has axes of
            `jax.sharding.AxisType.Explicit`.
    """
    if program.placement is not None:
        _check_placement(program, program.placement, cores)
    held_bytes = bytes_per_core(program, len(cores))
    room_bytes = min((core.memory_bytes for core in cores if core.memory_bytes is not None), default=held_bytes)
    if held_bytes > room_bytes:
        where = "" if program.placement is None else f" of {_mesh_text(program.placement)}"
        raise BackendError(
            f"the state and the batch of {program.name!r} take {format_bytes(held_bytes)} on each core{where}, and "
            f"a core has {format_bytes(room_bytes)}: {format_bytes(held_bytes - room_bytes)} are missing, before any "
            f"activation. {_more_memory(program, len(cores))}"
        )


def _check_placement(program: Program, placement: Placement, cores: tuple[Core, ...]) -> None:
    if placement.devices != len(cores):
        raise BackendError(
            f"the program {program.name!r} is placed on {_mesh_text(placement)}, and the system has {len(cores)} "
            "cores: give the mesh as many devices as there are cores"
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


def _mesh_text(placement: Placement) -> str:
    return f"a mesh of {placement.devices} devices ({axes_text(placement.axes)})"


def _more_memory(program: Program, cores: int) -> str:
    """Return what to do about a program whose shards are larger than a core's memory."""
    placement = program.placement or _rows_over(program, cores)
    holding = smallest_slice(dataclasses.replace(program, placement=placement))
    slices = (
        f"the smallest slice that holds them is {holding}, tpu.connect({holding!r})"
        if holding
        else "no slice holds them"
    )
    if program.placement is not None:
        return f"Split more of the weights; as they are split, {slices}"
    return (
        'Without a layout each core holds all weights: split them in fit or run_steps, tpu.connect(..., layout="fsdp")'
        f". Whole, {slices}"
    )


def _rows_over(program: Program, cores: int) -> Placement:
    """Return the placement with a whole state and the rows of a batch split over the cores."""
    whole: tuple[tuple[str, ...], ...] = ()
    axes = [layout.axis for _, layout in program.leaves()]
    rows = [whole if axis is None else (*[()] * axis, ("data",)) for axis in axes]
    return Placement((("data", cores),), (*[whole] * len(jax.tree.leaves(program.state)), *rows))


def for_one_device(program: Program, cores: tuple[Core, ...]) -> Program:
    """Check that a program fits the cores, and return it without its placement, for virtual cores.

    Raises:
        BackendError, ProgramError: as `check_fits` raises them.
    """
    check_fits(program, cores)
    return unplaced(program)


def _shard_shape(shape: tuple[int, ...], layout: Layout, cores: int) -> list[int]:
    pieces = layout.pieces(cores)
    return [-(-size // pieces.get(axis, 1)) for axis, size in enumerate(shape)]
