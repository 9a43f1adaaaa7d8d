"""`check`: is what a model computes on many cores what it computes on one?

Idea: one training step, the same rows and weights, runs on one core, on one core again, on virtual cores and on really
partitioned devices. What differs is a bug: of a layer that asks how many cores there are, that draws numbers without a
seed, of a program that cannot be partitioned, or of ours. The first value that differs, in the order in which they are
computed, says where.

Rule: the model keeps its weights. Random layers draw the same numbers in every run, from the seeds that the model has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from anytpu.errors import SettingError
from anytpu.train.checking.comparing import (
    FLOAT32,
    HALF,
    TRIALS,
    Precision,
    Values,
    compared,
    joined,
    largest,
    moved,
    values_of,
)
from anytpu.train.checking.job import Job, NoReplicasError
from anytpu.train.checking.outcome import Outcome
from anytpu.train.checking.record import Check, CheckedValue
from anytpu.train.checking.runs import Run, cores_in_scope, on_devices, on_virtual_cores
from anytpu.train.checking.sample import SEED
from anytpu.train.checking.subject import is_half, job_of

AGAIN = "on 1 core again"


def check(
    model: Any, x: Any = None, y: Any = None, *, batch_size: int = 32, cores: int = 8, timeout_s: float = 600
) -> Check:
    """Compare one training step of a Keras model on one core, on virtual cores and on partitioned devices.

    The devices are forced out of this machine's CPU, in a process of its own; no accelerator is needed. Every layer's
    output is compared, then the losses, the gradients and the variables after the step.

    Args:
        model: a compiled Keras model, of any kind; with a `train_step` of its own too.
        x: rows, of which the first `batch_size` are used; None makes some, from a fixed seed.
        y: their labels; None makes some.
        batch_size: the most rows. The cores need not divide it.
        cores: how many virtual cores and how many devices.
        timeout_s: how long the process of the devices may take.

    Returns:
        What came of it: print it.

    Raises:
        ProgramError: not a compiled Keras model, one that does not know the shapes of its inputs while no x is given,
            or a layer that cannot be traced; the message names it.
        DataError: x or y cannot be computed with.
        BackendError: the process of the devices failed; the end of its log is in the message.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> model.compile("sgd", "mse")
        >>> check(model, cores=2).agrees
        True
    """
    _check_arguments(batch_size, cores, timeout_s)
    job, data = job_of(model, x, y, batch_size)
    precision = HALF if is_half(model) else FLOAT32
    try:
        values = _compared(job, cores, timeout_s, precision)
    except NoReplicasError:
        job = job.per_replica(cores)
        values = _compared(job, cores, timeout_s, precision)
    return Check(model.name, cores, len(job.batch[0]), data, job.code, values)


def _compared(job: Job, cores: int, timeout_s: float, precision: Precision) -> tuple[CheckedValue, ...]:
    """Run a step in every way, and compare."""
    with cores_in_scope(1) as strategy:
        program, batch = job.on(1)
        state, rows = job.state_tree(job.state), job.batch_tree(batch)
        run = on_virtual_cores(program, strategy)
        reference = _values(job, run(state, rows))
        # Traced anew: what a layer draws without a seed when it is traced is not what it drew before.
        again = _values(job, on_virtual_cores(job.on(1)[0], strategy)(state, rows), reference)
        trials = list(_trials(job, run, batch, reference, precision.unit))
    with cores_in_scope(cores) as strategy:
        program, batch = job.on(cores)
        rows = job.batch_tree(batch)
        virtual = _values(job, on_virtual_cores(program, strategy)(state, rows), reference)
        devices = _values(job, on_devices(job.on(cores)[0], state, rows, cores, timeout_s), reference)
    runs = {
        AGAIN: again,
        f"on {_number(cores, 'virtual core')}": virtual,
        f"on {_number(cores, 'device')}": devices,
    }
    weights = {name: largest(one) for name, one in zip(job.program.state_names, job.state, strict=True)}
    return compared(reference, trials, runs, weights, precision)


def _values(job: Job, outcome: Outcome, like: Values | None = None, before: list[np.ndarray] | None = None) -> Values:
    """Return what a run computed, by name; of per-replica code joined, as far as possible into what `like` has."""
    if job.code == "whole-batch":
        return values_of(outcome, before or job.state, job.program.state_names)
    return joined(values_of(dataclasses.replace(outcome, state=()), (), ()), like or {})


def _trials(job: Job, run: Run, batch: list[np.ndarray], reference: Values, unit: float) -> Iterator[Values]:
    """Yield what one core computes of moved weights and inputs."""
    generator = np.random.default_rng(SEED)
    weights = job.program.state[:2]
    count = len(jax.tree.leaves(weights))
    for _ in range(TRIALS):
        state = [*moved(job.state[:count], unit, generator), *job.state[count:]]
        outcome = run(job.state_tree(state), job.batch_tree(moved(batch, unit, generator, moves_whole=False)))
        yield _values(job, outcome, reference, state)


def _check_arguments(batch_size: Any, cores: Any, timeout_s: Any) -> None:
    for name, value in (("batch_size", batch_size), ("cores", cores)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SettingError(f"{name} must be a positive integer, not {value!r}")
    if not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise SettingError(f"timeout_s must be a positive number of seconds, not {timeout_s!r}")


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
