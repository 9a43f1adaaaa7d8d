"""`anytpu demo`: train a small network on handwritten digits on all cores."""

from __future__ import annotations

import argparse
from pathlib import Path

from anytpu.cli.command import Command, add_system_arguments, positive_integer

EPOCHS = 20
FOLDER = Path("anytpu-demo")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add --tpu, --cores, --epochs and --output."""
    add_system_arguments(parser)
    parser.add_argument(
        "--epochs", metavar="N", type=positive_integer, default=EPOCHS, help="epochs to train (default: %(default)s)"
    )
    parser.add_argument(
        "--output", metavar="FOLDER", type=Path, default=FOLDER, help="where to save the weights (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, save, load, and show predictions."""
    import anytpu
    from anytpu.cli.demonstration import demonstrate

    resolver = anytpu.TPUClusterResolver(arguments.tpu, cores=arguments.cores)
    demonstrate(resolver, arguments.epochs, arguments.output)
    return 0


COMMAND = Command(
    name="demo",
    summary="train a small network on handwritten digits on all cores",
    description="""\
Train a small convolutional network on real handwritten digits, on all cores of this
machine. Without a TPU or a GPU these are 8 virtual cores of the CPU. Then save the
weights, load them into a fresh network, and show its predictions.
""",
    add_arguments=add_arguments,
    run=run,
)
