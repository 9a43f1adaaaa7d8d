"""Conversion between a `Placement` and JAX's abstract meshes and shardings.

Idea: code with its own shardings names the axes of a mesh, not its devices. So it is traced and lowered over an
abstract mesh of these axes; the compiler assigns real devices to them.

Rule: a sharding is either supported or rejected with an error that names it. Shardings come from the specs or arrays of
the inputs, from the step (`step_shardings`), and from the mesh of `jax.set_mesh`.
"""

from __future__ import annotations

import contextlib
import inspect
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec

from anytpu.errors import ProgramError
from anytpu.program.program import Layout, Placement, Program, Tree, leaf_names, spec_of
from anytpu.program.step_shardings import JIT, ShardingRequest, StepShardings
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
    """Return the placement requested by specs, arrays, a step and the current mesh; None without any request.

    A leaf without a request is replicated. An array on one device is not a request: its device is accidental. A
    sharding that the step requests for a new state only is used from the first step, as it is from the second step on.

    Args:
        name: name of the program, for errors.
        state: tree of arrays or `jax.ShapeDtypeStruct`.
        batch: tree of arrays or `jax.ShapeDtypeStruct`.
        step: shardings requested by the step, or None.
        device: kind of devices, or None: that of a named mesh.

    Raises:
        ProgramError: a sharding is not supported, two requests contradict each other, or the leaves are on different
            meshes.
    """
    # 1. Collect the requests, and reject unsupported shardings.
    names = (*leaf_names(state, "state"), *leaf_names(batch, "batch"))
    requests = _requests(name, state, batch, step)
    made = [(leaf_name, request) for leaf_name, request in zip(names, requests, strict=True) if request is not None]
    for leaf_name, request in made:
        _check(name, leaf_name, request)
    # 2. Find the one mesh that all of them name. The mesh of `jax.set_mesh` counts too.
    named = [request.sharding.mesh.abstract_mesh for _, request in made]  # type: ignore[attr-defined]
    current = jax.sharding.get_abstract_mesh()
    named += [current] if current.size > 1 else []
    if not named:
        return None
    meshes = {_axes(mesh) for mesh in named}
    device = device or next((mesh.abstract_device for mesh in named if mesh.abstract_device is not None), None)
    if len(meshes) > 1:
        listed = " and ".join(_mesh_text(*mesh) for mesh in sorted(meshes))
        raise ProgramError(f"The leaves of {name!r} are on different meshes, {listed}; a program has one.")
    # 3. A leaf without a request is replicated.
    axes, explicit = meshes.pop()
    shardings: list[Any] = [None if request is None else request.sharding for request in requests]
    specs = tuple(() if sharding is None else parts_of(sharding.spec) for sharding in shardings)
    return Placement(axes, specs, explicit, device)


def whole_state(name: str, state: Tree, step: StepShardings, placement: Placement) -> str:
    """Return a sentence on the state leaves that are replicated because no sharding is requested; "" if they are small.

    Args:
        name: name of the program, for errors.
        state: tree of arrays or `jax.ShapeDtypeStruct`, with their shardings.
        step: shardings requested by the step.
        placement: placement of the program.
    """
    sizes = [math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(spec_of(state))]
    requests = _requests(name, state, (), step)
    names = leaf_names(state, "state")
    whole = {
        leaf_name: size for leaf_name, size, request in zip(names, sizes, requests, strict=True) if request is None
    }
    return whole_text(whole, sum(sizes), placement.devices, "no spec says otherwise")


