"""`anytpu checkpoints`: list the checkpoints of a run, check each, and export the weights of one."""

from __future__ import annotations

import argparse
from pathlib import Path

from anytpu.cli.command import Command

DAMAGED_STATUS = 1
"""Exit status if a checkpoint cannot be used."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the folder, and the file to export to."""
    parser.add_argument("folder", metavar="FOLDER", help="checkpoint_dir of a fit, or a model_dir; gs:// and s3:// too")
    parser.add_argument("--export", metavar="FILE", type=Path, help="write the weights to a file *.safetensors")
    parser.add_argument("--step", type=int, help="step of the checkpoint to export (default: the newest whole one)")


def run(arguments: argparse.Namespace) -> int:
    """Read every checkpoint, check its digests, and print one line for each; or export one."""
    from anytpu.cli.outputs import check_file, check_suffix
    from anytpu.errors import SettingError
    from anytpu.report.checkpoints import checkpoint_lines, export_weights, table_lines

    if arguments.export is not None:
        check_suffix("--export", arguments.export, (".safetensors",), "a table of weights")
        check_file("--export", arguments.export, "weights.safetensors")
        print(export_weights(arguments.folder, arguments.step, arguments.export))
        return 0
    if arguments.step is not None:
        raise SettingError("--step names the checkpoint to export: add --export weights.safetensors")

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
and the run that made it. The exit status is 1 if one cannot be used. Nothing is changed.
With --export, write the weights of one as a safetensors file instead: without the
optimizer's state, metrics and seeds, and only if every digest is correct.
""",
    add_arguments=add_arguments,
    run=run,
)
