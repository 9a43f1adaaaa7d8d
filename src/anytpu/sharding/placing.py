"""`place`: a Program over a mesh of cores, as a layout says.

Idea: the layout names partitions of weights. The trace of the step relates their axes to those of every other array
(`logical_axes.py`). So the optimizer's slots are split like their weights. Examples are split over the row axes, and an
activation is split like the weight axis that makes it.

Rule: activations get sharding constraints (`constraints.py`), except in a literal layout. A placement never changes a
value.
"""

from __future__ import annotations

import collections
import dataclasses
import difflib
import functools
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from anytpu.errors import SettingError
from anytpu.program.lowering import TRACING
from anytpu.program.placed import axes_text, inside, mesh_of, whole_text
from anytpu.program.program import Layout, Placement, Program, state_names
from anytpu.program.rematerialising import Remat, rematerialised
from anytpu.program.unplaced import ConstrainedStep
from anytpu.sharding.constraints import Constraints
from anytpu.sharding.layer_outputs import constrained_outputs, whole_path_hint
from anytpu.sharding.layouts import ModelLayout, Spec
from anytpu.sharding.logical_axes import Axes, AxisLevel, logical_axes
from anytpu.sharding.searched import rename_to_state
from anytpu.sharding.tables import tracing_for, with_tables


@dataclasses.dataclass(frozen=True, eq=False)
class TracedStep:
    """The trace of a whole-batch Program, with the logical axes of its arrays.

    Attributes:
        program: the program.
        trace: the trace of its step.
        level: the logical axes.
        structure: tree of (new state, outputs).
    """

    program: Program
    trace: ClosedJaxpr
    level: AxisLevel
    structure: Any

    def rematerialised(self, remat: Remat) -> TracedStep:
        """Return the step that computes parts of its forward pass again; this one for ""."""
        if not remat:
            return self
        if remat not in self._again:
            trace = rematerialised(self.trace, len(self.state_axes), remat)
            self._again[remat] = dataclasses.replace(self, trace=trace, level=logical_axes(trace))
        return self._again[remat]

    @functools.cached_property
    def _again(self) -> dict[Remat, TracedStep]:
        return {}

    @functools.cached_property
    def state_axes(self) -> list[Axes]:
        """Logical axes of each leaf of the state."""
        states = len(jax.tree.leaves(self.program.state))
        return [self.level.of(variable) for variable in self.trace.jaxpr.invars[:states]]

    @functools.cached_property
    def batch_axes(self) -> list[Axes]:
        """Logical axes of each leaf of the batch."""
        states = len(jax.tree.leaves(self.program.state))
        return [self.level.of(variable) for variable in self.trace.jaxpr.invars[states:]]

    @functools.cached_property
    def rows(self) -> set[int]:
        """Logical axes of the examples."""
        leaves = zip(self.batch_axes, self.program.leaves(), strict=True)
        return {axes[layout.axis] for axes, (_, layout) in leaves if layout.axis is not None}


def trace_step(program: Program) -> TracedStep:
    """Trace a whole-batch Program on the host, and find its logical axes."""

    def step(state: Any, batch: Any) -> Any:
        # A new function: JAX would return its trace of the step under the output layouts of another LayoutMap.
        return program.step(state, batch)

    with TRACING:
        trace, result = jax.make_jaxpr(step, return_shape=True)(program.state, program.batch)
    return TracedStep(program, trace, logical_axes(trace), jax.tree.structure(result))


def place(program: Program, layout: ModelLayout, traced: TracedStep | None = None, device: Any = None) -> Program:
    """Return a whole-batch Program with the placement of a layout.

    Args:
        program: the program; one with shardings of its own is returned unchanged. If it only names a mesh, as for
            `jax.shard_map`, the layout places its inputs over this mesh.
        layout: the layout.
        traced: its trace if it is at hand, so that many layouts share one.
        device: kind of the devices of a real mesh, a `jax.sharding.AbstractDevice`: JAX refuses to mix meshes with and
            without one in a step. None: of no mesh of this machine.

    Raises:
        SettingError: a pattern matches no weight, or a partition has more axes than its weight or does not divide it.
            Or the program is per-replica code, which has whole weights on each replica. Or its step names another mesh.
    """
    # 1. Only whole-batch code without shardings of its own is placed.
    if program.placement is not None:
        if not program.placement.assumption:
            return program
        program = _without_assumption(program, program.placement, layout)
    if program.replicas is not None:
        raise SettingError(
            f"{program.name!r} is a step for one replica, and layout={layout.name!r} splits one model over the cores. "
            "Write whole-batch code: fit of a Keras model, or a function step(state, batch) of the global batch"
        )
    # 2. Rename the layout's arrays to those of the state, and trace the step.
    names, leaves = state_names(program), jax.tree.leaves(program.state)
    layout = with_tables(rename_to_state(layout, names, [tuple(leaf.shape) for leaf in leaves]), program.tables)
    if traced is None:
        # The step may name the axes of the mesh in constraints of its own.
        mesh = Placement(layout.axes, (), device=device)
        shapes = {name: tuple(leaf.shape) for name, leaf in zip(names, leaves, strict=True)}
        tables = [(name, shapes[name]) for name in program.tables]
        with inside(mesh), constrained_outputs(layout, mesh_of(mesh)), tracing_for(layout, tables):
            traced = trace_step(program)
    # 3. The partitions of state and batch, and those of the activations that follow from them.
    traced = traced.rematerialised(layout.remat)
    placement, trace = Placement(layout.axes, specs_of(traced, layout), device=device), traced.trace
    if not layout.is_literal:
        parts = axis_parts(traced, layout, placement.specs)
        trace = Constraints(parts, traced.rows, mesh_of(placement)).rewritten(trace, traced.level)
    # 4. The step replays the trace, with its constraints.
    flat = jaxpr_as_fun(trace)

    def placed_step(state: Any, batch: Any) -> Any:
        return jax.tree.unflatten(traced.structure, flat(*jax.tree.leaves((state, batch))))

    notes = (*program.notes, *filter(None, [_whole_note(program, layout, placement)]))
    step = ConstrainedStep(program.step, placed_step)
    return dataclasses.replace(program, step=step, placement=placement, notes=notes)


