"""What lies on a mesh: a `Placement` as JAX's abstract mesh and shardings, and back.

Idea: code that brings shardings of its own names the axes of a mesh, not its devices. So it is traced and lowered over
an abstract mesh of those axes; who compiles it lays real devices under them.

Rule: a sharding is followed, or refused by name. Shardings come from the specs or arrays of the inputs, from the step
(`step_shardings`), and from the mesh that `jax.set_mesh` has set.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from anytpu.errors import ProgramError
from anytpu.program.leaves import leaf_names
from anytpu.program.program import Placement, Program, Tree, spec_of
from anytpu.program.step_shardings import JIT, Ask, StepShardings
from anytpu.units import MIB, format_bytes

_SPECS = "its spec"
_MIN_WHOLE_BYTES = MIB
_MIN_WHOLE_SHARE = 0.01
_NAMED = (
    "jax.sharding.NamedSharding(jax.sharding.AbstractMesh((4, 2), ('data', 'model')), "
    "jax.sharding.PartitionSpec('data'))"
)


def placement_of(
    name: str, state: Tree, batch: Tree, step: StepShardings | None = None, *, device: Any = None
) -> Placement | None:
    """Return the placement that specs, arrays, a step and the mesh in force ask for; None where nobody asks.

    A leaf that nobody lays is whole on each device. An array on one device does not ask: that is where it happens to
    be. A leaf of the state for which the step asks only as a result lies so from the second step on, so it is laid so.

    Args:
        name: the program, for the error.
        state: tree of arrays or `jax.ShapeDtypeStruct`.
        batch: the same.
        step: what the step itself asks for, or None.
        device: the kind of devices to take, or None: that of a mesh that is named.

    Raises:
        ProgramError: a sharding cannot be followed, two of them contradict each other, or the leaves lie on different
            meshes.
    """
    names = (*leaf_names(state, "state"), *leaf_names(batch, "batch"))
    asks = _asks(name, state, batch, step)
    asked = [(of, ask) for of, ask in zip(names, asks, strict=True) if ask is not None]
    for of, ask in asked:
        _check(name, of, ask)
    named = [ask.sharding.mesh.abstract_mesh for _, ask in asked]  # type: ignore[attr-defined]
    current = jax.sharding.get_abstract_mesh()
    named += [current] if current.size > 1 else []
    if not named:
        return None
    meshes = {_axes(mesh) for mesh in named}
    device = device or next((mesh.abstract_device for mesh in named if mesh.abstract_device is not None), None)
    if len(meshes) > 1:
        listed = " and ".join(_mesh_text(*one) for one in sorted(meshes))
        raise ProgramError(f"The leaves of {name!r} lie on different meshes, {listed}; a program has one.")
    axes, explicit = meshes.pop()
    specs = tuple(() if ask is None else _spec(ask.sharding.spec) for ask in asks)  # type: ignore[attr-defined]
    return Placement(axes, specs, explicit, device)


def whole_state(name: str, state: Tree, step: StepShardings, placement: Placement) -> str:
    """Return a sentence on the leaves of the state that are whole on each device since nobody lays them; "" if small.

    Args:
        name: the program, for errors.
        state: tree of arrays or `jax.ShapeDtypeStruct`, with their shardings.
        step: what the step itself asks for.
        placement: of the program.
    """
    sizes = [math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(spec_of(state))]
    asks = _asks(name, state, (), step)
    names = leaf_names(state, "state")
    whole = {of: size for of, size, ask in zip(names, sizes, asks, strict=True) if ask is None}
    whole_bytes = sum(whole.values())
    if placement.devices == 1 or whole_bytes < max(_MIN_WHOLE_BYTES, _MIN_WHOLE_SHARE * sum(sizes)):
        return ""
    largest = max(whole, key=lambda of: whole[of])
    which = f"{largest!r} ({format_bytes(whole[largest])})"
    if len(whole) == 1:
        return f"{which} is whole on each of {placement.devices} devices: no spec says otherwise."
    return (
        f"{len(whole):,} leaves of the state, {format_bytes(whole_bytes)} together, are whole on each of "
        f"{placement.devices} devices: no spec says otherwise. The largest is {which}."
    )


def spread_over(mesh: AbstractMesh, state: Tree, batch: Tree, layout: Tree) -> Placement:
    """Return the placement for a step that names a mesh and does not say how its inputs lie on it.

    The state is whole on each device, and examples are split over as many axes of the mesh as divide them.
    """
    specs: list[tuple[tuple[str, ...], ...]] = [()] * len(jax.tree.leaves(state))
    for leaf, of_leaf in zip(jax.tree.leaves(batch), jax.tree.leaves(layout), strict=True):
        if of_leaf.axis is None:
            specs.append(())
            continue
        parts: list[str] = []
        pieces = 1
        for axis, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True):
            if leaf.shape[of_leaf.axis] % (pieces * size) == 0:
                parts.append(axis)
                pieces *= size
        specs.append((*[()] * of_leaf.axis, tuple(parts)))
    axes, explicit = _axes(mesh)
    return Placement(axes, tuple(specs), explicit, mesh.abstract_device)


def mesh_of(placement: Placement) -> AbstractMesh:
    """Return the abstract mesh of a placement."""
    names, sizes = zip(*placement.axes, strict=True)
    types = tuple(AxisType.Explicit if name in placement.explicit else AxisType.Auto for name in names)
    return AbstractMesh(sizes, names, axis_types=types, abstract_device=placement.device)


def placed_specs(program: Program) -> tuple[Tree, Tree]:
    """Return the specs of state and batch, with their shardings where the program has a placement."""
    return over_mesh(program.placement, program.state, program.batch)


def over_mesh(placement: Placement | None, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
    """Return the specs of a state and a batch with the shardings of a placement; without any where there is none."""
    specs = spec_of((state, batch))
    if placement is None:
        return specs
    mesh, leaves = mesh_of(placement), jax.tree.leaves(specs)
    placed = [
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, PartitionSpec(*map(_part, spec))))
        for leaf, spec in zip(leaves, placement.specs, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(specs), placed)


def inside(placement: Placement | None, device: Any = None) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which shardings that only name axes are over the mesh of a placement.

    Args:
        placement: of the program, or None.
        device: the kind of device that hand-written kernels are traced for, a `jax.sharding.AbstractDevice`; None: this
            machine's. Not for a program with a mesh: the step may hand its own to `shard_map`, and JAX demands that
            both are the same.
    """
    if placement is not None and placement.axes:
        return jax.sharding.use_abstract_mesh(mesh_of(placement))
    if device is None:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device))


