"""Error of predictions that are extrapolated from two depths, beside the compilation of all blocks.

    python benchmarks/depth_accuracy.py [--only NAME] [--output FILE]

Ten models of equal blocks: decoders, encoders, convolutions and dense layers, in training and inference, on one device
and on eight. For each it prints the time and the memory of both.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("KERAS_BACKEND", "jax")

import keras

import anytpu as tpu
from anytpu.planning.forecasts.compiled import predict_scheduled
from anytpu.planning.forecasts.extrapolation import extrapolate_job
from anytpu.planning.forecasts.forecast import predict
from anytpu.planning.jobs.job import PlanJob, jobs_of
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records.target import target_named
from machine import cpu_name

layers = keras.layers
SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def transformer(blocks: int, width: int, length: int, causal: bool = True, vocabulary: int = 8192) -> Any:
    ids = keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(ids)
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(width // 64, 64)(y, y, use_causal_mask=causal)])
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.Dense(width)(layers.Dense(4 * width, "gelu")(y))])
    model = keras.Model(ids, layers.Dense(vocabulary)(x))
    model.compile(keras.optimizers.Adam(), SPARSE)
    return model


def dense(blocks: int, width: int) -> Any:
    model = keras.Sequential([keras.Input((width,)), *(layers.Dense(width, "relu") for _ in range(blocks))])
    model.compile(keras.optimizers.SGD(momentum=0.9), "mse")
    return model


def residual(blocks: int, channels: int, side: int) -> Any:
    image = keras.Input((side, side, 3))
    x = layers.Conv2D(channels, 3, padding="same")(image)
    for _ in range(blocks):
        y = layers.Conv2D(channels, 3, padding="same", use_bias=False)(x)
        y = layers.Activation("relu")(layers.BatchNormalization()(y))
        x = layers.Add()([x, layers.Conv2D(channels, 3, padding="same")(y)])
    model = keras.Model(image, layers.Dense(10)(layers.GlobalAveragePooling2D()(x)))
    model.compile("adam", SPARSE)
    return model


CASES: dict[str, tuple[Callable[[], Any], int, str, str, str | None, str | None]] = {
    "decoder 12 x 512": (lambda: transformer(12, 512, 512), 16, "v5e-1", "train", "bfloat16", None),
    "decoder 16 x 1024": (lambda: transformer(16, 1024, 512), 8, "v5e-1", "train", "bfloat16", None),
    "decoder 16 x 1024, fsdp": (lambda: transformer(16, 1024, 512), 64, "v5e-8", "train", "bfloat16", "fsdp"),
    "decoder 12 x 2048": (lambda: transformer(12, 2048, 1024), 4, "v6e-1", "train", "bfloat16", None),
    "decoder 24 x 512, float32": (lambda: transformer(24, 512, 256), 16, "v4-8", "train", None, None),
    "encoder 12 x 768": (lambda: transformer(12, 768, 128, causal=False), 64, "v2-8", "train", None, None),
    "encoder 18 x 1024, inference": (lambda: transformer(18, 1024, 256, False), 32, "v5e-1", "infer", "bfloat16", None),
    "dense 24 x 4096": (lambda: dense(24, 4096), 1024, "v5e-1", "train", "bfloat16", None),
    "dense 24 x 4096, fsdp": (lambda: dense(24, 4096), 8192, "v5e-8", "train", "bfloat16", "fsdp"),
    "residual 18 x 128": (lambda: residual(18, 128, 32), 256, "v3-8", "train", "bfloat16", None),
}


def compare(name: str) -> dict[str, Any]:
    make, batch, tpu_name, mode, precision, layout = CASES[name]
    with tpu.shapes_only():
        model = make()
    target = target_named(tpu_name)
    job = jobs_of(PlanJob(model, None, mode, precision), layout)(target.devices)
    settings = PlanSettings(timeout_s=1200.0)
    whole = predict(job, batch, target, settings)
    program = job.program(batch)
    scheduled = predict_scheduled(program, target, settings, "")
    extrapolated = extrapolate_job(job, batch, program, target, settings, "", scheduled)
    assert whole.memory is not None and extrapolated is not None and extrapolated.memory is not None
    assert whole.step_s is not None and extrapolated.step_s is not None
    return {
        "blocks": job.repeats.count,
        "step_ms": 1e3 * whole.step_s,
        "extrapolated_step_ms": 1e3 * extrapolated.step_s,
        "time_error_percent": 100 * (extrapolated.step_s / whole.step_s - 1),
        "memory_mib": whole.memory.peak_bytes / 2**20,
        "extrapolated_memory_mib": extrapolated.memory.peak_bytes / 2**20,
        "memory_error_percent": 100 * (extrapolated.memory.peak_bytes / whole.memory.peak_bytes - 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path)
    typed = parser.parse_args()
    rows = {}
    for name in CASES:
        if typed.only in name:
            rows[name] = compare(name)
            print(name, {key: round(value, 3) for key, value in rows[name].items()}, flush=True)
    summary = {
        f"{kind} of {part} error, percent": pick(abs(row[f"{part}_error_percent"]) for row in rows.values())
        for part in ("time", "memory")
        for kind, pick in (("median", statistics.median), ("maximum", max))
    }
    print(summary)
    if typed.output:
        typed.output.write_text(json.dumps({"machine": cpu_name(), "cases": rows, **summary}, indent=1) + "\n")


if __name__ == "__main__":
    main()
