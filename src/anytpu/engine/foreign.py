"""The kernels of the distribution `anytpu-kernels`, where it is installed.

Idea: XLA's CPU compiler computes everything, some of it slowly. oneDNN computes some of that fast, and is called from
XLA's code as a foreign function. It is a distribution of its own, because it is compiled C++.

Rule: without it, with one that this machine cannot load, or with ANYTPU_KERNELS=xla, everything is XLA's, and the
numbers agree within float32's rounding.
"""

from __future__ import annotations

import functools
from types import ModuleType

from anytpu import _env

NEEDED = {
    *["convolution", "lstm_backward", "lstm_forward", "lstm_weights", "onednn_version", "takes_convolution"],
    "use_huge_pages",
}
"""The names that are used of the module."""


@functools.cache
def foreign_kernels() -> ModuleType | None:
    """Return the module `anytpu_kernels`; None where XLA computes everything."""
    return None if why_not() else _module()


@functools.cache
def why_not() -> str | None:
    """Return why XLA computes everything, or None where it does not.

    Raises:
        SettingError: ANYTPU_KERNELS has another value than onednn and xla.
    """
    if _env.kernels() == "xla":
        return "ANYTPU_KERNELS=xla"
    try:
        missing = sorted(NEEDED - set(dir(_module())))
        if missing:
            return f"the installed anytpu_kernels has no {missing[0]}: scripts/venv builds it again"
        _module().onednn_version()
    except ModuleNotFoundError as error:
        return f"{error.name} is not installed"
    except (ImportError, OSError, AttributeError) as error:
        return f"anytpu_kernels cannot be loaded: {error}"
    return None


def _module() -> ModuleType:
    import anytpu_kernels  # pyright: ignore[reportMissingImports]

    return anytpu_kernels