def tpu_kind(device_kind: str, cores: int) -> Any:
    """Return the kind of a TPU's devices, as an abstract mesh has it.

    Args:
        device_kind: as JAX calls it: "TPU v5 lite".
        cores: TensorCores of one device.
    """
    fields = {"device_kind": device_kind, "num_cores": cores, "platform": "tpu"}
    # jax 0.10.0 has no platform.
    known = inspect.signature(jax.sharding.AbstractDevice).parameters
    return jax.sharding.AbstractDevice(**{name: value for name, value in fields.items() if name in known})


def this_kind() -> Any:
    """Return the kind of this machine's devices, as a mesh of them has it."""
    return Mesh(np.array(jax.devices()[:1]), ("one",)).abstract_mesh.abstract_device


def axes_text(axes: Sequence[tuple[str, int]]) -> str:
    """Return the axes of a mesh as people read them: "data=4, model=2"."""
    return ", ".join(f"{name}={size}" for name, size in axes)


def _asks(name: str, state: Tree, batch: Tree, step: StepShardings | None) -> list[Ask | None]:
    """Return what is asked for each leaf of the state, then of the batch."""
    asks = [_own(leaf) for leaf in jax.tree.leaves((state, batch))]
    if step is None:
        return asks
    names = (*leaf_names(state, "state"), *leaf_names(batch, "batch"))
    results = [*step.outputs[: len(jax.tree.leaves(state))], *[None] * len(asks)]
    return [_one(name, *four) for four in zip(names, asks, step.inputs, results, strict=False)]


def _own(leaf: Any) -> Ask | None:
    """Return what a spec or an array of an input asks for."""
    sharding = getattr(leaf, "sharding", None) if isinstance(leaf, jax.ShapeDtypeStruct | jax.Array) else None
    if sharding is None:
        return None
    is_whole_array = isinstance(leaf, jax.Array) and len(sharding.device_set) == 1
    return None if is_whole_array else Ask(sharding, _SPECS)


def _one(name: str, of: str, own: Ask | None, taken: Ask | None, returned: Ask | None) -> Ask | None:
    """Return how one input lies, of what its spec, the step that takes it and the step that returns it ask for."""
    if taken is not None and returned is not None and taken.by != JIT == returned.by:
        taken = None  # It is changed inside of the step; from the second step on it comes as jax.jit returns it.
    for before, after, does in ((own, taken, "takes"), (own or taken, returned, "returns")):
        if before is not None and after is not None and after.by == JIT and _differ(before, after):
            raise ProgramError(
                f"{of!r} of {name!r} lies as {_text(before)} by {before.by}, and the step {does} it as {_text(after)} "
                f"by {after.by}: JAX refuses to call it. Give both the same sharding."
            )
    return own or taken or returned


