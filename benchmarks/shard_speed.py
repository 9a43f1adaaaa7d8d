"""How long a search of layouts takes: a transformer of 202 million weights on v5e-8, eight candidates compiled.

    python benchmarks/shard_speed.py [FOLDER]    writes benchmarks/results/shard_speed.json

FOLDER is the cache of the compiler's answers. A run with an empty one is the first search, and one more with the same
is a search from the cache. Runs are appended.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

import anytpu as tpu  # isort: skip
import keras

from machine import cpu_name

RESULTS = Path(__file__).parent / "results" / "shard_speed.json"


def transformer(blocks: int = 12, width: int = 1024, words: int = 24576, length: int = 512) -> keras.Model:
    """Return a decoder of words."""
    layers = keras.layers
    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(words, width)(inputs)
    for _ in range(blocks):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(16, width // 16)(y, y, use_causal_mask=True)])
        y = layers.Dense(4 * width, "gelu")(layers.LayerNormalization()(x))
        x = layers.Add()([x, layers.Dense(width)(y)])
    model = keras.Model(inputs, layers.Dense(words)(layers.LayerNormalization()(x)))
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def main() -> None:
    """Search, print the time of each line, and append the record."""
    os.environ["ANYTPU_CACHE_DIR"] = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    keras.config.set_dtype_policy("mixed_bfloat16")
    model, started, lines = transformer(), time.monotonic(), list[str]()

    def say(line: str) -> None:
        lines.append(f"{time.monotonic() - started:.1f} s: {line}")
        print(lines[-1], flush=True)
        record = {"machine": f"{cpu_name()}, {os.cpu_count()} cores, shared", "weights": model.count_params()}
        runs = [*before, record | {"lines": lines}]
        RESULTS.write_text(json.dumps({"runs": runs}, indent=1) + "\n")

    before = json.loads(RESULTS.read_text())["runs"] if RESULTS.exists() else []
    tpu.find_layouts(model, tpu="v5e-8", batch_size=64, progress=say)


if __name__ == "__main__":
    main()
