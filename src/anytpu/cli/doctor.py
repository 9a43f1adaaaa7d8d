"""`anytpu doctor`: looks at everything that training needs, tries a small step, and says what to type about each."""

from __future__ import annotations

import argparse

from anytpu.cli.command import Command, add_system_arguments


def run(arguments: argparse.Namespace) -> int:
    """Print the checks as they come; the status is 1 when one failed."""
    from anytpu.cli.examination import examine
    from anytpu.report.checks import print_check, summary
    from anytpu.report.terminal import open_console, say

    console = open_console()
    done = []
    for check in examine(arguments.tpu, arguments.cores):
        done.append(check)
        print_check(console, check)
    is_bad = any(check.status == "failed" for check in done)
    following = "look at what failed, from the top" if is_bad else "next: anytpu demo"
    say(console, f"\n{summary(done)}; {following}", style="bold")
    return 1 if is_bad else 0


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
