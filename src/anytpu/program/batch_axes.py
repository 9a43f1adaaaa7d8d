"""The axis of the batch along which its examples lie: from the user, from the shardings of the batch, or assumed.

Idea: a batch that lies split over a mesh says which axis counts examples: the one that a data axis of the mesh splits.
Images may be `(rows, height, width, channels)` or `(height, width, channels, rows)`; the shapes alone do not tell.

Rule: an axis that is assumed is told, in a sentence that becomes one of `Program.notes`. It is not assumed where the
user names it, where an axis of the mesh whose name is in `DATA_AXES` splits it, or where the shapes allow no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from anytpu.errors import ProgramError
from anytpu.program.leaves import leaf_names
from anytpu.program.program import REPLICATED, Layout, Placement, Tree

DATA_AXES = (
    *("data", "batch", "replica", "dp", "fsdp", "replicas", "data_parallel", "ddp", "hsdp"),
    *("fsdp_transpose", "dp_replicate", "dp_shard", "replica_dcn"),
)
"""Axes of a mesh that split examples, by the names that JAX programs give them; they go before other names."""

INNER_AXES = ("model", "tensor", "tp", "mp", "seq", "sequence", "context", "cp", "sp")
"""Axes of a mesh that split what is inside of an example, by the names that JAX programs give them."""

_ELSE = "If examples lie along another axis, say so with batch_axis."


def batch_layout(
    name: str, batch: Tree, placement: Placement | None, batch_axis: Tree = None, batch_size: int | None = None
) -> tuple[Tree, str]:
    """Return the axis of each leaf along which examples lie, as a tree of `Layout`, and a sentence on what was assumed.

    Args:
        name: the program, for errors.
        batch: tree of `jax.ShapeDtypeStruct`.
        placement: how state and batch lie on a mesh; None for code that brings no shardings.
        batch_axis: one axis, or a tree of axes (None: no examples) as `jax.vmap` takes them for `in_axes`: a prefix of
            the batch's tree. Of one axis, a leaf that has other sizes there lies along its axis 0, if that has as many
            rows as the first leaf, or holds no examples. None: from the placement, or axis 0.
        batch_size: the examples that the sentence tells; None: those of the batch.

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
    names, why = leaf_names(batch, "batch"), ""
    if batch_axis is not None:
        axes = _given(name, names, batch, batch_axis)
    else:
        axes, why = _split(names, leaves, placement) or _first(names, leaves, placement)
    layouts = [REPLICATED if axis is None else Layout(axis) for axis in axes]
    return jax.tree.unflatten(jax.tree.structure(batch), layouts), _told(leaves, axes, why, batch_size)


def split_layout(
    names: tuple[str, ...], leaves: list[jax.ShapeDtypeStruct], placement: Placement
) -> tuple[tuple[Layout, ...], str]:
    """Return what `batch_layout` finds in a placement alone: no axis for any leaf where no data axis splits the batch.

    Args:
        names: a name for each leaf of the batch.
        leaves: the leaves.
        placement: how state and batch lie on a mesh.
    """
    axes, why = _split(names, leaves, placement) or ([None] * len(leaves), "")
    return tuple(map(Layout, axes)), _told(leaves, axes, why)


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


def _told(
    leaves: Sequence[jax.ShapeDtypeStruct], axes: Sequence[int | None], why: str, batch_size: int | None = None
) -> str:
    """Return the sentence on an axis that was assumed, "" where there is no reason to tell."""
    rows = (leaf.shape[axis] for leaf, axis in zip(leaves, axes, strict=True) if axis is not None)
    return f"{batch_size or next(rows):,} examples a step: {why}" if why else ""


def _split(
    names: Sequence[str], leaves: Sequence[jax.ShapeDtypeStruct], placement: Placement | None
) -> tuple[list[int | None], str] | None:
    """Return the axes that a data axis of the mesh splits, and why if that is assumed; None where none does.

    An axis of the mesh with another name may be one only where it splits axis 0, or where axis 0 is known to be inside
    of an example.
    """
    specs, found = _specs(leaves, placement), _splits(leaves, placement)
    likely = [of for of in found if of in DATA_AXES or _is_likely(specs, found[of])]
    if placement is None or not likely:
        return None
    order, sizes = list(dict(placement.axes)), dict(placement.axes)
    best = max(likely, key=lambda of: (of in DATA_AXES, sizes[of] > 1, len(found[of]), -order.index(of)))
    first, chosen = next(iter(found[best].items()))
    rows = leaves[first].shape[chosen]
    axes = [found[best].get(number, _row_axis(leaf, rows)) for number, leaf in enumerate(leaves)]
    other = next((of for of in found if any(axes[number] != axis for number, axis in found[of].items())), None)
    reasons = []
    if other is not None:
        reasons.append(f"If examples lie along the axis that is split over {other!r}, say so with batch_axis.")
    elif best not in DATA_AXES:
        reasons.append(_ELSE)
    if (count := _stacked(leaves, specs, axes)) is not None:
        reasons.append(
            f"If axis 0 counts {count:,} micro-batches, a step takes {count:,} times as many examples; if it does not, "
            "name the axis with batch_axis."
        )
    if reasons:
        reasons.insert(0, f"axis {chosen} of {names[first]!r}, which is split over {best!r}.")
    return axes, " ".join(reasons)


