"""`Handle`: an opaque reference to an array on a backend, which raises on any use except `get`.

Rule: only a backend opens a handle (`value_of`). A call invalidates the handles of its state (`consume`).
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, final

import numpy as np

from anytpu.errors import HandleError


@final
class Handle:
    """An opaque reference to an array on a backend's cores. Pass it on, or open it with `backend.get`.

    Args:
        value: the reference, for the backend; see `value_of`.
    """

    __slots__ = ("_reference",)

    def __init__(self, value: Any) -> None:
        object.__setattr__(self, "_reference", value)

    def __getattr__(self, name: str) -> NoReturn:
        raise HandleError(f"a handle has no {name!r}: pass it on as it is, or open it with backend.get(handle)")

    def _refuse(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise HandleError("a handle is not an array: pass it on as it is, or open it with backend.get(handle)")

    __array__ = __float__ = __int__ = __index__ = __complex__ = __bool__ = __format__ = _refuse
    __len__ = __iter__ = __contains__ = __getitem__ = __setitem__ = _refuse
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _refuse
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __pow__ = __rpow__ = __matmul__ = __rmatmul__ = _refuse
    __neg__ = __pos__ = __abs__ = __round__ = _refuse
    __eq__ = __ne__ = __lt__ = __gt__ = __le__ = __ge__ = __setattr__ = _refuse  # type: ignore[assignment]
    __hash__ = object.__hash__


def value_of(handle: Any) -> Any:
    """Return the reference of a valid handle.

    Raises:
        HandleError: it is not a handle, or a call has consumed it.
    """
    if not isinstance(handle, Handle):
        raise HandleError(f"expected a handle of this backend, not {type(handle).__name__}: use backend.put")
    value = object.__getattribute__(handle, "_reference")
    if value is None:
        raise HandleError(
            "this handle is invalid, because it was the state of a call, which consumed it: use the state that the "
            "call returned"
        )
    return value


def consume(handle: Handle) -> None:
    """Invalidate a handle."""
    object.__setattr__(handle, "_reference", None)


@final
class LaterArray:
    """A small array that may still be on its way; whoever reads it waits, and gets the error of its call.

    Args:
        read: waits for the value, and returns it.
    """

    __slots__ = ("_read",)

    def __init__(self, read: Callable[[], Any]) -> None:
        self._read = read

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(self._read(), dtype=dtype, copy=copy)

    def __float__(self) -> float:
        return float(np.asarray(self))


def later_arrays(count: int, read: Callable[[], Sequence[Any]]) -> list[LaterArray]:
    """Return arrays whose values `read` returns, all of them when the first is read, in whatever thread."""
    lock, values = threading.Lock(), []

    def value(index: int) -> Any:
        with lock:
            if not values:
                values.extend(read())
            return values[index]

    return [LaterArray(functools.partial(value, index)) for index in range(count)]
