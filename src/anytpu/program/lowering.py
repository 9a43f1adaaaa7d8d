"""Lowering: a Program as one function on stacked arrays, and as StableHLO.

Idea: per-replica code runs on any ONE device as its `jax.vmap` form: each split array carries a leading axis with one
entry per replica, and collectives over `REPLICA_AXIS` become reductions over that axis. Whole-batch code is already a
function of whole arrays. So each Program has a form for one device, `one_device_step`; the virtual backend runs it, and
`lower` turns it into StableHLO.

Rule: what is lowered takes and gives FLAT lists of arrays (leaves of the state, then of the batch; leaves of the new
state, then of the outputs), because `jax.export` refuses container types that it does not know. Weights are inputs,
never constants, and no Python is called back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.extend.core import jaxpr_as_fun
from jax.stages import Traced

from anytpu.errors import ProgramError, ReplicaError, SettingError
from anytpu.program.contract import check_pair, check_result
from anytpu.program.debugging import without_debugging
from anytpu.program.jax_refusals import explained
from anytpu.program.leaves import state_names
from anytpu.program.mapped import is_mapped
from anytpu.program.placed import inside, placed_specs
from anytpu.program.program import REPLICA_AXIS, Program, SharedOutput, Tree
from anytpu.program.refusals import refuse_callbacks, refuse_large_constants

PLATFORMS = ("cpu", "cuda", "tpu")
"""The platforms that a Program can be lowered for."""


def one_device_step(program: Program) -> Callable[[Tree, Tree], tuple[Tree, Tree]]:
    """Return the program as a function on stacked arrays that any one device can run.

    For whole-batch code that is the step itself. For per-replica code it is the step under `jax.vmap`: a split leaf of
    the batch comes as `(replicas, ...)`, the state comes and goes unstacked, each output leaves as `(replicas, ...)`,
    or as a `SharedOutput` where the program shares outputs and this one does not differ between the replicas.

    Raises:
        ReplicaError: (when the function is traced) a new state differs between the replicas.

    Example:
        >>> def step(state, batch):
        ...     return state + jax.lax.psum(batch, REPLICA_AXIS), batch
        >>> spec = jax.ShapeDtypeStruct
        >>> program = Program("sum", step, spec((), "int32"), spec((4,), "int32"), ROWS, replicas=4)
        >>> state, outputs = one_device_step(program)(jnp.int32(0), jnp.arange(4))
        >>> int(state), outputs.shape
        (6, (4,))
    """
    replicas = program.replicas
    if replicas is None:
        return program.step

    def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        sharing = _Sharing()

        def pair(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
            new_state, outputs = check_pair(program.name, program.step(state, batch))
            return new_state, sharing.parted(outputs) if program.shares_outputs else outputs

        try:
            new_state, outputs = _over_replicas(program, pair, (None, 0), state, batch)
            return new_state, sharing.joined(outputs, replicas) if program.shares_outputs else outputs
        except ValueError as error:
            if "out_axes" not in str(error):
                raise
            if names := _names_that_differ(program, state, batch):
                raise ReplicaError(_differs(program, names)) from error
            raise

    return step


def trace(program: Program) -> Traced:
    """Trace the form for one device, check what it returns, and refuse what cannot leave this process.

    Raises:
        ProgramError: the step does not return (state, outputs), calls back into Python, or holds a large constant.
        ReplicaError: a new state differs between the replicas.
    """
    traced = _traced(program)
    refuse_callbacks(program.name, traced.jaxpr)
    return traced


def trace_for_plan(program: Program, device: Any = None) -> tuple[Traced, tuple[str, ...]]:
    """Trace as `trace` does, leave out what only prints or watches, and say what that was.

    Args:
        program: what to trace.
        device: the kind of device that hand-written kernels are traced for; see `inside`.

    Raises:
        ProgramError: as `trace` says; `jax.debug.print` and its siblings are no reason.
        ReplicaError: a new state differs between the replicas.
    """
    traced = _traced(program, device)
    quiet, left_out = without_debugging(traced.jaxpr)
    refuse_callbacks(program.name, quiet)
    if not left_out:
        return traced, ()
    into, flat = jax.tree.structure(traced.out_info), jaxpr_as_fun(quiet)
    with inside(program.placement, device):
        again = jax.jit(lambda *trees: jax.tree.unflatten(into, flat(*jax.tree.leaves(trees))))
        return again.trace(*placed_specs(program)), left_out


def _traced(program: Program, device: Any = None) -> Traced:
    state, batch = placed_specs(program)
    step = one_device_step(program)
    try:
        with inside(program.placement, device):
            # A fresh function: jit's cache would hand back what a backend traced under a switch that it cannot see.
            traced = jax.jit(lambda state, batch: step(state, batch)).trace(state, batch)
    except RuntimeError as error:
        if (ours := explained(program.name, error)) is None:
            raise
        raise ours from error
    check_result(program.name, state, traced.out_info, program.state_names)
    refuse_large_constants(program.name, traced.jaxpr)
    return traced


def lower(program: Program, *platforms: str) -> jax.export.Exported:
    """Lower a Program to StableHLO: a function of a flat list of arrays, on one device, or on those of its placement.

    Args:
        program: what to lower.
        platforms: one or more of "cpu", "cuda" and "tpu"; none means "cpu". More than one costs the source lines.

    Returns:
        The exported function: `call(*state_leaves, *batch_leaves)` gives the tuple `(*state_leaves, *output_leaves)`.

    Raises:
        SettingError: a platform that is not known.
        ProgramError: the step cannot be lowered.
        ReplicaError: a new state of per-replica code differs between the replicas.

    Example:
        >>> lower(program, "tpu").platforms
        ('tpu',)
    """
    return lower_traced(program, trace(program), platforms or ("cpu",))


def lower_traced(program: Program, traced: Traced, platforms: tuple[str, ...]) -> jax.export.Exported:
    """Lower what `trace` returned, without tracing the step again."""
    check_platforms(platforms)
    flat = jax.jit(lambda *leaves: tuple(jaxpr_as_fun(traced.jaxpr)(*leaves)))
    try:
        with inside(program.placement):
            return jax.export.export(flat, platforms=platforms)(*jax.tree.leaves(placed_specs(program)))
    except (ValueError, NotImplementedError) as error:
        raise ProgramError(
            f"The program {program.name!r} cannot be lowered for {' and '.join(platforms)}: "
            f"{str(error).splitlines()[0]}"
        ) from error


def check_platforms(platforms: tuple[str, ...]) -> None:
    """Raise `SettingError` unless each platform is one that a Program can be lowered for."""
    for platform in platforms:
        if platform not in PLATFORMS:
            raise SettingError(f"A platform must be 'cpu', 'cuda' (for a GPU) or 'tpu', not {platform!r}.")


class _Sharing:
    """Takes the outputs that are the same on every replica around `vmap`, which would make one copy for each."""

    def __init__(self) -> None:
        self._tree: Any = None
        self._shared: dict[int, Any] = {}

    def parted(self, outputs: Tree) -> list[Any]:
        """Return the outputs that differ between the replicas, and keep the others, inside `vmap`.

        A value that `vmap` does not map is one of the trace around it, so it may be used out there.
        """
        leaves, self._tree = jax.tree.flatten(outputs)
        self._shared = {index: leaf for index, leaf in enumerate(leaves) if not is_mapped(leaf)}
        return [leaf for index, leaf in enumerate(leaves) if index not in self._shared]

    def joined(self, mapped: list[Any], replicas: int) -> Tree:
        """Return all outputs in their tree, outside `vmap`. Those of a single replica are all shared."""
        own = iter([SharedOutput(leaf[0]) for leaf in mapped] if replicas == 1 else mapped)
        count = self._tree.num_leaves
        shared = {index: SharedOutput(jnp.asarray(leaf)) for index, leaf in self._shared.items()}
        return self._tree.unflatten([shared[i] if i in shared else next(own) for i in range(count)])


def _over_replicas(program: Program, step: Callable[..., Any], out_axes: Any, state: Tree, batch: Tree) -> Any:
    leaves, structure = jax.tree.flatten(batch)
    in_axes = [None if layout.axis is None else 0 for _, layout in program.leaves()]

    def replica(state: Tree, *leaves: Any) -> Any:
        return step(state, jax.tree.unflatten(structure, leaves))

    over = jax.vmap(
        replica, in_axes=(None, *in_axes), out_axes=out_axes, axis_name=REPLICA_AXIS, axis_size=program.replicas
    )
    return over(state, *leaves)


def _names_that_differ(program: Program, state: Tree, batch: Tree) -> list[str]:
    """Trace once more with a mark on the new state that is told which of its leaves vmap carries one per replica."""
    differs: list[bool] = []

    @custom_vmap
    def mark(*leaves: Any) -> tuple[Any, ...]:
        return leaves

    @mark.def_vmap
    def _(axis_size: int, in_batched: list[bool], *leaves: Any) -> tuple[Any, Any]:
        differs[:] = in_batched
        return leaves, tuple(in_batched)

    def marked(state: Tree, batch: Tree) -> Any:
        return mark(*jax.tree.leaves(program.step(state, batch)[0]))

    jax.eval_shape(lambda *given: _over_replicas(program, marked, 0, *given), state, batch)
    return [name for name, flag in zip(state_names(program), differs, strict=False) if flag]


def _differs(program: Program, names: list[str]) -> str:
    named = " and ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"The step of {program.name!r} returns a state that differs between its {program.replicas} replicas: {named}. "
        "State is the same on every core: sum it with jax.lax.psum or average it with jax.lax.pmean, over the axis "
        f"{REPLICA_AXIS!r}, or return it with the outputs, of which each replica has its own. Gradients of one replica "
        'alone are reduced before they are used: tpu.get_replica_context().all_reduce("MEAN", gradients).'
    )
