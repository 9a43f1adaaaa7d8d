"""`anytpu port`: rewrite the TPU calls of TensorFlow programs to anytpu."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from anytpu.cli.command import Command

if TYPE_CHECKING:
    from rich.console import Console

    from anytpu.migrate.port import PortedFile

LEFT_STATUS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the paths, --write and --no-try."""
    parser.add_argument(
        "paths", metavar="PATH", type=Path, nargs="+", help="a program, a notebook, or a folder of them"
    )
    parser.add_argument(
        "--write", action="store_true", help="change the files; each old file is kept as NAME.bak in its folder"
    )
    parser.add_argument(
        "--no-try",
        action="store_false",
        dest="try_them",
        help="leave out the trial, which runs each ported program, cut to a few steps, in a copy of its folder",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the diffs, the findings and the trials; the status is 1 if a line must be changed by hand or has failed."""
    from anytpu.errors import PortError
    from anytpu.migrate.port import ported_file, program_files, write
    from anytpu.migrate.port.files import imported
    from anytpu.migrate.port.report import summary
    from anytpu.report.terminal import open_console, say

    console = open_console()
    paths = program_files(arguments.paths)
    files, refused = [], []
    for path in paths:
        try:
            files.append(ported_file(path))
        except PortError as error:  # In a folder the others are ported: old repositories have files of Python 2.
            if len(paths) == 1:
                raise
            refused.append(error)
    for file in files:
        _show(console, file)
    for error in refused:
        say(console, f"Left out: {error}")
    changed_files = [file for file in files if file.program.is_changed]
    importers = imported(changed_files) if arguments.try_them else {}
    ends = [_try(console, file, files, importers) for file in changed_files if arguments.try_them]
    if arguments.write:
        for backup in write(files):
            say(console, f"The old file is kept as {backup}")
    left = sum(len(file.program.by_hand) for file in files)
    ran = tuple(map(ends.count, range(4))) if arguments.try_them else None
    changed, failed = len(changed_files), {1, 2} & set(ends)
    say(console, summary(len(files), changed, left, arguments.write, ran), style="bold")
    if changed and not arguments.write:
        say(console, f"To change {'it' if len(files) == 1 else 'them'}: the same command with --write")
    return LEFT_STATUS if left or failed or refused else 0


def _try(console: Console, file: PortedFile, files: list[PortedFile], importers: dict[Path, Path]) -> int:
    """Run a ported program for a few steps, beside the other ported ones; return its end, as `summary` counts them."""
    from anytpu.migrate.port import tried
    from anytpu.migrate.port.report import trial_lines
    from anytpu.report.terminal import say

    if file.path in importers:
        say(console, f"{file.path}: not tried by itself, since {importers[file.path]} imports it\n")
        return 3
    trial = tried(file.program, file.path, others={other.path: other.program for other in files})
    say(console, f"{file.path}: the trial of the ported program")
    console.print("\n".join(trial_lines(trial, console.width)), soft_wrap=True, markup=False, highlight=False)
    console.print()
    return 1 if trial.error else 2 if trial.seconds else 0


def _show(console: Console, file: PortedFile) -> None:
    from anytpu.migrate.port.report import diff_lines, finding_lines, print_diff

    print_diff(console, diff_lines(file.program.old, file.program.new, str(file.path)))
    for kind, title in (("by hand", "to port by hand"), ("note", "worth a look")):
        findings = [finding for finding in file.program.findings if finding.kind == kind]
        if findings:
            console.print(f"\n{file.path}: {title}", soft_wrap=True)
            console.print("\n".join(finding_lines(findings, console.width)), soft_wrap=True)
    if file.program.is_changed or file.program.findings:
        console.print()


COMMAND = Command(
    name="port",
    summary="rewrite the TPU calls of a TensorFlow program to anytpu's",
    description="""\
Find the TPU calls of TensorFlow 1 and 2 in programs, under any import name, and show
the rewritten program as a diff; --write changes the files. Lines to change by hand
are listed with the code to type. Then each result runs for a few steps in a copy of
its folder, and the first failure is shown beside the line that it came from; --no-try
leaves this out. `anytpu docs migrate` has the whole table. The exit status is 1 if a
line must be changed by hand, or if a program did not run, or not end in its time.
""",
    add_arguments=add_arguments,
    run=run,
)
