"""`anytpu plan`: predict a program's speed, memory and cost on a TPU, before one is rented."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from anytpu.cli.command import Command, positive_integer

SYSTEMS = "v2-8,v3-8,v4-8,v5e-8,v6e-8"
DIFFERS_STATUS = 1
LOCK_STATUS = 3
"""Exit status of `--check FILE` if the lock does not hold."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the job, the settings, the questions and the output files."""
    parser.add_argument(
        "job",
        metavar="JOB",
        nargs="?",
        help="train.py:create_model, a function in a file that returns a compiled Keras model, a pair (model, "
        "input_specs) if the model does not know its shapes, or a pair (step, input_specs) for a JAX function "
        "step(state, batch); a function with an argument devices is called with each system's number of devices; or a "
        "program file, .anytpu (written by anytpu.program.write) or .mlir (StableHLO); or the name of a language model "
        "of KerasHub, such as gemma3_1b",
    )
    _add_settings(parser.add_argument_group("settings"))
    add_run(parser.add_argument_group("the run"))
    _add_questions(parser.add_argument_group("other questions"))
    add_compiler(parser.add_argument_group("the compiler"))
    _add_files(parser.add_argument_group("output files"))


def _add_settings(group: Any) -> None:
    group.add_argument(
        "--tpu", metavar="NAMES", type=names, default=names(SYSTEMS), help=f"the systems (default: {SYSTEMS})"
    )
    add_job_settings(group)
    group.add_argument(
        "--batch-axis",
        metavar="AXES",
        type=axes,
        help="the example axis of a JAX function's batch: one, or one per array, none for an array without "
        "examples: 3,0,none (default: the axis that a sharding splits over the data, else 0)",
    )
    group.add_argument("--infer", action="store_true", help="plan a prediction, not a training step")
    group.add_argument(
        "--layout",
        metavar="LAYOUT",
        help="data (split the examples over the devices), fsdp (split the weights too), or the file that anytpu shard "
        "--json wrote",
    )
    group.add_argument(
        "--mesh",
        metavar="SIZES",
        type=mesh,
        help="axes of the layout's mesh: data=4,model=2, or data=-1,model=2, where -1 fills the system (default: data)",
    )
    group.add_argument(
        "--steps-per-execution", metavar="N", type=positive_integer, help="steps started by one call of the host"
    )
    group.add_argument("--input-rate", metavar="N", type=positive_number, help="examples per second of the input")
    group.add_argument(
        "--split",
        metavar="NUMBERS",
        type=numbers,
        help="indices, from 0, of the arguments of a .mlir file whose rows are split",
    )


def add_job_settings(group: Any) -> None:
    """Add the options of the step."""
    group.add_argument("--batch", metavar="N", type=positive_integer, help="examples per step, over all devices")
    group.add_argument(
        "--sequence",
        metavar="N",
        type=positive_integer,
        help="tokens of an example of a language model (default: 1024)",
    )
    group.add_argument(
        "--lora", metavar="RANK", type=positive_integer, help="train LoRA adapters of this rank of a language model"
    )
    group.add_argument(
        "--precision", choices=("float32", "bfloat16"), help="make the Keras model in this precision, not its own"
    )


def add_run(group: Any) -> None:
    """Add the options of the run, for its time and cost."""
    group.add_argument("--examples", metavar="N", type=positive_integer, help="examples per epoch")
    group.add_argument("--epochs", metavar="N", type=positive_integer, help="epochs of the run")
    group.add_argument("--prices", metavar="FILE", type=Path, help="a CSV of prices that overrides anytpu's own")


def _add_questions(group: Any) -> None:
    group.add_argument("--advise", action="store_true", help="compile the advised changes too, and report their gain")
    group.add_argument(
        "--sweep-batch", metavar="LIST", type=positive_integers, default=[], help="plan these batches as well"
    )
    group.add_argument(
        "--scaling",
        metavar="LIST",
        type=positive_integers,
        help="plan slices of one TPU with these numbers of cores, --tpu v3: 8,32,128; --batch is that of the smallest "
        "and grows with them",
    )
    group.add_argument("--max-batch", action="store_true", help="find the largest batch that fits on each system")
    group.add_argument(
        "--ways",
        action="store_true",
        help="compile the training step with each change that makes it smaller, such as rematerialisation, gradient "
        "accumulation and LoRA, and compare memory and time",
    )
    group.add_argument(
        "--answer",
        metavar="TOKENS",
        type=positive_integer,
        help="plan answers of so many tokens to prompts of --sequence tokens, for --batch sequences at once: the time "
        "of a token, the largest batch, the price of a million tokens",
    )
    group.add_argument(
        "--check",
        metavar="FILE",
        nargs="?",
        const=True,
        default=False,
        type=Path,
        help="compare the results of 1 core and 8, layer by layer; with a FILE that --lock wrote: compare the plan "
        f"with it, and exit with status {LOCK_STATUS} if the memory, the step time or a collective grew",
    )
    group.add_argument(
        "--tolerance",
        metavar="LIST",
        type=percentages,
        help="growth that --check FILE allows, in percent: of the step time, then of memory and collectives (default: "
        "5,2)",
    )


