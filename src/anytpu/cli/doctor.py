"""`anytpu doctor`: looks at everything that training needs, tries a small step, and says what to type about each."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from anytpu.cli.command import Command, add_system_arguments

if TYPE_CHECKING:
    from anytpu.cli.machine import Machine
    from anytpu.report.checks import Check

SIDE = 128
"""Rows and columns of the matrix that the small step multiplies."""


def run(arguments: argparse.Namespace) -> int:
    """Print the checks as they come; the status is 1 when one failed."""
    from anytpu.report.checks import print_check, summary
    from anytpu.report.terminal import open_console

    console = open_console()
    done = []
    for check in checks(arguments.tpu, arguments.cores):
        done.append(check)
        print_check(console, check)
    is_bad = any(check.status == "failed" for check in done)
    following = "fix what failed first" if is_bad else "next: anytpu demo"
    console.print(f"\n{summary(done)}; {following}", style="bold")
    return 1 if is_bad else 0


def checks(tpu: str, cores: int | None) -> Iterator[Check]:
    """Look at the machine, then for the cores, then try them."""
    from anytpu.cli import judgement
    from anytpu.cli.machine import look_at_machine

    machine = look_at_machine()
    yield from judgement.judge_machine(machine)
    yield from system_checks(tpu, cores, machine)
    yield from judgement.extras()


def system_checks(tpu: str, cores: int | None, machine: Machine) -> Iterator[Check]:
    """Look for the cores, and run a small step and a collective on them. Whatever raises is a check that failed."""
    import anytpu
    from anytpu.cli import judgement
    from anytpu.report.checks import Check
    from anytpu.report.devices import headline

    try:
        resolver = anytpu.TPUClusterResolver(tpu, cores=cores)
        yield from judgement.reasons(resolver.reasons, machine)
        topology = anytpu.initialize_tpu_system(resolver)
        yield Check("ok", "found", headline(topology))
    except Exception as error:
        yield Check("failed", "found", _first_line(error), "anytpu devices --traceback")
        return
    try:
        yield try_cores(anytpu.TPUStrategy(resolver))
    except Exception as error:
        yield Check("failed", "small step", _first_line(error), "anytpu env")


def try_cores(strategy) -> Check:
    """Multiply matrices on each core, all-reduce the products over the cores, and compare with NumPy."""
    import jax
    import numpy as np

    from anytpu import units
    from anytpu.program.program import REPLICA_AXIS
    from anytpu.report.checks import Check

    def step(matrix):
        number = jax.lax.axis_index(REPLICA_AXIS) + 1
        return jax.lax.psum(number * jax.numpy.matmul(matrix, matrix, precision="highest"), REPLICA_AXIS)

    matrix, count = np.arange(SIDE * SIDE, dtype=np.float32).reshape(SIDE, SIDE) % 7, strategy.num_replicas_in_sync
    start_s = time.perf_counter()
    sums = strategy.experimental_local_results(strategy.run(step, args=(matrix,)))
    took = units.format_seconds(time.perf_counter() - start_s)
    right = count * (count + 1) / 2 * (matrix @ matrix)
    if not all(np.allclose(one, right, rtol=1e-4) for one in sums):
        return Check("failed", "small step", f"the all-reduce over {count} cores gave a wrong sum", "anytpu env")
    return Check("ok", "small step", f"multiplied on {count} cores and all-reduced, compiled and run in {took}")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".:")


COMMAND = Command(
    name="doctor",
    summary="check what training needs, try a small step, say what to type next",
    description="""\
Look at everything that training needs: versions, memory, disk, ports, Keras's
backend, libtpu, threads, extras. Look for the cores, run a small step on each, and
an all-reduce over all of them. Each check is ok, a warning, or failed, with what to
type about it. The exit status is 1 when a check failed.
""",
    add_arguments=add_system_arguments,
    run=run,
)
