"""The axis of the batch along which its examples lie: from the user, from the shardings of the batch, or assumed.

Idea: a batch that lies split over a mesh says which axis counts examples: the one that a data axis of the mesh splits.
Images may be `(rows, height, width, channels)` or `(height, width, channels, rows)`; the shapes alone do not tell.

Rule: an axis that is assumed is told, in a sentence that becomes one of `Program.notes`. Only where a leaf of rank 1
has as many rows as one of a higher rank is axis 0 taken without a word: it has no other axis.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from anytpu.errors import ProgramError
from anytpu.program.leaves import leaf_names
from anytpu.program.program import REPLICATED, Layout, Placement, Tree

DATA_AXES = ("data", "batch", "replica", "dp", "fsdp")
"""Axes of a mesh that split examples, by the names that JAX programs give them; they go before other names."""

INNER_AXES = ("model", "tensor", "tp", "mp", "seq", "sequence", "context", "cp", "sp")
"""Axes of a mesh that split what is inside of an example, by the names that JAX programs give them."""


def batch_layout(name: str, batch: Tree, placement: Placement | None, batch_axis: Tree = None) -> tuple[Tree, str]:
    """Return the axis of each leaf along which examples lie, as a tree of `Layout`, and a sentence on what was assumed.

    Args:
        name: the program, for errors.
        batch: tree of `jax.ShapeDtypeStruct`.
        placement: how state and batch lie on a mesh; None for code that brings no shardings.
        batch_axis: one axis, or a tree of axes (None: no examples) as `jax.vmap` takes them for `in_axes`: a prefix of
            the batch's tree. Of one axis, a leaf that has other sizes there lies along its axis 0, if that has as many
            rows as the first leaf, or holds no examples. None: from the placement, or axis 0.

    Returns:
        The layouts, and the sentence, "" where nothing was assumed.

    Raises:
        ProgramError: `batch_axis` does not fit the batch.

    Example:
        >>> batch = jax.ShapeDtypeStruct((28, 28, 1, 64), "float32"), jax.ShapeDtypeStruct((64,), "int32")
        >>> batch_layout("step/train", batch, None, (3, 0))
        ((Layout(axis=3), Layout(axis=0)), '')
    """
    leaves = jax.tree.leaves(batch)
    names, said = leaf_names(batch, "batch"), ""
    if batch_axis is not None:
        axes = _given(name, names, batch, batch_axis)
    else:
        axes, said = (_split(names, leaves, placement) if placement else None) or _first(names, leaves)
    layouts = [REPLICATED if axis is None else Layout(axis) for axis in axes]
    return jax.tree.unflatten(jax.tree.structure(batch), layouts), said


def split_layout(
    names: tuple[str, ...], leaves: list[jax.ShapeDtypeStruct], placement: Placement
) -> tuple[tuple[Layout, ...], str]:
    """Return what `batch_layout` finds in a placement alone: no axis for any leaf where no data axis splits the batch.

    Args:
        names: a name for each leaf of the batch.
        leaves: the leaves.
        placement: how state and batch lie on a mesh.
    """
    axes, said = _split(names, leaves, placement) or ([None] * len(leaves), "")
    return tuple(map(Layout, axes)), said


def with_rows(name: str, batch: Tree, layout: Tree, rows: int) -> Tree:
    """Return the specs of a batch with other rows in the leaves that have any.

    Raises:
        ProgramError: none has.
    """
    if all(one.axis is None for one in jax.tree.leaves(layout)):
        raise ProgramError(
            f"The batch of {name!r} has no rows to make {rows} of: each of its leaves is a scalar. Leave batch_size "
            "out."
        )

    def resized(leaf: jax.ShapeDtypeStruct, of_leaf: Layout) -> jax.ShapeDtypeStruct:
        shape = tuple(rows if axis == of_leaf.axis else size for axis, size in enumerate(leaf.shape))
        return jax.ShapeDtypeStruct(shape, leaf.dtype)

    return jax.tree.map(resized, batch, layout)


def _given(name: str, names: tuple[str, ...], batch: Tree, batch_axis: Tree) -> list[int | None]:
    """Return the axes that the user names."""
    leaves = jax.tree.leaves(batch)
    if _is_integer(batch_axis):
        if all(_axis_of(leaf, batch_axis) is None for leaf in leaves):
            raise ProgramError(
                f"batch_axis={batch_axis} names no axis of the batch of {name!r}: {_shapes(names, leaves)}."
            )
        held = [_axis_of(leaf, batch_axis) for leaf in leaves]
        rows = next(leaf.shape[axis] for leaf, axis in zip(leaves, held, strict=True) if axis is not None)
        return [
            axis if axis is not None and leaf.shape[axis] == rows else _row_axis(leaf, rows)
            for leaf, axis in zip(leaves, held, strict=True)
        ]
    axes = [_checked(name, *one) for one in zip(names, leaves, _spread(name, batch, batch_axis), strict=True)]
    rows = {of: leaf.shape[axis] for of, leaf, axis in zip(names, leaves, axes, strict=True) if axis is not None}
    if len(set(rows.values())) != 1:
        listed = ", ".join(f"{of!r} {size:,}" for of, size in rows.items()) or "no leaf has one"
        raise ProgramError(f"batch_axis={batch_axis!r} must name axes of one size in the batch of {name!r}: {listed}.")
    return axes


def _spread(name: str, batch: Tree, batch_axis: Tree) -> list[Any]:
    def is_none(one: Any) -> bool:
        return one is None

    try:
        spread = jax.tree.broadcast(batch_axis, batch, is_leaf=is_none)
    except ValueError as error:
        raise ProgramError(
            f"batch_axis must be one axis, or a tree of them like the batch of {name!r}, not {batch_axis!r}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return jax.tree.leaves(spread, is_leaf=is_none)


def _checked(name: str, of: str, leaf: jax.ShapeDtypeStruct, axis: Any) -> int | None:
    if axis is None:
        return None
    found = _axis_of(leaf, axis) if _is_integer(axis) else None
    if found is None:
        raise ProgramError(
            f"batch_axis names the axis {axis!r} of {of!r} in the batch of {name!r}, whose shape is {leaf.shape}."
        )
    return found


def _axis_of(leaf: jax.ShapeDtypeStruct, axis: int) -> int | None:
    """Return an axis counted from 0, or None where a leaf does not have it."""
    rank = len(leaf.shape)
    return axis % rank if -rank <= axis < rank else None


def _split(
    names: tuple[str, ...], leaves: list[jax.ShapeDtypeStruct], placement: Placement
) -> tuple[list[int | None], str] | None:
    """Return the axes that a data axis of the mesh splits; None where none splits the batch."""
    specs = placement.specs[len(placement.specs) - len(leaves) :]
    splits: dict[str, dict[int, int]] = {}
    for number, axis, parts in _parts(specs):
        for part in parts:
            splits.setdefault(part, {})[number] = axis
    order, sizes = [axis for axis, _ in placement.axes], dict(placement.axes)
    found = [axis for axis in order if axis in splits and axis not in INNER_AXES and _agree(leaves, splits[axis])]
    if not found:
        return None
    best = max(found, key=lambda axis: (axis in DATA_AXES, sizes[axis] > 1, len(splits[axis]), -order.index(axis)))
    first, chosen = next(iter(splits[best].items()))
    rows = leaves[first].shape[chosen]
    axes = [splits[best].get(number, _row_axis(leaf, rows)) for number, leaf in enumerate(leaves)]
    others = [
        one for one in found if any(splits[one].get(number, axes[number]) != axes[number] for number in splits[one])
    ]
    if not others:
        return axes, ""
    return axes, (
        f"{rows:,} examples a step: axis {chosen} of {names[first]!r}, which is split over {best!r}. If examples lie "
        f"along the axis that is split over {others[0]!r}, say so with batch_axis."
    )


def _parts(specs: Any) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Yield each leaf's number, each of its axes that is split, and the axes of the mesh that split it."""
    for number, spec in enumerate(specs):
        for axis, parts in enumerate(spec):
            if parts:
                yield number, axis, parts


