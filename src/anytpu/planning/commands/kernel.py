"""`anytpu kernel`: a Pallas kernel, checked without a TPU."""

from __future__ import annotations

import argparse

from anytpu.cli.command import Command
from anytpu.planning.commands import options

SYSTEMS = "v5e-1,v6e-1"
FAILED_STATUS = 1
"""Exit status if the results are wrong, or a compiler refuses the kernel."""

_HOW = "kernel.py:create_kernel"
_TO_CHECK = (
    "which cannot be checked; it must return a triple (kernel, inputs, reference): the function that calls "
    "pl.pallas_call, a tuple of arrays or jax.ShapeDtypeStruct, and a function with the same outputs, or None"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the kernel, the chips and the output file."""
    parser.add_argument(
        "kernel",
        metavar="KERNEL",
        help="kernel.py:create_kernel, a function in a file that returns (kernel, inputs, reference): the function "
        "that calls pl.pallas_call, its arrays or their shapes, and a function with the same outputs, or None",
    )
    options.add_systems(parser, SYSTEMS)
    parser.add_argument(
        "--tolerance",
        metavar="SHARE",
        type=float,
        help="largest difference from the reference, as a share of the largest value (default: 1e-4 for float32, 2e-2 "
        "for bfloat16)",
    )
    options.add(parser, *options.COMPILER)
    options.add(parser, "--json", help="write all numbers and the compilers' messages")


def run(arguments: argparse.Namespace) -> int:
    """Check the kernel, print the result, and write the file."""
    from anytpu.cli.outputs import check_file
    from anytpu.cli.script import returned_by, wrong
    from anytpu.errors import SettingError
    from anytpu.planning.records.target import targets_named

    check_file("--json", arguments.json, "kernel.json")
    targets_named(arguments.tpu)
    path, colon, function = arguments.kernel.rpartition(":")
    if not colon or not path:
        raise SettingError(f"name the kernel: a function in a file, like {_HOW}")
    # These imports load JAX, so the arguments are checked first.
    import anytpu
    from anytpu.report.steps import StepProgress
    from anytpu.report.terminal import open_console, say

    returned = returned_by(path, function)
    if not isinstance(returned, tuple) or len(returned) != 3 or not callable(returned[0]):
        raise wrong(path, function, returned, _TO_CHECK)
    kernel, inputs, reference = returned
    with StepProgress() as progress:
        check = anytpu.check_kernel(
            kernel,
            inputs if isinstance(inputs, tuple | list) else (inputs,),
            reference,
            arguments.tpu,
            tolerance=arguments.tolerance,
            timeout_s=arguments.timeout_s,
            use_cache=arguments.use_cache,
            progress=progress,
            name=function if getattr(kernel, "__name__", "<lambda>") == "<lambda>" else None,
        )
    check.show()
    if arguments.json:
        say(open_console(), f"Wrote {check.to_json(arguments.json)}")
    return 0 if check.passed else FAILED_STATUS


COMMAND = Command(
    name="kernel",
    summary="check a Pallas kernel: its results, and whether each TPU's compiler takes it",
    description="""\
Run a Pallas kernel in JAX's TPU interpret mode beside a reference, compile it for
each chip with the real TPU compiler, and predict its time. No TPU is needed. The
exit status is 1 if the results are wrong or a compiler refuses the kernel.
""",
    add_arguments=add_arguments,
    run=run,
    old_name="check",
)
