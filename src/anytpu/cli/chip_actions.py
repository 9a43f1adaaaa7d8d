"""What `anytpu chip` does: a plain client of `anytpu.chip`, as a program of yours would be."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from anytpu import chip
from anytpu.cli.script import HOW, job_of
from anytpu.errors import SettingError
from anytpu.report.steps import Steps
from anytpu.report.terminal import open_console, say
from anytpu.showing import report

SUFFIX = ".tpu"


def compile_job(arguments: argparse.Namespace) -> None:
    """Compile a model, write it, and print what became of it."""
    job, examples = _job(arguments.job)
    if arguments.calibration is not None:
        examples = read_arrays(arguments.calibration)
    with Steps() as progress:
        program = chip.compile(
            job,
            examples,
            batch=arguments.batch,
            activation_bits=arguments.bits,
            method=arguments.method,
            convolution=arguments.convolution,
            spill=not arguments.no_spill,
            progress=progress,
        )
    wrote = [program.save(arguments.output or Path(_stem(arguments.job) + SUFFIX))]
    if arguments.onnx:
        wrote.append(program.to_onnx(arguments.onnx))
    program.show()
    _wrote(*wrote)


def run(arguments: argparse.Namespace) -> None:
    """Run a program on an array, and print or write the results."""
    program = chip.load(arguments.program)
    x = read_arrays(arguments.input)
    results = program.run_int8(x) if arguments.int8 else program.run(x)
    many = results if isinstance(results, tuple) else (results,)
    console = open_console()
    for one in many:
        say(console, f"{one.dtype} {list(one.shape)}")
        if arguments.output is None:
            say(console, np.array2string(one, threshold=200, precision=4, suppress_small=True))
    if arguments.labels is not None:
        say(console, _accuracy(many[0], read_arrays(arguments.labels)))
    if arguments.output is not None:
        _write_arrays(arguments.output, many)
        _wrote(arguments.output)


def time(arguments: argparse.Namespace) -> None:
    """Print, and write, where the cycles of a batch would go."""
    program = chip.load(arguments.program)
    both = {"events": arguments.trace is not None, "back_to_back": arguments.back_to_back}
    timing = program.time(arguments.batch, **both, **knobs(arguments.set))
    wrote = []
    if arguments.json:
        wrote.append(_write_text(arguments.json, json.dumps(_timing_record(timing), indent=1) + "\n"))
    if arguments.trace:
        image = program.image(arguments.batch, timing.design)
        wrote.append(report("chip").to_trace(timing, arguments.trace, image=image))
    report("chip").show_timing(timing)
    _wrote(*wrote)


def asm(arguments: argparse.Namespace) -> None:
    """Assemble a text."""
    try:
        text = arguments.text.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingError(f"{str(arguments.text)!r} cannot be read: {_reason(error)}") from error
    _wrote(chip.assemble(text, arguments.text.stem).save(arguments.output or arguments.text.with_suffix(SUFFIX)))


def disasm(arguments: argparse.Namespace) -> None:
    """Print a program as text."""
    text = chip.load(arguments.program).disassemble(arguments.batch, weights=arguments.weights)
    if arguments.output is None:
        print(text, end="" if text.endswith("\n") else "\n")
    else:
        _wrote(_write_text(arguments.output, text))


def show(arguments: argparse.Namespace) -> None:
    """Write the page and the plots of a program, or print what it is."""
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
"""What does each action."""


def knobs(typed: list[str]) -> dict[str, Any]:
    """Read knobs of the chip, each as KNOB=VALUE; those that count things are whole numbers.

    Raises:
        SettingError: one is not written so, or its value is no number.

    Example:
        >>> knobs(["array=512", "weight_bytes_per_s=136e9"])
        {'array': 512, 'weight_bytes_per_s': 136000000000.0}
    """
    whole = {field.name for field in dataclasses.fields(chip.Design) if isinstance(field.default, int)}
    found: dict[str, Any] = {}
    for one in typed:
        name, equals, text = one.partition("=")
        try:
            value = float(text)
        except ValueError:
            equals = ""
            value = 0.0
        if not (name and equals) or (name in whole and value != int(value)):
            raise SettingError(f"--set takes KNOB=VALUE, such as weight_bytes_per_s=136e9 or array=512, not {one!r}")
        found[name] = int(value) if name in whole else value
    return found


def read_arrays(path: Path) -> Any:
    """Return the array of a .npy file, or those of a .npz file in the order of their names.

    Raises:
        SettingError: it cannot be read, or holds Python objects.
    """
    try:
        found = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise SettingError(
            f"{str(path)!r} cannot be read as an array: {_reason(error)}; np.save({str(path)!r}, x) writes one"
        ) from error
    return found if isinstance(found, np.ndarray) else [found[name] for name in sorted(found.files)]


def _job(name: str) -> tuple[Any, Any]:
    if Path(name).suffix == ".anytpu":
        return name, None
    path, colon, function = name.rpartition(":")
    if not colon or not path:
        raise SettingError(f"name what to compile: a function of a file, like {HOW}, or a program file, .anytpu")
    return job_of(path, function)


def _stem(job: str) -> str:
    return Path(job.rpartition(":")[0] or job).stem


def _accuracy(scores: np.ndarray, labels: np.ndarray) -> str:
    flat = scores.reshape(len(scores), -1)
    if flat.shape[1] < 2 or labels.reshape(-1).shape != (len(scores),):
        raise SettingError(
            f"--labels wants one class a row, and a program with a score a class; the program gave {scores.shape}, the "
            f"file has {labels.shape}"
        )
    right = int((flat.argmax(axis=1) == labels.reshape(-1)).sum())
    return f"{right} of {len(scores)} right, {right / max(1, len(scores)):.2%}"


def _timing_record(timing: Any) -> dict[str, Any]:
    record = dataclasses.asdict(timing)
    record.pop("events")
    return record


def _write_arrays(path: Path, arrays: tuple[np.ndarray, ...]) -> None:
    try:
        if path.suffix == ".npz":
            named: dict[str, Any] = {f"output{number}": one for number, one in enumerate(arrays)}
            np.savez(path, **named)
        elif len(arrays) == 1:
            with path.open("wb") as stream:
                np.save(stream, arrays[0])
        else:
            raise SettingError(
                f"the program has {len(arrays)} outputs; name a .npz file: -o {path.with_suffix('.npz')}"
            )
    except OSError as error:
        raise SettingError(f"{str(path)!r} cannot be written: {_reason(error)}") from error


def _write_text(path: Path, text: str) -> Path:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise SettingError(f"{str(path)!r} cannot be written: {_reason(error)}") from error
    return path


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error).splitlines()[0]


def _wrote(*paths: Path) -> None:
    console = open_console()
    for path in paths:
        say(console, f"Wrote {path}")
