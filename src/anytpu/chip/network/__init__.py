"""The front end: a model as a graph of the few kinds of layers that the chip knows, in floating point.

`read` and `evaluate` load JAX, so they are imported on first use; the records do not.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from anytpu.chip.network.evaluation import evaluate
    from anytpu.chip.network.reading import read
    from anytpu.chip.network.refusals import check_network

__all__ = ["check_network", "evaluate", "read"]

_PLACES = {"check_network": "refusals", "evaluate": "evaluation", "read": "reading"}


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
