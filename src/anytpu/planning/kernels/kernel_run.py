"""`compare`: a Pallas kernel in JAX's TPU interpret mode, beside a reference function.

Idea: the interpreter computes on the CPU, with the memories, the copies and the semaphores of a TPU. Memory that was
not written is NaN, so a kernel that reads it returns NaN. An access out of bounds is an error, a race is recorded.
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu import _jax
from anytpu.planning.records.kernels import KernelComparison

_TOLERANCES = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3}
_NARROW_TOLERANCE = 0.1
"""For float8 and narrower types."""

_LARGEST_INTEGER = 8


def random_arrays(specs: Sequence[Any]) -> list[np.ndarray]:
    """Return arrays for specs: normal numbers, integers from 0 to 7, booleans. An array is returned as it is."""
    generator = np.random.default_rng(0)

    def make(spec: Any) -> np.ndarray:
        if not isinstance(spec, jax.ShapeDtypeStruct):
            return np.asarray(spec)
        if spec.dtype == jnp.bool_:
            return generator.random(spec.shape) < 0.5
        is_integer = jnp.issubdtype(spec.dtype, jnp.integer)
        values = (
            generator.integers(0, _LARGEST_INTEGER, spec.shape) if is_integer else generator.normal(size=spec.shape)
        )
        return np.asarray(values).astype(spec.dtype)

    return [make(spec) for spec in specs]


def compare(
    kernel: Callable[..., Any], reference: Callable[..., Any], arrays: Sequence[np.ndarray], tolerance: float | None
) -> KernelComparison:
    """Run a kernel and its reference on the same arrays.

    Args:
        kernel: the kernel, a function of JAX arrays.
        reference: a function of the same arrays that returns the same outputs.
        arrays: the inputs.
        tolerance: largest difference, as a share of the largest value; None: by the type of the outputs.
    """
    from jax.experimental.pallas import tpu as pltpu

    with jax.default_matmul_precision("highest"):
        expected = jax.tree.map(np.asarray, reference(*arrays))
    # 1. The kernel in the interpreter. Any error of it is a fault of the kernel.
    began_s = time.perf_counter()
    pltpu.reset_tpu_interpret_mode_state()
    try:
        # A function of its own: JAX keeps compiled functions, and one without the interpreter may be among them.
        with (
            pltpu.force_tpu_interpret_mode(_interpreter()),
            jax.default_matmul_precision("highest"),
            _jax.without_callback_errors(),
        ):
            results = jax.tree.map(np.asarray, jax.jit(lambda *inputs: kernel(*inputs))(*arrays))
        has_race = _jax.kernel_has_race()
        fault = _shape_fault(results, expected)
    except Exception as error:
        results, has_race, fault = None, False, f"the interpreter stopped: {_last_line(error)}"
    finally:
        pltpu.reset_tpu_interpret_mode_state()
    seconds = time.perf_counter() - began_s
    # 2. The differences. A race is the fault only if the values are right.
    pairs = [] if fault else list(zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True))
    limits = [_tolerance(result.dtype) if tolerance is None else tolerance for result, _ in pairs]
    errors = [_error(result, wanted) for result, wanted in pairs]
    faults = (
        _value_fault(index, result, wanted, error, limit)
        for index, ((result, wanted), error, limit) in enumerate(zip(pairs, errors, limits, strict=True))
    )
    fault = fault or next(filter(None, faults), "")
    if has_race and not fault:
        fault = "two accesses to the same memory have no order: a copy and a computation, or two steps of the grid"
    return KernelComparison(max(errors, default=0.0), max(limits, default=tolerance or 0.0), fault, seconds)


def _interpreter() -> Any:
    """Return the parameters of an interpreter that records races and reads no memory without a value."""
    from jax.experimental.pallas import tpu as pltpu

    settings: dict[str, Any] = {
        "uninitialized_memory": "nan",
        "detect_races": True,
        "out_of_bounds_reads": "raise",
        "on_race": "warn",  # JAX 0.12 raises an error by default; earlier versions have no such parameter, and go on.
    }
    known = inspect.signature(pltpu.InterpretParams).parameters
    return pltpu.InterpretParams(**{name: value for name, value in settings.items() if name in known})


def _tolerance(dtype: Any) -> float:
    if not jnp.issubdtype(dtype, jnp.inexact):
        return 0.0
    return _TOLERANCES.get(jnp.dtype(dtype).name, _NARROW_TOLERANCE)


def _last_line(error: Exception) -> str:
    """Return the line that says what is wrong: an error in a callback of JAX ends with it."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    own = [line for line in lines if "ut-of-bounds" in line or line.startswith(("ValueError", "IndexError"))]
    return (own or lines or [type(error).__name__])[-1].rstrip(".")


def _shape_fault(results: Any, expected: Any) -> str:
    if jax.tree.structure(results) != jax.tree.structure(expected):
        counts = len(jax.tree.leaves(results)), len(jax.tree.leaves(expected))
        return f"the kernel returns another tree of outputs than the reference: {counts[0]} arrays, not {counts[1]}"
    for index, (result, wanted) in enumerate(zip(jax.tree.leaves(results), jax.tree.leaves(expected), strict=True)):
        if result.shape != wanted.shape:
            return f"output {index} has the shape {result.shape}, and that of the reference {wanted.shape}"
    return ""


def _wide(array: np.ndarray) -> np.ndarray:
    return array.astype(np.complex128 if np.iscomplexobj(array) else np.float64)


def _error(result: np.ndarray, wanted: np.ndarray) -> float:
    """Return the largest difference as a share of the largest value; NaN if only one of two values is NaN."""
    if not result.size:
        return 0.0
    first, second = _wide(result), _wide(wanted)
    is_same = (first == second) | (np.isnan(first) & np.isnan(second))
    differences = np.where(is_same, 0.0, np.abs(first - second))
    finite = np.abs(second[np.isfinite(second)])
    return float(np.max(differences) / (np.max(finite, initial=0.0) or 1.0))


def _value_fault(index: int, result: np.ndarray, wanted: np.ndarray, error: float, tolerance: float) -> str:
    if error <= tolerance:
        return ""
    first, second = _wide(result), _wide(wanted)
    unwritten = np.isnan(first) & ~np.isnan(second)
    if unwritten.any():
        place = tuple(map(int, np.argwhere(unwritten)[0]))
        return (
            f"output {index} is NaN at {place}, where the reference has {second[place]:.6g}; {np.mean(unwritten):.1%} "
            "of it is NaN. The kernel reads memory that it did not write, leaves a block unwritten, or divides 0 by 0"
        )
    largest = np.max(np.abs(second[np.isfinite(second)]), initial=0.0) or 1.0
    is_wrong = ~(np.abs(first - second) <= tolerance * largest)
    place = tuple(map(int, np.argwhere(is_wrong)[0]))
    return (
        f"output {index} is {first[place]:.6g} at {place}, and the reference {second[place]:.6g}; "
        f"{np.mean(is_wrong):.1%} of it is wrong. The largest error is {error:.2g} of the largest value, and the "
        f"tolerance {tolerance:.2g}"
    )
