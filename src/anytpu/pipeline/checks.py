"""Checks of a data set's arguments before anything is read.

Rule: a message names the argument and its value, and says how to correct it.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from anytpu._calls import check_arguments
from anytpu.errors import DataError, SettingError

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS_WITHOUT_EFFECT = (
    *("deterministic", "experimental_deterministic", "autotune", "threading", "experimental_threading"),
    *("experimental_optimization", "experimental_slack", "experimental_warm_start"),
)
"""Options for speed, and for the order, which is always the same here."""
_SHARD_POLICY = "experimental_distribute.auto_shard_policy"


def is_list(source: Any) -> bool:
    """Return whether a source has a length and can be indexed."""
    return all(callable(getattr(type(source), name, None)) for name in ("__len__", "__getitem__"))


def check_not_path(source: Any) -> None:
    """Reject a path: as a source it would be a sequence of characters."""
    if isinstance(source, str | bytes | os.PathLike):
        raise DataError(
            f"{source!r} is a path, not a source of elements. Pass a reader of the file: "
            f"Dataset.from_source(tpu.pipeline.records({source!r})), or tpu.pipeline.lines(...) for text"
        )


def check_iterable(source: Any) -> None:
    """Reject a source that cannot be iterated, or only once."""
    if isinstance(source, Iterator):
        raise DataError(
            f"{source!r} can be iterated only once, and a data set is iterated once per epoch: pass the object that it "
            "was made from, or Dataset.from_generator(function) with the function that makes it"
        )
    if not isinstance(source, Iterable):
        raise DataError(
            f"a source must have a length and an index, or be iterable, and {source!r} is neither: pass a list, "
            "tpu.pipeline.records(...), or an object with __len__ and __getitem__"
        )


def check_function(function: Any) -> None:
    """Reject a value that is not callable, above all a generator instead of its function."""
    if not callable(function):
        raise DataError(
            f"from_generator must get the function itself, which it calls for each pass, not {function!r}: "
            "Dataset.from_generator(batches), not Dataset.from_generator(batches())"
        )


def check_count(name: str, count: Any, minimum: int = 1) -> None:
    """Reject a value that is not an integer of at least `minimum`."""
    if not is_integer(count) or count < minimum:
        raise SettingError(f"{name} must be an integer of at least {minimum}, not {count!r}")


def check_seed(seed: Any, limit: int) -> None:
    """Reject a seed that is not an integer from 0 to `limit - 1`."""
    if not is_integer(seed) or not 0 <= seed < limit:
        raise SettingError(f"seed must be an integer from 0 to {limit - 1}, not {seed!r}")


def check_shard(index: Any, count: Any) -> None:
    """Reject the index of a shard that does not exist."""
    check_count("count", count)
    if not is_integer(index) or not 0 <= index < count:
        raise SettingError(f"index must be an integer from 0 to {count - 1}, for {count} shards, not {index!r}")


def check_prefetch(buffer: Any, threads: Any, workers: Any) -> None:
    """Reject an invalid size of the buffer, number of threads or number of workers."""
    check_count("workers", workers, minimum=0)
    if buffer is not None:
        check_count("buffer", buffer, minimum=0)
    if threads is not None:
        check_count("threads", threads)


def is_integer(value: Any) -> bool:
    """Return whether a value is an integer; booleans are not."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool | np.bool_)


def check_size(count: Any) -> None:
    """Reject a number of elements that is not an integer of at least -1; -1 stands for all elements."""
    if not is_integer(count) or count < -1:
        raise SettingError(f"count must be an integer of at least 0, or -1 for all elements, not {count!r}")


def check_integer(name: str, value: Any) -> None:
    """Reject a value that is not an integer."""
    if not is_integer(value):
        raise SettingError(f"{name} must be an integer, not {value!r}")


def check_dataset(name: str, value: Any, kind: type) -> None:
    """Reject an argument that is not a data set."""
    if not isinstance(value, kind):
        raise DataError(f"{name} takes data sets, not {value!r}: make one with Dataset.from_arrays or from_source")


def check_result(name: str, result: Any, kind: type, repair: str) -> None:
    """Reject the result of a function that had to return a data set."""
    if not isinstance(result, kind):
        raise DataError(f"the function of {name} must return a Dataset, not {result!r}: {repair}")


def check_options(options: Any) -> None:
    """Reject an option that would change the elements; those for speed and order have no effect.

    Args:
        options: a dict, or an object with the options as attributes, possibly nested.

    Raises:
        SettingError: an option is unknown, or its value cannot be followed.
    """
    for name, value in _options_of("", options):
        if name.split(".")[0] in _OPTIONS_WITHOUT_EFFECT:
            continue
        if name == _SHARD_POLICY and str(value).split(".")[-1] in ("OFF", "None"):
            continue
        if name == _SHARD_POLICY:
            raise SettingError(f"with_options cannot follow {name}={value!r}: call shard(index, count) on each host")
        known = ", ".join((*_OPTIONS_WITHOUT_EFFECT, _SHARD_POLICY))
        raise SettingError(f"with_options does not know the option {name}={value!r}; the known ones: {known}")


def _options_of(prefix: str, options: Any) -> Iterator[tuple[str, Any]]:
    named = options if isinstance(options, Mapping) else vars(options)
    for name, value in named.items():
        is_nested = isinstance(value, Mapping) or type(value).__name__ == "SimpleNamespace"
        yield from _options_of(f"{prefix}{name}.", value) if is_nested else ((f"{prefix}{name}", value),)


def takes_tensorflow_names(**names: str | None) -> Callable[[F], F]:
    """Return a decorator for methods that also take the names of tf.data's arguments.

    Args:
        **names: our name by that of tf.data; None: an argument that changes no element, and is left out.

    The methods refuse an unknown argument with the nearest name.
    """

    def decorate(method: F) -> F:
        signature = inspect.signature(method)

        @functools.wraps(method)
        def renamed(*args: Any, **kwargs: Any) -> Any:
            for name, value in tuple(kwargs.items()):
                if name in names:
                    del kwargs[name]
                    if (own_name := names[name]) is not None:
                        kwargs[own_name] = value
            check_arguments(method.__name__, signature, kwargs, also=names)
            return method(*args, **kwargs)

        return renamed  # pyright: ignore[reportReturnType]

    return decorate