def _without_assumption(program: Program, placement: Placement, layout: ModelLayout) -> Program:
    """Return a program whose step names the mesh of a layout, without the assumed shardings of its inputs."""
    if placement.axes != layout.axes:
        sizes = ", ".join(f'"{name}": {size}' for name, size in placement.axes)
        raise SettingError(
            f"the step of {program.name!r} names the mesh {axes_text(placement.axes)}, and the layout {layout.name!r} "
            f"has {axes_text(layout.axes)}. Give the layout the mesh of the step: mesh={{{sizes}}}"
        )
    notes = (note.replace(placement.assumption, "").strip() for note in program.notes)
    return dataclasses.replace(program, placement=None, notes=tuple(filter(None, notes)))


def _whole_note(program: Program, layout: ModelLayout, placement: Placement) -> str:
    """Return a sentence on large arrays that a layout leaves whole; "" for "data", which leaves all whole."""
    if layout.name == "data":
        return ""
    names, leaves = state_names(program), jax.tree.leaves(program.state)
    sizes = [leaf.size * leaf.dtype.itemsize for leaf in leaves]
    whole = {name: size for name, size, spec in zip(names, sizes, placement.specs, strict=False) if not any(spec)}
    return whole_text(whole, sum(sizes), layout.devices, f"the layout {layout.name} splits no axis of it")


def specs_of(traced: TracedStep, layout: ModelLayout) -> tuple[Spec, ...]:
    """Return the partition of each leaf of the state, then of the batch.

    Raises:
        SettingError: the layout does not fit the state.
    """
    batch = [_batch_spec(layout, leaf_layout, len(leaf.shape)) for leaf, leaf_layout in traced.program.leaves()]
    return (*_state_specs(traced.program, layout, traced.state_axes), *batch)


def axis_parts(traced: TracedStep, layout: ModelLayout, specs: Sequence[Spec]) -> dict[int, tuple[str, ...]]:
    """Return the mesh axes that split each logical axis in activations.

    A mesh axis that splits the batch stores a weight's shards apart, and the weight is gathered before its use. A
    logical axis that two arrays split over different mesh axes is left to XLA.

    Args:
        traced: the step.
        layout: the layout.
        specs: partition of each leaf, as `specs_of` returns them.
    """
    split: dict[int, set[tuple[str, ...]]] = {}
    states = len(traced.state_axes)
    for index, (axes, spec) in enumerate(zip((*traced.state_axes, *traced.batch_axes), specs, strict=True)):
        apart = layout.storage_axes if index < states else layout.row_axes
        for axis, parts in zip(axes, spec, strict=False):
            inner = tuple(part for part in parts if part not in apart)
            if inner:
                split.setdefault(axis, set()).add(inner)
    inner_parts = {axis: parts.pop() for axis, parts in split.items() if len(parts) == 1}
    return {**inner_parts, **dict.fromkeys(traced.rows, layout.row_axes)}


def _state_specs(program: Program, layout: ModelLayout, axes: Sequence[Axes]) -> list[Spec]:
    """Return the partition of each leaf of the state; a leaf without one follows another with the same axes."""
    names, leaves = state_names(program), jax.tree.leaves(program.state)
    for fault in _unmatched(program.name, layout, names):
        raise SettingError(fault)
    own = _own_specs(program, layout)
    for name, leaf, spec in zip(names, leaves, own, strict=True):
        check_spec(name, tuple(leaf.shape), spec or (), dict(layout.axes))
    followed: dict[tuple[Any, Axes], Spec] = {}
    for leaf, group, spec in zip(leaves, axes, own, strict=True):
        if spec and leaf.shape:
            followed.setdefault((leaf.shape, group), spec)
    return [
        followed.get((leaf.shape, group), ()) if spec is None else spec
        for leaf, group, spec in zip(leaves, axes, own, strict=True)
    ]


