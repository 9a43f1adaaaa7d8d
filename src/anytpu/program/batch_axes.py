"""The example axis of each batch leaf: from the user, from the shardings of the batch, or assumed.

Idea: the sharding of a batch over a mesh shows its example axis: the axis that a data axis of the mesh splits. Images
may be `(rows, height, width, channels)` or `(height, width, channels, rows)`, so the shapes alone are ambiguous.

Rule: an assumed axis is reported in a sentence that becomes one of `Program.notes`. In three cases it is not assumed:

- the user names it;
- a mesh axis with a name in `DATA_AXES` splits it;
- the shapes allow no other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import jax

from anytpu.errors import ProgramError
from anytpu.program.program import REPLICATED, Layout, Placement, Tree, leaf_names

DATA_AXES = (
    *("data", "batch", "replica", "dp", "fsdp", "replicas", "data_parallel", "ddp", "hsdp"),
    *("fsdp_transpose", "dp_replicate", "dp_shard", "replica_dcn"),
)
"""Names of mesh axes that split examples in JAX programs; they take precedence over other names."""

INNER_AXES = ("model", "tensor", "tp", "mp", "seq", "sequence", "context", "cp", "sp")
"""Names of mesh axes that split dimensions inside an example in JAX programs."""

_ELSE = "If examples are along another axis, say so with batch_axis."


def batch_layout(
    name: str, batch: Tree, placement: Placement | None, batch_axis: Tree = None, batch_size: int | None = None
) -> tuple[Tree, str]:
    """Return the example axis of each leaf, as a tree of `Layout`, and a sentence on assumptions.

    Args:
        name: name of the program, for errors.
        batch: tree of `jax.ShapeDtypeStruct`.
        placement: shardings of state and batch over a mesh; None for code without shardings.
        batch_axis: one axis, or a tree of axes (None: no examples) like `in_axes` of `jax.vmap`: a prefix of the
            batch's tree. With one axis, some leaves may have another size there. Such a leaf uses axis 0 if that has as
            many rows as the first leaf; otherwise it holds no examples. None: from the placement, or axis 0.
        batch_size: number of examples stated in the sentence; None: that of the batch.

    Returns:
        The layouts, and the sentence, or "" if nothing was assumed.

    Raises:
        ProgramError: `batch_axis` does not fit the batch.

    Example:
        >>> batch = jax.ShapeDtypeStruct((28, 28, 1, 64), "float32"), jax.ShapeDtypeStruct((64,), "int32")
        >>> layouts, why = batch_layout("step/train", batch, None, (3, 0))
        >>> [layout.axis for layout in layouts], why
        ([3, 0], '')
    """
    leaves = jax.tree.leaves(batch)
    names, why = leaf_names(batch, "batch"), ""
    if batch_axis is not None:
        axes = _user_axes(name, names, batch, batch_axis)
    else:
        axes, why = _split(names, leaves, placement) or _first(names, leaves, placement)
    layouts = [REPLICATED if axis is None else Layout(axis) for axis in axes]
    return jax.tree.unflatten(jax.tree.structure(batch), layouts), _assumption(leaves, axes, why, batch_size)


def split_layout(
    names: tuple[str, ...], leaves: list[jax.ShapeDtypeStruct], placement: Placement
) -> tuple[tuple[Layout, ...], str]:
    """Return the result of `batch_layout` from a placement alone, without axes if no data axis splits the batch.

    Args:
        names: name of each leaf of the batch.
        leaves: the leaves.
        placement: shardings of state and batch over a mesh.
    """
    axes, why = _split(names, leaves, placement) or ([None] * len(leaves), "")
    return tuple(map(Layout, axes)), _assumption(leaves, axes, why)


def with_rows(name: str, batch: Tree, layout: Tree, rows: int) -> Tree:
    """Return the specs of a batch with another number of rows in the leaves with an example axis.

    Raises:
        ProgramError: no leaf has an example axis.
    """
    if all(leaf_layout.axis is None for leaf_layout in jax.tree.leaves(layout)):
        raise ProgramError(
            f"The batch of {name!r} has no rows to make {rows} of: each of its leaves is a scalar. Leave batch_size "
            "out."
        )

    def resize(leaf: jax.ShapeDtypeStruct, leaf_layout: Layout) -> jax.ShapeDtypeStruct:
        shape = tuple(rows if axis == leaf_layout.axis else size for axis, size in enumerate(leaf.shape))
        return jax.ShapeDtypeStruct(shape, leaf.dtype)

    return jax.tree.map(resize, batch, layout)


def _user_axes(name: str, names: tuple[str, ...], batch: Tree, batch_axis: Tree) -> list[int | None]:
    """Return the axes that the user names."""
    leaves = jax.tree.leaves(batch)
    if _is_integer(batch_axis):
        if all(_axis_of(leaf, batch_axis) is None for leaf in leaves):
            raise ProgramError(
                f"batch_axis={batch_axis} names no axis of the batch of {name!r}: {_shapes(names, leaves)}."
            )
        own_axes = [_axis_of(leaf, batch_axis) for leaf in leaves]
        rows = next(leaf.shape[axis] for leaf, axis in zip(leaves, own_axes, strict=True) if axis is not None)
        return [
            axis if axis is not None and leaf.shape[axis] == rows else _row_axis(leaf, rows)
            for leaf, axis in zip(leaves, own_axes, strict=True)
        ]
    user_axes = _broadcast_axes(name, batch, batch_axis)
    axes = [_checked_axis(name, *leaf_axis) for leaf_axis in zip(names, leaves, user_axes, strict=True)]
    sizes = zip(names, leaves, axes, strict=True)
    rows = {leaf_name: leaf.shape[axis] for leaf_name, leaf, axis in sizes if axis is not None}
    if len(set(rows.values())) != 1:
        listed = ", ".join(f"{leaf_name!r} {size:,}" for leaf_name, size in rows.items()) or "no leaf has one"
        raise ProgramError(f"batch_axis={batch_axis!r} must name axes of one size in the batch of {name!r}: {listed}.")
    return axes


def _broadcast_axes(name: str, batch: Tree, batch_axis: Tree) -> list[Any]:
    def is_none(node: Any) -> bool:
        return node is None

    try:
        axes = jax.tree.broadcast(batch_axis, batch, is_leaf=is_none)
    except ValueError as error:
        raise ProgramError(
            f"batch_axis must be one axis, or a tree of them like the batch of {name!r}, not {batch_axis!r}: "
            f"{str(error).splitlines()[0]}"
        ) from error
    return jax.tree.leaves(axes, is_leaf=is_none)


def _checked_axis(name: str, leaf_name: str, leaf: jax.ShapeDtypeStruct, axis: Any) -> int | None:
    if axis is None:
        return None
    index = _axis_of(leaf, axis) if _is_integer(axis) else None
    if index is None:
        raise ProgramError(
            f"batch_axis names the axis {axis!r} of {leaf_name!r} in the batch of {name!r}, whose shape is "
            f"{leaf.shape}."
        )
    return index


def _axis_of(leaf: jax.ShapeDtypeStruct, axis: int) -> int | None:
    """Return an axis as an index from 0, or None if the leaf does not have it."""
    rank = len(leaf.shape)
    return axis % rank if -rank <= axis < rank else None


def _assumption(
    leaves: Sequence[jax.ShapeDtypeStruct], axes: Sequence[int | None], why: str, batch_size: int | None = None
) -> str:
    """Return the sentence on an assumed axis, or "" without a reason `why`."""
    rows = (leaf.shape[axis] for leaf, axis in zip(leaves, axes, strict=True) if axis is not None)
    return f"{batch_size or next(rows):,} examples a step: {why}" if why else ""


def _split(
    names: Sequence[str], leaves: Sequence[jax.ShapeDtypeStruct], placement: Placement | None
) -> tuple[list[int | None], str] | None:
    """Return the axes that a data axis of the mesh splits, and the reason if that is assumed; None if no axis is split.

    A mesh axis with another name is a candidate if it splits axis 0, or if axis 0 is known to be inside an example.
    """
    # 1. Candidates: mesh axes that may split examples.
    specs, splits = _specs(leaves, placement), _splits(leaves, placement)
    likely = [part for part in splits if part in DATA_AXES or _is_likely(specs, splits[part])]
    if placement is None or not likely:
        return None
    # 2. The best one: by name, by size above 1, by the number of leaves it splits, by its order in the mesh.
    order, sizes = list(dict(placement.axes)), dict(placement.axes)
    best = max(likely, key=lambda part: (part in DATA_AXES, sizes[part] > 1, len(splits[part]), -order.index(part)))
    first, chosen = next(iter(splits[best].items()))
    rows = leaves[first].shape[chosen]
    axes = [splits[best].get(index, _row_axis(leaf, rows)) for index, leaf in enumerate(leaves)]
    # 3. Reasons for doubt: another mesh axis splits another axis, an unusual name, or a stack of micro-batches.
    other = next((part for part in splits if any(axes[index] != axis for index, axis in splits[part].items())), None)
    reasons = []
    if other is not None:
        reasons.append(f"If examples are along the axis that is split over {other!r}, say so with batch_axis.")
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
    """Return the partition of each leaf of the batch: for each dimension the mesh axes that split it."""
    specs = placement.specs if placement else ((),) * len(leaves)
    return specs[len(specs) - len(leaves) :]


def _splits(leaves: Sequence[jax.ShapeDtypeStruct], placement: Placement | None) -> dict[str, dict[int, int]]:
    """Return the mesh axes that may split examples, in mesh order, each with {leaf index: split axis of the leaf}."""
    splits: dict[str, dict[int, int]] = {part: {} for part, _ in (placement.axes if placement else ())}
    for index, axis, parts in _parts(_specs(leaves, placement)):
        for part in parts:
            splits[part][index] = axis
    return {
        part: axes for part, axes in splits.items() if axes and part not in INNER_AXES and _have_one_size(leaves, axes)
    }


def _parts(specs: Any) -> Iterator[tuple[int, int, tuple[str, ...]]]:
    """Yield (leaf index, axis, mesh axes) for each split axis of each leaf."""
    for index, spec in enumerate(specs):
        for axis, parts in enumerate(spec):
            if parts:
                yield index, axis, parts


def _have_one_size(leaves: Sequence[jax.ShapeDtypeStruct], axes: dict[int, int]) -> bool:
    return len({leaves[index].shape[axis] for index, axis in axes.items()}) == 1


def _is_likely(specs: Sequence[tuple[tuple[str, ...], ...]], axes: dict[int, int]) -> bool:
    """Return whether a mesh axis of unknown name splits axis 0, or a leaf whose axis 0 only inner axes split."""
    return any(
        axis == 0 or (specs[index][0] and set(specs[index][0]) <= set(INNER_AXES)) for index, axis in axes.items()
    )


def _stacked(
    leaves: Sequence[jax.ShapeDtypeStruct],
    specs: Sequence[tuple[tuple[str, ...], ...]],
    axes: Sequence[int | None],
) -> int | None:
    """Return the size of axis 0 if it may count micro-batches: unsplit, of one size, and not the example axis."""
    with_rows = [index for index, axis in enumerate(axes) if axis is not None]
    sizes = {leaves[index].shape[0] for index in with_rows}
    is_stacked = all(axes[index] != 0 and not specs[index][0] for index in with_rows)
    return sizes.pop() if is_stacked and len(sizes) == 1 and sizes != {1} else None


def _row_axis(leaf: jax.ShapeDtypeStruct, rows: int) -> int | None:
    return 0 if leaf.shape[:1] == (rows,) else None


def _first(
    names: Sequence[str], leaves: Sequence[jax.ShapeDtypeStruct], placement: Placement | None
) -> tuple[list[int | None], str]:
    """Return axis 0 of each leaf with as many rows as the first, and the reason, or "" if the shapes allow no other."""
    sized = [(leaf_name, leaf) for leaf_name, leaf in zip(names, leaves, strict=True) if leaf.shape]
    if not sized:
        return [None] * len(leaves), ""
    name, rows = sized[0][0], sized[0][1].shape[0]
    axes = [_row_axis(leaf, rows) for leaf in leaves]
    others = [leaf_name for leaf_name, leaf in sized if leaf.shape[0] != rows]
    doubts = _doubts(names, leaves, axes, placement)
    if not others and not doubts and _is_only_axis([leaf for _, leaf in sized]):
        return axes, ""
    reasons = [f"axis 0 of {repr(name) if others else 'the batch'}, as no sharding or batch_axis says another."]
    if others:
        reasons.append(
            f"Axis 0 of {' and '.join(map(repr, others[:3]))} has another size, so each device holds the whole of it."
        )
    return axes, " ".join([*reasons, *doubts])


def _is_only_axis(leaves: Sequence[jax.ShapeDtypeStruct]) -> bool:
    """Return whether leaves of one length can hold examples along axis 0 only.

    That is so if one leaf has a single axis, and no leaf has a second axis of this length.
    """
    return any(len(leaf.shape) == 1 for leaf in leaves) and all(leaf.shape.count(leaf.shape[0]) == 1 for leaf in leaves)


def _doubts(
    names: Sequence[str],
    leaves: Sequence[jax.ShapeDtypeStruct],
    axes: Sequence[int | None],
    placement: Placement | None,
) -> list[str]:
    """Return a doubt about axis 0 from the shardings: another axis is split, or an inner mesh axis splits axis 0."""
    for part, split in _splits(leaves, placement).items():
        index, axis = next(iter(split.items()))
        return [
            f"If examples are along axis {axis} of {names[index]!r}, which is split over {part!r}, say so with "
            "batch_axis."
        ]
    for index, axis, parts in _parts(_specs(leaves, placement)):
        if axis == 0 and axes[index] == 0:
            return [f"It is split over {parts[0]!r}, which splits dimensions inside an example by its name. {_ELSE}"]
    return []


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _shapes(names: tuple[str, ...], leaves: list[jax.ShapeDtypeStruct]) -> str:
    shapes = [f"{leaf_name!r} has the shape {leaf.shape}" for leaf_name, leaf in zip(names, leaves, strict=True)]
    return ", ".join(shapes) or "no leaf"
