"""`check`: compare one training step of a model on one core and on many cores.

Idea: one training step with the same rows and weights runs on one core, on one core again, on virtual cores and on
really partitioned devices. A difference is a bug of a layer, of the program, or of anytpu. Such a layer depends
on the number of cores, or draws numbers without a seed. The first value that differs, in the order of computation,
locates the bug.

Rule: the model's weights do not change. Random layers draw the same numbers in every run, from the model's seeds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from anytpu.errors import SettingError
from anytpu.train.checking.checked_step import CheckedStep, NoReplicasError
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
from anytpu.train.checking.outcome import Outcome
from anytpu.train.checking.record import CheckedValue, CheckReport
from anytpu.train.checking.runs import StepRunner, cores_in_scope, on_devices, on_virtual_cores
from anytpu.train.checking.sample import SEED
from anytpu.train.checking.subject import checked_step_of, is_half

AGAIN = "on 1 core again"


def check(
    model: Any, x: Any = None, y: Any = None, *, batch_size: int = 32, cores: int = 8, timeout_s: float = 600
) -> CheckReport:
    """Compare one training step of a Keras model on one core, on virtual cores and on partitioned devices.

    The devices are forced CPU devices of this machine, in a process of their own; no accelerator is needed. Every
    layer's output is compared, then the losses, the gradients and the variables after the step.

    Args:
        model: a compiled Keras model of any kind, also with its own `train_step`.
        x: rows, of which the first `batch_size` are used; None generates rows from a fixed seed.
        y: labels of the rows; None generates them.
        batch_size: maximum number of rows. It need not be divisible by the number of cores.
        cores: number of virtual cores, and number of devices.
        timeout_s: maximum time of the process that has the devices, in seconds.

    Returns:
        A report to print.

    Raises:
        ProgramError: `model` is not a compiled Keras model, or its input shapes are unknown while x is None. Or a layer
            cannot be traced; the message names it.
        DataError: x or y are arrays that no TPU computes with.
        BackendError: the process of the devices failed; the message has the end of its log.

    Example:
        >>> model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
        >>> model.compile("sgd", "mse")
        >>> check(model, cores=2).agrees
        True
    """
    _check_arguments(batch_size, cores, timeout_s)
    step, data = checked_step_of(model, x, y, batch_size)
    precision = HALF if is_half(model) else FLOAT32
    try:
        values = _compared(step, cores, timeout_s, precision)
    except NoReplicasError:
        step = step.per_replica(cores)
        values = _compared(step, cores, timeout_s, precision)
    return CheckReport(model.name, cores, len(step.batch[0]), data, step.code, values)


def _compared(step: CheckedStep, cores: int, timeout_s: float, precision: Precision) -> tuple[CheckedValue, ...]:
    """Run a step in all four ways, and compare the values."""
    with cores_in_scope(1) as strategy:
        program, batch = step.on(1)
        state, rows = step.state_tree(step.state), step.batch_tree(batch)
        run = on_virtual_cores(program, strategy)
        reference = _values(step, run(state, rows))
        # Traced again, because a layer that draws numbers without a seed at trace time draws others then.
        again = _values(step, on_virtual_cores(step.on(1)[0], strategy)(state, rows), reference)
        trials = list(_trials(step, run, batch, reference, precision.unit))
    with cores_in_scope(cores) as strategy:
        program, batch = step.on(cores)
        rows = step.batch_tree(batch)
        virtual = _values(step, on_virtual_cores(program, strategy)(state, rows), reference)
        devices = _values(step, on_devices(step.on(cores)[0], state, rows, cores, timeout_s), reference)
    runs = {
        AGAIN: again,
        f"on {_number(cores, 'virtual core')}": virtual,
        f"on {_number(cores, 'device')}": devices,
    }
    weights = {name: largest(value) for name, value in zip(step.program.state_names, step.state, strict=True)}
    return compared(reference, trials, runs, weights, precision)


def _values(
    step: CheckedStep, outcome: Outcome, like: Values | None = None, before: list[np.ndarray] | None = None
) -> Values:
    """Return the values of a run by name; the replicas' values of per-replica code are combined, shaped like `like`."""
    if step.code == "whole-batch":
        return values_of(outcome, before or step.state, step.program.state_names)
    return joined(values_of(dataclasses.replace(outcome, state=()), (), ()), like or {})


def _trials(
    step: CheckedStep, run: StepRunner, batch: list[np.ndarray], reference: Values, unit: float
) -> Iterator[Values]:
    """Yield the values that one core computes from moved weights and inputs."""
    generator = np.random.default_rng(SEED)
    weights = step.program.state[:2]
    count = len(jax.tree.leaves(weights))
    for _ in range(TRIALS):
        state = [*moved(step.state[:count], unit, generator), *step.state[count:]]
        outcome = run(step.state_tree(state), step.batch_tree(moved(batch, unit, generator, moves_whole=False)))
        yield _values(step, outcome, reference, state)


def _check_arguments(batch_size: Any, cores: Any, timeout_s: Any) -> None:
    for name, value in (("batch_size", batch_size), ("cores", cores)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise SettingError(f"{name} must be a positive integer, not {value!r}")
    if not isinstance(timeout_s, int | float) or not timeout_s > 0:
        raise SettingError(f"timeout_s must be a positive number of seconds, not {timeout_s!r}")


def _number(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
