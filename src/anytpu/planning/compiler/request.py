"""`Request`: what the child is asked to compile, as bytes and plain values.

Idea: a Program is exported once for all targets where its code does not depend on their number (whole-batch code), and
laid over a target's devices by the specs beside it. Donation, padding and shardings are those with which the local
backend compiles a step (`engine/local.py`), so that what is planned is what would run.

Rule: weights never travel, only their shapes.
"""

from __future__ import annotations

import dataclasses
import threading
import weakref
from collections.abc import Mapping
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from anytpu.errors import PlanError
from anytpu.planning.target import Target
from anytpu.program.lowering import lower, one_device_step
from anytpu.program.program import REPLICA_AXIS, Layout, Program, Tree, spec_of

Spec = tuple[Any, ...]
"""A `PartitionSpec` as JSON has it: per dimension None, the name of an axis, or a list of names."""


@dataclasses.dataclass(frozen=True)
class Request:
    """A program and how it lies on the devices of a target.

    Attributes:
        code: the program, as `jax.export` serialises it.
        axes: the mesh: (name, size) of each axis.
        arguments: per flat argument its shape as it travels and its spec.
        results: per flat result its spec.
        donated: so many arguments, from the first, give their memory to results.
        options: options of the compiler.
        wide: whether JAX computes with 64 bits.
    """

    code: bytes = dataclasses.field(repr=False)
    axes: tuple[tuple[str, int], ...]
    arguments: tuple[tuple[tuple[int, ...], Spec], ...]
    results: tuple[Spec, ...]
    donated: int
    options: Mapping[str, str]
    wide: bool

    def header(self, target: Target) -> dict[str, Any]:
        """Return everything but the code, and the target, as what JSON has."""
        return {
            "topology": {"name": target.compiler_name, "arguments": target.compiler_arguments},
            "axes": self.axes,
            "arguments": self.arguments,
            "results": self.results,
            "donated": self.donated,
            "options": dict(self.options),
            "wide": self.wide,
        }


def request_of(program: Program, target: Target, options: Mapping[str, str]) -> Request:
    """Return what to ask the compiler for.

    Raises:
        ProgramError: the program cannot be lowered.
        PlanError: per-replica code for another number of devices.
    """
    code, results = _exported(program) if program.replicas is None else _exported_over(program, target)
    state, split = jax.tree.leaves(program.state), program.rows if program.replicas is None else program.replicas
    divides = split is not None and split % target.devices == 0
    batch = [(_travelling(spec.shape, lay, target.devices), _spec(lay)) for spec, lay in program.leaves()]
    outputs = tuple(_spec(Layout(0 if divides and shape[:1] == (split,) else None)) for shape in results[len(state) :])
    return Request(
        code=code,
        axes=((REPLICA_AXIS, target.devices),),
        arguments=(*((tuple(leaf.shape), ()) for leaf in state), *batch),
        results=(*((),) * len(state), *outputs),
        donated=len(state),
        options=options,
        wide=bool(jax.config.jax_enable_x64),
    )


_LOCK = threading.Lock()
_CODES: weakref.WeakKeyDictionary[Any, tuple[bytes, tuple[tuple[int, ...], ...]]] = weakref.WeakKeyDictionary()


def _exported(program: Program) -> tuple[bytes, tuple[tuple[int, ...], ...]]:
    """Return the code of whole-batch code and the shapes of its results; once for all targets."""
    exported = lower(program, "tpu")
    return bytes(exported.serialize()), tuple(tuple(aval.shape) for aval in exported.out_avals)


def _exported_over(program: Program, target: Target) -> tuple[bytes, tuple[tuple[int, ...], ...]]:
    """Return the code of per-replica code, over as many devices as it has replicas."""
    if program.replicas != target.devices:
        raise PlanError(_other_count(program, target))
    mesh = AbstractMesh((target.devices,), (REPLICA_AXIS,))
    state, batch = spec_of((program.state, program.batch))
    jax.eval_shape(one_device_step(program), state, batch)
    step = _mesh_step(program, mesh)
    structure = jax.tree.structure((state, batch))
    shardings = [NamedSharding(mesh, PartitionSpec())] * len(jax.tree.leaves(state))
    shardings += [NamedSharding(mesh, PartitionSpec(*_spec(lay))) for _, lay in program.leaves()]
    specs = [
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)
        for leaf, sharding in zip(jax.tree.leaves((state, batch)), shardings, strict=True)
    ]
    flat = jax.jit(lambda *leaves: tuple(jax.tree.leaves(step(*jax.tree.unflatten(structure, leaves)))))
    exported = jax.export.export(flat, platforms=("tpu",))(*specs)
    return bytes(exported.serialize()), tuple(tuple(aval.shape) for aval in exported.out_avals)


def _mesh_step(program: Program, mesh: AbstractMesh) -> Any:
    specs = jax.tree.map(
        lambda lay: PartitionSpec(*_spec(lay)), program.layout, is_leaf=lambda x: isinstance(x, Layout)
    )

    def one(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        mine = jax.tree.map(lambda leaf, lay: leaf if lay.axis is None else leaf[0], batch, program.layout)
        state, outputs = program.step(state, mine)
        return state, jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], outputs)

    whole, split = PartitionSpec(), PartitionSpec(REPLICA_AXIS)
    return jax.shard_map(one, mesh=mesh, in_specs=(whole, specs), out_specs=(whole, split), check_vma=False)


def _spec(layout: Layout) -> Spec:
    return () if layout.axis is None else (*[None] * layout.axis, REPLICA_AXIS)


def _travelling(shape: tuple[int, ...], layout: Layout, devices: int) -> tuple[int, ...]:
    if layout.axis is None:
        return tuple(shape)
    return tuple(size + (-size % devices if axis == layout.axis else 0) for axis, size in enumerate(shape))


def _other_count(program: Program, target: Target) -> str:
    return (
        f"The program {program.name!r} is written for {program.replicas} replicas, and {target.name} has "
        f"{target.devices}. Make it again for that many: under anytpu.connect({target.name!r})."
    )