def _specs(leaves: Sequence[Any], placement: Placement | None) -> Sequence[tuple[tuple[str, ...], ...]]:
    """Return the parts of each leaf of the batch: for each dimension the axes of the mesh that split it."""
    specs = placement.specs if placement else ((),) * len(leaves)
    return specs[len(specs) - len(leaves) :]


def _splits(leaves: Sequence[jax.ShapeDtypeStruct], placement: Placement | None) -> dict[str, dict[int, int]]:
    """Return the axes of the mesh that may split examples, in its order: of each, the axis of each leaf it splits."""
    splits: dict[str, dict[int, int]] = {of: {} for of, _ in (placement.axes if placement else ())}
    for number, axis, parts in _parts(_specs(leaves, placement)):
        for part in parts:
            splits[part][number] = axis
    return {of: axes for of, axes in splits.items() if axes and of not in INNER_AXES and _agree(leaves, axes)}


def _parts(specs: Any) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Yield each leaf's number, each of its axes that is split, and the axes of the mesh that split it."""
    for number, spec in enumerate(specs):
        for axis, parts in enumerate(spec):
            if parts:
                yield number, axis, parts


def _agree(leaves: Sequence[jax.ShapeDtypeStruct], axes: dict[int, int]) -> bool:
    return len({leaves[number].shape[axis] for number, axis in axes.items()}) == 1


def _is_likely(specs: Sequence[tuple[tuple[str, ...], ...]], axes: dict[int, int]) -> bool:
    """Return whether an axis of unknown name splits axis 0 of a leaf, or one whose axis 0 only inner axes split."""
    return any(
        axis == 0 or (specs[number][0] and set(specs[number][0]) <= set(INNER_AXES)) for number, axis in axes.items()
    )


def _stacked(
    leaves: Sequence[jax.ShapeDtypeStruct],
    specs: Sequence[tuple[tuple[str, ...], ...]],
    axes: Sequence[int | None],
) -> int | None:
    """Return the size of axis 0 if it may count micro-batches: whole, of one size, with examples along another."""
    held = [number for number, axis in enumerate(axes) if axis is not None]
    sizes = {leaves[number].shape[0] for number in held}
    is_stacked = all(axes[number] != 0 and not specs[number][0] for number in held)
    return sizes.pop() if is_stacked and len(sizes) == 1 and sizes != {1} else None


def _row_axis(leaf: jax.ShapeDtypeStruct, rows: int) -> int | None:
    return 0 if leaf.shape[:1] == (rows,) else None


def _first(
    names: Sequence[str], leaves: Sequence[jax.ShapeDtypeStruct], placement: Placement | None
) -> tuple[list[int | None], str]:
    """Return axis 0 of each leaf with as many rows as the first, and why unless the shapes allow no other."""
    sized = [(of, leaf) for of, leaf in zip(names, leaves, strict=True) if leaf.shape]
    if not sized:
        return [None] * len(leaves), ""
    name, rows = sized[0][0], sized[0][1].shape[0]
    axes = [_row_axis(leaf, rows) for leaf in leaves]
    others = [of for of, leaf in sized if leaf.shape[0] != rows]
    doubts = _doubts(names, leaves, axes, placement)
    if not others and not doubts and _is_only_axis([leaf for _, leaf in sized]):
        return axes, ""
    told = [f"axis 0 of {repr(name) if others else 'the batch'}, as no sharding or batch_axis says another."]
    if others:
        told.append(
            f"Axis 0 of {' and '.join(map(repr, others[:3]))} has another size, so each device holds the whole of it."
        )
    return axes, " ".join([*told, *doubts])


def _is_only_axis(leaves: Sequence[jax.ShapeDtypeStruct]) -> bool:
    """Return whether leaves of one length can hold examples along axis 0 only: one has no other axis, none a second."""
    return any(len(leaf.shape) == 1 for leaf in leaves) and all(leaf.shape.count(leaf.shape[0]) == 1 for leaf in leaves)


def _doubts(
    names: Sequence[str],
    leaves: Sequence[jax.ShapeDtypeStruct],
    axes: Sequence[int | None],
    placement: Placement | None,
) -> list[str]:
    """Return what in the shardings speaks against axis 0: an axis of the mesh that splits another, or an inner one."""
    for of, split in _splits(leaves, placement).items():
        number, axis = next(iter(split.items()))
        return [
            f"If examples lie along axis {axis} of {names[number]!r}, which is split over {of!r}, say so with "
            "batch_axis."
        ]
    for number, axis, parts in _parts(_specs(leaves, placement)):
        if axis == 0 and axes[number] == 0:
            return [f"It is split over {parts[0]!r}, which splits examples inside by its name. {_ELSE}"]
    return []


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shapes(names: tuple[str, ...], leaves: list[jax.ShapeDtypeStruct]) -> str:
    return ", ".join(f"{of!r} has the shape {leaf.shape}" for of, leaf in zip(names, leaves, strict=True)) or "no leaf"
