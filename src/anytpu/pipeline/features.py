"""Specifications of an example's features: dtype and number of values.

Idea: an example holds lists of bytes, float32 or int64, without shapes. A specification converts a list to an array of
its dtype and shape, or raises an error that says why it cannot.

Rule: nothing is truncated, broadcast or converted silently. A list of another kind, of another length, or with a value
out of the dtype's range is an error.
"""

from __future__ import annotations

import abc
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from anytpu._calls import explain_methods
from anytpu.errors import RecordError, SettingError

_STRING_TYPES = (bytes, str, "bytes", "string", "str")
_SMALL_COUNT = 100
KIND_NAMES = {"bytes_list": "bytes", "float_list": "floats", "int64_list": "integers"}


class FeatureSpec(abc.ABC):
    """The specification of a feature.

    Attributes:
        dtype: type of the values: `bytes`, or a NumPy type of integers, booleans or floats.
    """

    dtype: Any

    @property
    def kind(self) -> str:
        """The field of an example that holds such values: "bytes_list", "float_list" or "int64_list"."""
        return _kind(self.dtype)

    @abc.abstractmethod
    def missing(self, name: str) -> Any:
        """Return the value of a feature that is missing in an example.

        Raises:
            RecordError: the feature is required.
        """

    def column(self, name: str, rows: Sequence[Any]) -> np.ndarray:
        """Stack the feature's rows, the results of `missing` and `value` for each example, into one array.

        Raises:
            RecordError: the rows have different lengths.
        """
        if self.dtype is bytes and isinstance(rows[0], bytes):
            return _array(name, rows, bytes)
        if len(lengths := {len(row) for row in rows if row.ndim}) > 1:
            shown = " and ".join(map(str, sorted(lengths)[:2]))
            raise RecordError(f"feature {name!r} has {shown} values in one batch; VarLenFeature(length=...) pads them")
        return np.stack(rows)

    @property
    @abc.abstractmethod
    def row_shape(self) -> tuple[int, ...]:
        """Shape of the feature in an example without values of its own; () for a scalar."""

    def steps(self, steps: Sequence[Any]) -> Any:
        """Stack the feature's values of the steps of a sequence; a list of the steps if their lengths differ."""
        if len({np.shape(step) for step in steps}) > 1:
            return list(steps)
        shape = np.shape(steps[0]) if steps else self.row_shape
        stacked = np.empty((len(steps), *shape), _array_dtype(self.dtype))
        for index, step in enumerate(steps):
            stacked[index] = step
        return stacked

    @abc.abstractmethod
    def value(self, name: str, values: Any) -> Any:
        """Convert the list of values of a feature to its specified form.

        Raises:
            RecordError: the values do not match the specification.
        """


