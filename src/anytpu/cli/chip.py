"""`anytpu chip`: a model on the first TPU, in software: compile it, run it, time it, read it, look at it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from anytpu.cli.command import Command, positive_integer

_ARRAYS = ".npy, or for several inputs .npz: arr_0, arr_1, ... in their order, others by the inputs' names"


def _add_compile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "job",
        metavar="JOB",
        help="train.py:create_model, a function of a file that returns a Keras model, a pair (model, examples), or a "
        "triple (function, examples, weights) for a JAX function outputs = function(weights, x); or a program file, "
        ".anytpu, of mode infer and with its values",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="the program (default: the job's name, .tpu)")
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        type=Path,
        help=f"examples of what the model will see, 100 to 500, {_ARRAYS}; they go before those that JOB returns",
    )
    parser.add_argument("--batch", metavar="N", type=positive_integer, help="examples that go through at a time")
    parser.add_argument("--bits", type=int, choices=(8, 16), default=8, help="of the activations (default: 8)")
    parser.add_argument(
        "--method",
        choices=("minmax", "percentile", "mse"),
        default="minmax",
        help="how the range of a tensor is taken (default: minmax)",
    )
    parser.add_argument(
        "--convolution",
        choices=("auto", "native", "packed"),
        default="auto",
        help="one position of the kernel a pass, several, or what is cheaper (default: auto)",
    )
    parser.add_argument("--no-spill", action="store_true", help="an error, where the Unified Buffer is too small")
    parser.add_argument("--onnx", metavar="FILE", type=Path, help="the quantized model as ONNX too")


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_program(parser)
    parser.add_argument("--input", metavar="FILE", type=Path, required=True, help=f"the rows to run, {_ARRAYS}")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write the results, .npy, or .npz (output0, output1, ...)"
    )
    parser.add_argument(
        "--labels", metavar="FILE", type=Path, help="the right class of each row, from 0, .npy: how many were found"
    )
    parser.add_argument("--int8", action="store_true", help="the integers that leave the chip")


def _add_time(parser: argparse.ArgumentParser) -> None:
    _add_program(parser)
    _add_timing(parser)
    parser.add_argument("--back-to-back", action="store_true", help="a batch in the middle of many, not one alone")
    parser.add_argument("--json", metavar="FILE", type=Path, help="all numbers of the prediction")
    parser.add_argument("--trace", metavar="FILE", type=Path, help="what each unit does when, for ui.perfetto.dev")


def _add_asm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", type=Path, help="assembly; docs/chip_isa.md says what there is")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="the program (default: the text's name, .tpu)"
    )


def _add_disasm(parser: argparse.ArgumentParser) -> None:
    _add_program(parser)
    parser.add_argument("--batch", metavar="N", type=positive_integer, help="compiled for another batch")
    parser.add_argument("--weights", action="store_true", help="the Weight Memory too, so that asm gives it back")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write it, in place of printing it")


def _add_report(parser: argparse.ArgumentParser) -> None:
    _add_program(parser)
    parser.add_argument("--html", metavar="FILE", type=Path, help="a page that needs no network")
    parser.add_argument("--svg", metavar="FOLDER", type=Path, help="the plots, as SVG")
    parser.add_argument("--png", metavar="FOLDER", type=Path, help="the plots, as PNG")


def _add_program(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="PROGRAM", type=Path, help="a .tpu file, which compile or asm wrote")


def _add_timing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", metavar="N", type=positive_integer, help="examples of a batch")
    parser.add_argument(
        "--set",
        metavar="KNOB=VALUE",
        action="append",
        default=[],
        help="turn a knob of the chip, such as weight_bytes_per_s=136e9 or array=512; may be given again",
    )


def _action(name: str, summary: str, description: str, add_action_arguments: Any) -> Command:
    def run(arguments: argparse.Namespace) -> int:
        from anytpu.cli import chip_actions

        chip_actions.ACTIONS[name](arguments)
        return 0

    return Command(name, summary, description, add_action_arguments, run)


ACTIONS = (
    _action(
        "compile",
        "quantize a model to int8 and compile it",
        """\
Quantize a model to int8 by what some examples show of its ranges, and compile it to
instructions of the first TPU. Writes a .tpu file, and prints which layer is computed
where, and what quantization did to it.

    anytpu chip compile train.py:create_model --calibration x.npy
    anytpu chip compile train.py:create_model --bits 16 --onnx wide.onnx
""",
        _add_compile,
    ),
    _action(
        "run",
        "run a program on an array: exact",
        """\
Run a program in software on the rows of an array. The results are exact, to the bit,
by the meaning of the instructions; onnxruntime gives the same on what
`anytpu chip compile --onnx` wrote.

    anytpu chip run model.tpu --input x.npy --labels y.npy
    anytpu chip run model.tpu --input x.npy --int8 -o y.npy
""",
        _add_run,
    ),
    _action(
        "time",
        "predict how long a batch takes, and why",
        """\
Predict how long a batch takes on the chip, and which of its parts waits for what. The
time model is that of the paper on the chip (Jouppi et al., 2017).

    anytpu chip time model.tpu --batch 200 --trace trace.json
    anytpu chip time model.tpu --set array=512 --set weight_bytes_per_s=136e9
""",
        _add_time,
    ),
    _action(
        "asm",
        "assemble a text into a program",
        """\
Assemble a text into a program, and check that no unit can overtake another.

    anytpu chip asm model.s -o model.tpu
""",
        _add_asm,
    ),
    _action(
        "disasm",
        "print a program as text",
        """\
Print a program as text, with the layer that each instruction belongs to.

    anytpu chip disasm model.tpu
    anytpu chip disasm model.tpu --weights -o model.s
""",
        _add_disasm,
    ),
    _action(
        "report",
        "write a page with all there is to see",
        """\
Write a page with the timeline, the counters, the roofline, the memory map, the
listing, and the systolic array at work on the program's own numbers. Without --html,
--svg or --png, print what the program is.

    anytpu chip report model.tpu
    anytpu chip report model.tpu --html chip.html --svg plots
""",
        _add_report,
    ),
)


def _no_arguments(parser: argparse.ArgumentParser) -> None:
    """Each action has its own."""


def _no_run(arguments: argparse.Namespace) -> int:
    raise AssertionError("argparse asks for an action")


COMMAND = Command(
    name="chip",
    summary="run and time a model on the first TPU, in software",
    description="""\
The first TPU in software. A model becomes int8 instructions, which run exactly, to the
bit, and whose cycles are predicted. `anytpu chip ACTION --help` tells more about one.

    anytpu chip compile train.py:create_model --calibration x.npy -o model.tpu
    anytpu chip run model.tpu --input x.npy --labels y.npy
    anytpu chip time model.tpu --batch 200
    anytpu chip report model.tpu --html chip.html
""",
    add_arguments=_no_arguments,
    run=_no_run,
    actions=ACTIONS,
)
