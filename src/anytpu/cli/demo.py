"""`anytpu demo`: trains a small network on handwritten digits over all cores."""

from __future__ import annotations

import argparse
from pathlib import Path

from anytpu.cli.command import Command, add_system_arguments, positive_integer

EPOCHS = 20
FOLDER = Path("anytpu-demo")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser --tpu, --cores, --epochs and --output."""
    add_system_arguments(parser)
    parser.add_argument(
        "--epochs", metavar="N", type=positive_integer, default=EPOCHS, help="epochs to train (default: %(default)s)"
    )
    parser.add_argument(
        "--output", metavar="FOLDER", type=Path, default=FOLDER, help="where to save the weights (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Train, save, load, and show what the network reads."""
    import anytpu
    from anytpu.cli.demonstration import demonstrate

    resolver = anytpu.TPUClusterResolver(arguments.tpu, cores=arguments.cores)
    demonstrate(resolver, arguments.epochs, arguments.output)
    return 0


COMMAND = Command(
    name="demo",
    summary="train a small network on handwritten digits over all cores",
    description="""\
Train a small convolutional network on real handwritten digits, over all cores that
are found; without a TPU or a GPU they are 8 virtual ones, made of the CPU. Then
save the weights, load them into a fresh network, and show what it reads.
""",
    add_arguments=add_arguments,
    run=run,
)
