"""Columns of elements and batches: names, batches made of rows, rows of batches, separation of strings.

Idea: an element is a tree of arrays, numbers and strings, and each of its leaves is a column of a batch. Cores cannot
compute with strings, but a prediction is useless without its row's name or id. So numeric columns are sent to the
cores, and string columns are kept under their names.

Rule: nothing here changes the order of the rows.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from anytpu.errors import DataError

Tree = Any

_REMOVED = object()


def name_of(path: Any) -> str:
    """Return a column's name: its keys and indices in the element, such as "image" or "0.image"."""
    return ".".join(str(getattr(key, "key", getattr(key, "idx", getattr(key, "name", key)))) for key in path) or "it"


def row_of(arrays: Tree, position: int) -> Tree:
    """Return the row at a position of each array."""
    return jax.tree.map(lambda array: array[position], arrays)


def rows_of(arrays: Tree, caller: str) -> int:
    """Return the common number of rows of arrays.

    Args:
        arrays: tree of arrays.
        caller: name of the calling method, for errors.

    Raises:
        DataError: there is no array, one is a scalar, all have 0 rows, or the numbers of rows differ.
    """
    columns = [(name_of(path), array) for path, array in jax.tree_util.tree_flatten_with_path(arrays)[0]]
    for name, array in columns:
        if np.ndim(array) == 0:
            raise DataError(
                f"{caller} takes arrays whose first axis is the rows, and {name} is the scalar "
                f"{np.asarray(array).item()!r}: pass lists of values as np.array([...])"
            )
    lengths = {len(array) for _, array in columns}
    listed = ", ".join(f"{'array ' * name.isdigit()}{name} has {len(array)}" for name, array in columns)
    if len(lengths) > 1:
        raise DataError(f"all arrays must have the same number of rows, but {listed}. Cut them to one length")
    if not any(lengths):
        raise DataError(
            f"there is nothing to read: {listed or 'no array'}{' rows' if listed else ''}. Pass at least one row"
        )
    return lengths.pop()


def stack(elements: Sequence[Tree]) -> Tree:
    """Make a batch: stack each column along a new first axis; strings and bytes become arrays of objects.

    Raises:
        DataError: the elements have different columns, or a column has different shapes.
    """
    tree, columns = _columns_of(elements)
    return tree.unflatten([_stacked(path, values) for path, values in columns])


def unstack(batch: Tree) -> list[Tree]:
    """Return the rows of a batch.

    Raises:
        DataError: there is no column, a column is a scalar, or the numbers of rows differ. Columns of 0 rows are valid.
    """
    leaves, tree = jax.tree.flatten(batch)
    if any(np.ndim(leaf) == 0 for leaf in leaves) or len({len(leaf) for leaf in leaves}) != 1:
        shapes = ", ".join(
            f"{name_of(path)} has the shape {np.shape(leaf)}"
            for path, leaf in jax.tree_util.tree_flatten_with_path(batch)[0]
        )
        raise DataError(
            f"unbatch takes batches whose columns have the same number of rows, but {shapes or 'no column'}"
        )
    if jax.tree_util.treedef_is_leaf(tree):
        return list(leaves[0])
    return [tree.unflatten(row) for row in zip(*leaves, strict=True)]


@dataclasses.dataclass(frozen=True)
class PaddedStack:
    """Makes a batch of elements of different shapes: each column is padded at the end of each axis.

    Attributes:
        shapes: tree of shapes with the structure of an element, or one shape for all columns. None: each axis is as
            long as its longest element in the batch, as is an axis of size None or -1.
        values: tree of the padding's values, or one value for all columns; None: 0, "" or b"".
    """

    shapes: Tree = None
    values: Tree = None

    def __call__(self, elements: Sequence[Tree]) -> Tree:
        """Make a batch.

        Raises:
            DataError: the elements have different columns or numbers of axes, or an element is longer than its shape.
        """
        tree, columns = _columns_of(elements)
        shapes = _by_column(self.shapes, tree, is_leaf=_is_shape, name="padded_shapes")
        values = _by_column(self.values, tree, is_leaf=lambda value: value is None, name="padding_values")
        return tree.unflatten(map(_padded, columns, shapes, values))


def _by_column(argument: Tree, tree: Any, is_leaf: Any, name: str) -> list[Any]:
    """Return an argument's values for the columns of a tree: one for each, or the same for all."""
    leaves, structure = jax.tree.flatten(argument, is_leaf=is_leaf)
    if structure == tree:
        return leaves
    if len(leaves) != 1 or structure.num_nodes != 1:
        raise DataError(f"{name} must have the structure of an element, {tree}, or be a single one, not {argument!r}")
    return leaves * tree.num_leaves


def _is_shape(value: Any) -> bool:
    return value is None or (
        isinstance(value, list | tuple) and all(size is None or isinstance(size, int) for size in value)
    )


