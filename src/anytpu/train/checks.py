"""Checks of the arguments of fit, evaluate, predict and compile, before they start.

Rule: a message names the argument and its value, and says what to pass instead. Keras's own checks run after these.
"""

from __future__ import annotations

import decimal
import numbers
import operator
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import keras
import numpy as np

from anytpu import _keras
from anytpu._calls import users_stacklevel
from anytpu.errors import DataError, IndivisibleError, NaNLossError, SettingError
from anytpu.train.host_callbacks import original_of

_BATCH_METHODS = {
    "train": ("on_train_batch_begin", "on_train_batch_end", "on_batch_begin", "on_batch_end"),
    "test": ("on_test_batch_begin", "on_test_batch_end"),
    "predict": ("on_predict_batch_begin", "on_predict_batch_end"),
}
_BATCH = ("x", "y", "sample_weight")


_STEPS = ("steps_per_epoch", "validation_steps", "steps")


def _is_number(value: Any, kinds: str = "biuf") -> bool:
    """Return whether a value is a number of Python, NumPy or JAX."""
    is_plain = isinstance(value, int | float | np.generic | np.ndarray | jax.Array)
    return is_plain and np.ndim(value) == 0 and np.asarray(value).dtype.kind in kinds


def _is_integer(value: Any, least: int = 0) -> bool:
    return _is_number(value, "iu") and bool(value >= least)


def _is_epoch(value: Any) -> bool:
    return isinstance(value, bool) or _is_integer(value)


def _is_count(value: Any) -> bool:
    return _is_integer(value, least=1)


def _is_part(value: Any) -> bool:
    return value is None or (_is_number(value) and bool(0 <= value < 1))


def _weighs_classes(value: Any) -> bool:
    if not isinstance(value, Mapping):
        return value is None
    numeric = numbers.Real | decimal.Decimal
    return all(_is_number(part) or isinstance(part, numeric) for pair in value.items() for part in pair)


_COUNTS = {"batch_size": "32", "validation_batch_size": "the batch_size", **dict.fromkeys(_STEPS, "all of the data")}
"""The arguments that are positive integers, and the meaning of None."""
_SETTINGS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "epochs": (_is_epoch, "an integer of at least 0"),
    "initial_epoch": (_is_epoch, "an integer of at least 0"),
    "verbose": (lambda value: not isinstance(value, str) or value == "auto", '0, 1, 2 or "auto"'),
    "shuffle": (lambda value: not isinstance(value, str) or value == "batch", 'True, False or "batch"'),
    "validation_split": (_is_part, "the part of the examples to validate on, 0 or more and below 1"),
    "validation_freq": (lambda value: isinstance(value, list) or _is_count(value), "a positive integer or a list"),
    "class_weight": (_weighs_classes, "a dictionary of weights by the index of the class, such as {0: 1.0, 1: 2.5}"),
}
"""The check of each argument that is neither data nor a count, and its expected value."""


