"""`anytpu shard`: find how to lay a model over the devices of a TPU slice."""

from __future__ import annotations

import argparse
from pathlib import Path

from anytpu.cli.command import Command, positive_integer
from anytpu.planning.commands.plan import add_compiler, add_job_settings, add_run, names

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
    parser.add_argument(
        "--tpu", metavar="NAMES", type=names, default=names(SLICE), help=f"the slices (default: {SLICE})"
    )
    add_job_settings(parser)
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
    parser.add_argument("--infer", action="store_true", help="lay out a prediction, not a training step")
    add_run(parser)
    add_compiler(parser)
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all layouts and numbers")


def run(arguments: argparse.Namespace) -> int:
    """Search, print the layouts, and write the file."""
    from anytpu.cli.outputs import check_file
    from anytpu.planning.records.target import targets_named

    check_file("--json", arguments.json, "layouts.json")
    targets_named(arguments.tpu)
    # These imports load JAX, so the arguments are checked first.
    import anytpu
    from anytpu.planning.commands.planning import check_batch, job_named, precision_of
    from anytpu.report.steps import StepProgress
    from anytpu.report.terminal import open_console, say

    job, specs = job_named(arguments)
    check_batch(job, specs, arguments.batch)
    with StepProgress() as progress:
        shardings = anytpu.find_layouts(
            job,
            tpu=arguments.tpu,
            batch_size=arguments.batch,
            input_specs=specs,
            mode="infer" if arguments.infer else None,
            precision=precision_of(arguments),
            compile=arguments.compile,
            rank=arguments.rank,
            examples=arguments.examples,
            epochs=arguments.epochs,
            prices=arguments.prices,
            timeout_s=arguments.timeout,
            use_cache=not arguments.no_cache,
            progress=progress,
            name=arguments.job,
        )
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
