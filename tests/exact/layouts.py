"""The layouts of the exact grid: a mesh of 8 cores, and how it splits the weights.

Rule: each is made anew for each case, from what a user writes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
from jax.sharding import PartitionSpec

MESH = {"data": 2, "model": 4}


def columns(name: str, shape: tuple[int, ...]) -> PartitionSpec:
    """Split the last axis of a weight over "model" if it divides it."""
    return PartitionSpec(*[None] * (len(shape) - 1), "model") if _splits(shape, -1, 4) else PartitionSpec()


def rows(name: str, shape: tuple[int, ...]) -> PartitionSpec:
    """Split the first axis of a weight over "model" if it divides it."""
    return PartitionSpec("model") if _splits(shape, 0, 4) else PartitionSpec()


def fsdp_columns(name: str, shape: tuple[int, ...]) -> PartitionSpec:
    """Split the first axis of a weight over "data", the last over "model", where they divide it."""
    if len(shape) < 2:
        return PartitionSpec()
    first, last = "data" if _splits(shape, 0, 2) else None, "model" if _splits(shape, -1, 4) else None
    return PartitionSpec(first, *[None] * (len(shape) - 2), last)


def rows_over_all(name: str, shape: tuple[int, ...]) -> PartitionSpec:
    """Split the first axis of a weight over the 8 cores of "model" if they divide it; each core has all examples."""
    return PartitionSpec("model") if _splits(shape, 0, 8) else PartitionSpec()


def _splits(shape: tuple[int, ...], axis: int, count: int) -> bool:
    return math.prod(shape) >= 64 and shape[axis] % count == 0


MAPS: dict[str, dict[str, tuple[str | None, ...]]] = {
    "wide-mlp": {"up/kernel": (None, "model"), "down/kernel": ("model", None)},
    "wide-cnn": {"up/kernel": (None, None, None, "model"), "down/kernel": (None, None, "model", None)},
    "lstm": {"lstm/.*kernel": (None, "model")},
    "transformer": {
        "vocabulary/embeddings": ("model", None),
        "attention./(query|key|value)/kernel": (None, "model", None),
        "attention./attention_output/kernel": ("model", None, None),
        "up./kernel": (None, "model"),
        "down./kernel": ("model", None),
    },
    "experts": {"experts/(inner|outer)": ("model", None, None)},
}
"""The partitions of a LayoutMap for each model: products in pairs, heads, the vocabulary, experts."""


def layout_map(model: str) -> keras.distribution.LayoutMap:
    """Return the LayoutMap for a model."""
    devices = [f"cpu:{index}" for index in range(8)]
    layouts = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((2, 4), ("data", "model"), devices))
    for pattern, axes in MAPS[model].items():
        layouts[f".*{pattern}"] = axes
    return layouts


LAYOUTS: dict[str, Callable[[str], tuple[Any, dict[str, int] | None]]] = {
    "data": lambda model: ("data", None),
    "fsdp": lambda model: ("fsdp", None),
    "fsdp-2d": lambda model: ("fsdp", {"data": 4, "model": 2}),
    "columns": lambda model: (columns, MESH),
    "rows": lambda model: (rows, MESH),
    "fsdp-columns": lambda model: (fsdp_columns, MESH),
    "map": lambda model: (layout_map(model), None),
    "model-only": lambda model: (rows_over_all, {"model": 8}),
}
"""Each layout by its name, as (layout, mesh) for a model."""
