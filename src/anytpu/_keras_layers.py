"""Functions of Keras's layers that anytpu replaces: private names of Keras, like those in `_keras.py`.

Rule: this file contains no policy. Each replacement computes what Keras's own function does.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import math
from collections.abc import Callable
from typing import Any

from anytpu._contexts import value_within
from anytpu._keras import keras_backend, wrap


def draw_flat() -> None:
    """Let Keras draw random arrays as vectors and reshape them, except while JAX traces.

    The numbers are the same: each depends on its index in the flattened array. XLA compiles a draw for each shape. On
    the CPU it takes seconds for the four axes of a convolution's kernel (jaxlib 0.10 to 0.12).
    """
    from keras.src.backend.jax import random

    for name in ("normal", "truncated_normal", "uniform"):
        wrap(random, name, _drawing_flat)


def _drawing_flat(original: Callable) -> Callable:
    import jax.numpy as jnp
    from jax.core import Tracer

    def draw(shape: Any, *args: Any, **kwargs: Any) -> Any:
        # Inside a trace, also an array that depends on nothing is a tracer.
        if not isinstance(shape, list | tuple) or len(shape) < 2 or isinstance(jnp.zeros(()), Tracer):
            return original(shape, *args, **kwargs)
        return original((math.prod(shape),), *args, **kwargs).reshape(shape)

    return draw


_ZEROES_OUTPUT = contextvars.ContextVar("anytpu_zeroes_output", default=False)
"""`zero_output_for_mask` of the layer that runs its inner loop: Keras does not pass it to the backend."""


def offer_recurrent(lstm: Callable, gru: Callable, is_wanted: Callable[[], bool]) -> None:
    """Make Keras's LSTM and GRU layers call these functions when `is_wanted()` is true.

    Args:
        lstm: takes the arguments of `backend.lstm`, and `zero_output_for_mask`, which Keras does not pass. If it raises
            NotImplementedError, Keras uses its own loop.
        gru: takes the arguments of `backend.gru`, likewise.
        is_wanted: evaluated at each call.
    """
    from keras.src.layers.rnn.gru import GRU
    from keras.src.layers.rnn.lstm import LSTM

    for layer, name, function in ((LSTM, "lstm", lstm), (GRU, "gru", gru)):
        wrap(layer, "inner_loop", _recording_zero_output)
        run = functools.partial(_with_zero_output, function)
        wrap(keras_backend(), name, functools.partial(_choosing, run, is_wanted))


def _with_zero_output(function: Callable, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs, zero_output_for_mask=_ZEROES_OUTPUT.get())


def offer_batch_norm(moments: Callable, normalize: Callable, is_wanted: Callable[[], bool]) -> None:
    """Make Keras's layers call these functions of the backend when `is_wanted()` is true.

    Args:
        moments: takes the arguments of `backend.nn.moments`. If it raises NotImplementedError, Keras uses its own.
        normalize: takes the arguments of `backend.nn.batch_normalization`, likewise.
        is_wanted: evaluated at each call.
    """
    for name, function in (("moments", moments), ("batch_normalization", normalize)):
        wrap(keras_backend().nn, name, functools.partial(_choosing, function, is_wanted))


def normalise_no_rows() -> None:
    """Give batch normalization the mean and variance 0 of a batch without rows, as TensorFlow does on a replica."""
    import keras

    wrap(keras.layers.BatchNormalization, "_moments", _of_no_rows)


def _of_no_rows(original: Callable) -> Callable:
    def moments(self: Any, inputs: Any, mask: Any) -> Any:
        if inputs.shape[0] != 0:
            return original(self, inputs, mask)
        zeros = keras_backend().numpy.zeros(inputs.shape[self.axis], inputs.dtype)
        return zeros, zeros

    return moments


def _recording_zero_output(original: Callable) -> Callable:
    def inner_loop(layer: Any, *args: Any, **kwargs: Any) -> Any:
        with value_within(_ZEROES_OUTPUT, bool(layer.zero_output_for_mask)):
            return original(layer, *args, **kwargs)

    return inner_loop


def _choosing(function: Callable, is_wanted: Callable[[], bool], original: Callable) -> Callable:
    """Return a function that calls `function` if it is wanted and does not refuse, and otherwise Keras's own."""

    def choose(*args: Any, **kwargs: Any) -> Any:
        if is_wanted():
            with contextlib.suppress(NotImplementedError):
                return function(*args, **kwargs)
        return original(*args, **kwargs)

    return choose


def is_keras(frame: Any) -> bool:
    """Return whether a frame of the call stack runs Keras's own code."""
    return frame.f_globals.get("__name__", "").startswith("keras.src.")


def uninitialized() -> list[Any]:
    """Return the variables that layers made in a stateless scope and that have no value yet."""
    from keras.src.backend.common import global_state

    return global_state.get_global_attribute("uninitialized_variables") or []


def uninitialized_count() -> int:
    """Return the number of `uninitialized` variables."""
    return len(uninitialized())


def forget_uninitialized(variable: Any) -> None:
    """Cancel the initialisation of a variable that was made while Keras traced."""
    pending = uninitialized()
    pending[:] = [other for other in pending if other is not variable]


def forget_all_uninitialized() -> None:
    """Cancel all pending initialisations: an initializer that raises would raise again at the next trace."""
    uninitialized().clear()


def scope_of_names() -> str:
    """Return the names of the scopes around, each with a slash behind it."""
    from keras.src.backend.common.name_scope import current_path

    path = current_path()
    return f"{path}/" if path else ""
