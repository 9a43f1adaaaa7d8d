"""`explained`: what JAX refuses when it traces a step over a mesh, as an error that says what to type."""

from __future__ import annotations

from anytpu.errors import ProgramError

OTHER_MESH = "should match the mesh passed to shard_map"
"""Part of JAX's error for a `shard_map` inside of the context of another mesh."""


def explained(name: str, error: Exception) -> ProgramError | None:
    """Return the error for what JAX said when it traced the step of program `name`; None if it is not about a mesh."""
    said = str(error)
    first = said.splitlines()[0] if said else ""
    if "jit requires a non-empty mesh" in said:
        return ProgramError(
            f"The step of {name!r} gives jax.jit a PartitionSpec, which needs a mesh of devices around each call. Give "
            "it jax.sharding.NamedSharding(mesh, spec) in its place."
        )
    if "requires a non-empty mesh" in said or "context mesh cannot be empty" in said:
        return ProgramError(
            f"The step of {name!r} names axes of a mesh, and no mesh is set. Put shardings over the mesh on the specs, "
            "or call this inside `with jax.set_mesh(mesh):`, or `with jax.sharding.use_abstract_mesh(mesh):` for a "
            f"mesh without devices. JAX said: {first}"
        )
    if "should evenly divide" in said:
        return ProgramError(f"The step of {name!r} asks for a sharding that does not fit: {first}.")
    if "`compiler_options` can only be passed to top-level" in said:
        return ProgramError(
            f"The step of {name!r} is jitted with compiler_options, which a program does not carry. Give them to "
            "whoever compiles it, anytpu.plan(..., options={...}), and jax.jit none."
        )
    return None
