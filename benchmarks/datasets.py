"""The time of an element in `tpu.pipeline.Dataset` and in grain, for the same steps; whole-batch maps beside NumPy.

    python benchmarks/datasets.py [--rounds 5] [--output FILE]

The elements are 4,096 rows of 16 float32. The contenders alternate in one process, pass by pass, and each pass must
give the same number of elements. Both are measured with their default threads, and with none. A ratio is our median
over grain's: below 1 when ours is faster. Grain's default of 16 threads slows steps that take microseconds, so the
ratio without threads compares the steps themselves. Whole-batch maps are five operations on 64 images of 32 x 32.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import platform
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import grain
import grain.experimental as nodes
import numpy as np

import anytpu as tpu
from machine import cpu_name

import keras  # isort: skip  # anytpu comes first: it chooses Keras's backend.

COUNT, BATCH, WINDOW, CYCLE = 4_096, 64, 512, 4
ROWS = [row for row in np.random.default_rng(0).random((COUNT, 16), np.float32)]
PADDED = [row[: 1 + index % 16] for index, row in enumerate(ROWS)]

Contender = Callable[[], Iterable[Any]]


def double(row: np.ndarray) -> np.ndarray:
    return row * 2


def is_large(row: np.ndarray) -> bool:
    return bool(row[0] > 0.5)


def padded(rows: Sequence[np.ndarray]) -> np.ndarray:
    """Return a batch padded with zeros at the end, for grain, whose `batch` takes such a function."""
    batch = np.zeros((len(rows), max(map(len, rows))), rows[0].dtype)
    for target, row in zip(batch, rows, strict=True):
        target[: len(row)] = row
    return batch


def ours() -> dict[str, Callable[[], tpu.pipeline.Dataset]]:
    """Return the programs on `tpu.pipeline`."""
    dataset = tpu.pipeline.Dataset
    source, ragged, arrays = dataset.from_source(ROWS), dataset.from_source(PADDED), np.stack(ROWS)
    parts = dataset.from_source([ROWS[part::CYCLE] for part in range(CYCLE)])
    return {
        "map": lambda: source.map(double),
        "shuffle, map, batch": lambda: source.shuffle(seed=1).map(double).batch(BATCH),
        "rows of an array, shuffle, batch": lambda: dataset.from_tensor_slices(arrays).shuffle(seed=1).batch(BATCH),
        "filter": lambda: source.filter(is_large),
        "take, skip": lambda: source.take(COUNT - 10).skip(10),
        "enumerate": lambda: source.enumerate(),
        "zip": lambda: dataset.zip((source, source)),
        "concatenate": lambda: source.concatenate(source),
        "batch": lambda: source.batch(BATCH),
        "padded_batch": lambda: ragged.padded_batch(BATCH),
        "batch, unbatch": lambda: source.batch(BATCH).unbatch(),
        "interleave": lambda: parts.interleave(dataset.from_source, cycle_length=CYCLE),
        "filter, shuffle in a window": lambda: source.filter(bool_of).shuffle(WINDOW, seed=1),
        "filter, cache": lambda: source.filter(bool_of).cache(),
    }


def bool_of(row: np.ndarray) -> bool:
    """Keep every row: a filter makes a stream, which has other nodes than elements with an index."""
    return True


def grains(options: grain.ReadOptions) -> dict[str, Contender]:
    """Return the same programs on grain."""

    def stream(dataset: Any) -> Any:
        return dataset.to_iter_dataset(options)

    source, ragged = grain.MapDataset.source(ROWS), grain.MapDataset.source(PADDED)
    shuffled = source.shuffle(seed=1)
    parts = [grain.MapDataset.source(ROWS[part::CYCLE]) for part in range(CYCLE)]
    kept = stream(source).filter(bool_of)
    return {
        "map": lambda: stream(source.map(double)),
        "shuffle, map, batch": lambda: stream(shuffled.map(double).batch(BATCH)),
        "rows of an array, shuffle, batch": lambda: stream(shuffled.batch(BATCH)),
        "filter": lambda: stream(source).filter(is_large),
        "take, skip": lambda: stream(source.slice(slice(10, COUNT - 10))),
        "enumerate": lambda: stream(source.map_with_index(lambda index, row: (index, row))),
        "zip": lambda: stream(nodes.ZipMapDataset([source, source])),
        "concatenate": lambda: stream(grain.MapDataset.concatenate([source, source])),
        "batch": lambda: stream(source.batch(BATCH)),
        "padded_batch": lambda: stream(ragged.batch(BATCH, batch_fn=padded)),
        "batch, unbatch": lambda: nodes.FlatMapIterDataset(stream(source.batch(BATCH)), Rows()),
        "interleave": lambda: nodes.InterleaveIterDataset([stream(part) for part in parts], cycle_length=CYCLE),
        "filter, shuffle in a window": lambda: nodes.WindowShuffleIterDataset(kept, window_size=WINDOW, seed=1),
        "filter, cache": lambda: nodes.CacheIterDataset(kept),
    }


class Rows(nodes.FlatMapTransform):
    """Grain's transformation from a batch to its rows."""

    max_fan_out = BATCH

    def flat_map(self, element: np.ndarray) -> list[np.ndarray]:
        """Return the rows."""
        return list(element)


