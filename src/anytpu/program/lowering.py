"""Lowering of a Program: to one function on stacked arrays, and to StableHLO.

Idea: per-replica code runs on any ONE device in its `jax.vmap` form. Each split array has a leading axis with one entry
per replica, and collectives over `REPLICA_AXIS` become reductions over that axis. Whole-batch code is already a
function of whole arrays. So each Program has a form for one device, `one_device_step`; the virtual backend runs it, and
`lower` converts it to StableHLO.

Rule: the lowered function takes and returns FLAT lists of arrays. It takes leaves of the state, then of the batch. It
returns leaves of the new state, then of the outputs. `jax.export` rejects unknown container types. Weights are inputs,
never constants, and the function does not call back into Python.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.extend.core import jaxpr_as_fun
from jax.stages import Traced

from anytpu import _jax
from anytpu._calls import explain_arguments
from anytpu.errors import ProgramError, ReplicaError, SettingError
from anytpu.program.even_scatters import with_even_scatters
from anytpu.program.jaxprs import with_rewritten_trace, without_debugging
from anytpu.program.placed import inside, placed_specs
from anytpu.program.program import REPLICA_AXIS, Program, SharedOutput, Tree, state_names
from anytpu.program.refusals import check_pair, check_result, explained, refuse_callbacks, refuse_large_constants
from anytpu.program.summed_products import with_summed_products

PLATFORMS = ("cpu", "cuda", "tpu")
"""The target platforms of a lowering."""

TRACING = threading.RLock()
"""Held while a plan traces a step: Keras keeps its tracing state in globals that all threads see."""


def one_device_step(program: Program) -> Callable[[Tree, Tree], tuple[Tree, Tree]]:
    """Return the program as a function on stacked arrays that any one device can run.

    For whole-batch code that is the step itself. For per-replica code it is the step under `jax.vmap`. A split leaf of
    the batch has the shape `(replicas, ...)`, and the state is unstacked. An output has the shape `(replicas, ...)`. It
    is a `SharedOutput` if the program shares outputs and this one is equal on all replicas. A sum of products over the
    replicas is one product if the program asks for it.

    Raises:
        ReplicaError: (during the trace of the function) a new state differs between the replicas.

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
        return with_even_scatters(program)

    def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        sharing = _OutputSharing(replicas)

        def pair(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
            new_state, outputs = check_pair(program.name, program.step(state, batch))
            return new_state, sharing.split(outputs) if program.shares_outputs else outputs

        try:
            new_state, outputs = _over_replicas(program, pair, (None, 0), state, batch)
            return new_state, sharing.merge(outputs) if program.shares_outputs else outputs
        except ValueError as error:
            if "out_axes" not in str(error):
                raise
            if names := _names_that_differ(program, state, batch):
                raise ReplicaError(_state_differs_message(program, names)) from error
            raise

    return with_rewritten_trace(step, with_summed_products) if program.sums_products else step


def trace(program: Program) -> Traced:
    """Trace the form for one device, and check that it can run in another process.

    Raises:
        ProgramError: the step does not return (state, outputs), calls back into Python, or holds a large constant.
        ReplicaError: a new state differs between the replicas.
    """
    traced = _traced(program)
    refuse_callbacks(program.name, traced.jaxpr)
    return traced


def trace_for_plan(program: Program, device: Any = None) -> tuple[Traced, tuple[str, ...]]:
    """Trace like `trace`, but remove debugging callbacks, and return the removed calls.

    Args:
        program: the program to trace.
        device: kind of device for the trace of hand-written kernels; see `inside`.

    Raises:
        ProgramError: as in `trace`, except that `jax.debug.print` and similar functions are allowed.
        ReplicaError: a new state differs between the replicas.
    """
    traced = _traced(program, device)
    quiet, left_out = without_debugging(traced.jaxpr)
    refuse_callbacks(program.name, quiet)
    if not left_out:
        return traced, ()
    structure, flat = jax.tree.structure(traced.out_info), jaxpr_as_fun(quiet)
    with inside(program.placement, device):
        quiet_step = jax.jit(lambda *trees: jax.tree.unflatten(structure, flat(*jax.tree.leaves(trees))))
        return quiet_step.trace(*placed_specs(program)), left_out


def _traced(program: Program, device: Any = None) -> Traced:
    state, batch = placed_specs(program)
    step = one_device_step(program)
    try:
        with inside(program.placement, device):
            # A new function object: jit's cache could return a backend's trace under a setting that is not in its key.
            traced = jax.jit(lambda state, batch: step(state, batch)).trace(state, batch)
    except RuntimeError as error:
        if (ours := explained(program.name, error)) is None:
            raise
        raise ours from error
    check_result(program.name, state, traced.out_info, program.state_names)
    refuse_large_constants(program.name, traced.jaxpr)
    return traced


@explain_arguments
def lower(program: Program, *platforms: str) -> jax.export.Exported:
    """Lower a Program to StableHLO: a function of a flat list of arrays, on one device, or on those of its placement.

    Args:
        program: the program to lower.
        platforms: one or more of "cpu", "cuda" and "tpu"; none means "cpu". With more than one, source lines are lost.

    Returns:
        The exported function: `call(*state_leaves, *batch_leaves)` returns `(*state_leaves, *output_leaves)`.

    Raises:
        SettingError: a platform is unknown.
        ProgramError: the step cannot be lowered.
        ReplicaError: a new state of per-replica code differs between the replicas.

    Example:
        >>> lower(program, "tpu").platforms
        ('tpu',)
    """
    return lower_traced(program, trace(program), platforms or ("cpu",))


def lower_traced(
    program: Program, traced: Traced, platforms: tuple[str, ...], custom_calls: tuple[str, ...] = ()
) -> jax.export.Exported:
    """Lower the result of `trace`, without tracing the step again.

    Args:
        program: the program.
        traced: its trace.
        platforms: target platforms.
        custom_calls: custom calls that the code may contain although JAX does not promise to keep them.
    """
    check_platforms(platforms)
    allowed = [jax.export.DisabledSafetyCheck.custom_call(target) for target in custom_calls]
    flat = jax.jit(lambda *leaves: tuple(jaxpr_as_fun(traced.jaxpr)(*leaves)))
    try:
        with inside(program.placement):
            return jax.export.export(flat, platforms=platforms, disabled_checks=allowed)(
                *jax.tree.leaves(placed_specs(program))
            )
    except (ValueError, NotImplementedError) as error:
        raise ProgramError(
            f"The program {program.name!r} cannot be lowered for {' and '.join(platforms)}: "
            f"{str(error).splitlines()[0]}"
        ) from error


def check_platforms(platforms: tuple[str, ...]) -> None:
    """Raise `SettingError` unless each platform is a valid target platform."""
    for platform in platforms:
        if platform not in PLATFORMS:
            raise SettingError(f"A platform must be 'cpu', 'cuda' (for a GPU) or 'tpu', not {platform!r}.")


class _OutputSharing:
    """Passes outputs that are equal on every replica around `vmap`, which would copy them for each replica."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._tree: Any = None
        self._shared: dict[int, Any] = {}

    def split(self, outputs: Tree) -> list[Any]:
        """Return the outputs that differ between the replicas, and keep the others. Call it inside `vmap`.

        A value that `vmap` does not map belongs to the outer trace, so it may be used outside.
        """
        leaves, self._tree = jax.tree.flatten(outputs)
        self._shared = {index: leaf for index, leaf in enumerate(leaves) if not _jax.is_mapped(leaf)}
        return [leaf for index, leaf in enumerate(leaves) if index not in self._shared]

    def merge(self, mapped: list[Any]) -> Tree:
        """Return all outputs in their tree. Call it outside `vmap`. The outputs of a single replica are all shared."""
        unshared = iter([SharedOutput(leaf[0]) for leaf in mapped] if self._replicas == 1 else mapped)
        count = self._tree.num_leaves
        shared = {index: SharedOutput(jnp.asarray(leaf)) for index, leaf in self._shared.items()}
        return self._tree.unflatten([shared[i] if i in shared else next(unshared) for i in range(count)])


def _over_replicas(program: Program, step: Callable[..., Any], out_axes: Any, state: Tree, batch: Tree) -> Any:
    leaves, structure = jax.tree.flatten(batch)
    in_axes = [None if layout.axis is None else 0 for _, layout in program.leaves()]

    def replica(state: Tree, *leaves: Any) -> Any:
        return step(state, jax.tree.unflatten(structure, leaves))

    run_all = jax.vmap(
        replica, in_axes=(None, *in_axes), out_axes=out_axes, axis_name=REPLICA_AXIS, axis_size=program.replicas
    )
    return run_all(state, *leaves)


def _names_that_differ(program: Program, state: Tree, batch: Tree) -> list[str]:
    """Return the names of the state leaves that differ between the replicas.

    This traces the step again, with an identity `custom_vmap` around the new state. The rule of the `custom_vmap`
    receives the batched flag of each leaf.
    """
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

    jax.eval_shape(lambda *trees: _over_replicas(program, marked, 0, *trees), state, batch)
    return [name for name, flag in zip(state_names(program), differs, strict=False) if flag]


def _state_differs_message(program: Program, names: list[str]) -> str:
    named = " and ".join(map(repr, names[:3])) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
    return (
        f"The step of {program.name!r} returns a state that differs between its {program.replicas} replicas: {named}. "
        "State is the same on every core: sum it with jax.lax.psum or average it with jax.lax.pmean, over the axis "
        f"{REPLICA_AXIS!r}, or return it with the outputs, of which each replica has its own. Gradients of one replica "
        'alone are reduced before they are used: tpu.get_replica_context().all_reduce("MEAN", gradients).'
    )