def add_compiler(group: Any) -> None:
    """Add the options of each compilation."""
    group.add_argument(
        "--timeout",
        metavar="S",
        type=positive_number,
        default=600.0,
        help="limit of one compilation; after it a plan has a lower bound, no forecast (default: 600 seconds)",
    )
    group.add_argument("--no-cache", action="store_true", help="do not reuse compiled programs from the disk")


def _add_files(group: Any) -> None:
    group.add_argument("--html", metavar="FILE", type=Path, help="write a self-contained page")
    group.add_argument("--json", metavar="FILE", type=Path, help="write all numbers")
    group.add_argument("--lock", metavar="FILE", type=Path, help="write the predictions for a later --check FILE")
    group.add_argument("--svg", metavar="FOLDER", type=Path, help="write the plots as SVG")
    group.add_argument("--png", metavar="FOLDER", type=Path, help="write the plots as PNG")


def run(arguments: argparse.Namespace) -> int:
    """Answer the requested question, and write the files."""
    from anytpu.planning.commands import questions

    if arguments.job is None and isinstance(arguments.check, Path):
        arguments.job, arguments.check = str(arguments.check), True  # as in `--check train.py:create_model`
    questions.check_question(arguments, names(SYSTEMS))
    questions.check_typed(arguments)
    # This import loads JAX, so the arguments are checked first.
    from anytpu.planning.commands import planning

    request = planning.load_request(arguments)
    if arguments.check is True:
        return DIFFERS_STATUS if planning.check(request) else 0
    if arguments.max_batch:
        planning.show_largest(request)
        return 0
    if arguments.ways:
        planning.show_ways(request)
        return 0
    if arguments.answer:
        planning.show_answers(request)
        return 0
    plan = planning.scaling(request) if arguments.scaling else planning.plan(request)
    if arguments.check:
        return 0 if planning.check_lock(plan, arguments) else LOCK_STATUS
    planning.show(plan, arguments)
    return 0


def names(text: str) -> list[str]:
    """Parse comma-separated names.

    Raises:
        argparse.ArgumentTypeError: there is no name.
    """
    stripped = [name for name in (part.strip() for part in text.split(",")) if name]
    if not stripped:
        raise argparse.ArgumentTypeError(f"must be one or more names separated by commas, not {text!r}")
    return stripped


def positive_integers(text: str) -> list[int]:
    """Parse comma-separated positive integers.

    Raises:
        argparse.ArgumentTypeError: a part is not a positive integer.
    """
    return [positive_integer(part) for part in names(text)]


def percentages(text: str) -> list[float]:
    """Parse one or two comma-separated percentages, of 0 or more.

    Raises:
        argparse.ArgumentTypeError: they are more, or one is not a percentage.
    """
    parts = names(text)
    try:
        values = [float(part) for part in parts]
    except ValueError:
        values = []
    if not 1 <= len(values) <= 2 or not all(0 <= value < float("inf") for value in values):
        raise argparse.ArgumentTypeError(f"must be one or two percentages, such as 5,2, not {text!r}")
    return values


def numbers(text: str) -> list[int]:
    """Parse comma-separated indices, from 0.

    Raises:
        argparse.ArgumentTypeError: a part is not an index.
    """
    if not all(part.isdecimal() for part in names(text)):
        raise argparse.ArgumentTypeError(f"must be integers from 0 separated by commas, not {text!r}")
    return [int(part) for part in names(text)]


def mesh(text: str) -> dict[str, int]:
    """Parse the sizes of mesh axes: "data=4,model=2"; -1 is the size that fills the system.

    Raises:
        argparse.ArgumentTypeError: a part is not a name and a size, or an axis has two sizes.
    """
    parts = [part.partition("=") for part in names(text)]
    if any(not name or not (size == "-1" or (size.isdecimal() and int(size))) for name, _, size in parts):
        raise argparse.ArgumentTypeError(f"must be names with sizes, like data=4,model=2, not {text!r}")
    axes = [name for name, _, _ in parts]
    for name in axes:
        if axes.count(name) > 1:
            raise argparse.ArgumentTypeError(f"must give each axis one size, and {text!r} gives {name!r} several")
    return {name: int(size) for name, _, size in parts}


def axes(text: str) -> list[int | None]:
    """Parse comma-separated axes: integers, or "none".

    Raises:
        argparse.ArgumentTypeError: a part is neither.
    """
    try:
        return [None if part == "none" else int(part) for part in names(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be axes separated by commas, like 3,0,none, not {text!r}") from None


def positive_number(text: str) -> float:
    """Parse a positive, finite number.

    Raises:
        argparse.ArgumentTypeError: the text is not a positive number.
    """
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a positive number, not {text!r}")
    return value


COMMAND = Command(
    name="plan",
    summary="predict speed, memory and cost on any TPU, without one",
    description="""\
Compile a program with the real TPU compiler, which needs no TPU, and predict the
time, memory and cost of a step from the compiled program. No step is run, and a
Keras model needs no data: only its input shapes, and --batch.
""",
    add_arguments=add_arguments,
    run=run,
)
