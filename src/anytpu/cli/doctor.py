"""`anytpu doctor`: check everything that training needs, run a small step, and name a command for each problem."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from anytpu import _env
from anytpu.cli.command import Command, add_system_arguments
from anytpu.errors import SettingError

if TYPE_CHECKING:
    from anytpu.report.checks import SystemCheck


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
    """Yield the checks; leave out those that need JAX if its settings are wrong."""
    try:
        _env.check_jax_settings()
    except SettingError as error:
        from anytpu.cli import judgement
        from anytpu.cli.machine import look_at_machine
        from anytpu.report.checks import SystemCheck

        yield SystemCheck("failed", "settings", str(error), f"unset {str(error).rpartition('unset ')[2]}")
        yield from judgement.judge_machine(look_at_machine())
        yield from judgement.extras()
        return
    from anytpu.cli.examination import examine

    yield from examine(arguments.tpu, arguments.cores)


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
