"""`anytpu doctor`: check everything that training needs, run a small step, and name a command for each problem.

Rule: an exception of a check becomes a failed check, so one problem never hides the next.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

import anytpu
from anytpu import _env, units
from anytpu.cli.command import Command, add_system_arguments
from anytpu.errors import SettingError

if TYPE_CHECKING:
    from anytpu.cli.machine import Machine
    from anytpu.report.checks import SystemCheck

SIDE = 128
"""Rows and columns of the matrices that the small step multiplies."""


def run(arguments: argparse.Namespace) -> int:
    """Print each check when it is done; the status is 1 if one failed."""
    from anytpu.report.checks import print_check, summary
    from anytpu.report.terminal import open_console, say

    console = open_console()
    checks = []
    for check in _checks(arguments):
        checks.append(check)
        print_check(console, check)
    has_failed = any(check.status == "failed" for check in checks)
    advice = "fix the failed checks, the first one first" if has_failed else "next: anytpu demo"
    say(console, f"\n{summary(checks)}; {advice}", style="bold")
    return 1 if has_failed else 0


def _checks(arguments: argparse.Namespace) -> Iterator[SystemCheck]:
    """Yield every check as soon as it is done; leave out those that need JAX if its settings are wrong."""
    from anytpu.cli.machine import check_extras, guarded

    yield from guarded("machine", lambda: _machine_checks(arguments))
    yield from guarded("extras", check_extras)


def _machine_checks(arguments: argparse.Namespace) -> Iterator[SystemCheck]:
    from anytpu.cli.machine import check_machine, guarded, look_at_machine
    from anytpu.report.checks import SystemCheck

    machine = look_at_machine()
    try:
        _env.check_jax_settings()
    except SettingError as error:
        yield SystemCheck("failed", "settings", str(error), f"unset {str(error).rpartition('unset ')[2]}")
        yield from guarded("machine", lambda: check_machine(machine))
    else:
        yield from guarded("machine", lambda: check_machine(machine))
        yield from system_checks(arguments.tpu, arguments.cores, machine)
        yield from guarded("kernels", lambda: [kernels()])


def system_checks(tpu: str, cores: int | None, machine: Machine) -> Iterator[SystemCheck]:
    """Look for the cores, and run a small step and a collective on them.

    Args:
        tpu: the system to look for, as `TPUClusterResolver` takes it.
        cores: number of its cores; None is all.
        machine: the record of this machine.
    """
    from anytpu.cli.machine import check_reasons, guarded, in_one_line
    from anytpu.report.checks import SystemCheck
    from anytpu.report.devices import headline

    try:
        resolver = anytpu.TPUClusterResolver(tpu, cores=cores)
        yield from check_reasons(resolver.reasons, machine)
        yield SystemCheck("ok", "found", headline(anytpu.initialize_tpu_system(resolver)))
    except Exception as error:
        yield SystemCheck("failed", "found", in_one_line(error), "anytpu devices")
        return
    yield from guarded("small step", lambda: [try_cores(anytpu.TPUStrategy(resolver))])


def kernels() -> SystemCheck:
    """Report the library that computes convolutions on virtual cores."""
    from anytpu.engine.foreign import foreign_kernels, why_not
    from anytpu.report.checks import SystemCheck

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
    import numpy as np

    from anytpu.program.program import REPLICA_AXIS
    from anytpu.report.checks import SystemCheck

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


COMMAND = Command(
    name="doctor",
    summary="check this machine for training, and name a command for each problem",
    description="""\
Check everything that training needs: versions, memory, disk, ports, Keras's
backend, libtpu, threads, extras. Look for the cores, run a small step on each, and
an all-reduce over all of them. Each check is ok, a warning, or failed, with the
command to type next. The exit status is 1 if a check failed.
""",
    add_arguments=add_system_arguments,
    run=run,
)
