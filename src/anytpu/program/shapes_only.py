"""`shapes_only`: models whose variables have shapes and no values, to plan what this machine cannot hold."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

from anytpu import _jax, _keras
from anytpu.errors import ProgramError


@contextlib.contextmanager
def shapes_only() -> Iterator[None]:
    """Make Keras models of shapes in a block: their variables take no memory and no time.

    `plan`, `max_batch_size`, `scaling` and `program.of` take the model, in the block or after it. Its layers, its
    optimizer and its LoRA adapters may be made and compiled in the block. Nothing can read a weight: the model cannot
    train, predict or be saved.

    Raises:
        ProgramError: a value of a variable is read, in the block or later.

    Example:
        >>> with shapes_only():
        ...     model = keras.Sequential([keras.Input((65536,)), keras.layers.Dense(65536)])
        ...     model.compile("adam", "mse")
        >>> model.count_params()
        4295032832
    """
    with _keras.without_values(_readable_in_traces):
        yield


_MISSING = "has a shape and no value"


def is_missing_value(error: BaseException | None) -> bool:
    """Return whether an error, or one that caused it, is that of a variable without a value."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        if _MISSING in str(error):
            return True
        seen.append(error)
        error = error.__cause__ or error.__context__
    return False


def _readable_in_traces(variable: Any, initializer: Callable) -> Callable:
    """Return an initializer that raises an error outside of traces, which compute no values."""

    def initialize(*args: Any, **kwargs: Any) -> Any:
        if _jax.is_tracing():
            return initializer(*args, **kwargs)
        raise ProgramError(
            f"the variable {variable.path!r} {_MISSING}: its model was made in tpu.shapes_only(), for "
            "tpu.plan. To train, predict, load or save weights, make the model outside of it"
        )

    return initialize
