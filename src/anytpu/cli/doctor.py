"""`anytpu doctor`: looks at everything that training needs, tries a small step, and says what to type about each."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from anytpu import _env
from anytpu.cli.command import Command, add_system_arguments
from anytpu.errors import SettingError

if TYPE_CHECKING:
    from anytpu.report.checks import Check


def run(arguments: argparse.Namespace) -> int:
    """Print the checks as they come; the status is 1 when one failed."""
    from anytpu.report.checks import print_check, summary
    from anytpu.report.terminal import open_console, say

    console = open_console()
    done = []
    for check in _checks(arguments):
        done.append(check)
        print_check(console, check)
    is_bad = any(check.status == "failed" for check in done)
    following = "look at what failed, from the top" if is_bad else "next: anytpu demo"
    say(console, f"\n{summary(done)}; {following}", style="bold")
    return 1 if is_bad else 0


def _checks(arguments: argparse.Namespace) -> Iterator[Check]:
    """Yield the checks; without those that need JAX where it could not be started."""
    try:
        _env.check_jax_settings()
    except SettingError as error:
        from anytpu.cli import judgement
        from anytpu.cli.machine import look_at_machine
        from anytpu.report.checks import Check

        yield Check("failed", "settings", str(error), f"unset {str(error).rpartition('unset ')[2]}")
        yield from judgement.judge_machine(look_at_machine())
        yield from judgement.extras()
        return
    from anytpu.cli.examination import examine

    yield from examine(arguments.tpu, arguments.cores)


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
