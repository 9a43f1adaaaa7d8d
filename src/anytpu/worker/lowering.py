"""Lowering of a Program for a worker: the whole call, loop included, as a program file's code and manifest.

Idea: this process traces and lowers the loop around the step, as the local backend would. So the worker compiles the
same StableHLO that this process would compile, and the results are equal bit for bit on equal machines. The wire has
flat lists of arrays; this process keeps the trees.

Rule: a Program is lowered for the worker's platform and kernels, never for those of this process.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
from collections.abc import Iterator
from typing import Any

import jax

from anytpu.engine.backend import Loop
from anytpu.engine.foreign import foreign_kernels, without_foreign_kernels
from anytpu.engine.kernels import fast_kernels
from anytpu.engine.loop import feed_specs, make_loop, trace_step, with_checked_state
from anytpu.engine.numerics import apply_numerics
from anytpu.engine.shards import feed_layouts, for_one_device
from anytpu.errors import ProgramError
from anytpu.program.file import encode
from anytpu.program.lowering import one_device_step
from anytpu.program.program import REPLICATED, Program, Tree
from anytpu.system.cores import Core, Numerics
from anytpu.worker.allowed import FOREIGN_CALLS


@dataclasses.dataclass(frozen=True)
class WorkerTarget:
    """The properties of a worker that a lowering depends on.

    Attributes:
        platform: "cpu", "cuda" or "tpu".
        is_virtual: whether the cores are virtual.
        has_equal_jaxlib: whether the worker has the jaxlib of this process.
        kernels: version of the worker's anytpu-kernels, or "".
        cores: the cores.
        numerics: the rounding of float32 products.
    """

    platform: str
    is_virtual: bool
    has_equal_jaxlib: bool
    kernels: str
    cores: tuple[Core, ...]
    numerics: Numerics


@dataclasses.dataclass(frozen=True)
class LoweredCall:
    """One call of a Program, ready for the wire.

    Attributes:
        manifest: manifest of the program file.
        code: code of the program file.
        results: tree of the results besides the state: the outputs of a step, or (last, every, bad_steps) of a loop.
        outputs: specs of the outputs of one step.
    """

    manifest: bytes
    code: bytes
    results: Tree
    outputs: Tree


def lower_call(program: Program, loop: Loop | None, target: WorkerTarget) -> LoweredCall:
    """Lower a call of a Program for a worker.

    Args:
        program: the program.
        loop: form of the loop, or None for a call of one step.
        target: the worker.

    Raises:
        ProgramError: as `Backend.compile`; also for Python callbacks, large constants, and a placement on real cores.
        ReplicaError: a new state of per-replica code differs between the replicas.
    """
    if program.placement is not None and not target.is_virtual:
        raise ProgramError(
            f"{program.name!r} has a layout over the cores, and a worker with real cores runs programs without one: "
            "leave layout out, or run the program on the worker's machine"
        )
    program = for_one_device(program, target.cores)
    step = apply_numerics(target.numerics, with_checked_state(program, one_device_step(program)))
    with _kernels_of(target):
        outputs = trace_step(step, program.state, program.batch)[1]
        specs, layouts, run, structures = _call(program, loop, step)
        state = jax.tree.leaves(program.state)

        def flat(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
            new_state, results = run(structures[0].unflatten(state), structures[1].unflatten(batch))
            return tuple(jax.tree.leaves(new_state)), tuple(jax.tree.leaves(results))

        results = jax.eval_shape(run, program.state, structures[1].unflatten(specs))[1]
        call = dataclasses.replace(
            program, step=flat, state=tuple(state), batch=tuple(specs), layout=tuple(layouts), replicas=None
        )
        manifest, code = encode(call, (target.platform,), FOREIGN_CALLS if target.kernels else ())
    return LoweredCall(manifest, code, results, outputs)


def _call(program: Program, loop: Loop | None, step: Any) -> tuple[list[Any], list[Any], Any, tuple[Any, Any]]:
    """Return the specs and layouts of the batch of a call, its function, and the structures of state and batch."""
    batch, layouts, run = program.batch, program.layout, step
    if loop is not None:
        count = jax.ShapeDtypeStruct((), "int32")
        batch = (feed_specs(program.batch, loop), count, count)
        layouts = (feed_layouts(program.layout, loop), REPLICATED, REPLICATED)
        looped = make_loop(step, program.state, program.batch, loop)

        def run(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
            state, *results = looped(state, *batch)
            return state, tuple(results)

    structures = jax.tree.structure(program.state), jax.tree.structure(batch)
    return jax.tree.leaves(batch), jax.tree.leaves(layouts), run, structures


@contextlib.contextmanager
def _kernels_of(target: WorkerTarget) -> Iterator[None]:
    """Return a context in which operations are lowered in the forms that are fast on the worker."""
    with contextlib.ExitStack() as stack:
        if not _has_equal_kernels(target):
            stack.enter_context(without_foreign_kernels())
        if target.is_virtual and target.has_equal_jaxlib:
            stack.enter_context(fast_kernels(layers=target.numerics == "machine"))
        yield


def _has_equal_kernels(target: WorkerTarget) -> bool:
    return foreign_kernels() is not None and importlib.metadata.version("anytpu-kernels") == target.kernels
