"""`anytpu plan`: predict a program's speed, memory and cost on a TPU, before one is rented.

Idea: each other question about a program is a sub-command with the options of its own: `anytpu plan ways`.

Rule: arguments are checked before JAX and Keras are loaded, which takes seconds: a plan takes minutes.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from anytpu.cli.command import Command, positive_integer
from anytpu.errors import SettingError
from anytpu.planning.commands import options

SYSTEMS = "v2-8,v3-8,v4-8,v5e-8,v6e-8"

_JOB = (
    "train.py:create_model, a function in a file that returns a compiled Keras model, a pair (model, input_specs) if "
    "the model does not know its shapes, or a pair (step, input_specs) for a JAX function step(state, batch); a "
    "function with an argument devices is called with each system's number of devices; or a program file, .anytpu "
    "(written by anytpu.program.write) or .mlir (StableHLO); or the name of a language model of KerasHub, such as "
    "gemma3_1b"
)
_OLD = {"--ways": "ways", "--max-batch": "batch", "--scaling": "scaling", "--answer": "answers"}
"""Option of an earlier version -> its command."""

_RENAMED = {"--scaling": "--cores", "--answer": "--new-tokens"}


def _add_job(parser: argparse.ArgumentParser, text: str = "as `anytpu plan` takes it") -> None:
    parser.add_argument("job", metavar="JOB", nargs="?", help=text)


def _adder(*names: str) -> Callable[[argparse.ArgumentParser], None]:
    """Return the function that adds a job, the systems and options of the table."""

    def add_arguments(parser: argparse.ArgumentParser) -> None:
        _add_job(parser)
        options.add_systems(parser, SYSTEMS)
        options.add(parser, *names, *options.COMPILER)

    return add_arguments


def _add_plan(parser: argparse.ArgumentParser) -> None:
    _add_job(parser, _JOB)
    settings = parser.add_argument_group("settings")
    options.add_systems(settings, SYSTEMS)
    settings.add_argument(
        "--sweep-batch",
        dest="sweep_batches",
        metavar="LIST",
        type=options.positive_integers,
        default=[],
        help="plan these batches as well",
    )
    _add_step(parser, settings)


def _add_scaling(parser: argparse.ArgumentParser) -> None:
    _add_job(parser)
    settings = parser.add_argument_group("settings")
    settings.add_argument("--tpu", metavar="CHIP", type=options.chip, default="v2", help="the chip (default: v2)")
    settings.add_argument(
        "--cores",
        metavar="LIST",
        type=options.positive_integers,
        required=True,
        help="number in the name of each slice, 8,32,128; --batch is that of the first and grows with them",
    )
    _add_step(parser, settings)


def _add_step(parser: argparse.ArgumentParser, settings: Any) -> None:
    """Add the options of a plan on systems or on slices."""
    options.add(settings, "--batch", *options.STEP, "--infer", *options.LAYOUT)
    options.add(settings, "--steps-per-execution", "--input-rate")
    settings.add_argument(
        "--advise", action="store_true", help="compile the advised changes too, and report their gain"
    )
    options.add(parser.add_argument_group("the run"), *options.RUN)
    options.add(parser.add_argument_group("the compiler"), *options.COMPILER)
    files = parser.add_argument_group("files")
    options.add(files, "--html", "--json", "--svg", "--png")
    lock = files.add_mutually_exclusive_group()
    lock.add_argument("--lock", metavar="FILE", type=Path, help="write the predictions for a later --check FILE")
    lock.add_argument(
        "--check",
        metavar="FILE",
        type=Path,
        help="compare the plan with a file that --lock wrote, and exit with status 3 if the memory, the step time or a "
        "collective grew",
    )
    files.add_argument(
        "--tolerance",
        metavar="LIST",
        type=options.percentages,
        help="growth that --check allows, in percent: of the step time, then of memory and collectives (default: 5,2)",
    )


def _add_answers(parser: argparse.ArgumentParser) -> None:
    _add_job(parser, "the name of a language model of KerasHub, such as gemma3_1b, or a function that returns one")
    options.add_systems(parser, SYSTEMS)
    options.add(parser, "--batch", required=True, help="sequences that are answered at once")
    options.add(parser, "--sequence", help="tokens of a prompt (default: 1024)")
    parser.add_argument(
        "--new-tokens", metavar="N", type=positive_integer, default=256, help="tokens of an answer (default: 256)"
    )
    options.add(parser, *options.LAYOUT, "--prices", *options.COMPILER, "--html", "--json")


def _add_cores(parser: argparse.ArgumentParser) -> None:
    _add_job(parser)
    options.add(parser, "--batch", "--sequence", "--lora", *options.LAYOUT)


def _run(name: str) -> Callable[[argparse.Namespace], int]:
    """Return the function that runs a command of the module `planning`, with checked arguments."""

    def run(arguments: argparse.Namespace) -> int:
        options.check_typed(arguments)
        # This import loads JAX, so the arguments are checked first.
        from anytpu.planning.commands import planning

        return planning.RUNS[name](arguments)

    return run


def renewed(words: Sequence[str]) -> list[str]:
    """Return the words after `anytpu plan` in the spelling of this version, and print it if it is another.

    Earlier versions had an option for each question: `--ways`, `--scaling 8,32`, `--check` without a file.

    Example:
        >>> renewed(["gemma3_1b", "--ways"])
        ['ways', 'gemma3_1b']
    """
    olds = {*_OLD, "--check"}
    typed = [part for word in words for part in (word.split("=", 1) if word.partition("=")[0] in olds else [word])]
    old = next((word for word in typed if word in _OLD), None)
    if old is not None:
        place = typed.index(old)
        new = [_OLD[old], *typed[:place], *([_RENAMED[old]] if old in _RENAMED else []), *typed[place + 1 :]]
    elif "--check" in typed and _has_no_lock(typed):
        old, new = "--check", ["compare-cores", *(word for word in typed if word != "--check")]
    else:
        return list(words)
    now = f"anytpu plan {shlex.join(new)}"
    print(f"anytpu: {old} is a command now, and goes with the next version; type: {now}", file=sys.stderr)
    return new


def _has_no_lock(typed: list[str]) -> bool:
    """Return whether the word after `--check` is not the file of a lock: an option, nothing, or the only job."""
    place = typed.index("--check")
    if not typed[place + 1 :] or typed[place + 1].startswith("-"):
        return True
    parser = argparse.ArgumentParser(add_help=False, exit_on_error=False)
    _add_plan(parser)
    try:
        return parser.parse_known_args([*typed[:place], *typed[place + 2 :]])[0].job is None
    except (argparse.ArgumentError, SettingError, SystemExit):
        return False  # The parser of the command says what is wrong.


ACTIONS = (
    Command(
        name="scaling",
        summary="larger and larger slices of one chip",
        description="Predict one program on larger and larger slices of a TPU.",
        add_arguments=_add_scaling,
        run=_run("scaling"),
    ),
    Command(
        name="batch",
        summary="the largest batch that fits on each system",
        description="Find the largest batch that fits on each system, by compiling.",
        add_arguments=_adder(*options.STEP, "--infer", *options.LAYOUT),
        run=_run("batch"),
    ),
    Command(
        name="ways",
        summary="changes that make the training step smaller",
        description="""\
