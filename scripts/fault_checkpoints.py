"""Damage every file of the newest checkpoint of an estimator or a fit, and check which weights are used then.

    python scripts/fault_checkpoints.py [--flips 2000] [--cuts 40] [--record benchmarks/results/fault_checkpoints.json]
    python scripts/fault_checkpoints.py --of fit --flips 200 --record benchmarks/results/fault_fit_checkpoints.json

Each damage is made twice. With an older checkpoint, that one must be used, with a warning that names the damaged one.
Without one there must be an error, unless all files are gone. Any other outcome is exit status 1.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import logging
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")

import anytpu as tpu  # isort: skip
import keras
import numpy as np

from anytpu.errors import DamageError
from anytpu.train.checkpoint import Checkpoint, Checkpoints

BEFORE, NEWEST = 4, 8
NOTHING_LEFT = "nothing is left of it, and none before: a start from nothing"
FINE = {"used the step before", "refused, none before", NOTHING_LEFT}

Damage = Callable[[Path], object]


def main() -> int:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("--flips", type=int, default=2000, help="flipped bits in each file (2000)")
    arguments.add_argument("--cuts", type=int, default=40, help="lengths that each file is cut to (40)")
    arguments.add_argument("--of", choices=("estimator", "fit"), default="estimator", help="the run that made them")
    arguments.add_argument("--record", type=Path, help="a JSON file for the counts")
    chosen = arguments.parse_args()
    make = train_by_fit if chosen.of == "fit" else train
    with tempfile.TemporaryDirectory() as folder:
        found = {
            "with a checkpoint before": run(Path(folder), make, chosen.flips, chosen.cuts),
            "alone": run(Path(folder), make, chosen.flips, chosen.cuts, is_alone=True),
        }
    text = json.dumps({"flips": chosen.flips, "cuts": chosen.cuts, **found}, indent=1)
    print(text)
    if chosen.record:
        chosen.record.write_text(text + "\n")
    return 0 if all(set(counts) <= FINE for counts in found.values()) else 1


def run(folder: Path, make: Callable[[Path], None], flips: int, cuts: int, is_alone: bool = False) -> dict[str, int]:
    """Return the number of damages with each outcome.

    Args:
        folder: an empty folder, or one that this was called with.
        make: trains, with checkpoints at two steps in a folder.
        flips: flipped bits in each file.
        cuts: lengths that each file is cut to.
        is_alone: leave no other checkpoint beside the damaged one.
    """
    whole, tried = folder / "whole", folder / "tried"
    if not whole.exists():
        make(whole)
    before, newest = (Checkpoints(whole).load(step) for step in (BEFORE, NEWEST))
    counts: collections.Counter[str] = collections.Counter()
    for name, damage in damages(whole, flips, cuts):
        shutil.rmtree(tried, ignore_errors=True)
        shutil.copytree(whole, tried)
        damage(tried / str(NEWEST))
        if is_alone:
            shutil.rmtree(tried / str(BEFORE))
        with warnings_kept() as lines:
            found = outcome(tried, before, newest, lines)
        counts[found] += 1
        if found not in FINE:
            print(f"{name}: {found}", file=sys.stderr)
    return dict(counts)


def train(folder: Path) -> None:
    """Make checkpoints of a model with state of every kind: weights, statistics, slots, seeds."""

    def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
        x = keras.layers.Dense(16, activation="relu")(features)
        x = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(x, training=True), training=True)
        logits = keras.layers.Dense(3)(x)
        loss = keras.ops.mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
        train_op = tpu.CrossShardOptimizer(keras.optimizers.Adam(0.02)).minimize(loss)
        return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)

    def input_fn(params: dict[str, Any]) -> Any:
        x = np.random.default_rng(0).standard_normal((64, 6)).astype("float32")
        return x, np.argmax(x[:, :3], axis=1).astype("int32")

    config = tpu.RunConfig(
        cluster=tpu.TPUClusterResolver("virtual", cores=2),
        save_checkpoints_steps=BEFORE,
        keep_checkpoint_max=2,
        tpu_config=tpu.TPUConfig(iterations_per_loop=BEFORE),
    )
    tpu.TPUEstimator(model_fn, str(folder), config, train_batch_size=16).train(input_fn, max_steps=NEWEST)


def train_by_fit(folder: Path) -> None:
    """Make checkpoints within an epoch and at its end, with callbacks and their state."""
    with tpu.connect("virtual", cores=2).scope():
        layers = [keras.layers.Dense(16, "relu"), keras.layers.BatchNormalization(), keras.layers.Dropout(0.2)]
        model = keras.Sequential([*layers, keras.layers.Dense(3)])
        model.compile("adam", "mse", steps_per_execution=1)
    x = np.random.default_rng(0).standard_normal((64, 6)).astype("float32")
    stops = keras.callbacks.EarlyStopping("loss", restore_best_weights=True)
    saved = tpu.Checkpointer(folder, every_steps=BEFORE, keep=2)
    model.fit(x, x[:, :3], batch_size=8, epochs=1, verbose=0, callbacks=[stops], checkpoint_dir=saved)


def damages(whole: Path, flips: int, cuts: int) -> Iterator[tuple[str, Damage]]:
    """Yield a name of each damage, and what does it to the folder of a checkpoint."""
    draw = random.Random(0)
    for path in sorted((whole / str(NEWEST)).iterdir()):
        content = path.read_bytes()
        for number in range(flips):
            bit = draw.randrange(len(content) * 8) if number else 0
            yield f"{path.name}: bit {bit} flipped", _written(path.name, _flipped(content, bit))
        lengths = {0, 1, len(content) // 2, len(content) - 1, *(draw.randrange(len(content)) for _ in range(cuts))}
        for length in sorted(lengths):
            yield f"{path.name}: cut to {length} bytes", _written(path.name, content[:length])
        for start in sorted(draw.randrange(len(content) - 64) for _ in range(cuts)):
            zeros = content[:start] + bytes(64) + content[start + 64 :]
            if zeros != content:
                yield f"{path.name}: zeros from {start}", _written(path.name, zeros)
        yield f"{path.name}: a byte more", _written(path.name, content + b"\n")
        yield f"{path.name}: deleted", lambda folder, name=path.name: (folder / name).unlink()
        yield f"{path.name}: a folder", lambda folder, name=path.name: _emptied(folder / name)
        other = (whole / str(BEFORE) / path.name).read_bytes()
        yield f"{path.name}: that of step {BEFORE}", _written(path.name, other)
    yield "all files of another step", lambda folder: shutil.copytree(whole / str(BEFORE), folder, dirs_exist_ok=True)
    yield "no file", lambda folder: [path.unlink() for path in folder.iterdir()]


def outcome(folder: Path, before: Checkpoint, newest: Checkpoint, lines: list[str]) -> str:
    """Return what is made of a folder whose newest checkpoint is damaged."""
    try:
        found = Checkpoints(folder).load_newest()
    except DamageError:
        return "refused, none before" if not (folder / str(BEFORE)).exists() else "refused"
    except Exception as error:
        return f"another error: {type(error).__name__}"
    if found is None:
        # An empty folder with a number may be the user's own.
        return "WRONG: a start from nothing" if any((folder / str(NEWEST)).iterdir()) else NOTHING_LEFT
    if _same(found, before):
        return "used the step before" if len(lines) == 1 else "used the step before in silence"
    return "not noticed, the same numbers" if _same(found, newest) else "WRONG: other numbers"


@contextlib.contextmanager
def warnings_kept() -> Iterator[list[str]]:
    """Give the list that warnings go to, instead of the terminal."""
    lines: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        lines.append(record.getMessage())
        return False

    logger = logging.getLogger("anytpu")
    logger.addFilter(keep)
    try:
        yield lines
    finally:
        logger.removeFilter(keep)


def _same(one: Checkpoint, other: Checkpoint) -> bool:
    return (one.host, sorted(one.values)) == (other.host, sorted(other.values)) and all(
        np.array_equal(one.values[name], value) for name, value in other.values.items()
    )


def _flipped(content: bytes, bit: int) -> bytes:
    changed = bytearray(content)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)


def _written(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def _emptied(path: Path) -> None:
    path.unlink()
    path.mkdir()


if __name__ == "__main__":
    sys.exit(main())