def whole_batch_maps() -> dict[str, Contender]:
    """Return one whole-batch map on compiled `keras.ops`, on NumPy, and on `keras.ops` one operation at a time."""
    images = np.random.default_rng(0).random((COUNT, 32, 32, 3), np.float32)
    batches = tpu.pipeline.Dataset.from_tensor_slices(images).batch(BATCH)

    def five(ops: Any, batch: Any) -> Any:
        return ops.clip(ops.sqrt(ops.abs(batch * 2.0 - 1.0)), 0.1, 0.9)

    def uncompiled(batch: Any) -> Any:
        uncompiled.rows = len(batch)  # A function that assigns outside of itself is not compiled.
        return five(keras.ops, batch)

    return {
        "keras.ops": lambda: batches.map(functools.partial(five, keras.ops)).prefetch(0),
        "NumPy": lambda: batches.map(functools.partial(five, np)).prefetch(0),
        "keras.ops, one operation at a time": lambda: batches.map(uncompiled).prefetch(0),
        "no map": lambda: batches.prefetch(0),
    }


def pass_us(dataset: Iterable[Any]) -> tuple[float, int]:
    """Return the microseconds of a pass and its number of elements."""
    begin = time.perf_counter()
    count = sum(1 for _ in dataset)
    return (time.perf_counter() - begin) * 1e6, count


def measured(name: str, contenders: dict[str, Contender], rounds: int) -> dict[str, float]:
    """Return the median microseconds per element of each contender, for one program."""
    datasets = {contender: make() for contender, make in contenders.items()}
    times: dict[str, list[float]] = {contender: [] for contender in contenders}
    counts = {}
    for _, (contender, dataset) in itertools.product(range(rounds + 1), datasets.items()):
        pass_time_us, counts[contender] = pass_us(dataset)
        times[contender].append(pass_time_us)
    assert len(set(counts.values())) == 1, f"{name}: {counts}"
    return {contender: statistics.median(values[1:]) / COUNT for contender, values in times.items()}


def programs() -> Iterator[tuple[str, dict[str, Contender]]]:
    """Yield each program's name and its contenders."""
    threaded, plain = grains(grain.ReadOptions()), grains(grain.ReadOptions(num_threads=0, prefetch_buffer_size=0))
    for name, make in ours().items():
        yield (
            name,
            {
                "anytpu": make,
                "grain": threaded[name],
                "anytpu without threads": functools.partial(without_threads, make),
                "grain without threads": plain[name],
            },
        )


def without_threads(make: Callable[[], tpu.pipeline.Dataset]) -> tpu.pipeline.Dataset:
    return make().prefetch(0)


def main() -> None:
    """Measure every program, and print and write the times."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    results = {}
    for name, contenders in programs():
        times = measured(name, contenders, arguments.rounds)
        default, plain = (round(times[f"anytpu{how}"] / times[f"grain{how}"], 2) for how in ("", " without threads"))
        results[name] = {contender: round(value, 2) for contender, value in times.items()}
        results[name] |= {"ratio": default, "ratio without threads": plain}
        print(f"{name:34} {times['anytpu']:7.2f} us, ratio {default:.2f}, without threads {plain:.2f}", flush=True)
    maps = measured("whole-batch maps", whole_batch_maps(), arguments.rounds)
    map_us = {contender: round(value * BATCH, 1) for contender, value in maps.items()}
    print(f"microseconds a batch: {map_us}", flush=True)
    if arguments.output:
        versions = f"Python {platform.python_version()}, grain {version('grain')}"
        machine = f"{cpu_name()}, {os.cpu_count()} cores, {versions}"
        record = {"machine": machine, "elements": COUNT, "batch": BATCH, "rounds": arguments.rounds}
        record |= {"us_an_element": results, "us_a_batch": map_us}
        arguments.output.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
