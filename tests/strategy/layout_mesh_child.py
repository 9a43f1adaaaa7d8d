"""Fits a model on a mesh of 8 host devices, in a layout with rematerialisation and in one that "auto" chooses.

Prints a JSON: the largest difference of the weights from those of one device, and the partition of a kernel.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

import jax
import keras
import numpy as np

import anytpu as tpu
from anytpu import program as programs
from anytpu.planning.shardings.candidates import candidates
from anytpu.sharding import ModelLayout, resolve, trace_step
from anytpu.system.cores import Address

ROWS = 70  # The last batch of 32 is partial.


def network() -> Any:
    """Return a model with two blocks, whose names its layouts have."""
    keras.utils.set_random_seed(1)
    layers = keras.layers
    x = inputs = keras.Input((16,))
    for name in ("first", "second"):
        x = layers.Add()([x, layers.Dense(16)(layers.Dense(2048, "tanh", name=name)(x))])
    model = keras.Model(inputs, x, name="net")
    model.compile(keras.optimizers.SGD(0.1, name="sgd"), "mse")
    return model


def on_devices(layout: ModelLayout) -> Any:
    """Return a strategy over the host devices."""
    strategy = tpu.TPUStrategy(tpu.TPUClusterResolver.from_address(Address("local", 8)), layout="data")
    strategy.layout = layout
    return strategy


def fitted(strategy: Any = None) -> Any:
    """Return the model after two epochs."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(ROWS, 16)).astype("float32")
    with strategy.scope() if strategy else contextlib.nullcontext():
        model = network()
    model.fit(x, x[:, ::-1], batch_size=32, epochs=2, shuffle=False, verbose=0)
    return model


def compared(model: Any) -> dict[str, Any]:
    """Return the worst difference of the weights, and the partition of the kernels."""
    pairs = zip(model.get_weights(), alone.get_weights(), strict=True)
    worst = max(float(np.abs(ours - theirs).max()) for ours, theirs in pairs)
    return {"worst": worst, "partition": list(model.get_layer("first").kernel.value.sharding.spec)}


def chosen(program: Any) -> ModelLayout:
    """Return a layout that splits weights: these host devices are no slice, for which the search would choose."""
    return next(layout for layout in candidates(trace_step(program), 8) if layout.name == "tensor=4")


alone = fitted()
split = dataclasses.replace(chosen(programs.of(network(), batch_size=32)), remat="by block")
remat = on_devices(split)
placed = remat.place(programs.of(network(), batch_size=32))
barriers = str(jax.make_jaxpr(placed.step)(placed.state, placed.batch)).count("optimization_barrier")
auto = on_devices(dataclasses.replace(resolve("data", None, 8), name="auto", is_open=True))
auto.choose = chosen
print(json.dumps({"remat": compared(fitted(remat)), "barriers": barriers, "auto": compared(fitted(auto))}))
