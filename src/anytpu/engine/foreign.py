"""The kernels of the distribution `anytpu-kernels`, if it is installed.

Idea: XLA's CPU compiler computes everything, some of it slowly. These kernels compute some of that fast: oneDNN's, and
a few in C++. XLA's code calls them as foreign functions. They are a separate distribution, because they are compiled.

Rule: XLA computes everything in three cases: the distribution is not installed, this machine cannot load it, or
ANYTPU_KERNELS is "xla". The results agree within float32's rounding.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from types import ModuleType
from typing import Any

from anytpu import _env
from anytpu._contexts import value_within

REQUIRED_NAMES = {
    *["column_moments", "column_products", "convolution", "takes_convolution"],
    *["gru_backward", "gru_forward", "gru_weights", "lstm_backward", "lstm_forward", "lstm_weights"],
    *["onednn_version", "row_sums", "row_update", "use_huge_pages"],
}
"""The names of the module `anytpu_kernels` that anytpu uses."""


_IS_OFF = contextvars.ContextVar("anytpu_foreign_kernels_are_off", default=False)


def foreign_kernels() -> ModuleType | None:
    """Return the module `anytpu_kernels`, or None if XLA computes everything."""
    return None if _IS_OFF.get() or why_not() else _module()


def without_foreign_kernels() -> contextlib.AbstractContextManager[Any]:
    """Return a context in which XLA computes everything, for a lowering for a machine without these kernels."""
    return value_within(_IS_OFF, True)


@functools.cache
def why_not() -> str | None:
    """Return the reason why XLA computes everything, or None if the foreign kernels are used.

    Raises:
        SettingError: ANYTPU_KERNELS is neither "onednn" nor "xla".
    """
    if _env.kernels() == "xla":
        return "ANYTPU_KERNELS=xla"
    try:
        missing = sorted(REQUIRED_NAMES - set(dir(_module())))
        if missing:
            return f"the installed anytpu_kernels has no {missing[0]}: scripts/venv builds it again"
        _module().onednn_version()
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed"
    except Exception as error:  # It is optional, so whatever it raises must not end a training.
        return f"anytpu_kernels cannot be loaded: {error}"
    return None


def _module() -> ModuleType:
    import anytpu_kernels  # pyright: ignore[reportMissingImports]

    return anytpu_kernels