Compile the training step as it is, and with each change that makes it smaller, such as
rematerialisation, gradient accumulation and LoRA. Compare memory and time.
""",
        add_arguments=_adder("--batch", *options.STEP, *options.LAYOUT, "--prices"),
        run=_run("ways"),
    ),
    Command(
        name="answers",
        summary="the answers of a language model",
        description="""\
Predict the answers of a language model, for --batch sequences at once: the time of a
token, the largest batch, the price of a million tokens.
""",
        add_arguments=_add_answers,
        run=_run("answers"),
    ),
    Command(
        name="compare-cores",
        summary="the results of 1 core and of 8, layer by layer",
        description="""\
Run one training step on 1 core and on 8 virtual cores, and compare the results layer by
layer. The exit status is 1 if they differ.
""",
        add_arguments=_add_cores,
        run=_run("compare-cores"),
    ),
)

_OTHERS = "\n".join(f"  anytpu plan {action.name:<12} {action.summary}" for action in ACTIONS)

COMMAND = Command(
    name="plan",
    summary="predict speed, memory and cost on any TPU, without one",
    description=f"""\
Compile a program with the real TPU compiler, which needs no TPU, and predict the
time, memory and cost of a step from the compiled program. No step is run, and a
Keras model needs no data: only its input shapes, and --batch.

Other questions are commands of their own, each with --help:

{_OTHERS}
""",
    add_arguments=_add_plan,
    run=_run("plan"),
    actions=ACTIONS,
    renewed=renewed,
)