def _differ(one: Ask, other: Ask) -> bool:
    if not isinstance(one.sharding, NamedSharding) or not isinstance(other.sharding, NamedSharding):
        return False  # Refused by name in any case.
    return _axes(one.sharding.mesh)[0] != _axes(other.sharding.mesh)[0] or _trimmed(one) != _trimmed(other)


def _trimmed(ask: Ask) -> tuple[tuple[str, ...], ...]:
    parts = _spec(ask.sharding.spec)  # type: ignore[attr-defined]
    used = [number for number, part in enumerate(parts) if part]
    return parts[: used[-1] + 1] if used else ()


def _text(ask: Ask) -> str:
    return str(getattr(ask.sharding, "spec", ask.sharding))


def _check(name: str, of: str, ask: Ask) -> None:
    sharding = ask.sharding
    if not isinstance(sharding, NamedSharding):
        by = "" if ask.by == _SPECS else f" by {ask.by}"
        also = " Leave device= and backend= out of jax.jit." if ask.by == JIT else ""
        raise ProgramError(
            f"{of!r} of {name!r} has the sharding {sharding!r}{by}; a program is placed on a mesh with named axes: "
            f"{_NAMED}.{also}"
        )
    if sharding.memory_kind not in _device_memories(sharding):
        raise ProgramError(
            f"{of!r} of {name!r} lies in the memory {sharding.memory_kind!r} by {ask.by}, and a program's inputs lie "
            "in the memory of its devices. Leave memory_kind out; what a step keeps on the host is not planned."
        )
    spec = sharding.spec
    if spec.unreduced or spec.reduced or PartitionSpec.UNCONSTRAINED in spec:
        raise ProgramError(
            f"{of!r} of {name!r} lies as {spec} by {ask.by}; an input has for each axis names of the mesh or None: "
            "jax.sharding.PartitionSpec('data', None)."
        )


def _device_memories(sharding: NamedSharding) -> tuple[str | None, ...]:
    if not isinstance(sharding.mesh, Mesh):
        return None, "device"
    return None, "device", sharding.mesh.devices.flat[0].default_memory().kind


def check_divides(name: str, state: Tree, batch: Tree, placement: Placement) -> None:
    """Refuse a split that leaves a remainder, as JAX does of an argument.

    Raises:
        ProgramError: an axis of a leaf is no multiple of the devices that it is split over.
    """
    sizes = dict(placement.axes)
    names, leaves = (*leaf_names(state, "state"), *leaf_names(batch, "batch")), jax.tree.leaves((state, batch))
    for of, leaf, spec in zip(names, leaves, placement.specs, strict=True):
        if len(spec) > len(leaf.shape):
            raise ProgramError(
                f"{of!r} of {name!r} has the shape {leaf.shape}, and its sharding is for {len(spec)} axes."
            )
        for axis, parts in enumerate(spec):
            pieces = 1
            for part in parts:
                pieces *= sizes[part]
            if leaf.shape[axis] % pieces:
                raise ProgramError(
                    f"{of!r} of {name!r} has the shape {leaf.shape}, and its sharding splits axis {axis} over "
                    f"{pieces} devices ({axes_text([(part, sizes[part]) for part in parts])}), which do not divide "
                    f"{leaf.shape[axis]:,}. Make it a multiple of {pieces}."
                )


def _axes(mesh: Any) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...]]:
    explicit = [name for name, of in zip(mesh.axis_names, mesh.axis_types, strict=True) if of == AxisType.Explicit]
    return tuple(zip(mesh.axis_names, mesh.axis_sizes, strict=True)), tuple(explicit)


def _mesh_text(axes: Sequence[tuple[str, int]], explicit: Sequence[str]) -> str:
    types = f" with {' and '.join(map(repr, explicit))} of AxisType.Explicit" if explicit else ""
    return f"{dict(axes)!r}{types}"


def _spec(spec: PartitionSpec) -> tuple[tuple[str, ...], ...]:
    return tuple(() if part is None else (part,) if isinstance(part, str) else tuple(part) for part in spec)


def _part(part: tuple[str, ...]) -> Any:
    return None if not part else part[0] if len(part) == 1 else part
