"""What whole numbers cost in accuracy, and what they save in bytes.

    python benchmarks/chip_accuracy.py [--seeds 5] [--models mlp,cnn,lstm] [--inception 75] [--output FILE]

For each seed three small Keras models learn the real handwritten digits (another split of the images, other first
weights for each seed), and are quantized with 256 of the images that they learned from. Told is the share of the 359
other images that float32 and whole numbers get right: activations of 8 bits with ranges of three kinds, and of 16 bits.
What is computed is `reference.compute`, whose integers are those of the chip.

InceptionV3 (Keras's, random weights, eight random images of so many pixels a side; 0: not at all) is quantized for its
bytes: all variables in float32 beside int8 weights with their float32 scales and int32 biases.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import anytpu as tpu  # isort: skip
import keras

from anytpu.chip.graph.nodes import Network
from anytpu.chip.network import read
from anytpu.chip.quantized import quantize, reference, summarize
from anytpu.program import of
from machine import cpu_name

CALIBRATION = 256
WAYS: dict[str, dict[str, Any]] = {
    "8 bits, minmax": {"bits": 8, "method": "minmax"},
    "8 bits, percentile": {"bits": 8, "method": "percentile"},
    "8 bits, mse": {"bits": 8, "method": "mse"},
    "16 bits, minmax": {"bits": 16, "method": "minmax"},
}
layers = keras.layers


def mlp() -> keras.Model:
    hidden = [layers.Dense(64, "relu"), layers.Dense(64, "relu")]
    return keras.Sequential([keras.Input((8, 8, 1)), layers.Flatten(), *hidden, layers.Dense(10)])


def cnn() -> keras.Model:
    first = [layers.Conv2D(16, 3, padding="same", use_bias=False), layers.BatchNormalization(), layers.ReLU()]
    second = [layers.MaxPooling2D(), layers.Conv2D(32, 3, padding="same", activation="relu")]
    last = [layers.GlobalAveragePooling2D(), layers.Dense(10, "softmax")]
    return keras.Sequential([keras.Input((8, 8, 1)), *first, *second, *last])


def lstm() -> keras.Model:
    rows = layers.Reshape((8, 8))
    return keras.Sequential([keras.Input((8, 8, 1)), rows, layers.LSTM(32), layers.Dense(10)])


MODELS: dict[str, tuple[Callable[[], keras.Model], int]] = {"mlp": (mlp, 20), "cnn": (cnn, 25), "lstm": (lstm, 30)}
"""By name: how it is made, and how many epochs it learns."""


def learn(name: str, seed: int) -> tuple[keras.Model, np.ndarray, np.ndarray, np.ndarray]:
    """Return a trained model, images to calibrate with, images that it has not seen, and their labels."""
    (x, y), (x_test, y_test) = tpu.pipeline.digits(seed=seed)
    keras.utils.set_random_seed(seed)
    make, epochs = MODELS[name]
    model = make()
    logits = getattr(model.layers[-1], "activation", None) is not keras.activations.softmax
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=logits)
    model.compile(optimizer=keras.optimizers.Adam(3e-3), loss=loss)
    model.fit(x, y, batch_size=32, epochs=epochs, verbose=0)
    return model, x[:CALIBRATION], x_test, y_test


def share_right(network: Network, x: np.ndarray, y: np.ndarray) -> float:
    """Return the share of images whose first output has its maximum at the label, in percent."""
    parts = [slice(start, start + 256) for start in range(0, len(x), 256)]
    scores = [reference.outputs(network, reference.compute(network, [x[part]]))[0] for part in parts]
    return 100 * float((np.concatenate(scores).argmax(1) == y).mean())


def accuracy(name: str, seed: int) -> dict[str, float]:
    """Return the share of images that are right, in percent, in float32 and in each kind of whole numbers."""
    model, calibration, x, y = learn(name, seed)
    network = read(of(model, None, "infer", True, batch_size=8))
    found = {}
    for way, settings in WAYS.items():
        quantized = quantize(network, calibration, **settings)
        found["float32"], found[way] = (share_right(each, x, y) for each in (network, quantized))
    return found


def inception(side: int) -> dict[str, Any]:
    """Quantize InceptionV3, and return its bytes and how long it took."""
    keras.utils.set_random_seed(0)
    shape = (side, side, 3)
    model = keras.applications.InceptionV3(weights=None, input_shape=shape)
    begin = time.perf_counter()
    network = read(of(model, None, "infer", True, batch_size=8))
    read_s = time.perf_counter() - begin
    images = np.random.default_rng(0).uniform(-1, 1, (8, *shape)).astype(np.float32)
    begin = time.perf_counter()
    quantized = quantize(network, images)
    quantize_s = time.perf_counter() - begin
    begin = time.perf_counter()
    summary = summarize(network, quantized, images)
    summarize_s = time.perf_counter() - begin
    keras_bytes = sum(4 * int(np.prod(weight.shape)) for weight in model.weights)
    return {
        "side": side,
        "nodes": len(quantized.nodes),
        "keras_bytes": keras_bytes,
        "float_bytes": summary.float_bytes,
        "quantized_bytes": summary.quantized_bytes,
        "ratio": keras_bytes / summary.quantized_bytes,
        "ratio_of_folded": summary.float_bytes / summary.quantized_bytes,
        "worst_layer": summary.worst.layer,
        "worst_sqnr_db": summary.worst.sqnr_db,
        "read_s": read_s,
        "quantize_s": quantize_s,
        "summarize_s": summarize_s,
    }


def machine() -> str:
    return f"{cpu_name()}, {os.cpu_count()} cores, Python {platform.python_version()}, keras {keras.__version__}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--inception", type=int, default=75)
    parser.add_argument("--output", help="write the figures as JSON here")
    options = parser.parse_args()
    record: dict[str, Any] = {"machine": machine(), "calibration": CALIBRATION, "models": {}}
    for name in filter(None, options.models.split(",")):
        seeds = [accuracy(name, seed) for seed in range(options.seeds)]
        means = {way: float(np.mean([result[way] for result in seeds])) for way in ("float32", *WAYS)}
        record["models"][name] = {"seeds": seeds, "mean": means}
        for way, mean in means.items():
            print(f"{name:6} {way:20} {mean:6.2f} % {mean - means['float32']:+6.2f}", flush=True)
    if options.inception:
        record["inception"] = figures = inception(options.inception)
        sizes = f"{figures['keras_bytes'] / 2**20:.1f} MiB -> {figures['quantized_bytes'] / 2**20:.1f} MiB"
        folded = f"{figures['ratio_of_folded']:.3f} without BatchNorm's own"
        print(f"InceptionV3 {sizes}, {figures['ratio']:.3f} times smaller ({folded})")
        print(f"its worst layer is {figures['worst_layer']}, {figures['worst_sqnr_db']:.1f} dB")
        print(", ".join(f"{key} {figures[key]:.1f}" for key in ("read_s", "quantize_s", "summarize_s")))
    if options.output:
        Path(options.output).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
