"""How fast records become batches of images, beside tf.data.

    python benchmarks/records.py --tf-python VENV/bin/python [--jobs 192,331,512,numbers] [--rounds 9] [--output FILE]

VENV is an environment with tensorflow-cpu. Jobs: square JPEGs of so many pixels a side, each in a tf.Example with a
label and a name, in four TFRecord shards, parsed, decoded and batched by 64; `numbers` is 784 floats and a label, no
image. Contenders, each a process of its own that stays alive; they take turns, pass by pass, with the files in the page
cache:
    batches     anytpu: Dataset.from_source(records(...)).batch(64).map(parse and decode a batch)
    elements    anytpu: Dataset.from_source(records(...)).map(parse and decode one).batch(64)
    tf.data     TFRecordDataset.map(parse and decode one, AUTOTUNE).batch(64).prefetch(AUTOTUNE), in any order
A ratio is that of medians: tf.data's time over ours, above 1 when ours is faster. The CPU time is told beside it: on a
machine that does something else too, it is the steadier figure.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from machine import cpu_name

BATCH, SHARDS, QUALITY = 64, 4, 90
COUNTS = {"192": 4096, "331": 2048, "512": 1024, "numbers": 16384}
OURS = ("batches", "elements")


def photograph(side: int) -> np.ndarray:
    """Return a picture with about the detail of a photograph: waves that are fainter the finer they are, and noise."""
    rng = np.random.default_rng(side)
    y, x = np.mgrid[0:side, 0:side] / side
    image = rng.normal(0, 0.15, (side, side, 3))
    for _ in range(24):
        across, down = rng.normal(0, 8, 2)
        color = rng.normal(0, 10 / (1 + abs(across) + abs(down)), 3)
        image += color * np.sin(2 * np.pi * (across * x + down * y) + rng.uniform(0, 6))[..., None]
    return ((image - image.min()) / np.ptp(image) * 255).astype(np.uint8)


def write_job(job: str, folder: Path, count: int) -> None:
    import anytpu as tpu

    rng = np.random.default_rng(0)

    def examples() -> Iterator[bytes]:
        if job == "numbers":
            for label in range(count):
                yield tpu.pipeline.encode_example({"x": rng.random(784, np.float32), "label": label % 10})
            return
        side = int(job)
        large = photograph(side + 64)
        for label in range(count):
            top, left = rng.integers(0, 64, 2)
            content = tpu.pipeline.encode_jpeg(large[top : top + side, left : left + side], QUALITY)
            yield tpu.pipeline.encode_example({"image": content, "label": label % 104, "name": f"{label:08d}"})

    tpu.pipeline.write_records(folder / f"{job}.tfrecord", examples(), shards=SHARDS)


def one_of_ours(contender: str, job: str, folder: Path) -> Callable[[], int]:
    """Return a function that makes one pass and counts the rows."""
    import anytpu as tpu

    pipeline = tpu.pipeline
    label = pipeline.FixedLenFeature((), "int32")
    spec = {
        "label": label,
        **(
            {"x": pipeline.FixedLenFeature((784,), "float32")}
            if job == "numbers"
            else {"image": pipeline.FixedLenFeature((), bytes)}
        ),
    }

    def element(record: bytes) -> tuple[Any, Any]:
        example = pipeline.parse_example(record, spec)
        return example["x"] if job == "numbers" else pipeline.decode_image(example["image"]), example["label"]

    def batch(records: np.ndarray) -> tuple[Any, Any]:
        examples = pipeline.parse_examples(records, spec)
        # The batches are what runs in parallel.
        x = examples["x"] if job == "numbers" else pipeline.decode_images(examples["image"], threads=1)
        return x, examples["label"]

    source = pipeline.records(folder / f"{job}-*.tfrecord")
    dataset = pipeline.Dataset.from_source(source)
    dataset = dataset.map(element).batch(BATCH) if contender == "elements" else dataset.batch(BATCH).map(batch)
    return lambda: sum(len(labels) for _, labels in dataset)


def tf_data(job: str, folder: Path) -> Callable[[], int]:
    """Return a function that makes one pass and counts the rows."""
    import tensorflow as tf

    spec = {
        "label": tf.io.FixedLenFeature([], tf.int64),
        **(
            {"x": tf.io.FixedLenFeature([784], tf.float32)}
            if job == "numbers"
            else {"image": tf.io.FixedLenFeature([], tf.string)}
        ),
    }

    def element(record: Any) -> tuple[Any, Any]:
        example = tf.io.parse_single_example(record, spec)
        label = tf.cast(example["label"], tf.int32)
        if job == "numbers":
            return example["x"], label
        return tf.reshape(tf.io.decode_jpeg(example["image"], channels=3), [int(job), int(job), 3]), label

    options = tf.data.Options()
    options.deterministic = False
    files = sorted(str(path) for path in folder.glob(f"{job}-*.tfrecord"))
    dataset = tf.data.TFRecordDataset(files, num_parallel_reads=tf.data.AUTOTUNE).with_options(options)
    dataset = dataset.map(element, num_parallel_calls=tf.data.AUTOTUNE).batch(BATCH).prefetch(tf.data.AUTOTUNE)
    return lambda: sum(int(labels.shape[0]) for _, labels in dataset)


def serve(contender: str, job: str, folder: Path) -> None:
    """Make a pass for every line on stdin, and answer with its wall and CPU time."""
    one_pass = tf_data(job, folder) if contender == "tf.data" else one_of_ours(contender, job, folder)
    for _ in sys.stdin:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        rows = one_pass()
        figures = {"rows": rows, "wall_s": time.perf_counter() - wall_s, "cpu_s": time.process_time() - cpu_s}
        print(json.dumps(figures), flush=True)


def measure(job: str, folder: Path, rounds: int, tf_python: str) -> dict[str, Any]:
    """Let the contenders take turns, and return the medians of microseconds a row."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "JAX_PLATFORMS": "cpu"}
    children = {
        name: subprocess.Popen(
            [tf_python if name == "tf.data" else sys.executable, __file__, "--serve", name, job, str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for name in (*OURS, "tf.data")
    }
    turns: dict[str, list[dict[str, float]]] = {name: [] for name in children}
    for number in range(rounds + 2):
        for name, child in children.items():
            assert child.stdin and child.stdout
            child.stdin.write("go\n")
            child.stdin.flush()
            figures = json.loads(child.stdout.readline())
            if number >= 2:  # the first two warm the caches, and AUTOTUNE up
                turns[name].append(figures)
    for child in children.values():
        child.communicate()
    return {name: summary(figures) for name, figures in turns.items()}


def summary(figures: list[dict[str, float]]) -> dict[str, float]:
    wall = [1e6 * turn["wall_s"] / turn["rows"] for turn in figures]
    cpu = [1e6 * turn["cpu_s"] / turn["rows"] for turn in figures]
    return {
        "wall_us": statistics.median(wall),
        "min_wall_us": min(wall),
        "max_wall_us": max(wall),
        "cpu_us": statistics.median(cpu),
    }


def table(job: str, result: dict[str, dict[str, float]]) -> str:
    rows = [f"{job:8} {'':10} {'us/row':>8} {'min':>8} {'max':>8} {'cpu us':>8} {'x tf':>6} {'x tf, cpu':>10}"]
    peer = result["tf.data"]
    for name, figures in result.items():
        times = " ".join(f"{figures[key]:8.1f}" for key in ("wall_us", "min_wall_us", "max_wall_us", "cpu_us"))
        ratios = f"{peer['wall_us'] / figures['wall_us']:6.2f} {peer['cpu_us'] / figures['cpu_us']:10.2f}"
        rows.append(f"{'':8} {name:10} {times} {ratios}")
    return "\n".join(rows)


def machine(tf_python: str) -> str:
    show = "import importlib.metadata as m; print(m.version('tensorflow-cpu'))"
    version = subprocess.run([tf_python, "-c", show], capture_output=True, text=True, check=True).stdout.strip()
    return f"{cpu_name()}, {os.cpu_count()} cores, Python {platform.python_version()}, tensorflow-cpu {version}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tf-python", help="the Python of an environment with tensorflow-cpu")
    parser.add_argument("--jobs", default=",".join(COUNTS))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of rows, for a quick try")
    parser.add_argument("--output", help="write the figures as JSON here")
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        contender, job, folder = options.serve
        return serve(contender, job, Path(folder))
    if not options.tf_python:
        parser.error("--tf-python is needed")
    record: dict[str, Any] = {
        "machine": machine(options.tf_python),
        "batch": BATCH,
        "rounds": options.rounds,
        "jobs": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        for job in options.jobs.split(","):
            write_job(job, Path(folder), max(BATCH, round(COUNTS[job] * options.share)))
            result = measure(job, Path(folder), options.rounds, options.tf_python)
            print(table(job, result), flush=True)
            record["jobs"][job] = result
    if options.output:
        Path(options.output).write_text(json.dumps(record, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
