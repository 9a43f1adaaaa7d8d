"""The switch for the CPU kernels: convolutions, LSTMs, small products and loops in the forms that XLA:CPU runs fast.

Idea: convolutions, small products and loops are rewritten when JAX lowers them for the CPU, after differentiation and
batching. An LSTM is replaced at the hook that Keras has for a backend's own LSTM. One switch controls all of them.

Rule: the switch is on only in the thread that turned it on; elsewhere JAX and Keras behave as always. Trace AND lower
inside it (`jax.jit(f).lower(...)` does both), from a fresh function: JAX's caches do not depend on it. If
anytpu-kernels is installed (`engine/foreign.py`), oneDNN computes the convolutions that it supports.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Iterator
from typing import Any

from jax import lax
from jax.extend.core.primitives import while_p
from jax.interpreters import mlir

from anytpu import _keras
from anytpu.engine.convolution import is_to_be_respelled, respelled
from anytpu.engine.foreign import foreign_kernels
from anytpu.engine.lstm import lstm
from anytpu.engine.product import as_sums, is_small
from anytpu.engine.small_loops import lower_while

_MAPPED_BYTES = 2**25
"""From this size on, glibc maps a block for each allocation and gives it back when it is freed."""

_ON = contextvars.ContextVar("anytpu_fast_kernels", default=False)
_LSTM_ON = contextvars.ContextVar("anytpu_fast_lstm", default=False)


@contextlib.contextmanager
def fast_kernels(lstm: bool = True) -> Iterator[None]:
    """Return a context in which all of these are lowered the way XLA:CPU runs them fast.

    Args:
        lstm: whether the LSTM is one of them. Its products are not those of Keras's own: the bias is in them.

    Example:
        >>> with fast_kernels():
        ...     lowered = jax.jit(lambda x: x + 1).lower(1.0)
    """
    _install()
    if lstm:
        _install_lstm()
    before, lstm_before = _ON.set(True), _LSTM_ON.set(lstm)
    try:
        yield
    finally:
        _LSTM_ON.reset(lstm_before)
        _ON.reset(before)


def prepare_memory(temporary_bytes: int) -> None:
    """Ask Linux for huge pages, where a call allocates so much that glibc maps a block of its own for it.

    Args:
        temporary_bytes: what a call of an executable allocates.
    """
    foreign = foreign_kernels() if temporary_bytes >= _MAPPED_BYTES else None
    if foreign is not None:
        foreign.use_huge_pages()


@functools.cache
def _install() -> None:
    """Put the hooks in place, for good: they do nothing while the switch is off."""
    plain = mlir._lowerings[lax.conv_general_dilated_p].rule
    mlir.register_lowering(lax.conv_general_dilated_p, functools.partial(_lower, plain), platform="cpu")
    product = mlir._platform_specific_lowerings["cpu"][lax.dot_general_p].rule
    mlir.register_lowering(lax.dot_general_p, functools.partial(_lower_product, product), platform="cpu")
    loop = mlir._lowerings[while_p].rule
    mlir.register_lowering(while_p, functools.partial(_lower_loop, loop), platform="cpu")


@functools.cache
def _install_lstm() -> None:
    """Offer Keras the LSTM, for good. It imports Keras."""
    _keras.offer_lstm(lstm, lambda: _LSTM_ON.get())


def _lower_loop(plain: Any, context: Any, *operands: Any, **parameters: Any) -> Any:
    """Lower a loop: JAX's rule, called `plain` here, or that for a small one."""
    if not _ON.get():
        return plain(context, *operands, **parameters)
    return lower_while(plain, context, *operands, **parameters)


def _lower(plain: Any, context: Any, image: Any, kernel: Any, **parameters: Any) -> Any:
    """Lower a convolution: as a call of oneDNN, respelled, or by JAX's rule, called `plain` here."""
    operands = context.avals_in[0], context.avals_in[1]
    foreign = foreign_kernels() if _ON.get() else None
    if foreign is not None and foreign.takes_convolution(*operands, parameters):
        computed = foreign.convolution
    elif _ON.get() and is_to_be_respelled(*operands, parameters):
        computed = respelled
    else:
        return plain(context, image, kernel, **parameters)
    lower: Any = mlir.lower_fun(functools.partial(computed, **parameters), multiple_results=False)
    return lower(context, image, kernel)


def _lower_product(plain: Any, context: Any, left: Any, right: Any, **parameters: Any) -> Any:
    """Lower a matrix product: JAX's rule, called `plain` here, or as sums."""
    operands = context.avals_in
    if not (_ON.get() and is_small(operands[0], operands[1], parameters)):
        return plain(context, left, right, **parameters)
    respell: Any = mlir.lower_fun(functools.partial(as_sums, **parameters), multiple_results=False)
    return respell(context, left, right)
