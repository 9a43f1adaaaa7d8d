"""Layouts that a search chose for one model: partitions by the names of its arrays, kept in files.

Idea: a searched layout lists the arrays of the state in their order, with shapes. So it also fits the same model made
again: Keras numbers its layers anew ("sequential_1"), but their order and shapes are equal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from anytpu.errors import SettingError
from anytpu.files.json_text import read_json
from anytpu.files.opening import read_file
from anytpu.program.rematerialising import REMATS, Remat
from anytpu.sharding.layouts import ModelLayout, Spec

Shape = tuple[int, ...]


def searched_layout(
    name: str,
    axes: tuple[tuple[str, int], ...],
    specs: Mapping[str, Spec],
    shapes: Mapping[str, Shape],
    required_weights: tuple[str, ...],
    batch_axes: Mapping[int, tuple[str, ...]],
    remat: Remat = "",
) -> ModelLayout:
    """Return a layout for one model, whose partitions are those that a search chose.

    Args:
        name: short name for reports.
        axes: (name, size) of each mesh axis; "data" splits the examples.
        specs: partition of each array of the state by its name, in order.
        shapes: shape of each of them.
        required_weights: names of the split weights, which a model must have.
        batch_axes: mesh axes that split an axis of the batch other than its rows, by the index of that axis.
        remat: a name of `REMATS`, or "" for a step that computes nothing again.
    """

    def spec_of(name: str, shape: Shape) -> Spec | None:
        return specs.get(name) if shapes.get(name) == shape else None

    return ModelLayout(
        name, axes, ("data",), spec_of, required_weights, inner=batch_axes, specs=specs, shapes=shapes, remat=remat
    )


def rename_to_state(layout: ModelLayout, names: Sequence[str], shapes: Sequence[Shape]) -> ModelLayout:
    """Return a searched layout with its arrays renamed to those of a program's state.

    Any other layout is returned unchanged. So is one whose required weights have other shapes than those of the state.

    Args:
        layout: the layout.
        names: names of the leaves of the state.
        shapes: their shapes.
    """
    if not layout.specs or set(layout.patterns) <= set(names):
        return layout
    renamed: dict[str, str] = {}
    for (old, old_shape), name, shape in zip(layout.shapes.items(), names, shapes, strict=False):
        if old_shape != shape:
            break
        renamed[old] = name
    if not set(layout.patterns) <= set(renamed):
        return layout
    return searched_layout(
        layout.name,
        layout.axes,
        {name: layout.specs[old] for old, name in renamed.items()},
        {name: layout.shapes[old] for old, name in renamed.items()},
        tuple(renamed[old] for old in layout.patterns),
        layout.inner,
        layout.remat,
    )


def to_record(layout: ModelLayout) -> dict[str, Any]:
    """Return a searched layout as JSON values."""
    return {
        "name": layout.name,
        "mesh": dict(layout.axes),
        "remat": layout.remat,
        "batch": {str(axis): list(parts) for axis, parts in layout.inner.items()},
        "weights": list(layout.patterns),
        "arrays": {
            name: {"shape": list(layout.shapes[name]), "partition": [list(parts) for parts in spec]}
            for name, spec in layout.specs.items()
        },
    }


def read_layout(path: str) -> ModelLayout:
    """Return the best layout of a file that `Shardings.to_json` wrote.

    Raises:
        SettingError: the file cannot be read, or is no such file.
    """
    try:
        record = read_json(read_file(Path(path)))
        layout = record["candidates"][0]["layout"]
        specs = {name: tuple(map(tuple, array["partition"])) for name, array in layout["arrays"].items()}
        shapes = {name: tuple(array["shape"]) for name, array in layout["arrays"].items()}
        batch_axes = {int(axis): tuple(parts) for axis, parts in layout["batch"].items()}
        # A file of a release without rematerialisation has no such entry.
        remat = layout.get("remat", "")
        if remat not in ("", *REMATS):
            raise ValueError(remat)
        axes, weights = tuple(layout["mesh"].items()), tuple(layout["weights"])
        return searched_layout(layout["name"], axes, specs, shapes, weights, batch_axes, remat)
    except OSError as error:
        raise SettingError(f"the layout {path!r} cannot be read: {error.strerror or error}") from error
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        raise SettingError(
            f"{path!r} is no file of layouts: write one with anytpu shard --json, or found.to_json(path)"
        ) from error