def with_plain_integers(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments with integers of NumPy and JAX as Python's, and whole floats in numbers of steps.

    `rows / batch // cores` is such a float.
    """
    new = dict(arguments)
    for name in (*_COUNTS, "epochs", "initial_epoch", "validation_freq"):
        value: Any = new.get(name)
        if _is_integer(value) or (name in _STEPS and isinstance(value, float) and value.is_integer()):
            new[name] = int(value)
    return new


def check_call(arguments: dict[str, Any], is_batch: bool = False) -> None:
    """Reject invalid arguments of fit, evaluate, predict or of a method for one batch.

    If Keras computes in a narrower type, float64 arrays are cast on the host; one warning names them.

    Args:
        arguments: the arguments by name, as the user passed them.
        is_batch: whether they are of a method for one batch, which takes numbers as sample_weight.

    Raises:
        SettingError: an argument of `_COUNTS` or `_SETTINGS` has an invalid value.
        DataError: arrays hold strings or objects, are empty, are lists or paths, or have different lengths.
    """
    for name, meaning_of_none in _COUNTS.items():
        count = arguments.get(name)
        if count is not None and not _is_count(count):
            raise SettingError(f"{name} must be a positive integer, or None for {meaning_of_none}, not {count!r}")
    # Without examples to validate on, nothing reads validation_freq.
    is_unread = arguments.get("validation_data") is None and not arguments.get("validation_split")
    for name, (is_valid, expected) in _SETTINGS.items():
        if name == "validation_freq" and is_unread:
            continue
        if name in arguments and not is_valid(arguments[name]):
            raise SettingError(f"{name} must be {expected}, not {arguments[name]!r}")
    weights = keras.tree.flatten(arguments.get("sample_weight"))
    are_plain = is_batch and all(isinstance(weight, int | float) for weight in weights)
    columns = check_columns({name: arguments.get(name) for name in (_BATCH[:2] if are_plain else _BATCH)})
    if arguments.get("validation_data") is not None:
        columns += check_columns({"validation_data": arguments["validation_data"]})
    warn_of_wide([name for name, array in columns if array.dtype == np.float64])


def check_steps_per_execution(steps: Any) -> None:
    """Reject a number of steps that is not a positive integer or "auto"."""
    if steps == "auto" or _is_count(steps):
        return
    raise SettingError(
        f'steps_per_execution must be a positive integer, or "auto" to choose by the clock (the default), not {steps!r}'
    )


def check_on_nan(on_nan: Any) -> None:
    """Reject a value of `fit(on_nan=...)` other than None, "raise" and "skip"."""
    if on_nan not in (None, "raise", "skip"):
        raise SettingError(f'on_nan must be "raise", "skip", or None to train on as Keras does, not {on_nan!r}')


_NAN_ADVICE = "Lower the learning rate, clip the gradients (clipnorm=1.0), or look for NaN in the data"


def refuse_nan(step: int, epoch: int, hint: str = "") -> NoReturn:
    """Raise because a step of an epoch, both counted from 1, gave a value that is not finite."""
    raise NaNLossError(
        f"the loss or a new weight is not finite at step {step} of epoch {epoch}. The model stands as it was before "
        f"that step. {_NAN_ADVICE}{hint}"
    )


def refuse_skips(steps: int, epoch: int, hint: str = "") -> NoReturn:
    """Raise because so many steps in a row, up to one of an epoch, were skipped."""
    raise NaNLossError(
        f'on_nan="skip" skipped the last {steps} steps, in epoch {epoch}: the loss or a new weight was not finite in '
        f"each. The model stands as it was before them. {_NAN_ADVICE}{hint}"
    )


def check_columns(trees: dict[str, Any]) -> list[tuple[str, Any]]:
    """Reject arrays that no TPU computes with, and return the accepted arrays as (name, array).

    Args:
        trees: x, y and sample_weight, or validation_data, by name.
    """
    columns: list[tuple[str, Any]] = []
    for name, tree in trees.items():
        if isinstance(tree, np.ndarray):
            columns.append((name, tree))
        elif tree is not None:
            columns.extend(_columns(name, tree))
    for name, array in columns:
        _check_array(name, array)
    if columns:
        _check_lengths([(name, len(array)) for name, array in columns])
    return columns


def warn_of_nan(loss: list[float], arguments: dict[str, Any], on_nan: str | None) -> None:
    """Warn of NaN and infinity in the arrays of a fit whose loss ended so. Data sets and generators are not read."""
    if not loss or np.isfinite(loss[-1]):
        return
    advice = ', and make the model anew; fit(on_nan="raise") keeps its last finite weights'
    if on_nan == "skip":
        advice = ": the steps with them were skipped"
    for name, array in check_columns({name: arguments.get(name) for name in _BATCH}):
        # jnp: bfloat16 is a float.
        if jnp.issubdtype(np.asarray(array).dtype, np.floating) and not np.isfinite(array).all():
            row = np.flatnonzero(~np.isfinite(np.reshape(array, (len(array), -1))).all(axis=1))[0]
            warnings.warn(
                f"the loss is {loss[-1]}, and {name} has NaN or infinity, first in row {row}. Remove or fill such "
                f"rows{advice}",
                stacklevel=users_stacklevel(),
            )


def has_rows(batch: Any) -> bool:
    """Return whether the arrays of a batch have a row."""
    leaves = jax.tree.leaves(batch)
    return not leaves or np.shape(leaves[0])[:1] != (0,)


def warn_of_wide(names: list[str]) -> None:
    """Warn that the float64 columns with these names are cast, if Keras computes in a narrower type."""
    floatx = keras.config.floatx()
    if names and floatx != "float64":
        warnings.warn(
            f"{', '.join(names)}: float64 is cast to {floatx} on the host. To save that, pass {floatx} arrays: "
            f'{names[0]}.astype("{floatx}")',
            stacklevel=4,
        )


def check_strict(strategy: Any, rows: int | None) -> None:
    """Reject, for a strict strategy, a batch whose rows are not divisible by the number of cores."""
    cores = strategy.num_replicas_in_sync
    if not strategy.strict or rows is None or rows % cores == 0:
        return
    lower, upper = rows // cores * cores, (rows // cores + 1) * cores
    nearest = f"{lower} or {upper}" if lower else str(upper)
    raise IndivisibleError(
        f"a batch of {rows} rows is not divisible by the number of TPU cores in use ({rows} vs {cores}): pass a "
        f"batch_size of {nearest} and a number of examples that it divides, or a strategy without strict=True, which "
        "computes any size exactly"
    )


def check_callbacks(callbacks: Any, is_fit: bool) -> None:
    """Reject other objects than callbacks; in fit, those that save a training which cannot be continued as it was."""
    for callback in _flat(callbacks):
        if isinstance(callback, type) or not hasattr(callback, "set_model"):
            name = callback.__name__ if isinstance(callback, type) else "EarlyStopping"
            raise SettingError(
                f"callbacks must be objects such as keras.callbacks.{name}(), not {callback!r}: make one with its "
                "arguments, or derive its class from keras.callbacks.Callback"
            )
        if is_fit and isinstance(callback, keras.callbacks.OrbaxCheckpoint):
            # Keras 3.15.1 with Orbax 0.12.8, without anytpu too: it assigns by path, and skips paths that differ.
            raise SettingError(
                "the callback OrbaxCheckpoint writes checkpoints that Keras 3.15 does not load reliably: load_model, "
                "and load_weights if a layer is numbered otherwise, keep the initial weights without an error. "
                f"{_SAVES_INSTEAD}"
            )
        if is_fit and isinstance(callback, keras.callbacks.BackupAndRestore) and callback.save_freq != "epoch":
            raise SettingError(
                f"the callback BackupAndRestore(save_freq={callback.save_freq!r}) continues at the beginning of an "
                f"epoch with weights from its middle, and trains steps twice. {_SAVES_INSTEAD}"
            )


_SAVES_INSTEAD = 'Remove it, and write fit(..., checkpoint_dir="run7"), which continues bit for bit'


def wants_every_step(callbacks: Any, mode: str) -> bool:
    """Return whether a callback must be called after each step.

    It must if it overrides a batch method and does not declare itself harmless. `async_safe = True` is Keras's
    declaration for callbacks that may be called from other threads. `takes_many_steps = True` makes no such claim.
    """
    return any(_wants_every_step(callback, mode) for callback in _flat(callbacks))


def _flat(callbacks: Any) -> list[Any]:
    listed = callbacks.callbacks if isinstance(callbacks, keras.callbacks.CallbackList) else callbacks or ()
    return keras.tree.flatten(listed)


def _wants_every_step(callback: Any, mode: str) -> bool:
    # Every host runs as many steps in a call as host 0.
    callback = original_of(callback)
    if getattr(callback, "async_safe", False) or getattr(callback, "takes_many_steps", False):
        return False
    if isinstance(callback, keras.callbacks.ProgbarLogger):
        return False
    saves = (keras.callbacks.ModelCheckpoint, keras.callbacks.BackupAndRestore)
    if type(callback) in saves and callback.save_freq == "epoch":
        return False
    if type(callback) is keras.callbacks.TensorBoard:
        return _keras.writes_each_batch(callback)
    return any(_keras.is_overridden(getattr(callback, name)) for name in _BATCH_METHODS[mode])


def _columns(name: str, tree: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, array) for each array of an argument; a data set or generator yields nothing."""
    if isinstance(tree, dict):
        for key, part in tree.items():
            yield from _columns(f"{name}[{key!r}]", part)
    elif isinstance(tree, list | tuple):
        for index, part in enumerate(tree):
            yield from _columns(f"{name}[{index}]", part)
    elif _is_pandas(tree) and tree.ndim == 2:
        for key in tree.columns:
            yield f"{name}[{key!r}]", tree[key]
    elif isinstance(tree, np.ndarray | jax.Array) or _is_pandas(tree):
        yield name, tree
    elif isinstance(tree, str | bytes | os.PathLike | int | float):
        whole = name.partition("[")[0]
        raise DataError(f"{name} is {tree!r}, and not an array: pass the numbers of {whole} as np.array(...)")


def _is_pandas(tree: Any) -> bool:
    return type(tree).__module__.split(".")[0] == "pandas"


def _check_array(name: str, array: Any) -> None:
    if array.ndim == 0:
        raise DataError(f"{name} is a single number, {array!r}: pass an array whose first axis counts the examples")
    if array.dtype.kind in "USOMm":
        raise DataError(
            f"{name} holds {array.dtype}, which no TPU computes with. Turn its values into numbers first: strings, for "
            "example, with keras.layers.StringLookup or np.unique(..., return_inverse=True), and objects with np.stack"
        )


def _check_lengths(lengths: list[tuple[str, int]]) -> None:
    least, most = min(map(_LENGTH, lengths)), max(map(_LENGTH, lengths))
    if least == most > 0:
        return
    listed = ", ".join(f"{name} has {length}" for name, length in lengths)
    if least != most:
        raise DataError(
            f"all arrays must have the same number of examples, but {listed}. Cut or fill them to one length"
        )
    raise DataError(f"there is nothing to compute on: {listed} examples. Pass at least one")


_LENGTH = operator.itemgetter(1)
