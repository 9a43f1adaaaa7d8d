"""Programs for the TPU compiler: small ones, one that takes it long, and some that it does not take."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl

from anytpu.program import Program, of

SQUARE = jax.ShapeDtypeStruct((64, 64), "float32")


def program_of(step: Any, state: Any = SQUARE, batch: Any = SQUARE) -> Program:
    return of(step, (state, batch))


def train(state: Any, batch: Any) -> Any:
    """One step of linear regression, as a layer of a name."""

    def loss(weights: Any) -> Any:
        with jax.named_scope("dense"):
            return jnp.mean((batch @ weights) ** 2)

    value, slope = jax.value_and_grad(loss)(state)
    return state - 0.1 * slope, {"loss": value, "rows": batch[:, 0]}


def slow(state: Any, batch: Any) -> Any:
    """A Fourier transform that the compiler works on for most of a minute."""
    return state, jnp.fft.fft(batch, n=2**20)


def large(state: Any, batch: Any) -> Any:
    """A product of more bytes than any TPU has; 2**20 rows of a state as wide as that."""
    return state @ state, batch


def foreign(state: Any, batch: Any) -> Any:
    """A custom call that TPUs do not have."""
    with jax.named_scope("outer"), jax.named_scope("decompose"):
        return state, jax.ffi.ffi_call("lapack_sgesdd_ffi", SQUARE)(batch)


def eigenvalues(state: Any, batch: Any) -> Any:
    """An operation that JAX does not lower for TPUs."""
    with jax.named_scope("spectrum"):
        return state, jnp.linalg.eigvals(batch)


def sorting_kernel(state: Any, batch: Any) -> Any:
    """A Pallas kernel of an operation that Pallas does not have on TPUs."""

    def kernel(given: Any, result: Any) -> None:
        result[...] = jnp.sort(given[...], axis=0)

    return state, pl.pallas_call(kernel, out_shape=SQUARE)(batch)


def decomposed(state: Any, batch: Any) -> Any:
    """Singular values and vectors, whose indices of 64 bits end libtpu 0.0.42.1 on a failed check."""
    return state, tuple(jnp.linalg.svd(batch))


def line_of(step: Any, text: str) -> str:
    """Return "file:line" of the line of a step that holds a text."""
    code = step.__code__
    with open(code.co_filename) as file:
        lines = file.read().splitlines()
    number = next(n for n in range(code.co_firstlineno, len(lines) + 1) if text in lines[n - 1])
    return f"{code.co_filename}:{number}"
