"""`compile`: compile a model and calibration examples to a program for the first TPU.

Idea: there are four steps. The model's Program is read into a network of few layer kinds. The examples give the value
ranges. The network is quantized. Instructions are generated.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from anytpu._calls import explain_arguments
from anytpu.chip import ports
from anytpu.chip.chip_program import ChipProgram
from anytpu.chip.compiler import compile_image, largest_batch
from anytpu.chip.images import check_batch, check_design, check_spill
from anytpu.chip.isa.design import TPU_V1, Design
from anytpu.chip.jobs import ONNX_SUFFIX, OTHER_ROWS, TRACED_ROWS, has_one_size, holds_scales, is_path, program_of
from anytpu.chip.network import check_network, read
from anytpu.chip.proving import prove
from anytpu.chip.quantized import quantize, summarize
from anytpu.errors import CalibrationError, SettingError, SettingTypeError

if TYPE_CHECKING:
    from anytpu.chip.graph.nodes import Network
    from anytpu.chip.quantized import Summary

MAX_ROWS = 256
"""The largest default batch: larger ones hardly run faster in software."""


@explain_arguments
def compile(
    job: Any,
    calibration: Any = None,
    *,
    state: Any = None,
    batch: int | None = None,
    activation_bits: Literal[8, 16] = 8,
    method: Literal["minmax", "percentile", "mse"] = "minmax",
    spill: bool = True,
    design: Design = TPU_V1,
    progress: Callable[[str], None] | None = None,
) -> ChipProgram:
    """Quantize a model to integers and compile it for the first TPU.

    Args:
        job: a Keras model, a `torch.nn.Module`, or a JAX function `outputs = function(state, x)` with `state`. Also a
            Program of mode "infer" with its values, or the path of a program file. Also the path of a quantized file,
            ONNX (QDQ or QOperator) or StableHLO as text with `!quant` types: its scales are kept, without calibration.
        calibration: typical input examples, `(rows, ...)`; a list or a dictionary for several inputs. They give the
            value ranges of all tensors. 100 to 500 rows are usual.
        state: the weights of a JAX function, a tree of arrays.
        batch: examples per batch; None: the largest power of two up to 256 that fits.
        activation_bits: 8 or 16 bits per activation. 16 takes twice the time; recurrent networks need it.
        method: calibration of a range: "minmax" covers all values, "percentile" all but the outermost 0.01 %, "mse"
            minimizes the mean squared error.
        spill: move tensors that exceed the Unified Buffer to the host; False: raise an error instead.
        design: the chip.
        progress: called with one line of text per compilation step.

    Raises:
        CalibrationError: there are no examples, or they cannot be used.
        QuantizationError: a layer cannot be quantized.
        CapacityError: the model does not fit on the chip.
        ProgramError: the job has another type.

    Example:
        >>> program = tpu.chip.compile(model, calibration=x_train[:256])  # doctest: +SKIP
        >>> program.time(batch=200).time_s  # doctest: +SKIP
    """
    _check(activation_bits, method, design, progress)
    check_spill(spill)
    if batch is not None:
        check_batch(batch)
    say = progress or (lambda line: None)
    say("reading the model")
    if holds_scales(job):
        # 1, 2. A file in integers holds its scales: nothing is calibrated.
        _check_left_out(job, calibration=calibration, state=state, activation_bits=activation_bits, method=method)
        quantized, summary, example = _given(job, design), None, {}
    else:
        quantized, summary, example = _calibrated(job, calibration, state, activation_bits, method, say)
    # 3. Generate the instructions.
    say(f"compiling {quantized.name}")
    rows = batch or largest_batch(quantized, design, MAX_ROWS) or 1
    image = compile_image(quantized, batch=rows, design=design, spill=spill)
    return ChipProgram(image, quantized, spill, summary, example)


def _given(path: str | Path, design: Design) -> Network:
    if Path(path).suffix == ONNX_SUFFIX:
        from anytpu.chip.given.onnx_file import read_onnx as read_file
    else:
        from anytpu.chip.given.stablehlo_file import read_stablehlo as read_file
    network = read_file(path, design)
    check_network(network)
    return network


def _calibrated(
    job: Any, calibration: Any, state: Any, bits: int, method: Any, say: Callable[[str], None]
) -> tuple[Network, Summary, dict[str, np.ndarray]]:
    """Return a model in integers, its summary, and a few examples."""
    _check_calibration(calibration)
    # 1. Read the model into a float network.
    program = program_of(job, calibration, state)
    network = dataclasses.replace(read(program), name=program.name.rpartition("/")[0] or program.name)
    check_network(network)
    # 2. Calibrate and quantize; verify the float network on the examples before it is used further.
    arrays = ports.arrays_of(network.name, network.inputs, calibration)
    say(f"calibrating {network.name}")
    quantized = quantize(network, arrays, bits=bits, method=method)
    resized = None if has_one_size(job) else functools.partial(program_of, job, calibration, state, OTHER_ROWS)
    prove(program, network, arrays, resized)
    example = {port.tensor: array[:TRACED_ROWS] for port, array in zip(network.inputs, arrays, strict=True)}
    return quantized, summarize(network, quantized, arrays), example


_DEFAULTS = {"calibration": None, "state": None, "activation_bits": 8, "method": "minmax"}


def _check_left_out(job: Any, **given: Any) -> None:
    """Refuse arguments that choose scales or weights, for a file that holds its own."""
    for name, value in given.items():
        if value is not None and not (isinstance(value, int | str) and value == _DEFAULTS[name]):
            raise SettingError(
                f"{name} is for a model in floats, and the file {str(job)!r} holds its weights and scales: leave "
                f"{name} out."
            )


def _check(activation_bits: Any, method: Any, design: Any, progress: Any) -> None:
    if type(activation_bits) is not int or activation_bits not in (8, 16):
        raise SettingError(f"activation_bits must be 8 or 16, not {activation_bits!r}.")
    if method not in ("minmax", "percentile", "mse"):
        raise SettingError(f"method must be 'minmax', 'percentile' or 'mse', not {method!r}.")
    check_design(design)
    if progress is not None and not callable(progress):
        raise SettingTypeError(f"progress must be a function that is given a line, such as print, not {progress!r}.")


def _check_calibration(calibration: Any) -> None:
    if calibration is None:
        raise CalibrationError(
            "calibration is missing: give examples of what the model will see, from which the ranges of its numbers "
            "are taken, such as calibration=x_train[:256]."
        )
    several = calibration.values() if isinstance(calibration, dict) else calibration
    for array in several if isinstance(calibration, dict | list | tuple) else [calibration]:
        if is_path(array):
            raise CalibrationError(f"calibration is the name of a file; load it: calibration=np.load({str(array)!r}).")
        if not _is_array(array):
            raise CalibrationError(
                f"calibration must be an array of examples, or an array for each input, not {array!r:.60}: give some "
                "of what the model will see, such as calibration=x_train[:256]."
            )


def _is_array(value: Any) -> bool:
    try:
        return np.ndim(value) > 0
    except ValueError:  # lists of different lengths
        return False
