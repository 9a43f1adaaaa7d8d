"""`explained`: translates JAX's errors of a trace over a mesh into errors with advice."""

from __future__ import annotations

from anytpu.errors import ProgramError

OTHER_MESH = "should match the mesh passed to shard_map"
"""Part of JAX's error text for a `shard_map` in the context of another mesh."""


def explained(name: str, error: Exception) -> ProgramError | None:
    """Return our error for a JAX error in the trace of program `name`; None if the error is not about a mesh."""
    message = str(error)
    first = message.splitlines()[0] if message else ""
    if "jit requires a non-empty mesh" in message:
        return ProgramError(
            f"The step of {name!r} gives jax.jit a PartitionSpec, which needs a mesh of devices around each call. Give "
            "it jax.sharding.NamedSharding(mesh, spec) in its place."
        )
    if "requires a non-empty mesh" in message or "context mesh cannot be empty" in message:
        return ProgramError(
            f"The step of {name!r} names axes of a mesh, and no mesh is set. Put shardings over the mesh on the specs, "
            "or call this inside `with jax.set_mesh(mesh):`, or `with jax.sharding.use_abstract_mesh(mesh):` for a "
            f"mesh without devices. JAX said: {first}"
        )
    if "should evenly divide" in message:
        return ProgramError(f"The step of {name!r} asks for a sharding that does not fit: {first}.")
    if "`compiler_options` can only be passed to top-level" in message:
        return ProgramError(
            f"The step of {name!r} is jitted with compiler_options, which a program does not carry. Give them to "
            "whoever compiles it, anytpu.plan(..., options={...}), and jax.jit none."
        )
    return None