@explain_methods
@dataclasses.dataclass(frozen=True)
class FixedLenFeature(FeatureSpec):
    """A feature of fixed shape.

    Attributes:
        shape: shape of the array; `()` for a scalar. Values fill it in C order.
        dtype: `bytes`, or a NumPy type of integers, booleans or floats.
        default_value: value of a missing feature: a scalar for all elements, or an array of the shape. None: a missing
            feature is an error.

    Example:
        >>> FixedLenFeature((2, 2), "float32").value("box", [0.0, 1.0, 2.0, 3.0]).tolist()
        [[0.0, 1.0], [2.0, 3.0]]
    """

    shape: tuple[int, ...]
    dtype: Any
    default_value: Any = None

    def __post_init__(self) -> None:
        shape = (self.shape,) if isinstance(self.shape, int) else tuple(self.shape)
        if not all(isinstance(size, int) and size >= 0 for size in shape):
            raise SettingError(f"shape must be integers of at least 0, such as () or (28, 28), not {self.shape!r}")
        object.__setattr__(self, "shape", shape)
        object.__setattr__(self, "dtype", _checked_dtype(self.dtype))
        if self.dtype is bytes and isinstance(self.default_value, str):
            object.__setattr__(self, "default_value", self.default_value.encode())
        if self.default_value is not None:
            self._check_default()

    def _check_default(self) -> None:
        try:
            self.missing("")
        except (ValueError, TypeError, OverflowError) as error:
            kind = self.dtype.__name__ if self.dtype is bytes else self.dtype
            raise SettingError(
                f"default_value must be {kind}, a scalar or of shape {self.shape}, not {self.default_value!r}"
            ) from error

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape."""
        return self.shape

    def missing(self, name: str) -> Any:
        """Return the default."""
        if self.default_value is None:
            raise RecordError(f"feature {name!r} is missing; if that is allowed, give it a default_value")
        if self.dtype is bytes and not self.shape:
            if not isinstance(self.default_value, bytes):
                raise TypeError
            return self.default_value
        return np.broadcast_to(np.asarray(self.default_value, _array_dtype(self.dtype)), self.shape).copy()

    def value(self, name: str, values: Any) -> Any:
        """Return a scalar, or an array of the shape."""
        count = math.prod(self.shape)
        if len(values) != count:
            raise RecordError(
                f"feature {name!r} must have {_values(count)} for its shape {self.shape}, not {len(values)}"
            )
        if self.dtype is bytes and not self.shape:
            return values[0]
        return _array(name, values, self.dtype).reshape(self.shape)


@explain_methods
@dataclasses.dataclass(frozen=True)
class VarLenFeature(FeatureSpec):
    """A feature of any number of values, padded to a fixed length if one is set. A missing feature has 0 values.

    Attributes:
        dtype: `bytes`, or a NumPy type of integers, booleans or floats.
        length: number of values in the array; a record with more is an error. None: the record's own number, so that
            records of different lengths cannot be in one batch.
        padding: value of the elements after the last value; None: 0, or b"".

    Example:
        >>> VarLenFeature("int64", length=4).value("words", [5, 6]).tolist()
        [5, 6, 0, 0]
    """

    dtype: Any
    length: int | None = None
    padding: Any = None

    def __post_init__(self) -> None:
        if self.length is not None and (not isinstance(self.length, int) or self.length < 0):
            raise SettingError(f"length must be an integer of at least 0, or None, not {self.length!r}")
        object.__setattr__(self, "dtype", _checked_dtype(self.dtype))

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The length; 0 if it is not fixed."""
        return (self.length or 0,)

    def missing(self, name: str) -> np.ndarray:
        """Return an array of padding only."""
        return self.value(name, ())

    def value(self, name: str, values: Any) -> np.ndarray:
        """Return the values, padded."""
        array = _array(name, values, self.dtype)
        if self.length is None:
            return array
        if len(array) > self.length:
            raise RecordError(f"feature {name!r} must have at most {_values(self.length)}, not {len(array)}")
        empty = b"" if self.dtype is bytes else 0
        padded = np.full(self.length, empty if self.padding is None else self.padding, array.dtype)
        padded[: len(array)] = array
        return padded


def _array(name: str, values: Any, dtype: Any) -> np.ndarray:
    if dtype is bytes:
        array = np.empty(len(values), object)
        array[:] = list(values)
        return array
    if len(values) < _SMALL_COUNT:
        values = values[:]  # slicing gives a list, which NumPy converts faster for few values
    try:
        array = np.array(values, np.int64 if dtype.kind == "b" else dtype)
    except OverflowError:
        array = None
    if array is None or (dtype.kind == "b" and (array >> 1).any()):
        allowed = {0, 1} if dtype.kind == "b" else range(np.iinfo(dtype).min, np.iinfo(dtype).max + 1)
        wrong = next(value for value in values if value not in allowed)
        raise RecordError(f"feature {name!r} has the value {wrong}, which {dtype} cannot hold")
    return array.astype(dtype, copy=False)


def _checked_dtype(dtype: Any) -> Any:
    if dtype in _STRING_TYPES:
        return bytes
    try:
        checked = np.dtype(dtype)
    except TypeError:
        checked = np.dtype(object)
    if checked.kind == "S":
        return bytes
    if checked.kind not in "iubf":
        raise SettingError(f'dtype must be bytes, or a numeric type such as "int64" or "float32", not {dtype!r}')
    return checked


def _array_dtype(dtype: Any) -> Any:
    return object if dtype is bytes else dtype


def _kind(dtype: Any) -> str:
    if dtype is bytes:
        return "bytes_list"
    return "float_list" if dtype.kind == "f" else "int64_list"


def _values(count: int) -> str:
    return "1 value" if count == 1 else f"{count} values"
