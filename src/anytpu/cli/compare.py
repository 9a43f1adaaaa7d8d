"""`anytpu compare`: one job on every system of this machine, side by side."""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anytpu
from anytpu.cli.command import Command, positive_integer

if TYPE_CHECKING:
    from anytpu.bench import Job

ROUNDS = 3
_HOW = "bench.py:job"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the job, --rounds and --json."""
    parser.add_argument(
        "job",
        metavar="JOB",
        nargs="?",
        default="digits",
        help="digits (the default), iris, imdb or mnist; or path.py:function, your own function that takes a "
        "strategy and returns (model, x, y, batch_size)",
    )
    parser.add_argument(
        "--rounds", metavar="N", type=positive_integer, default=ROUNDS, help="epochs to measure (default: %(default)s)"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write the numbers to a file")


def run(arguments: argparse.Namespace) -> int:
    """Run the job on every system in turns, and print the times."""
    from anytpu.cli.outputs import check_file, write_text
    from anytpu.report.comparison import print_comparison
    from anytpu.report.terminal import open_console

    check_file("--json", arguments.json, "comparison.json")
    console = open_console()
    job = job_named(arguments.job)
    with console.status("") as status:
        comparison = anytpu.compare(
            job, arguments.rounds, on_epoch=lambda system, index: status.update(f"{system}, round {index}")
        )
    print_comparison(console, comparison)
    if arguments.json:
        write_text(arguments.json, json.dumps(comparison.to_record(), indent=2) + "\n")
    return 0


def job_named(name: str) -> Job:
    """Return a built-in job, or the function at `path.py:function`.

    Raises:
        SettingError: there is no such job; or, when it is called, it fails.
    """
    from anytpu.bench import JOBS
    from anytpu.cli.script import function_in, located_errors
    from anytpu.errors import SettingError

    if name in JOBS:
        return JOBS[name]
    path, colon, function = name.rpartition(":")
    if not colon:
        raise SettingError(
            f"there is no job {name!r}; the jobs are {', '.join(JOBS)}, or your own function, path.py:function"
        )
    member = function_in(Path(path), function, _HOW)

    @functools.wraps(member)
    def job(strategy: Any) -> Any:
        with located_errors(Path(path)):
            return member(strategy)

    return job


COMMAND = Command(
    name="compare",
    summary="run one job on every system of this machine, side by side",
    description="""\
Train the same job on 1 virtual core, on 8, on this machine's GPU and on its TPU, one
epoch each in turns. Show the time of an epoch and of an example, the metrics, and
the speedup over 1 core. Missing systems are listed with the reason. Virtual cores
run on the CPU and are no faster than it.
""",
    add_arguments=add_arguments,
    run=run,
)
