"""How fast a model with a layout trains on virtual cores, beside the same model without one.

    python benchmarks/shard_virtual.py    writes benchmarks/results/shard_virtual.json

The models train on the same batches, in turn; each turn swaps the order. The result is the ratio of the median times
without a layout and with it: above 1, the sharded model is faster.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anytpu as tpu  # isort: skip
import keras
import numpy as np

from machine import cpu_name

RESULTS = Path(__file__).parent / "results" / "shard_virtual.json"
TURNS = 30
ROWS = 512
LAYOUTS = {
    "fsdp": ("fsdp", None),
    "tensor": ({"up/kernel": (None, "model"), "down/kernel": ("model", None)}, {"data": 4, "model": 2}),
}


def network() -> keras.Model:
    """Return a network of dense layers."""
    dense = keras.layers.Dense
    return keras.Sequential([keras.Input((256,)), dense(1024, "relu", name="up"), dense(256, name="down"), dense(10)])


def transformer() -> keras.Model:
    """Return one block of a transformer over 32 positions."""
    layers = keras.layers
    x = inputs = keras.Input((32, 8))
    x = layers.Dense(64)(x)
    x = layers.Add()([x, layers.MultiHeadAttention(4, 16)(x, x)])
    y = layers.Dense(256, "gelu", name="up")(layers.LayerNormalization()(x))
    x = layers.Add()([x, layers.Dense(64, name="down")(y)])
    return keras.Model(inputs, layers.Dense(10)(layers.GlobalAveragePooling1D()(x)))


def compiled(make: Callable[[], keras.Model], layout: Any, mesh: Any) -> keras.Model:
    """Return a model in the scope of 8 virtual cores with a layout."""
    keras.utils.set_random_seed(1)
    with tpu.connect("v2-8", layout=layout, mesh=mesh).scope():
        model = make()
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def measured(make: Callable[[], keras.Model]) -> list[dict[str, Any]]:
    """Return the median seconds of a fit with each layout and without one, and their ratios."""
    models = {"none": compiled(make, None, None)} | {name: compiled(make, *LAYOUTS[name]) for name in LAYOUTS}
    shape = models["none"].input_shape[1:]
    x, y = np.random.default_rng(0).normal(size=(ROWS, *shape)).astype("float32"), np.arange(ROWS) % 10
    times: dict[str, list[float]] = {name: [] for name in models}
    for turn in range(TURNS + 1):
        for name in list(models)[:: -1 if turn % 2 else 1]:
            started = time.perf_counter()
            models[name].fit(x, y, batch_size=64, epochs=6, shuffle=False, verbose=0)
            if turn:  # The first fit compiles.
                times[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    row = {"model": getattr(make, "__name__", ""), "turns": TURNS, "steps": 6 * ROWS // 64}
    return [
        row | {"layout": name, "s": round(medians[name], 4), "ratio": round(medians["none"] / medians[name], 3)}
        for name in models
    ]


def main() -> None:
    """Measure each model in each layout, print the rows, and write the record."""
    rows = []
    for make in (network, transformer):
        rows += measured(make)
        print(*rows[-1 - len(LAYOUTS) :], sep="\n", flush=True)
    record = {"machine": f"{cpu_name()}, {os.cpu_count()} cores", "rows": rows}
    RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
