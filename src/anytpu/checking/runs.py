"""The runs of a check: a step on virtual cores of this process, and on partitioned devices of a child process.

Idea: with one CPU forced into eight XLA devices, XLA really partitions the step and inserts the collectives. The number
of devices is fixed when a process starts JAX, so a child process is used, which gets the step as a Program file.

Rule: the child does not load the model's code. Its output goes to a log, whose end is in the error if the child fails.
"""

from __future__ import annotations

import contextlib
import dataclasses
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from anytpu import _by_name, _env
from anytpu.checking.outcome import MODULE, PLAIN, Outcome, arrays_to_outcome, outcome_of
from anytpu.errors import BackendError
from anytpu.program import REPLICATED, Program, write
from anytpu.program.program import Tree
from anytpu.strategy.current import CURRENT
from anytpu.strategy.strategy import TPUStrategy
from anytpu.system.lifecycle import current_system, running_system, shutdown_tpu_system
from anytpu.system.resolver import TPUClusterResolver

StepRunner = Callable[[Tree, Tree], Outcome]
_LOG_LINES = 15


@contextlib.contextmanager
def cores_in_scope(count: int) -> Iterator[TPUStrategy]:
    """Return a context with a strategy on virtual cores in scope; its system is shut down afterwards."""
    before = current_system()
    # "twin" is an in-memory system of its own: a system of the user is neither joined nor stopped.
    resolver = TPUClusterResolver("twin", cores=count)
    strategy = TPUStrategy(resolver)
    token = CURRENT.set(strategy)
    try:
        yield strategy
    finally:
        CURRENT.reset(token)
        shutdown_tpu_system(resolver)
        if before is not None and before.is_running:
            running_system(before.address)


def on_virtual_cores(program: Program, strategy: TPUStrategy) -> StepRunner:
    """Compile a step with taps for virtual cores; return a function that runs it on a state and a batch of arrays."""
    step, backend = strategy.compile(program), strategy.backend

    def run(state: Tree, batch: Tree) -> Outcome:
        pairs = zip(jax.tree.leaves(batch), program.leaves(), strict=True)
        leaves = [backend.put(leaf, layout) for leaf, (_, layout) in pairs]
        batch = jax.tree.unflatten(jax.tree.structure(program.batch), leaves)
        new_state, outputs = step.step(backend.put(state, REPLICATED), batch)
        return outcome_of(backend.get(new_state), backend.get(outputs))

    return run


def on_devices(
    program: Program, state: Tree, batch: Tree, cores: int, timeout_s: float, plain: Program | None = None
) -> Outcome:
    """Run a step with taps on forced devices, in a child process.

    Args:
        program: the step.
        state: arrays of the step's state.
        batch: arrays of the step's batch.
        cores: number of devices.
        timeout_s: maximum time of the child process, in seconds.
        plain: the placed step without taps, whose exchanges are wanted, or None.

    Raises:
        BackendError: the child failed, or exceeded `timeout_s`.
        ProgramError: the step cannot be written to a file: it calls back into Python, or holds large constants.
    """
    with tempfile.TemporaryDirectory(prefix="anytpu-check-") as path:
        folder = Path(path)
        with _reporting_devices(cores):
            write(program, folder / "step.anytpu", tensors=state)
            if plain is not None:
                write(plain, folder / PLAIN)
        leaves = {f"{index:06d}": np.asarray(leaf) for index, leaf in enumerate(jax.tree.leaves(batch))}
        np.savez(folder / "batch.npz", **leaves)  # pyright: ignore[reportArgumentType]
        _run_child(program.name, folder, cores, timeout_s)
        with np.load(folder / "outcome.npz") as arrays:
            outcome = arrays_to_outcome(dict(arrays))
        if plain is None:
            return outcome
        exchanges = _by_name.load("exchanges")
        return dataclasses.replace(outcome, exchanged=tuple(exchanges((folder / MODULE).read_text(), plain)))


def _run_child(name: str, folder: Path, cores: int, timeout_s: float) -> None:
    command = [sys.executable, "-P", "-m", "anytpu.checking.outcome", str(folder), str(cores)]
    with (folder / "log").open("w+b") as log:
        try:
            child = subprocess.run(
                command, env=_env.forced_devices(cores), stdout=log, stderr=log, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BackendError(
                f"a step of {name!r} on {cores} devices took longer than {timeout_s:g} s and was ended. Give "
                f"tpu.check a smaller batch_size, fewer cores or a longer timeout_s.{_tail(log)}"
            ) from error
    if child.returncode != 0:
        with (folder / "log").open("rb") as log:
            raise BackendError(
                f"the process that runs a step of {name!r} on {cores} devices ended with status {child.returncode}."
                f"{_tail(log)}"
            )


def _tail(log: Any) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()[-_LOG_LINES:]
    return "\n".join(["" if not lines else " The end of its log:", *lines])


@contextlib.contextmanager
def _reporting_devices(count: int) -> Iterator[None]:
    """Return a context in which JAX reports `count` devices, so that a trace here matches one on the devices."""
    names = ("device_count", "local_device_count", "devices", "local_devices")
    before = {name: getattr(jax, name) for name in names}
    device = jax.local_devices(backend="cpu")[0]

    def counted(*args: Any, **kwargs: Any) -> int:
        return count

    def listed(*args: Any, **kwargs: Any) -> list[Any]:
        return [device] * count

    try:
        for name in names:
            setattr(jax, name, counted if name.endswith("count") else listed)
        yield
    finally:
        for name, function in before.items():
            setattr(jax, name, function)