def _agree(leaves: list[jax.ShapeDtypeStruct], axes: dict[int, int]) -> bool:
    return len({leaves[number].shape[axis] for number, axis in axes.items()}) == 1


def _row_axis(leaf: jax.ShapeDtypeStruct, rows: int) -> int | None:
    return 0 if leaf.shape[:1] == (rows,) else None


def _first(names: tuple[str, ...], leaves: list[jax.ShapeDtypeStruct]) -> tuple[list[int | None], str]:
    """Return axis 0 of each leaf with as many rows as the first, and a sentence unless the shapes allow no other."""
    sized = [(of, leaf) for of, leaf in zip(names, leaves, strict=True) if leaf.shape]
    if not sized:
        return [None] * len(leaves), ""
    name, rows = sized[0][0], sized[0][1].shape[0]
    axes = [_row_axis(leaf, rows) for leaf in leaves]
    ranks = [len(leaf.shape) for leaf, axis in zip(leaves, axes, strict=True) if axis == 0]
    others = [of for of, leaf in sized if leaf.shape[0] != rows]
    if 1 in ranks and (not others or max(ranks) > 1):
        return axes, ""
    if not others:
        return axes, f"{rows:,} examples a step: axis 0 of the batch, as no sharding or batch_axis says another."
    return axes, (
        f"{rows:,} examples a step: axis 0 of {name!r}, as no sharding or batch_axis says another. Axis 0 of "
        f"{' and '.join(map(repr, others[:3]))} has another size, so each device holds the whole of it."
    )


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shapes(names: tuple[str, ...], leaves: list[jax.ShapeDtypeStruct]) -> str:
    return ", ".join(f"{of!r} has the shape {leaf.shape}" for of, leaf in zip(names, leaves, strict=True)) or "no leaf"
