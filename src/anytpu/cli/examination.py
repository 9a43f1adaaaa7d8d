"""The work of `anytpu doctor`: inspect the machine, find the cores, and run a step on them.

Rule: an exception becomes a failed check, so one problem never hides the next.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import numpy as np

import anytpu
from anytpu import units
from anytpu.cli import judgement
from anytpu.cli.machine import Machine, look_at_machine
from anytpu.engine.foreign import foreign_kernels, why_not
from anytpu.errors import SettingError
from anytpu.program.program import REPLICA_AXIS
from anytpu.report.checks import SystemCheck
from anytpu.report.devices import headline

SIDE = 128
"""Rows and columns of the matrices that the small step multiplies."""


def examine(tpu: str, cores: int | None) -> Iterator[SystemCheck]:
    """Yield every check as soon as it is done.

    Args:
        tpu: the system to look for, as `TPUClusterResolver` takes it.
        cores: number of its cores; None is all.
    """
    machine = look_at_machine()
    yield from judgement.judge_machine(machine)
    yield from system_checks(tpu, cores, machine)
    yield kernels()
    yield from judgement.extras()


def system_checks(tpu: str, cores: int | None, machine: Machine) -> Iterator[SystemCheck]:
    """Look for the cores, and run a small step and a collective on them."""
    try:
        resolver = anytpu.TPUClusterResolver(tpu, cores=cores)
        yield from judgement.reasons(resolver.reasons, machine)
        yield SystemCheck("ok", "found", headline(anytpu.initialize_tpu_system(resolver)))
    except Exception as error:
        yield SystemCheck("failed", "found", _in_one_line(error), "anytpu devices")
        return
    try:
        yield try_cores(anytpu.TPUStrategy(resolver))
    except Exception as error:
        yield SystemCheck("failed", "small step", _in_one_line(error), "anytpu env")


def kernels() -> SystemCheck:
    """Report the library that computes convolutions on virtual cores."""
    try:
        reason, foreign = why_not(), foreign_kernels()
    except SettingError as error:
        return SystemCheck("failed", "kernels", str(error), "unset ANYTPU_KERNELS")
    if foreign is not None:
        return SystemCheck("ok", "kernels", f"oneDNN {foreign.onednn_version()} computes convolutions on virtual cores")
    text = f"XLA computes convolutions on virtual cores, slower than oneDNN: {reason}"
    return SystemCheck("optional", "kernels", text, "scripts/venv .")


def try_cores(strategy: anytpu.TPUStrategy) -> SystemCheck:
    """Multiply matrices on each core, all-reduce the products over the cores, and compare with NumPy."""
    import jax

    def step(matrix):
        factor = jax.lax.axis_index(REPLICA_AXIS) + 1
        return jax.lax.psum(factor * jax.numpy.matmul(matrix, matrix, precision="highest"), REPLICA_AXIS)

    matrix, count = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE) % 7, strategy.num_replicas_in_sync
    start_s = time.perf_counter()
    sums = strategy.experimental_local_results(strategy.run(step, args=(matrix,)))
    duration = units.format_seconds(time.perf_counter() - start_s)
    expected = count * (count + 1) / 2 * (matrix @ matrix)
    cores = "1 core" if count == 1 else f"{count} cores"
    if not all(np.allclose(local_sum, expected, rtol=1e-4) for local_sum in sums):
        return SystemCheck("failed", "small step", f"the all-reduce over {cores} gave a wrong sum", "anytpu env")
    return SystemCheck("ok", "small step", f"multiplied on {cores} and all-reduced, compiled and run in {duration}")


def _in_one_line(error: Exception) -> str:
    # Indented lines of an error are list items; separate them by semicolons.
    items = re.sub(r"\.?\n +", "; ", str(error))
    return " ".join(items.split()).rstrip(".") or type(error).__name__