def whole_text(whole: Mapping[str, int], total_bytes: int, devices: int, why: str) -> str:
    """Return a sentence on the arrays that are whole on each device; "" if they are small.

    Args:
        whole: bytes of each of these arrays, by its name.
        total_bytes: bytes of the state.
        devices: number of devices.
        why: the reason, the end of the sentence.
    """
    whole_bytes = sum(whole.values())
    if devices == 1 or whole_bytes < max(_MIN_WHOLE_BYTES, _MIN_WHOLE_SHARE * total_bytes):
        return ""
    largest = max(whole, key=lambda leaf_name: whole[leaf_name])
    which = f"{largest!r} ({format_bytes(whole[largest])})"
    if len(whole) == 1:
        return f"{which} is replicated on {devices} devices: {why}."
    return (
        f"{len(whole):,} leaves of the state, {format_bytes(whole_bytes)} together, are replicated on "
        f"{devices} devices: {why}. The largest is {which}."
    )


def spread_over(mesh: AbstractMesh, state: Tree, batch: Tree, layout: Tree) -> Placement:
    """Return the placement for a step that names a mesh but no shardings of its inputs.

    The state is replicated, and examples are split over all mesh axes that divide their number.
    """
    specs: list[tuple[tuple[str, ...], ...]] = [()] * len(jax.tree.leaves(state))
    for leaf, leaf_layout in zip(jax.tree.leaves(batch), jax.tree.leaves(layout), strict=True):
        if leaf_layout.axis is None:
            specs.append(())
            continue
        parts: list[str] = []
        pieces = 1
        for axis, size in zip(mesh.axis_names, mesh.axis_sizes, strict=True):
            # An axis of the mesh is used if it and the used ones before it together divide the examples.
            if leaf.shape[leaf_layout.axis] % (pieces * size) == 0:
                parts.append(axis)
                pieces *= size
        specs.append((*[()] * leaf_layout.axis, tuple(parts)))
    axes, explicit = _axes(mesh)
    return Placement(axes, tuple(specs), explicit, mesh.abstract_device)


def mesh_of(placement: Placement) -> AbstractMesh:
    """Return the abstract mesh of a placement."""
    names, sizes = zip(*placement.axes, strict=True)
    types = tuple(AxisType.Explicit if name in placement.explicit else AxisType.Auto for name in names)
    return AbstractMesh(sizes, names, axis_types=types, abstract_device=placement.device)


def placed_specs(program: Program) -> tuple[Tree, Tree]:
    """Return the specs of state and batch, with shardings if the program has a placement."""
    return over_mesh(program.placement, program.state, program.batch)


def over_mesh(placement: Placement | None, state: Tree, batch: Tree) -> tuple[Tree, Tree]:
    """Return the specs of a state and a batch with the shardings of a placement, or without shardings for None.

    A leaf of the batch that its mesh axes do not divide has none: JAX rejects it. The backend splits such rows.
    """
    specs = spec_of((state, batch))
    if placement is None:
        return specs
    mesh, leaves, states = mesh_of(placement), jax.tree.leaves(specs), len(jax.tree.leaves(state))
    layouts = [Layout(None, spec, placement.axes) for spec in placement.specs]
    placed = [
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, partition_of(layout.spec)))
        if index < states or all(leaf.shape[axis] % count == 0 for axis, count in layout.pieces(mesh.size).items())
        else leaf
        for index, (leaf, layout) in enumerate(zip(leaves, layouts, strict=True))
    ]
    return jax.tree.unflatten(jax.tree.structure(specs), placed)


def inside(placement: Placement | None, device: Any = None) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which shardings that only name axes refer to the mesh of a placement.

    Args:
        placement: placement of the program, or None.
        device: kind of device for the trace of hand-written kernels, a `jax.sharding.AbstractDevice`; None: this
            machine's. It is ignored for a program with a mesh. The step may pass its own mesh to `shard_map`, and JAX
            demands that both meshes are equal.
    """
    if placement is not None and placement.axes:
        return jax.sharding.use_abstract_mesh(mesh_of(placement))
    if device is None:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(AbstractMesh((), (), abstract_device=device))


def tpu_kind(device_kind: str, cores: int) -> Any:
    """Return the kind of a TPU's devices for an abstract mesh, a `jax.sharding.AbstractDevice`.

    Args:
        device_kind: JAX's name of the device kind, such as "TPU v5 lite".
        cores: number of TensorCores of one device.
    """
    fields = {"device_kind": device_kind, "num_cores": cores, "platform": "tpu"}
    # jax 0.10.0 has no `platform` field.
    known = inspect.signature(jax.sharding.AbstractDevice).parameters
    return jax.sharding.AbstractDevice(**{name: value for name, value in fields.items() if name in known})


def this_kind() -> Any:
    """Return the kind of this machine's devices, a `jax.sharding.AbstractDevice`."""
    return Mesh(np.array(jax.devices()[:1]), ("device",)).abstract_mesh.abstract_device


