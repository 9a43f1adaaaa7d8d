"""`anytpu chip`: compile, run, time and inspect a model on the first TPU, in software."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from anytpu.cli.command import Command, positive_integer

_ARRAYS = ".npy, or .npz for several inputs: arr_0, arr_1, ... in input order, or the inputs' names"


def _add_compile(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "job",
        metavar="JOB",
        help="train.py:create_model, a function in a file that returns a Keras model, a pair (model, examples), or a "
        "triple (function, examples, weights) for a JAX function outputs = function(weights, x); a program file, "
        ".anytpu, of mode infer with its values; or a quantized file, .onnx or .mlir, whose scales are kept",
    )
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="the program file (default: JOB's name, .tpu)"
    )
    parser.add_argument(
        "--calibration",
        metavar="FILE",
        type=Path,
        help=f"100 to 500 typical input examples, {_ARRAYS}; they replace the examples that JOB returns",
    )
    parser.add_argument("--batch", metavar="N", type=positive_integer, help="examples per batch")
    parser.add_argument("--bits", type=int, choices=(8, 16), default=8, help="bits of the activations (default: 8)")
    parser.add_argument(
        "--method",
        choices=("minmax", "percentile", "mse"),
        default="minmax",
        help="how a tensor's range is calibrated (default: minmax)",
    )
    parser.add_argument("--no-spill", action="store_true", help="fail if the Unified Buffer is too small")
    parser.add_argument("--onnx", metavar="FILE", type=Path, help="also write the quantized model as ONNX")


def _add_run(parser: argparse.ArgumentParser) -> None:
    _add_program(parser)
    parser.add_argument("--input", metavar="FILE", type=Path, required=True, help=f"the rows to run, {_ARRAYS}")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="write the results, .npy, or .npz (output0, output1, ...)"
    )
    parser.add_argument(
        "--labels", metavar="FILE", type=Path, help="class index of each row, from 0, .npy; prints the accuracy"
    )
    parser.add_argument("--int8", action="store_true", help="return the chip's integer outputs, not dequantized")


def _add_time(parser: argparse.ArgumentParser) -> None:
    _add_program(parser)
    _add_timing(parser)
    parser.add_argument("--back-to-back", action="store_true", help="time a batch in a steady stream, not a single one")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write all numbers of the prediction")
    parser.add_argument("--trace", metavar="FILE", type=Path, help="write a trace of all units, for ui.perfetto.dev")


def _add_asm(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("text", metavar="TEXT", type=Path, help="assembly text; `anytpu docs chip_isa` has the syntax")
    parser.add_argument(
        "-o", "--output", metavar="FILE", type=Path, help="the program file (default: TEXT's name, .tpu)"
    )


def _add_disasm(parser: argparse.ArgumentParser) -> None:
    _add_program(parser)
    parser.add_argument("--batch", metavar="N", type=positive_integer, help="compile for another batch first")
    parser.add_argument("--weights", action="store_true", help="include the Weight Memory, so that asm can restore it")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write the text to a file, do not print it")


def _add_report(parser: argparse.ArgumentParser) -> None:
    _add_program(parser)
    parser.add_argument("--html", metavar="FILE", type=Path, help="write a self-contained page")
    parser.add_argument("--svg", metavar="FOLDER", type=Path, help="write the plots as SVG")
    parser.add_argument("--png", metavar="FOLDER", type=Path, help="write the plots as PNG")


def _add_program(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program", metavar="PROGRAM", type=Path, help="a .tpu file, written by compile or asm")


def _add_timing(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", metavar="N", type=positive_integer, help="examples per batch")
    parser.add_argument(
        "--set",
        metavar="KNOB=VALUE",
        action="append",
        default=[],
        help="change a design parameter, such as weight_bytes_per_s=136e9 or array=512; may be repeated",
    )


def _action(name: str, summary: str, description: str, add_action_arguments: Any) -> Command:
    def run(arguments: argparse.Namespace) -> int:
        from anytpu.chip import actions as chip_actions

        chip_actions.ACTIONS[name](arguments)
        return 0

    return Command(name, summary, description, add_action_arguments, run)


ACTIONS = (
    _action(
        "compile",
        "quantize a model to int8 and compile it",
        """\
Quantize a model to int8 with value ranges calibrated on examples, and compile it to
instructions of the first TPU. Write a .tpu file, and print where each layer is
computed (chip or host) and its quantization error.

    anytpu chip compile train.py:create_model --calibration x.npy
    anytpu chip compile train.py:create_model --bits 16 --onnx wide.onnx
    anytpu chip compile quantized.onnx
""",
        _add_compile,
    ),
    _action(
        "run",
        "run a program on an array: exact",
        """\
Run a program in software on the rows of an array. The results are bit-exact by the
definition of the instructions. onnxruntime gives the same results for the file that
`anytpu chip compile --onnx` writes.

    anytpu chip run model.tpu --input x.npy --labels y.npy
    anytpu chip run model.tpu --input x.npy --int8 -o y.npy
""",
        _add_run,
    ),
    _action(
        "time",
        "predict the time of a batch, and its bottleneck",
        """\
Predict the time of a batch on the chip, and the stalls of each unit. The time model
follows the paper on the chip (Jouppi et al., 2017).

    anytpu chip time model.tpu --batch 200 --trace trace.json
    anytpu chip time model.tpu --set array=512 --set weight_bytes_per_s=136e9
""",
        _add_time,
    ),
    _action(
        "asm",
        "assemble a text into a program",
        """\
Assemble a text into a program, and check it for hazards between the units.

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
        "write a page with timeline, counters and roofline",
        """\
Write a page with the timeline, the counters, the roofline, the memory map, the
listing, and an animation of the systolic array on the program's own numbers. Without
--html, --svg or --png, print a summary of the program.

    anytpu chip report model.tpu
    anytpu chip report model.tpu --html chip.html --svg plots
""",
        _add_report,
    ),
)


COMMAND = Command(
    name="chip",
    summary="run and time a model on the first TPU, in software",
    description="""\
The first TPU in software. A model is compiled to int8 instructions, which run
bit-exactly and whose cycles are predicted. See `anytpu chip ACTION --help`.

    anytpu chip compile train.py:create_model --calibration x.npy -o model.tpu
    anytpu chip run model.tpu --input x.npy --labels y.npy
    anytpu chip time model.tpu --batch 200
    anytpu chip report model.tpu --html chip.html
""",
    actions=ACTIONS,
)
