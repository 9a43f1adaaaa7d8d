"""`resolve`: the layout that a user means, from the forms in which users write it.

Idea: every form is a mesh with named axes and a function from a weight's name and shape to its partition.

Rule: a `keras.distribution.LayoutMap` is literal: Keras itself reads it, and nothing is added. With every other form
the slots of the optimizer and the activations follow the weights (`placing.py`).
"""

from __future__ import annotations

import difflib
import inspect
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from jax.sharding import PartitionSpec

from anytpu import _keras
from anytpu.errors import SettingError
from anytpu.program.batch_axes import DATA_AXES
from anytpu.program.placed import axes_text, partition_of, parts_of
from anytpu.sharding.layouts import ModelLayout, Spec, split_largest
from anytpu.sharding.searched import read_layout

_MESH_HINT = ' Name the axes: mesh={"data": 4, "model": 2}.'
_FORMS = (
    '"data", "fsdp", a keras.distribution.LayoutMap, a dictionary {pattern: PartitionSpec}, a function (name, '
    "shape) -> PartitionSpec, a result of tpu.find_layouts or the path of its JSON file"
)


def resolve(layout: Any, mesh: Mapping[str, int] | None, devices: int) -> ModelLayout:
    """Return the layout that a user wrote.

    Args:
        layout: "data" (weights whole on each core) or "fsdp" (weights, slots and batch split over all cores). Or a
            `ModelLayout`, a `keras.distribution.LayoutMap`, `ModelParallel` or `DataParallel`. Or a dictionary
            {pattern: PartitionSpec}, with regular expressions that are searched in the names of weights. Or a function
            `(name, shape) -> PartitionSpec`. Or the path of a JSON file of a search.
        mesh: {name: size} of each mesh axis, at most one of them -1, which fills the devices. None: one axis "data"
            over all devices, or the mesh of the layout.
        devices: number of devices.

    Raises:
        SettingError: `layout` is none of these, the mesh has another number of devices, or a partition names an axis
            that the mesh lacks.

    Example:
        >>> resolve("fsdp", None, 8)
        <ModelLayout: fsdp over data=8>
    """
    resolved = _resolved(layout, mesh, devices)
    if resolved.devices != devices:
        raise SettingError(
            f"the mesh {axes_text(resolved.axes)} has {resolved.devices} devices, and the system has {devices}: "
            f"{_other_mesh(resolved, devices)}"
        )
    if mesh is not None and dict(_axes(mesh, devices)) != dict(resolved.axes):
        raise SettingError(f"the layout has the mesh {axes_text(resolved.axes)}: leave mesh={mesh!r} out")
    return resolved


def _resolved(layout: Any, mesh: Mapping[str, int] | None, devices: int) -> ModelLayout:
    """Return the layout, over its own mesh if it has one, else over the mesh of the caller."""
    with_mesh = layout if isinstance(layout, ModelLayout) else getattr(layout, "layout", None)
    if isinstance(with_mesh, ModelLayout):
        return with_mesh
    if _is_layout_map(layout):
        return _of_layout_map(layout)
    if _is_distribution(layout):
        return _of_distribution(layout)
    axes = _axes(mesh, devices)
    rows = _row_axes(name for name, _ in axes)
    if isinstance(layout, str | os.PathLike):
        return _of_name(os.fspath(layout), axes, rows)
    if isinstance(layout, Mapping):
        if not layout:
            raise SettingError('the layout has no pattern; layout="data" leaves every weight whole')
        return _of_patterns(layout, axes, rows)
    if callable(layout):
        return _of_function(layout, axes, rows)
    raise _unknown(layout)


def _of_name(layout: str, axes: tuple[tuple[str, int], ...], rows: tuple[str, ...]) -> ModelLayout:
    """Return the layout of a name, or of the path of a JSON file."""
    sizes = dict(axes)
    if layout == "data":
        return ModelLayout("data", axes, rows, lambda name, shape: ())
    if layout == "fsdp":
        return ModelLayout("fsdp", axes, rows, lambda name, shape: split_largest(shape, rows, sizes))
    if layout.endswith(".json"):
        return read_layout(layout)
    if layout == "auto":
        raise SettingError(
            'the best layout is found by compiling: found = tpu.find_layouts(model, tpu="v5e-8", batch_size=64), then '
            'layout=found. Without a search, "fsdp" needs the least memory of a core and "data" the least exchange'
        )
    raise _unknown(layout)