def partition_of(spec: Sequence[tuple[str, ...]]) -> PartitionSpec:
    """Return the partition of an array as JAX writes it.

    Example:
        >>> tuple(partition_of(((), ("model",), ("data", "replica"))))
        (None, 'model', ('data', 'replica'))
    """
    return PartitionSpec(*(None if not parts else parts[0] if len(parts) == 1 else parts for parts in spec))


def parts_of(partition: Iterable[Any]) -> tuple[tuple[str, ...], ...]:
    """Return for each axis of a `PartitionSpec`, or of a tuple in its form, the mesh axes that split it.

    Example:
        >>> parts_of(PartitionSpec(None, "model", ("data", "replica")))
        ((), ('model',), ('data', 'replica'))
    """
    return tuple(() if part is None else (part,) if isinstance(part, str) else tuple(part) for part in partition)


def axes_text(axes: Sequence[tuple[str, int]]) -> str:
    """Return the axes of a mesh as readable text: "data=4, model=2"."""
    return ", ".join(f"{name}={size}" for name, size in axes)


def _requests(name: str, state: Tree, batch: Tree, step: StepShardings | None) -> list[ShardingRequest | None]:
    """Return the requested sharding of each leaf of the state, then of the batch; None without a request."""
    requests = [_leaf_request(leaf) for leaf in jax.tree.leaves((state, batch))]
    if step is None:
        return requests
    names = (*leaf_names(state, "state"), *leaf_names(batch, "batch"))
    results = [*step.outputs[: len(jax.tree.leaves(state))], *[None] * len(requests)]
    return [_merge_requests(name, *leaf) for leaf in zip(names, requests, step.inputs, results, strict=False)]


def _leaf_request(leaf: Any) -> ShardingRequest | None:
    """Return the sharding of an input's spec or array as a request."""
    sharding = getattr(leaf, "sharding", None) if isinstance(leaf, jax.ShapeDtypeStruct | jax.Array) else None
    if sharding is None:
        return None
    is_whole_array = isinstance(leaf, jax.Array) and len(sharding.device_set) == 1
    return None if is_whole_array else ShardingRequest(sharding, _SPECS)


def _merge_requests(
    name: str,
    leaf_name: str,
    own: ShardingRequest | None,
    taken: ShardingRequest | None,
    returned: ShardingRequest | None,
) -> ShardingRequest | None:
    """Return the sharding of one input from up to three requests.

    Args:
        name: name of the program, for errors.
        leaf_name: name of the input, for errors.
        own: request of its spec or array.
        taken: request of the step for its input.
        returned: request of the step for the new state.
    """
    if taken is not None and returned is not None and taken.source != JIT and returned.source == JIT:
        taken = None  # The step reshards it inside; from the second step on it has the sharding of jax.jit's result.
    for before, after, verb in ((own, taken, "takes"), (own or taken, returned, "returns")):
        if before is not None and after is not None and after.source == JIT and _differ(before, after):
            raise ProgramError(
                f"{leaf_name!r} of {name!r} has the sharding {_text(before)} by {before.source}, and the step {verb} "
                f"it as {_text(after)} by {after.source}: JAX refuses to call it. Give both the same sharding."
            )
    return own or taken or returned


