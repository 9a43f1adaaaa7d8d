"""`Code`: a Program as `jax.export` serialises it for a TPU, and its jaxpr.

Idea: code that does not depend on the number of devices is exported once and kept for as long as its Program.

Rule: float64 is refused before compilation, with the leaf or the line that introduces it. No TPU computes with it; XLA
would emulate it, many times slower, and the plan would not say why.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.sharding import AbstractDevice, AbstractMesh, AxisType, NamedSharding, PartitionSpec
from jax.stages import Traced

from anytpu.errors import PlanError, ProgramError
from anytpu.planning.compiler.places import operations
from anytpu.planning.compiler.refusal import refusal_of
from anytpu.program.jaxprs import without_debugging
from anytpu.program.lowering import TRACING, lower_traced, trace_for_plan
from anytpu.program.program import REPLICA_AXIS, Layout, Program, Tree, leaf_names, leaf_text, spec_of, state_names
from anytpu.program.remembered import Remembered

# Source locations in MLIR's text: ` loc(#loc5)`, and lines `#loc5 = loc("file":1:2)`.
_LOCATION = re.compile(r"^#loc.*\n?| loc\((?:[^()\"]|\"[^\"]*\"|\([^()]*\))*\)", re.MULTILINE)

_WIDE = frozenset({np.dtype("float64"), np.dtype("complex128")})
_INSTEAD = (
    "No TPU computes with it; XLA would do so in software, many times slower. Use float32, or leave JAX's 64 bits off: "
    "unset JAX_ENABLE_X64"
)


@dataclasses.dataclass(frozen=True)
class Code:
    """A program for a TPU.

    Attributes:
        content: the code as `jax.export` serialises it: a function of a flat list of arrays.
        digest: identity of the code with the user's layers and lines. `content` also holds the call path of JAX and its
            caller, which differs from run to run.
        results: shapes of the results.
        jaxpr: the traced step.
        explicit: axes of its mesh whose shardings are part of the types of arrays.
        left_out: calls of the step that only print or watch, and are not in the code.
    """

    content: bytes = dataclasses.field(repr=False)
    digest: bytes = dataclasses.field(repr=False)
    results: tuple[tuple[int, ...], ...]
    jaxpr: ClosedJaxpr = dataclasses.field(repr=False)
    explicit: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


_KEPT: Remembered[dict[str, Code]] = Remembered()
"""The codes of each program, by the device kind that they are for; "" for all."""

_TRACED: Remembered[tuple[Traced, tuple[str, ...]]] = Remembered()
"""The trace of each program for any device, and the calls that it leaves out."""


def export_program(program: Program, device: AbstractDevice) -> Code:
    """Return the code of a whole-batch program, or of one with a placement.

    Args:
        program: the program to export.
        device: kind of the device; only hand-written kernels depend on it.

    Raises:
        ProgramError: it cannot be traced.
        PlanError: it computes with float64, or has an operation that no TPU has.
    """
    with TRACING:
        # 1. Code that was exported before, for all devices or for this kind.
        codes = _KEPT.get(program)
        if codes is None:
            codes = _KEPT.keep(program, {})
        if known := codes.get("") or codes.get(device.device_kind):
            return known
        # 2. The trace: one for all devices, unless the step has kernels.
        traced, left_out = trace_once(program)
        refuse_wide(program, traced.jaxpr)
        explicit = program.placement.explicit if program.placement else ()
        for_kind = ""
        if has_kernels(traced.jaxpr):
            # Pallas lowers some operations (a sign, a floor division) differently for each chip.
            traced, left_out = trace_for_plan(program, device)
            for_kind = device.device_kind
        try:
            # 3. The code. An operation that has no rule for a TPU fails here.
            code = _code(lower_traced(program, traced, ("tpu",)), traced.jaxpr, explicit, left_out)
        except ProgramError as error:
            system = for_kind or "any TPU"
            raise refusal_of(str(error.__cause__), program.name, system, traced.jaxpr) from error
        codes[for_kind] = code
        return code


def left_out_note(left_out: tuple[str, ...]) -> tuple[str, ...]:
    """Return a note on the calls of a step that a plan leaves out, or ()."""
    if not left_out:
        return ()
    return (f"Not in the plan: {', '.join(left_out)}. No number depends on it; on a TPU each call waits for the host.",)


def has_kernels(jaxpr: ClosedJaxpr) -> bool:
    """Return whether a step has hand-written (Pallas) kernels."""
    return any(operation.name == "pallas_call" for operation in operations(jaxpr))


def traced_jaxpr(program: Program) -> ClosedJaxpr:
    """Return the jaxpr of a program in its form for one device.

    Raises:
        ProgramError: it cannot be traced.
        ReplicaError: a new state differs between the replicas.
    """
    return trace_once(program)[0].jaxpr


def trace_once(program: Program) -> tuple[Traced, tuple[str, ...]]:
    """Return what `trace_for_plan` returns of a program for any device; a program is traced once.

    Raises:
        ProgramError: it cannot be traced.
        ReplicaError: a new state differs between the replicas.
    """
    with TRACING:
        known = _TRACED.get(program)
        return known if known is not None else _TRACED.keep(program, trace_for_plan(program))


def export_over_devices(program: Program, devices: int, device: AbstractDevice) -> Code:
    """Return per-replica code over as many devices as it has replicas, as the body of a `shard_map`.

    Args:
        program: the program to export.
        devices: number of devices.
        device: kind of the devices.

    Raises:
        ProgramError: it cannot be lowered.
        ReplicaError: a new state differs between the replicas.
        PlanError: it computes with float64.
    """
    with TRACING:
        trace_once(program)  # In the form for one device, which checks properties that `shard_map` does not.
        mesh = AbstractMesh((devices,), (REPLICA_AXIS,), axis_types=(AxisType.Auto,), abstract_device=device)
        # The step over the mesh is traced once. Its jaxpr, without calls that only print or watch, is exported.
        specs = _specs_over(program, mesh)
        step = _mesh_step(program, mesh)
        traced = jax.jit(lambda state, batch: step(state, batch)).trace(*specs)
        quiet, left_out = without_debugging(traced.jaxpr)
        refuse_wide(program, quiet)
        flat = jax.jit(lambda *leaves: tuple(jaxpr_as_fun(quiet)(*leaves)))
        exported = jax.export.export(flat, platforms=("tpu",))(*jax.tree.leaves(specs))
        return _code(exported, quiet, left_out=left_out)


def _code(
    exported: jax.export.Exported, jaxpr: ClosedJaxpr, explicit: tuple[str, ...] = (), left_out: tuple[str, ...] = ()
) -> Code:
    results = tuple(tuple(aval.shape) for aval in exported.out_avals)
    return Code(bytes(exported.serialize()), _digest(exported, jaxpr), results, jaxpr, explicit, left_out)


def _digest(exported: jax.export.Exported, jaxpr: ClosedJaxpr) -> bytes:
    # The answer quotes the user's layers and lines, so they are part of the identity. Other locations are not.
    digest = hashlib.sha256(_LOCATION.sub("", exported.mlir_module()).encode())
    for operation in operations(jaxpr):
        digest.update(f"\n{operation.place.identity}".encode())
    return digest.digest()


def _specs_over(program: Program, mesh: AbstractMesh) -> tuple[Tree, Tree]:
    def place(leaf: jax.ShapeDtypeStruct, layout: Layout) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, _partition(layout)))

    state, batch = spec_of((program.state, program.batch))
    whole = jax.tree.map(lambda leaf: place(leaf, Layout(None)), state)
    return whole, jax.tree.map(place, batch, program.layout)


def _mesh_step(program: Program, mesh: AbstractMesh) -> Any:
    """Return the step over a mesh, as the local backend runs it."""
    specs = jax.tree.map(_partition, program.layout)

    def replica_step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        mine = jax.tree.map(lambda leaf, layout: leaf if layout.axis is None else leaf[0], batch, program.layout)
        state, outputs = program.step(state, mine)
        return state, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], outputs)

    whole, split = PartitionSpec(), PartitionSpec(REPLICA_AXIS)
    return jax.shard_map(replica_step, mesh=mesh, in_specs=(whole, specs), out_specs=(whole, split), check_vma=False)


def _partition(layout: Layout) -> PartitionSpec:
    return PartitionSpec() if layout.axis is None else PartitionSpec(*[None] * layout.axis, REPLICA_AXIS)


def refuse_wide(program: Program, jaxpr: ClosedJaxpr) -> None:
    """Raise `PlanError` if a leaf of the program, or an operation of its jaxpr, is float64."""
    names = (*state_names(program), *leaf_names(program.batch, "batch"))
    for name, leaf in zip(names, jax.tree.leaves((program.state, program.batch)), strict=True):
        if _is_wide(leaf):
            raise PlanError(f"{name!r} of the program {program.name!r} is {leaf_text(leaf)}. {_INSTEAD}.")
    for operation in operations(jaxpr):
        for result in operation.equation.outvars:
            if _is_wide(result.aval) and getattr(result.aval, "shape", ()):
                raise PlanError(
                    f"The program {program.name!r} computes {leaf_text(result.aval)}, in {operation.place}. {_INSTEAD}."
                )


def _is_wide(leaf: Any) -> bool:
    return getattr(leaf, "dtype", None) in _WIDE