def _padded(column: tuple[Any, list[Any]], shape: Any, value: Any) -> np.ndarray:
    path, values = column
    arrays = [np.asarray(item, object if isinstance(item, str | bytes) else None) for item in values]
    axes = {array.ndim for array in arrays} | ({len(shape)} if shape is not None else set())
    if len(axes) > 1:
        raise DataError(f"{name_of(path)} has {_listed_counts(axes)} axes in one batch: padding keeps their number")
    longest = tuple(max(sizes) for sizes in zip(*(array.shape for array in arrays), strict=True))
    wanted = shape or (None,) * len(longest)
    target = tuple(
        size if target_size in (None, -1) else target_size for size, target_size in zip(longest, wanted, strict=True)
    )
    if any(size > target_size for size, target_size in zip(longest, target, strict=True)):
        raise DataError(
            f"{name_of(path)} has an element of shape {longest}, longer than padded_shapes {tuple(wanted)}: use "
            "a longer shape, or None for the longest element of each batch"
        )
    # NumPy makes an array of an empty list float64: arrays without values do not decide the dtype.
    typed = [array for array in arrays if array.size] or arrays
    is_text = any(array.dtype.kind in "OUS" for array in typed)
    if value is None:
        value = type(next((item for array in arrays for item in array.flat), ""))() if is_text else 0
    batch = np.full((len(arrays), *target), value, object if is_text else np.result_type(*typed))
    for index, array in enumerate(arrays):
        batch[(index, *map(slice, array.shape))] = array[()]  # the element itself of an array without axes
    return batch


def split(batch: Tree) -> tuple[Tree, dict[str, np.ndarray]]:
    """Split a batch into its numeric and its string columns.

    Returns:
        The batch without its string columns, and these by name: "id" of `{"id": ...}`, "1" of `(x, ids)`.

    Raises:
        DataError: all columns hold strings.

    Example:
        >>> numbers, strings = split({"image": np.zeros((2, 4)), "id": np.array(["a", "b"])})
        >>> list(numbers), strings["id"].tolist()
        (['image'], ['a', 'b'])
    """
    leaves = jax.tree_util.tree_flatten_with_path(batch)[0]
    strings = {name_of(path): np.asarray(leaf) for path, leaf in leaves if is_strings(leaf)}
    if not strings:
        return batch, strings
    if len(strings) == len(leaves):
        raise DataError(
            f"all columns hold strings ({', '.join(strings)}), and cores cannot compute with strings: decode or parse "
            "them first, with .map(...)"
        )
    return _without_removed(jax.tree.map(lambda leaf: _REMOVED if is_strings(leaf) else leaf, batch)), strings


def is_strings(leaf: Any) -> bool:
    """Return whether a column holds strings or bytes."""
    kind = getattr(getattr(leaf, "dtype", None), "kind", None)
    if kind == "O":
        return len(leaf) > 0 and (not leaf.size or isinstance(leaf.flat[0], str | bytes))
    return kind in ("U", "S") or isinstance(leaf, str | bytes)


def _without_removed(tree: Tree) -> Tree:
    """Return a tree of dicts, tuples and lists without the removed leaves and the containers left empty."""
    if isinstance(tree, dict):
        kept = {key: _without_removed(part) for key, part in tree.items()}
        return {key: part for key, part in kept.items() if part is not _REMOVED} or _REMOVED
    if isinstance(tree, list | tuple):
        parts = [part for part in map(_without_removed, tree) if part is not _REMOVED]
        return (parts if isinstance(tree, list) else tuple(parts)) if parts else _REMOVED
    return tree


def _columns_of(elements: Sequence[Tree]) -> tuple[Any, list[tuple[Any, list[Any]]]]:
    """Return the structure of elements, and the path and the values of each column."""
    flat = [jax.tree_util.tree_flatten_with_path(element) for element in elements]
    paths, tree = [path for path, _ in flat[0][0]], flat[0][1]
    for index, (leaves, other) in enumerate(flat):
        if other != tree:
            raise DataError(
                f"element {index} of a batch has other columns than its first: {_listed_names(leaves)}, not "
                f"{_listed_names(flat[0][0])}. Return the same columns for every element in map"
            )
    values = zip(*([leaf for _, leaf in leaves] for leaves, _ in flat), strict=True)
    return tree, [(path, list(column)) for path, column in zip(paths, values, strict=True)]


def _stacked(path: Any, values: list[Any]) -> np.ndarray:
    if isinstance(values[0], str | bytes):
        # NumPy's fixed-width strings drop trailing zero bytes, which an image file may have.
        column = np.empty(len(values), object)
        column[:] = values
        return column
    shapes = {np.shape(value) for value in values}
    if len(shapes) > 1:
        raise DataError(
            f"{name_of(path)} has elements of different shapes in one batch, {_listed_shapes(shapes)}: convert them to "
            "one shape in map, such as by tpu.pipeline.resize for images, or pad sequences with padded_batch. For ids "
            "of an embedding table: tpu.embedding.pad_ids"
        )
    return np.stack(values)


def _listed_names(leaves: list[tuple[Any, Any]]) -> str:
    return ", ".join(name_of(path) for path, _ in leaves) or "nothing"


def _listed_shapes(shapes: set[tuple[int, ...]]) -> str:
    first = sorted(shapes)[:3]
    return " and ".join(str(shape) for shape in first) + (" and others" if len(shapes) > 3 else "")


def _listed_counts(counts: set[int]) -> str:
    return " and ".join(map(str, sorted(counts)))