def _differ(first: ShardingRequest, second: ShardingRequest) -> bool:
    if not isinstance(first.sharding, NamedSharding) or not isinstance(second.sharding, NamedSharding):
        return False  # `_check` rejects it in any case.
    return _axes(first.sharding.mesh)[0] != _axes(second.sharding.mesh)[0] or _trimmed(first) != _trimmed(second)


def _trimmed(request: ShardingRequest) -> tuple[tuple[str, ...], ...]:
    parts = parts_of(request.sharding.spec)  # type: ignore[attr-defined]
    used = [index for index, part in enumerate(parts) if part]
    return parts[: used[-1] + 1] if used else ()


def _text(request: ShardingRequest) -> str:
    return str(getattr(request.sharding, "spec", request.sharding))


def _check(name: str, leaf_name: str, request: ShardingRequest) -> None:
    sharding = request.sharding
    if not isinstance(sharding, NamedSharding):
        by = "" if request.source == _SPECS else f" by {request.source}"
        also = " Leave device= and backend= out of jax.jit." if request.source == JIT else ""
        raise ProgramError(
            f"{leaf_name!r} of {name!r} has the sharding {sharding!r}{by}; a program is placed on a mesh with named "
            f"axes: {_NAMED}.{also}"
        )
    if sharding.memory_kind not in _device_memories(sharding):
        raise ProgramError(
            f"{leaf_name!r} of {name!r} is in the memory {sharding.memory_kind!r} by {request.source}, and a program's "
            "inputs are in the memory of its devices. Leave memory_kind out; what a step keeps on the host "
            "is not planned."
        )
    spec = sharding.spec
    if spec.unreduced or spec.reduced or PartitionSpec.UNCONSTRAINED in spec:
        raise ProgramError(
            f"{leaf_name!r} of {name!r} has the sharding {spec} by {request.source}; an input has for each axis names "
            "of the mesh or None: jax.sharding.PartitionSpec('data', None)."
        )


def _device_memories(sharding: NamedSharding) -> tuple[str | None, ...]:
    if not isinstance(sharding.mesh, Mesh):
        return None, "device"
    return None, "device", sharding.mesh.devices.flat[0].default_memory().kind


def check_divides(name: str, state: Tree, batch: Tree, placement: Placement) -> None:
    """Reject a split with a remainder, as JAX does for an argument.

    Raises:
        ProgramError: the size of an axis is not a multiple of the number of devices that split it.
    """
    sizes = dict(placement.axes)
    names, leaves = (*leaf_names(state, "state"), *leaf_names(batch, "batch")), jax.tree.leaves((state, batch))
    for leaf_name, leaf, spec in zip(names, leaves, placement.specs, strict=True):
        if len(spec) > len(leaf.shape):
            raise ProgramError(
                f"{leaf_name!r} of {name!r} has the shape {leaf.shape}, and its sharding is for {len(spec)} axes."
            )
        for axis, parts in enumerate(spec):
            pieces = math.prod(sizes[part] for part in parts)
            if leaf.shape[axis] % pieces:
                raise ProgramError(
                    f"{leaf_name!r} of {name!r} has the shape {leaf.shape}, and its sharding splits axis {axis} over "
                    f"{pieces} devices ({axes_text([(part, sizes[part]) for part in parts])}), which do not divide "
                    f"{leaf.shape[axis]:,}. Make it a multiple of {pieces}."
                )


def _axes(mesh: Any) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...]]:
    types = zip(mesh.axis_names, mesh.axis_types, strict=True)
    explicit = [name for name, axis_type in types if axis_type == AxisType.Explicit]
    return tuple(zip(mesh.axis_names, mesh.axis_sizes, strict=True)), tuple(explicit)


def _mesh_text(axes: Sequence[tuple[str, int]], explicit: Sequence[str]) -> str:
    types = f" with {' and '.join(map(repr, explicit))} of AxisType.Explicit" if explicit else ""
    return f"{dict(axes)!r}{types}"
