"""The actions of `anytpu chip`, written against the public API of `anytpu.chip` only."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from anytpu import chip
from anytpu.cli.arrays import accuracy, check_output, check_room, read_arrays, read_labels, write_arrays
from anytpu.cli.outputs import check_file, check_folder, check_suffix, write_text
from anytpu.cli.script import HOW, returned_by, wrong
from anytpu.errors import SettingError
from anytpu.files.opening import read_text
from anytpu.report.steps import StepProgress
from anytpu.report.terminal import open_console, say
from anytpu.showing import report

SUFFIX = ".tpu"
_GIVEN = (".onnx", ".mlir")
"""Suffixes of files that hold their scales."""

_TO_COMPILE = (
    "which cannot be compiled; it must return a Keras or PyTorch model, a pair (model, examples), or a triple "
    "(function, examples, weights) with a JAX function outputs = function(weights, x)"
)
_MAX_ASSEMBLY_BYTES = 2**30  # 64 MiB of instructions and weights as text, several times over


@dataclasses.dataclass(frozen=True)
class ChipJob:
    """A model to compile.

    Attributes:
        job: the model, function or file, as `chip.compile` takes it.
        examples: calibration examples of the job, or None.
        weights: the weights of a JAX function, or None.
    """

    job: Any
    examples: Any = None
    weights: Any = None


def chip_job(name: str) -> ChipJob:
    """Load the job of "train.py:create_model", of a program file or of a quantized ONNX file.

    Raises:
        SettingError: the name has another form, the function does not exist or fails, or its value cannot be compiled.
    """
    if Path(name).suffix in (".anytpu", *_GIVEN):
        return ChipJob(name)
    path, colon, function = name.rpartition(":")
    if not colon or not path:
        raise SettingError(
            f"name the job to compile: a function in a file, like {HOW}, a program file, .anytpu, or a quantized file, "
            ".onnx or .mlir"
        )
    returned = returned_by(path, function)
    is_tuple = isinstance(returned, tuple) and len(returned) in (2, 3)
    job = ChipJob(*returned) if is_tuple else ChipJob(returned)
    if not _can_be_compiled(job):
        raise wrong(path, function, returned, _TO_COMPILE)
    return job


def _can_be_compiled(chosen: ChipJob) -> bool:
    from anytpu.program.frameworks import TORCH_MAKER
    from anytpu.program.makers import is_job
    from anytpu.train.makers import KERAS_MAKER

    is_function = callable(chosen.job) and not any(maker.claims(chosen.job) for maker in (KERAS_MAKER, TORCH_MAKER))
    return is_job(chosen.job) and is_function == (chosen.weights is not None)


def compile_job(arguments: argparse.Namespace) -> None:
    """Compile a model, write the program, and print its summary."""
    from anytpu.chip.onnx.graph import load_onnx

    output = arguments.output or Path(_stem(arguments.job) + SUFFIX)
    _check_program(output)
    check_file("--onnx", arguments.onnx, "model.onnx")
    if arguments.onnx:
        load_onnx()  # a missing installation fails here, before the long work
    calibration = read_arrays(arguments.calibration) if arguments.calibration else None
    chosen = chip_job(arguments.job)
    examples = chosen.examples if calibration is None else calibration
    if examples is None and Path(arguments.job).suffix not in _GIVEN:
        raise SettingError(
            "input examples are missing; the value ranges for quantization are calibrated on them: --calibration x.npy"
        )
    with StepProgress() as progress:
        program = chip.compile(
            chosen.job,
            examples,
            state=chosen.weights,
            batch=arguments.batch,
            activation_bits=arguments.bits,
            method=arguments.method,
            spill=not arguments.no_spill,
            progress=progress,
        )
    wrote = [program.save(output)]
    if arguments.onnx:
        wrote.append(program.to_onnx(arguments.onnx))
    program.show()
    _wrote(*wrote)


def run(arguments: argparse.Namespace) -> None:
    """Run a program on an array, and print or write the results."""
    check_output(arguments.output)
    program = chip.load(arguments.program)
    if not arguments.int8:
        check_room(arguments.output, len(program.outputs))
    x = read_arrays(arguments.input)
    labels = read_labels(arguments.labels) if arguments.labels else None
    results = program.run_int8(x) if arguments.int8 else program.run(x)
    outputs = results if isinstance(results, tuple) else (results,)
    score = None if labels is None else accuracy(outputs[0], labels, arguments.labels)
    console = open_console()
    for output in outputs:
        say(console, f"{output.dtype} {list(output.shape)}")
        if arguments.output is None:
            say(console, np.array2string(output, threshold=200, precision=4, suppress_small=True))
    if score is not None:
        say(console, score)
    if arguments.output is not None:
        _wrote(write_arrays(arguments.output, outputs))


def time(arguments: argparse.Namespace) -> None:
    """Print the predicted cycles of a batch, and write them to files."""
    check_file("--json", arguments.json, "time.json")
    check_file("--trace", arguments.trace, "trace.json")
    changed = parse_design_parameters(arguments.set)
    program = chip.load(arguments.program)
    switches = {"events": arguments.trace is not None, "back_to_back": arguments.back_to_back}
    timing = program.time(arguments.batch, **switches, **changed)
    wrote = []
    if arguments.json:
        wrote.append(write_text(arguments.json, json.dumps(timing.to_record(), indent=1) + "\n"))
    if arguments.trace:
        image = program.image(arguments.batch, timing.design)
        wrote.append(report("chip").to_trace(timing, arguments.trace, image=image))
    report("chip").show_timing(timing)
    _wrote(*wrote)


def asm(arguments: argparse.Namespace) -> None:
    """Assemble a text."""
    output = arguments.output or arguments.text.with_suffix(SUFFIX)
    _check_program(output)
    try:
        text = read_text(arguments.text, max_bytes=_MAX_ASSEMBLY_BYTES)
    except (OSError, UnicodeDecodeError) as error:
        cause = error.strerror if isinstance(error, OSError) else "it is not text"
        raise SettingError(f"{str(arguments.text)!r} cannot be read: {cause}") from error
    _wrote(chip.assemble(text, arguments.text.stem).save(output))


def disasm(arguments: argparse.Namespace) -> None:
    """Print a program as text."""
    check_file("-o", arguments.output, "program.s")
    text = chip.load(arguments.program).disassemble(arguments.batch, weights=arguments.weights)
    if arguments.output is None:
        print(text, end="" if text.endswith("\n") else "\n")
    else:
        _wrote(write_text(arguments.output, text))


def show(arguments: argparse.Namespace) -> None:
    """Write the page and the plots of a program, or print its summary."""
    check_file("--html", arguments.html, "chip.html")
    check_folder("--svg", arguments.svg)
    check_folder("--png", arguments.png)
    program = chip.load(arguments.program)
    wrote = []
    if arguments.html:
        wrote.append(program.to_html(arguments.html))
    if arguments.svg:
        wrote += program.to_svg(arguments.svg)
    if arguments.png:
        wrote += program.to_png(arguments.png)
    if not wrote:
        program.show()
    _wrote(*wrote)


ACTIONS: dict[str, Callable[[argparse.Namespace], None]] = {
    "compile": compile_job,
    "run": run,
    "time": time,
    "asm": asm,
    "disasm": disasm,
    "report": show,
}
"""Action name -> the function that runs it."""


def parse_design_parameters(typed: list[str]) -> dict[str, Any]:
    """Parse design parameters of the chip, each as KNOB=VALUE; counts are integers.

    Raises:
        SettingError: one has another form, names no parameter, or has a value that the parameter cannot have.

    Example:
        >>> parse_design_parameters(["array=512", "weight_bytes_per_s=136e9"])
        {'array': 512, 'weight_bytes_per_s': 136000000000.0}
    """
    fields = dataclasses.fields(chip.Design)
    integer_defaults = {field.name: field.default for field in fields if isinstance(field.default, int)}
    values: dict[str, Any] = {}
    for assignment in typed:
        name, equals, text = assignment.partition("=")
        try:
            value = float(text)
        except ValueError:
            equals = ""
            value = 0.0
        if not (name and equals):
            raise SettingError(
                f"--set takes KNOB=VALUE, such as weight_bytes_per_s=136e9 or array=512, not {assignment!r}"
            )
        if name in integer_defaults and not value.is_integer():
            example = f"{name}={integer_defaults[name]}"
            raise SettingError(f"--set {assignment}: {name} must be an integer, such as {example}")
        values[name] = int(value) if name in integer_defaults else value
    # `ChipProgram.time` has arguments of its own, such as `batch`, so an unknown name is refused here.
    chip.Design().turned(values)
    return values


def _check_program(path: Path) -> None:
    check_file("-o", path, f"model{SUFFIX}")
    check_suffix("-o", path, (SUFFIX,), "a program")


def _stem(job: str) -> str:
    return Path(job.rpartition(":")[0] or job).stem


def _wrote(*paths: Path) -> None:
    console = open_console()
    for path in paths:
        say(console, f"Wrote {path}")
