"""`Request`: a program to compile in the child, as bytes and plain values.

Idea: whole-batch code does not depend on the number of devices, so it is exported once for all targets. The specs
beside it partition it over a target's devices. Donation, padding and shardings are those of the local backend
(`engine/local.py`), so the planned program is the one that would run. Code with a placement is partitioned over its own
mesh.

Rule: weights never travel, only their shapes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax

from anytpu.errors import PlanError
from anytpu.planning.compiler.export import Code, export_over_devices, export_program
from anytpu.planning.records.target import Stage, Target
from anytpu.program.placed import tpu_kind
from anytpu.program.program import REPLICA_AXIS, Layout, Program

Spec = tuple[Any, ...]
"""A `PartitionSpec` as JSON has it: for each dimension None or the names of axes."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A program and its layout over the devices of a target.

    Attributes:
        code: the program, as `jax.export` serialises it.
        topology: name and arguments by which the compiler knows the target.
        axes: the mesh: (name, size) of each axis.
        ordered: whether to arrange the devices in the mesh as their network suggests, rather than consecutively.
        arguments: transport shape and spec of each flat argument.
        results: spec of each flat result, or None if the compiler may choose.
        donated: number of arguments, from the first, that give their memory to results.
        options: options of the compiler.
        wide: whether JAX computes with 64 bits.
        stage: the last stage of the compilation.
    """

    code: Code = dataclasses.field(repr=False)
    topology: tuple[str, Mapping[str, Any]]
    axes: tuple[tuple[str, int], ...]
    ordered: bool
    arguments: tuple[tuple[tuple[int, ...], Spec], ...]
    results: tuple[Spec | None, ...]
    donated: int
    options: Mapping[str, str]
    wide: bool
    stage: Stage = "code"

    def header(self) -> dict[str, Any]:
        """Return every field but the code as JSON values."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "code"}
        return fields | {"options": dict(self.options), "explicit": self.code.explicit}


def request_of(program: Program, target: Target, options: Mapping[str, str], stage: Stage = "code") -> Request:
    """Return the request for the compiler.

    Raises:
        ProgramError: the program cannot be lowered.
        PlanError: it is written for another number of devices, or computes with float64.
    """
    code = _code(program, target)
    lay_out = _lay_out_placed if program.placement is not None else _lay_out_rows
    axes, arguments, results = lay_out(program, target, code.results)
    return Request(
        code=code,
        topology=(target.compiler_name, target.compiler_arguments),
        axes=axes,
        ordered=program.placement is not None,
        arguments=arguments,
        results=results,
        donated=len(jax.tree.leaves(program.state)),
        options=options,
        wide=bool(jax.config.jax_enable_x64),  # type: ignore[attr-defined]
        stage=stage,
    )


def _code(program: Program, target: Target) -> Code:
    needed = program.placement.devices if program.placement is not None else program.replicas
    if needed not in (None, target.devices):
        raise PlanError(_other_count(program, target, needed))
    # Hand-written kernels are lowered for one kind of device.
    device = tpu_kind(target.chip.device_kinds[0], target.chip.cores // target.chip.replicas)
    if program.replicas is None:
        return export_program(program, device)
    return export_over_devices(program, target.devices, device)


def _lay_out_rows(program: Program, target: Target, results: tuple[tuple[int, ...], ...]) -> Any:
    """Split rows over all devices, with the whole state on each, as the local backend does."""
    states, rows = len(jax.tree.leaves(program.state)), program.rows if program.replicas is None else program.replicas
    divides = rows is not None and rows % target.devices == 0
    state = [(tuple(leaf.shape), ()) for leaf in jax.tree.leaves(program.state)]
    batch = [(_padded_shape(leaf.shape, layout, target.devices), _spec(layout)) for leaf, layout in program.leaves()]
    axes = {0, *(layout.axis for _, layout in program.leaves() if layout.axis is not None)}
    # A result with the rows of the batch is split like it, but only if no rows are padded.
    outputs = [_spec(Layout(_row_axis(shape, rows, axes) if divides else None)) for shape in results[states:]]
    return ((REPLICA_AXIS, target.devices),), (*state, *batch), (*((),) * states, *outputs)


def _row_axis(shape: tuple[int, ...], rows: int | None, axes: set[int]) -> int | None:
    """Return the first axis of a result with as many rows as the batch, among the axes of the batch's rows."""
    return next((axis for axis in sorted(axes) if shape[axis : axis + 1] == (rows,)), None)


def _lay_out_placed(program: Program, target: Target, results: tuple[tuple[int, ...], ...]) -> Any:
    """Partition everything as the program says: its new state like the old one, its outputs as the compiler chooses."""
    assert program.placement is not None
    shapes = [tuple(leaf.shape) for leaf in jax.tree.leaves((program.state, program.batch))]
    specs, states = program.placement.specs, len(jax.tree.leaves(program.state))
    arguments = tuple(zip(shapes, specs, strict=True))
    return program.placement.axes, arguments, (*specs[:states], *[None] * (len(results) - states))


def _spec(layout: Layout) -> Spec:
    return () if layout.axis is None else (*[()] * layout.axis, (REPLICA_AXIS,))


def _padded_shape(shape: tuple[int, ...], layout: Layout, devices: int) -> tuple[int, ...]:
    return tuple(size + (-size % devices if axis == layout.axis else 0) for axis, size in enumerate(shape))


def _other_count(program: Program, target: Target, needed: int | None) -> str:
    if program.placement is not None:
        axes = ", ".join(f"{name}={size}" for name, size in program.placement.axes)
        return (
            f"The program {program.name!r} is placed on a mesh of {needed} devices ({axes}), and {target.name} has "
            f"{target.devices}. Make it again over a jax.sharding.AbstractMesh whose sizes multiply to "
            f"{target.devices}, or plan a function devices -> (step, input_specs), which makes it for each system."
        )
    return (
        f"The program {program.name!r} is written for {needed} replicas, and {target.name} has {target.devices}. Make "
        f'it again for that many: its step under tpu.connect("virtual", cores={target.devices}).'
    )