def _unknown(layout: Any) -> SettingError:
    near = _nearest(layout) if isinstance(layout, str) else ""
    return SettingError(f"layout must be {_FORMS}, not {layout!r}.{near}")


def _axes(mesh: Any, devices: int) -> tuple[tuple[str, int], ...]:
    if mesh is None:
        return (("data", devices),)
    sound = isinstance(mesh, Mapping) and mesh and all(isinstance(name, str) for name in mesh)
    sizes = list(mesh.values()) if sound else []
    if not sound or not all(type(size) is int and (size > 0 or size == -1) for size in sizes) or sizes.count(-1) > 1:
        raise SettingError(
            f'mesh must be the sizes of its axes, such as {{"data": 4, "model": 2}}, at most one of them -1, not '
            f"{mesh!r}"
        )
    fixed = math.prod(size for size in sizes if size != -1)
    if -1 in sizes and devices % fixed:
        raise SettingError(
            f"the other axes of mesh={mesh!r} have {fixed} devices together, which do not divide the {devices} of the "
            "system"
        )
    return tuple((name, devices // fixed if size == -1 else size) for name, size in mesh.items())


def _other_mesh(layout: ModelLayout, devices: int) -> str:
    """Return the remedy for a layout whose mesh has another number of devices than the system."""
    if layout.specs:
        return (
            "it was found for that number, so search again on this system: "
            "tpu.find_layouts(model, tpu=..., batch_size=...)"
        )
    if layout.is_literal or layout.name == "DataParallel":
        return f"make a DeviceMesh whose sizes multiply to {devices}"
    filling = ", ".join(f'"{name}": {-1 if name == layout.row_axes[0] else size}' for name, size in layout.axes)
    return f"its sizes must multiply to {devices}. A size of -1 fills any system: mesh={{{filling}}}"


def _row_axes(names: Iterable[str]) -> tuple[str, ...]:
    """Return the axes that split examples by their names; the first axis if no name says so, as in Keras."""
    listed = list(names)
    return tuple(name for name in listed if name in DATA_AXES) or tuple(listed[:1])


def _of_patterns(layout: Mapping[str, Any], axes: Any, rows: tuple[str, ...]) -> ModelLayout:
    for pattern in layout:
        _check_pattern(pattern)
    specs = {pattern: _checked_spec(repr(pattern), partition, axes) for pattern, partition in layout.items()}

    def spec_of(name: str, shape: tuple[int, ...]) -> Spec | None:
        if name in specs:
            return specs[name]
        matches = [pattern for pattern in specs if re.search(pattern, name)]
        if len({specs[pattern] for pattern in matches}) > 1:
            listed = " and ".join(f"{pattern!r} ({_text(specs[pattern])})" for pattern in matches)
            raise SettingError(f"{name!r} matches two patterns of the layout, {listed}. Make one of them narrower")
        return specs[matches[0]] if matches else None

    name = "1 pattern" if len(specs) == 1 else f"{len(specs)} patterns"
    return ModelLayout(name, axes, rows, spec_of, tuple(specs))


def _check_pattern(pattern: Any) -> None:
    try:
        re.compile(pattern)
    except (re.error, TypeError) as error:
        raise SettingError(f"{pattern!r} in the layout is no regular expression: {error}") from error


def _of_function(function: Callable[..., Any], axes: Any, rows: tuple[str, ...]) -> ModelLayout:
    label = getattr(function, "__name__", "function")
    try:
        inspect.signature(function).bind("dense/kernel", (8, 8))
    except (TypeError, ValueError) as error:
        raise SettingError(
            f"a layout that is a function takes (name, shape), and {function!r} does not: {error}"
        ) from error

    def spec_of(name: str, shape: tuple[int, ...]) -> Spec | None:
        try:
            partition = function(name, shape)
        except Exception as error:
            raise SettingError(
                f"the layout function {label!r} raised {type(error).__name__} for the weight {name!r} of shape "
                f"{shape}: {error}. Let it return None for a weight that it does not split"
            ) from error
        return None if partition is None else _checked_spec(f"the layout of {name!r}", partition, axes)

    return ModelLayout(label, axes, rows, spec_of)


def _is_layout_map(layout: Any) -> bool:
    return type(layout).__name__ == "LayoutMap" and hasattr(layout, "device_mesh")


def _is_distribution(layout: Any) -> bool:
    return hasattr(layout, "device_mesh") and hasattr(layout, "get_variable_layout")


def _of_distribution(distribution: Any) -> ModelLayout:
    """Return the layout of a `keras.distribution.ModelParallel` or `DataParallel`."""
    rows = (distribution.batch_dim_name,)
    if type(distribution).__name__ == "ModelParallel":
        return _of_layout_map(_keras.layout_map_of(distribution), rows)
    if type(distribution).__name__ == "DataParallel":
        return ModelLayout("DataParallel", _mesh_axes(distribution.device_mesh), rows, lambda name, shape: ())
    raise SettingError(
        f"keras.distribution.{type(distribution).__name__} is no layout that anytpu can read: use DataParallel or "
        "ModelParallel"
    )


def _mesh_axes(mesh: Any) -> tuple[tuple[str, int], ...]:
    """Return the axes of a `keras.distribution.DeviceMesh`."""
    return tuple(zip(mesh.axis_names, map(int, mesh.shape), strict=True))


def _of_layout_map(layout: Any, rows: tuple[str, ...] = ()) -> ModelLayout:
    """Return the layout of a `keras.distribution.LayoutMap`: Keras itself reads each path."""
    axes = _mesh_axes(layout.device_mesh)
    for pattern in layout:
        _check_pattern(pattern)
        _checked_spec(repr(pattern), layout[pattern].axes, axes)

    def spec_of(name: str, shape: tuple[int, ...]) -> Spec | None:
        try:
            found = layout[name]
        except ValueError as error:
            raise SettingError(f"Keras refuses its LayoutMap for {name!r}: {error}") from error
        return None if found is None else parts_of(found.axes)

    # A key for the output of a layer ends so, as the path that Keras asks for.
    outputs = tuple(pattern for pattern in layout if pattern.endswith("output"))
    weights = tuple(pattern for pattern in layout if pattern not in outputs)
    rows = rows or (axes[0][0],)
    return ModelLayout("LayoutMap", axes, rows, spec_of, weights, is_literal=True, outputs=outputs)


def _checked_spec(owner: str, partition: Any, axes: tuple[tuple[str, int], ...]) -> Spec:
    if not isinstance(partition, PartitionSpec | tuple | list):
        raise SettingError(f'{owner} has {partition!r}; a partition is written PartitionSpec(None, "model")')
    for parts in partition:
        if not (parts is None or isinstance(parts, str) or _is_names(parts)):
            raise SettingError(f"{owner} has {partition!r}: each axis of an array has names of mesh axes, or None")
    spec, known = parts_of(partition), [name for name, _ in axes]
    used = [part for parts in spec for part in parts]
    for part in used:
        if part not in known:
            raise SettingError(
                f"{owner} is split over {part!r}, and the mesh has the axes {', '.join(map(repr, known))}."
                f"{_nearest(part, known) or _MESH_HINT}"
            )
        if used.count(part) > 1:
            raise SettingError(
                f"{owner} is split over {part!r} along two axes; a mesh axis splits one axis of an array"
            )
    return spec


def _text(spec: Spec) -> str:
    return repr(tuple(partition_of(spec)))


def _is_names(parts: Any) -> bool:
    return isinstance(parts, tuple | list) and all(isinstance(part, str) for part in parts)


def _nearest(word: Any, known: Iterable[str] = ("data", "fsdp")) -> str:
    near = difflib.get_close_matches(str(word), list(known), 1)
    return f" Did you mean {near[0]!r}?" if near else ""