def _own_specs(program: Program, layout: ModelLayout) -> list[Spec | None]:
    """Return the partition of each leaf of the state; None for one that follows another leaf.

    In a LayoutMap over a model of Keras, a slot has the partition of the weight in its name, as Keras's optimizers give
    it. Any other array of a LayoutMap that no key matches is whole, also in a step without Keras.
    """
    names, leaves = state_names(program), jax.tree.leaves(program.state)
    shapes = [tuple(leaf.shape) for leaf in leaves]
    own = [layout.spec_of(name, shape) for name, shape in zip(names, shapes, strict=True)]
    if not layout.is_literal:
        return own
    if not program.state_kinds:
        return [spec or () for spec in own]
    named = zip(names, shapes, own, program.state_kinds, strict=True)
    weights = [(f"{name.replace('/', '_')}_", shape, spec) for name, shape, spec, kind in named if kind == "weights"]
    seen: collections.Counter[tuple[str, Any]] = collections.Counter()
    for index, kind in enumerate(program.state_kinds):
        # "adam/dense_kernel_velocity" is a slot of "dense/kernel"; the longest such name is that of its weight.
        slot = names[index].partition("/")[2]
        found = [weight for weight in weights if slot.startswith(weight[0]) and weight[1] == shapes[index]]
        if kind == "slots" and found:
            # The names of "a_b/c" and "a/b_c" are equal in those of their slots, which are in the order of the weights.
            longest = max(len(weight[0]) for weight in found)
            equal = [weight for weight in found if len(weight[0]) == longest]
            own[index] = equal[seen[slot, shapes[index]] % len(equal)][2]
            seen[slot, shapes[index]] += 1
    return [spec or () for spec in own]


def layout_faults(program: Program, layout: ModelLayout) -> list[str]:
    """Return a sentence for each rule of a layout that does not fit a program's state; none if it can be placed.

    Args:
        program: whole-batch code.
        layout: the layout.
    """
    names, leaves = state_names(program), jax.tree.leaves(program.state)
    layout = with_tables(rename_to_state(layout, names, [tuple(leaf.shape) for leaf in leaves]), program.tables)
    faults = _unmatched(program.name, layout, names)
    for name, leaf in zip(names, leaves, strict=True):
        try:
            check_spec(name, leaf.shape, layout.spec_of(name, leaf.shape) or (), dict(layout.axes))
        except SettingError as error:
            faults.append(str(error))
    return faults


def unmatched_patterns(layout: ModelLayout, names: Sequence[str]) -> list[str]:
    """Return the patterns of a layout that match none of the names."""
    matches = re.fullmatch if layout.is_literal else re.search  # Keras matches whole paths.
    return [
        pattern
        for pattern in layout.patterns
        # The names of a searched layout are no regular expressions.
        if pattern not in names and (layout.specs or not any(matches(pattern, name) for name in names))
    ]


def _unmatched(program_name: str, layout: ModelLayout, names: Sequence[str]) -> list[str]:
    """Return a sentence for each pattern of a layout that matches none of the names."""
    faults = []
    for pattern in unmatched_patterns(layout, names):
        near = difflib.get_close_matches(pattern, names, 3, 0.3)
        hint = (layout.is_literal and whole_path_hint(pattern, names)) or (
            f" The nearest names are {', '.join(map(repr, near))}." if near else ""
        )
        faults.append(f"the pattern {pattern!r} of the layout matches no weight of {program_name!r}.{hint}")
    return faults


def check_spec(name: str, shape: tuple[int, ...], spec: Spec, sizes: Mapping[str, int]) -> None:
    """Check that a partition fits an array.

    Raises:
        SettingError: it has more axes than the array, or the cores do not divide an axis.
    """
    if len(spec) > len(shape):
        raise SettingError(
            f"{name!r} has the shape {shape}, and its partition in the layout is for {len(spec)} axes: give it at most "
            f"{len(shape)}"
        )
    for axis, parts in enumerate(spec):
        pieces = math.prod(sizes[part] for part in parts)
        if shape[axis] % pieces:
            raise SettingError(
                f"{name!r} has the shape {shape}, and the layout splits axis {axis} over {pieces} cores "
                f"({', '.join(f'{part}={sizes[part]}' for part in parts)}), which do not divide {shape[axis]:,}. Split "
                "another axis, or leave this weight whole"
            )


def _batch_spec(layout: ModelLayout, leaf_layout: Layout, rank: int) -> Spec:
    if leaf_layout.axis is None:
        return ()
    spec: list[tuple[str, ...]] = [()] * rank
    for axis, parts in layout.inner.items():
        if axis < rank:
            spec[axis] = parts
    spec[leaf_layout.axis] = layout.row_axes
    return tuple(spec)
