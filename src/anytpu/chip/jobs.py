"""`program_of`: convert a user's job to a Program of mode "infer" with its values.

Rule: if tracing a model or a function raises an error, the message includes the shapes of its arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from anytpu._keras import layers_of
from anytpu.errors import AnyTPUError, ProgramError, QuantizationError, SettingError
from anytpu.program import Program, of
from anytpu.program.frameworks import TORCH_MAKER

TRACED_ROWS = 8
"""Batch size with which a Keras model or a function is traced; it is compiled for any batch size."""

_PROGRAM_FILE = ".anytpu"
ONNX_SUFFIX = ".onnx"
"""Suffix of a file that holds its scales."""

_KERAS_FILES = (".keras", ".h5", ".hdf5")

_JOBS = (
    "give a Keras model, a PyTorch module, a JAX function and state=weights, a Program, or the path of a '.anytpu' "
    "or a quantized '.onnx' or '.mlir' file"
)

OTHER_ROWS = 5
"""Another batch size, to detect a model whose outputs depend on the batch size."""


def program_of(job: Any, calibration: Any, state: Any, rows: int = TRACED_ROWS) -> Program:
    """Return the Program of a job.

    Args:
        job: a Keras model, a PyTorch module, a function `outputs = function(state, x)`, a Program, or the path of a
            program file.
        calibration: examples, for a job without input shapes.
        state: the weights of a function; None for every other job.
        rows: batch size with which to trace a model or a function; a Program has its own.

    Raises:
        ProgramError: the job has another type, or tracing it fails.
        SettingError: `state` is given for a job that has its own weights.
    """
    if isinstance(job, Program) or (is_path(job) and Path(job).suffix == _PROGRAM_FILE):
        _check_state(f"program {getattr(job, 'name', str(job))!r}", state)
        return of(job, mode="infer", tensors=True)
    if is_path(job) and Path(job).suffix in _KERAS_FILES:
        raise ProgramError(
            f"{str(job)!r} is a file of Keras: hand in the model itself, keras.models.load_model({str(job)!r})."
        )
    if is_path(job) and Path(job).suffix == ".mlir":
        raise ProgramError(
            f"{str(job)!r} is a StableHLO file, which holds no values of weights, and the chip's program has them: "
            "hand in the function that it was made of, with state=weights, or a program file of it (.anytpu)."
        )
    if _is_layer(job):
        raise ProgramError(
            f"The Keras layer {job.name!r} is not a model: hand in one with the shape of its inputs, "
            "keras.Sequential([keras.Input(shape), layer])."
        )
    if hasattr(job, "predict"):
        return _of_model(job, calibration, state, rows)
    if TORCH_MAKER.claims(job):
        return _of_module(job, calibration, state, rows)
    if is_path(job) or not callable(job):
        raise ProgramError(f"{job!r:.60} cannot be compiled for the chip: {_JOBS}.")
    return _of_function(job, calibration, state, rows)


def _check_state(which: str, state: Any) -> None:
    if state is not None:
        raise SettingError(f"state is for the weights of a JAX function, and the {which} has its own: leave state out.")


def holds_scales(job: Any) -> bool:
    """Return whether a job is the path of a file that holds its scales: ONNX, or StableHLO with `!quant` types."""
    if not is_path(job) or Path(job).suffix not in (ONNX_SUFFIX, ".mlir"):
        return False
    if Path(job).suffix == ONNX_SUFFIX:
        return True
    from anytpu.chip.given.stablehlo_file import is_quantized

    return is_quantized(job)


def has_one_size(job: Any) -> bool:
    """Return whether a job has a fixed batch size, as a Program has."""
    return isinstance(job, Program) or is_path(job)


def is_path(value: Any) -> bool:
    """Return whether a value is a path."""
    return isinstance(value, str) or hasattr(value, "__fspath__")


def _is_layer(job: Any) -> bool:
    """Return whether a job is a Keras layer that is no model, without importing Keras."""
    names = {cls.__name__ for cls in type(job).__mro__ if cls.__module__.startswith("keras.")}
    return "Layer" in names and "Model" not in names


def _of_model(model: Any, calibration: Any, state: Any, rows: int) -> Program:
    name = getattr(model, "name", "model")
    _check_state(f"Keras model {name!r}", state)
    _check_scales(name, layers_of(model))

    def of_examples() -> Program:
        try:
            return of(model, (_rows_of(calibration),), "infer", True, batch_size=rows)
        except ProgramError as error:
            raise error.__cause__ or error from None  # It says how to give input_specs; here the examples give them.

    try:
        return of(model, None, "infer", True, batch_size=rows)
    except ProgramError:
        # A model without input shapes gets the shapes of the examples.
        return _with_shapes_in_error(f"The Keras model {name!r} cannot be called with", calibration, of_examples)


def _check_scales(name: str, layers: list[Any]) -> None:
    """Refuse layers whose scales are computed when they run, for each row anew: `quantize("int8")` of Keras."""
    for layer in layers:
        if getattr(layer, "quantization_mode", None) and getattr(layer, "inputs_quantizer", None) is not None:
            raise QuantizationError(
                f"The layer {layer.name!r} of {name!r} was quantized by Keras ({layer.quantization_mode}), which "
                "computes the scale of each row when it runs; the chip's scales are fixed. Hand in the model as it was "
                "before quantize(...): tpu.chip.compile quantizes it, with calibration=x_train[:256]."
            )


def _of_module(module: Any, calibration: Any, state: Any, rows: int) -> Program:
    _check_state(f"PyTorch module {type(module).__name__!r}", state)
    examples = _rows_of(calibration)
    inputs = tuple(examples.values()) if isinstance(examples, dict) else examples
    return of(module, tuple(inputs) if isinstance(inputs, list | tuple) else (inputs,), "infer", True, batch_size=rows)


def _of_function(function: Any, calibration: Any, state: Any, rows: int) -> Program:
    name = getattr(function, "__name__", "function")
    if state is None:
        raise ProgramError(
            f"The weights of the function {name!r} are missing: tpu.chip.compile(function, calibration, state=weights),"
            " where function(weights, x) returns the outputs; state={} for one without weights."
        )
    return _with_shapes_in_error(
        f"The function {name!r} cannot be called with",
        calibration,
        lambda: of(_step(function, name), (state, _rows_of(calibration)), "infer", True, batch_size=rows),
    )


def _with_shapes_in_error(who: str, calibration: Any, make: Callable[[], Program]) -> Program:
    """Return `make()`; if user code raises in it, raise an error with the shapes of its arguments."""
    try:
        return make()
    except AnyTPUError:
        raise
    except Exception as error:
        said = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise ProgramError(f"{who} examples {_shapes(_rows_of(calibration))}: {said}") from error


def _step(function: Callable[[Any, Any], Any], name: str) -> Callable[[Any, Any], tuple[Any, Any]]:
    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        return state, function(state, batch)

    step.__name__ = name
    return step


def _rows_of(calibration: Any) -> Any:
    if isinstance(calibration, dict):
        return {name: np.asarray(array)[:TRACED_ROWS] for name, array in calibration.items()}
    if isinstance(calibration, list | tuple):
        return [np.asarray(array)[:TRACED_ROWS] for array in calibration]
    return np.asarray(calibration)[:TRACED_ROWS]


def _shapes(rows: Any) -> str:
    if isinstance(rows, dict):
        return "{" + ", ".join(f"{name!r}: {_shapes(array)}" for name, array in rows.items()) + "}"
    if isinstance(rows, list):
        return "[" + ", ".join(map(_shapes, rows)) + "]"
    return f"({', '.join(['rows', *map(str, rows.shape[1:])])})"
