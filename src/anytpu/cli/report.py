"""`anytpu report`: a page about a run, or about the difference of several."""

from __future__ import annotations

import argparse
from pathlib import Path

from anytpu.cli.command import Command


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the runs and the page's file."""
    parser.add_argument("runs", metavar="RUN", nargs="+", help="run_dir or checkpoint_dir of a fit, or of a RunRecord")
    parser.add_argument("--html", metavar="FILE", type=Path, default=Path("report.html"), help="default: report.html")


def run(arguments: argparse.Namespace) -> int:
    """Write the page."""
    from anytpu.cli.outputs import check_file, write_text
    from anytpu.report.html import whole
    from anytpu.report.runs.page import content
    from anytpu.train.record import RunReader

    check_file("--html", arguments.html, "report.html")
    runs = [RunReader(folder) for folder in arguments.runs]
    print(write_text(arguments.html, whole("anytpu report", content(runs))))
    return 0


COMMAND = Command(
    name="report",
    summary="write a page about a run, or about the difference of several",
    description="""\
Write one HTML file about the record of a run: curves, where the time went, what
happened, the environment and a card of the model. With several runs, what differs
comes first. The page needs no network and no script.
""",
    add_arguments=add_arguments,
    run=run,
)
