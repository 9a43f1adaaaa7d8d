"""`anytpu plan`: how fast a program would be on a TPU, whether it fits and what it costs, before one is rented."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from anytpu.cli.command import Command, positive_integer

SYSTEMS = "v2-8,v3-8,v4-8,v5e-8,v6e-8"
DIFFERS_STATUS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Give a parser the job, what to plan it for, what to ask, and where to write the answer."""
    parser.add_argument(
        "job",
        metavar="JOB",
        nargs="?",
        help="train.py:create_model, a function of a file that returns a compiled Keras model, a pair (model, "
        "input_specs) where the model does not know its shapes, or a pair (step, input_specs) for a JAX function "
        "step(state, batch); one with an argument devices is called with the number of devices of each system; or a "
        "program file, .anytpu (which anytpu.program.write makes) or .mlir (StableHLO)",
    )
    _add_settings(parser.add_argument_group("what is planned"))
    _add_run(parser.add_argument_group("the run"))
    _add_questions(parser.add_argument_group("other questions"))
    _add_compiler(parser.add_argument_group("the compiler"))
    _add_files(parser.add_argument_group("where the answer goes, beside the terminal"))


def _add_settings(group: Any) -> None:
    group.add_argument(
        "--tpu", metavar="NAMES", type=names, default=names(SYSTEMS), help=f"the systems (default: {SYSTEMS})"
    )
    group.add_argument("--batch", metavar="N", type=positive_integer, help="examples of a step, over all devices")
    group.add_argument(
        "--batch-axis",
        metavar="AXES",
        type=axes,
        help="the axis of a JAX function's batch along which examples lie, or one for each of its arrays, none for one "
        "that has no examples: 3,0,none; by default the axis that a sharding splits over the data, else 0",
    )
    group.add_argument("--infer", action="store_true", help="a prediction, not a step of training")
    group.add_argument(
        "--precision", choices=("float32", "bfloat16"), help="make the Keras model in this precision, not its own"
    )
    group.add_argument(
        "--steps-per-execution", metavar="N", type=positive_integer, help="steps that one call of the host starts"
    )
    group.add_argument("--input-rate", metavar="N", type=positive_number, help="examples a second that the input gives")
    group.add_argument(
        "--split",
        metavar="NUMBERS",
        type=numbers,
        help="arguments of a .mlir file, from 0, whose rows are split",
    )


def _add_run(group: Any) -> None:
    group.add_argument("--examples", metavar="N", type=positive_integer, help="examples of an epoch")
    group.add_argument("--epochs", metavar="N", type=positive_integer, help="epochs of the run")
    group.add_argument("--prices", metavar="FILE", type=Path, help="a CSV of prices that goes before the one in here")


def _add_questions(group: Any) -> None:
    group.add_argument("--advise", action="store_true", help="try what is advised, by compiling more")
    group.add_argument("--sweep-batch", metavar="LIST", type=positive_integers, default=[], help="other batches too")
    group.add_argument(
        "--scaling",
        metavar="LIST",
        type=positive_integers,
        help="ever larger slices of one TPU, --tpu v3: 8,32,128; --batch is that of the smallest, and grows with them",
    )
    group.add_argument("--max-batch", action="store_true", help="the largest batch that fits on each system")
    group.add_argument("--check", action="store_true", help="whether 1 core and 8 compute the same, layer by layer")
    group.add_argument(
        "--calibrate", action="store_true", help="predictions beside runs of yours; corrects later ones by them"
    )


def _add_compiler(group: Any) -> None:
    group.add_argument(
        "--timeout",
        metavar="S",
        type=positive_number,
        default=600.0,
        help="of one compilation, after which there is a floor in place of a forecast (default: 600 seconds)",
    )
    group.add_argument("--no-cache", action="store_true", help="compile anew what lies compiled on the disk")


def _add_files(group: Any) -> None:
    group.add_argument("--html", metavar="FILE", type=Path, help="a page that needs no network")
    group.add_argument("--json", metavar="FILE", type=Path, help="all numbers")
    group.add_argument("--svg", metavar="FOLDER", type=Path, help="the plots, as SVG")
    group.add_argument("--png", metavar="FOLDER", type=Path, help="the plots, as PNG")


def run(arguments: argparse.Namespace) -> int:
    """Answer the question that was asked, and write the files."""
    from anytpu.cli import questions, typed

    if not arguments.calibrate:
        questions.check_question(arguments, names(SYSTEMS))
        typed.check(arguments)
    # It loads JAX: only after what was typed is checked.
    from anytpu.cli import planning

    if arguments.calibrate:
        return planning.calibrate()
    asked = planning.asked(arguments)
    if arguments.check:
        return DIFFERS_STATUS if planning.check(asked) else 0
    if arguments.max_batch:
        planning.show_largest(asked)
    else:
        planning.show(planning.scaling(asked) if arguments.scaling else planning.plan(asked), arguments)
    return 0


def names(text: str) -> list[str]:
    """Read names that commas separate.

    Raises:
        argparse.ArgumentTypeError: there is none.
    """
    found = [name for name in (one.strip() for one in text.split(",")) if name]
    if not found:
        raise argparse.ArgumentTypeError(f"must be one name or more, with commas between them, not {text!r}")
    return found


def positive_integers(text: str) -> list[int]:
    """Read positive integers that commas separate.

    Raises:
        argparse.ArgumentTypeError: one is none.
    """
    return [positive_integer(one) for one in names(text)]


def numbers(text: str) -> list[int]:
    """Read numbers, counted from 0, that commas separate.

    Raises:
        argparse.ArgumentTypeError: one is none.
    """
    if not all(one.isdecimal() for one in names(text)):
        raise argparse.ArgumentTypeError(f"must be numbers from 0, with commas between them, not {text!r}")
    return [int(one) for one in names(text)]


def axes(text: str) -> list[int | None]:
    """Read axes that commas separate: integers, or "none".

    Raises:
        argparse.ArgumentTypeError: one is neither.
    """
    try:
        return [None if one == "none" else int(one) for one in names(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be axes, with commas between them, like 3,0,none, not {text!r}"
        ) from None


def positive_number(text: str) -> float:
    """Read a positive number.

    Raises:
        argparse.ArgumentTypeError: it is none.
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
Compile a program with the real TPU compiler, which needs no TPU, and predict from
what it made how long a step takes, how much memory it needs and what it costs. No
step is run, and a Keras model needs no data: only its input shapes, and --batch.
""",
    add_arguments=add_arguments,
    run=run,
)
