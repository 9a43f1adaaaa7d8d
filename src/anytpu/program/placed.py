"""What lies on a mesh: a `Placement` as JAX's abstract mesh and shardings, and back.

Idea: code that brings shardings of its own names the axes of a mesh, not its devices. So it is traced and lowered over
an abstract mesh of those axes; who compiles it lays real devices under them.
"""

from __future__ import annotations

import contextlib
from typing import Any

import jax
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from anytpu.errors import ProgramError
from anytpu.program.leaves import leaf_names
from anytpu.program.program import Placement, Program, Tree, spec_of


def placement_of(name: str, state: Tree, batch: Tree) -> Placement | None:
    """Return the placement that specs ask for: those with a `NamedSharding`; None when there is none of them.

    A leaf without one is whole on each device. Arrays do not ask: where they lie is where they happen to be.

    Args:
        name: the program, for the error.
        state: tree of arrays or `jax.ShapeDtypeStruct`.
        batch: the same.

    Raises:
        ProgramError: the leaves lie on different meshes, or on no mesh that has names.
    """
    leaves = jax.tree.leaves((state, batch))
    shardings = [leaf.sharding if isinstance(leaf, jax.ShapeDtypeStruct) else None for leaf in leaves]
    names = (*leaf_names(state, "state"), *leaf_names(batch, "batch"))
    asked = [(of, one) for of, one in zip(names, shardings, strict=True) if one is not None]
    if not asked:
        return None
    for of, one in asked:
        if not isinstance(one, NamedSharding):
            raise ProgramError(
                f"{of!r} of {name!r} has the sharding {one!r}; a program is placed on a mesh with named axes: "
                "jax.sharding.NamedSharding(jax.sharding.AbstractMesh((4, 2), ('data', 'model')), "
                "jax.sharding.PartitionSpec('data'))."
            )
    meshes = {_axes(one.mesh) for _, one in asked}
    if len(meshes) > 1:
        listed = " and ".join(repr(dict(axes)) for axes, _ in sorted(meshes))
        raise ProgramError(f"The leaves of {name!r} lie on different meshes, {listed}; a program has one.")
    axes, explicit = meshes.pop()
    specs = tuple(() if one is None else _spec(one.spec) for one in shardings)  # type: ignore[union-attr]
    return Placement(axes, specs, explicit)


def mesh_of(placement: Placement) -> AbstractMesh:
    """Return the abstract mesh of a placement."""
    names, sizes = zip(*placement.axes, strict=True)
    types = tuple(AxisType.Explicit if name in placement.explicit else AxisType.Auto for name in names)
    return AbstractMesh(sizes, names, axis_types=types)


def placed_specs(program: Program) -> tuple[Tree, Tree]:
    """Return the specs of state and batch, with their shardings where the program has a placement."""
    specs = spec_of((program.state, program.batch))
    if program.placement is None:
        return specs
    mesh, leaves = mesh_of(program.placement), jax.tree.leaves(specs)
    placed = [
        jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=NamedSharding(mesh, PartitionSpec(*map(_part, spec))))
        for leaf, spec in zip(leaves, program.placement.specs, strict=True)
    ]
    return jax.tree.unflatten(jax.tree.structure(specs), placed)


def inside(placement: Placement | None) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which shardings that only name axes are over the mesh of a placement."""
    if placement is None or not placement.axes:
        return contextlib.nullcontext()
    return jax.sharding.use_abstract_mesh(mesh_of(placement))


def _axes(mesh: Any) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...]]:
    explicit = [name for name, of in zip(mesh.axis_names, mesh.axis_types, strict=True) if of == AxisType.Explicit]
    return tuple(zip(mesh.axis_names, mesh.axis_sizes, strict=True)), tuple(explicit)


def _spec(spec: PartitionSpec) -> tuple[tuple[str, ...], ...]:
    return tuple(() if part is None else (part,) if isinstance(part, str) else tuple(part) for part in spec)


def _part(part: tuple[str, ...]) -> Any:
    return None if not part else part[0] if len(part) == 1 else part
