"""The runs of a check: a step on virtual cores of this process, and on partitioned devices of a child process.

Idea: one XLA device forced into eight is really partitioned: XLA splits the step, and puts the collectives in. That is
settled when a process starts JAX, so it is done in a child, which gets the step as a Program file.

Rule: the child knows nothing of the model's code. What it says goes to a log, whose end is in the error if it fails.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np

from anytpu import _env
from anytpu.errors import BackendError
from anytpu.program import REPLICATED, Program, write
from anytpu.program.program import Tree
from anytpu.strategy.current import CURRENT
from anytpu.strategy.strategy import TPUStrategy
from anytpu.system.lifecycle import current_system, running_system, shutdown_tpu_system
from anytpu.system.resolver import TPUClusterResolver
from anytpu.train.checking.outcome import Outcome, arrays_to_outcome, outcome_of

Run = Callable[[Tree, Tree], Outcome]
_LOG_LINES = 15


@contextlib.contextmanager
def cores_in_scope(count: int) -> Iterator[TPUStrategy]:
    """Return a context with a strategy on virtual cores, which `get_strategy` returns, and which is gone afterwards."""
    before = current_system()
    # The twin: a system of the user's is neither joined nor stopped.
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


def on_virtual_cores(program: Program, strategy: TPUStrategy) -> Run:
    """Compile a step with taps for virtual cores, and return what runs it on a state and a batch of arrays."""
    step, backend = strategy.compile(program), strategy.backend

    def run(state: Tree, batch: Tree) -> Outcome:
        leaves = [backend.put(one, lay) for one, (_, lay) in zip(jax.tree.leaves(batch), program.leaves(), strict=True)]
        batch = jax.tree.unflatten(jax.tree.structure(program.batch), leaves)
        new_state, outputs = step.step(backend.put(state, REPLICATED), batch)
        return outcome_of(backend.get(new_state), backend.get(outputs))

    return run


def on_devices(program: Program, state: Tree, batch: Tree, cores: int, timeout_s: float) -> Outcome:
    """Run a step with taps on forced devices, in a child process.

    Args:
        program: the step.
        state: its state, arrays.
        batch: its batch, arrays.
        cores: how many devices.
        timeout_s: how long the child may take.

    Raises:
        BackendError: the child failed, or took longer.
        ProgramError: the step cannot leave this process: it calls back into Python, or holds large constants.
    """
    with tempfile.TemporaryDirectory(prefix="anytpu-check-") as made:
        folder = Path(made)
        with _told_of_devices(cores):
            write(program, folder / "step.anytpu", tensors=state)
        leaves = {f"{number:06d}": np.asarray(one) for number, one in enumerate(jax.tree.leaves(batch))}
        np.savez(folder / "batch.npz", **leaves)  # pyright: ignore[reportArgumentType]
        _run_child(program.name, folder, cores, timeout_s)
        with np.load(folder / "outcome.npz") as found:
            return arrays_to_outcome(dict(found))


def _run_child(name: str, folder: Path, cores: int, timeout_s: float) -> None:
    command = [sys.executable, "-P", "-m", "anytpu.train.checking.child", str(folder), str(cores)]
    with (folder / "log").open("w+b") as log:
        try:
            done = subprocess.run(
                command, env=_env.forced_devices(cores), stdout=log, stderr=log, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise BackendError(
                f"a step of {name!r} on {cores} devices took longer than {timeout_s:g} s and was ended. Give "
                f"tpu.check a smaller batch_size, fewer cores or a longer timeout_s.{_tail(log)}"
            ) from error
    if done.returncode != 0:
        with (folder / "log").open("rb") as log:
            raise BackendError(
                f"the process that runs a step of {name!r} on {cores} devices ended with status {done.returncode}."
                f"{_tail(log)}"
            )


def _tail(log: Any) -> str:
    log.seek(0)
    lines = log.read().decode(errors="replace").splitlines()[-_LOG_LINES:]
    return "\n".join(["" if not lines else " The end of its log:", *lines])


@contextlib.contextmanager
def _told_of_devices(count: int) -> Iterator[None]:
    """Let JAX tell code that asks how many devices there are what it would be told on so many."""
    names = ("device_count", "local_device_count", "devices", "local_devices")
    before = {name: getattr(jax, name) for name in names}
    device = jax.local_devices(backend="cpu")[0]

    def counted(*_: Any, **__: Any) -> int:
        return count

    def listed(*_: Any, **__: Any) -> list[Any]:
        return [device] * count

    try:
        for name in names:
            setattr(jax, name, counted if name.endswith("count") else listed)
        yield
    finally:
        for name, function in before.items():
            setattr(jax, name, function)
