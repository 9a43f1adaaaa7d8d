"""`anytpu checkpoints`: list the checkpoints of a run, and check each."""

from __future__ import annotations

import argparse

from anytpu.cli.command import Command

DAMAGED_STATUS = 1
"""Exit status if a checkpoint is damaged."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder."""
    parser.add_argument("folder", metavar="FOLDER", help="checkpoint_dir of a fit, or a model_dir; gs:// and s3:// too")


def run(arguments: argparse.Namespace) -> int:
    """Read every checkpoint, check its digests, and print one line for each."""
    from anytpu.report.checkpoints import checkpoint_lines, table_lines

    lines = checkpoint_lines(arguments.folder)
    if not lines:
        print(f"There is no checkpoint in {arguments.folder}.")
        return 0
    print("\n".join(table_lines(lines)))
    return DAMAGED_STATUS if any(line.fault is not None for line in lines) else 0


COMMAND = Command(
    name="checkpoints",
    summary="list the checkpoints of a run, and check each",
    description="""\
List the checkpoints in a folder: step, time, size, whether every digest is correct,
and the run that made it. The exit status is 1 if one is damaged. Nothing is changed.
""",
    add_arguments=add_arguments,
    run=run,
)
