"""What fit, evaluate, predict and compile refuse before they start, and why.

Rule: a message names the argument and its value, and says what to pass instead. Keras's own checks come after these.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import jax
import keras
import numpy as np

from anytpu import _keras
from anytpu.errors import DataError, SettingError

_BATCH_METHODS = {
    "train": ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end"),
    "test": ("on_test_batch_begin", "on_test_batch_end"),
    "predict": ("on_predict_batch_begin", "on_predict_batch_end"),
}


def check_batch_size(batch_size: Any) -> None:
    """Refuse a batch size that is not a positive integer; None is Keras's default of 32."""
    if batch_size is None or (_is_integer(batch_size) and batch_size > 0):
        return
    raise SettingError(f"batch_size must be a positive integer, or None for 32, not {batch_size!r}")


def check_steps_per_execution(steps: Any) -> None:
    """Refuse a number of steps that is not a positive integer or "auto"."""
    if steps == "auto" or (_is_integer(steps) and steps > 0):
        return
    raise SettingError(
        f'steps_per_execution must be a positive integer, or "auto" to choose by the clock (the default), not {steps!r}'
    )


def check_on_nan(on_nan: Any) -> None:
    """Refuse what `fit(on_nan=...)` does not know."""
    if on_nan not in (None, "raise"):
        raise SettingError(f'on_nan must be "raise", or None to train on as Keras does, not {on_nan!r}')


def check_columns(x: Any, y: Any, sample_weight: Any) -> None:
    """Refuse arrays that cannot be trained on: strings, objects, none at all, or of different lengths.

    float64 arrays where Keras computes in less are cast on the host; one warning names them.
    """
    columns = [pair for name, tree in (("x", x), ("y", y), ("sample_weight", sample_weight)) for pair in _columns(name, tree)]
    for name, array in columns:
        _check_dtype(name, array)
    _check_lengths([(name, len(array)) for name, array in columns if array.ndim])
    wide = [name for name, array in columns if array.dtype == np.float64]
    if wide and keras.config.floatx() != "float64":
        warnings.warn(
            f"{', '.join(wide)}: float64 is cast to {keras.config.floatx()} on the host. To save that, pass "
            f'{wide[0]}.astype("{keras.config.floatx()}")',
            stacklevel=6,
        )


def check_strict(strategy: Any, rows: int | None) -> None:
    """Refuse, for a strict strategy, a batch that its cores do not divide."""
    cores = strategy.num_replicas_in_sync
    if not strategy.strict or rows is None or rows % cores == 0:
        return
    lower, upper = rows // cores * cores, (rows // cores + 1) * cores
    nearest = f"{lower} or {upper}" if lower else str(upper)
    raise DataError(
        f"a batch of {rows} rows is not divisible by the number of TPU cores in use ({rows} vs {cores}): pass a batch_size of "
        f"{nearest} and a number of examples that it divides, or a strategy without strict=True, which computes any size "
        "exactly"
    )


def wants_every_step(callbacks: Any, mode: str) -> bool:
    """Say whether a callback has to be called after each step: it overrides a batch method and is not known harmless."""
    return any(_wants_every_step(one, mode) for one in keras.tree.flatten(callbacks) if callbacks is not None)


def _wants_every_step(callback: Any, mode: str) -> bool:
    if getattr(callback, "async_safe", False) or isinstance(callback, keras.callbacks.ProgbarLogger):
        return False
    saves = (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)
    if type(callback) in saves and callback.save_freq == "epoch":
        return False
    return any(_keras.is_overridden(getattr(callback, name)) for name in _BATCH_METHODS[mode])


def _columns(name: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, array) for each array in x, y or sample_weight; data sets and generators have none."""
    if isinstance(tree, dict):
        for key, part in tree.items():
            yield from _columns(f"{name}[{key!r}]", part)
    elif isinstance(tree, list | tuple):
        for index, part in enumerate(tree):
            yield from _columns(f"{name}[{index}]", part)
    elif isinstance(tree, np.ndarray | jax.Array):
        yield name, tree


def _check_dtype(name: str, array: Any) -> None:
    if array.dtype.kind not in "USOMm":
        return
    raise DataError(
        f"{name} holds {array.dtype}, which no TPU computes with. Turn its values into numbers first, for example strings with "
        "keras.layers.StringLookup or np.unique(..., return_inverse=True), and objects with np.stack"
    )


def _check_lengths(lengths: list[tuple[str, int]]) -> None:
    if not lengths:
        return
    listed = ", ".join(f"{name} has {length}" for name, length in lengths)
    if len({length for _, length in lengths}) > 1:
        raise DataError(f"all arrays must have the same number of examples, but {listed}. Cut or fill them to one length")
    if lengths[0][1] == 0:
        raise DataError(f"there is nothing to compute on: {listed} examples. Pass at least one")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)
