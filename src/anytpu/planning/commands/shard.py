"""`anytpu shard`: find how to lay a model over the devices of a TPU slice."""

from __future__ import annotations

import argparse

from anytpu.cli.command import Command, positive_integer
from anytpu.planning.commands import options

SLICE = "v5e-8"
NONE_STATUS = 1
"""Exit status if no layout was compiled that fits."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the job, the settings and the output file."""
    parser.add_argument(
        "job",
        metavar="JOB",
        help="train.py:create_model, a function in a file that returns a compiled Keras model, a pair (model, "
        "input_specs), or a pair (step, input_specs) for a JAX function step(state, batch); or the name of a language "
        "model of KerasHub, such as gemma3_1b",
    )
    options.add_systems(parser, SLICE)
    options.add(parser, "--batch", *options.MODEL, "--infer", *options.RUN, *options.COMPILER, "--json")
    parser.add_argument(
        "--compile",
        metavar="N",
        type=positive_integer,
        default=8,
        help="layouts to compile for each slice, the best estimates first (default: %(default)s)",
    )
    parser.add_argument(
        "--rank", choices=("time", "cost"), default="time", help="order by step time or by cost (default: %(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Search, print the layouts, and write the file."""
    options.check_typed(arguments)
    # These imports load JAX, so the arguments are checked first.
    import anytpu
    from anytpu.planning.commands.planning import job_and_settings
    from anytpu.report.steps import StepProgress
    from anytpu.report.terminal import open_console, say

    job, settings = job_and_settings(arguments)
    with StepProgress() as progress:
        shardings = anytpu.find_layouts(job, progress=progress, **settings)
    shardings.show()
    if arguments.json:
        say(open_console(), f"Wrote {shardings.to_json(arguments.json)}")
    return 0 if any(sharding.step_s is not None for sharding in shardings) else NONE_STATUS


COMMAND = Command(
    name="shard",
    summary="find the best layout of a model over the devices of a TPU slice",
    description="""\
List the ways to lay a model over the devices of a slice: data parallel, ZeRO, FSDP,
tensor and sequence parallel, and their combinations. Estimate each, compile the best
with the real TPU compiler, and rank them by predicted time. No TPU is needed.
""",
    add_arguments=add_arguments,
    run=run,
)
