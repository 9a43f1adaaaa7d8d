"""The front end: a model as a graph of the few kinds of layers that the chip knows, in floating point.

`read` loads JAX, so it is imported on first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anytpu.chip.network.reading import read
    from anytpu.chip.network.refusals import check_network

__all__ = ["check_network", "read"]

_PLACES = {"check_network": "refusals", "read": "reading"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
