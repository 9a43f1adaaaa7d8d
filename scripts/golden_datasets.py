"""Make tests/golden/datasets.json: the elements that tf.data gives for the programs below.

TensorFlow is not a dependency. Run this in an environment that has it:

    python -m venv /tmp/tf && /tmp/tf/bin/pip install tensorflow-cpu
    /tmp/tf/bin/python scripts/golden_datasets.py

Each program is an expression that tf.data and `tpu.pipeline` both evaluate, with these names: `Dataset`; `stream`, the
integers 0 to 9 of a generator; `sentences`, arrays of different lengths; `contents`, which sorts the elements.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

GOLDEN = Path(__file__).resolve().parents[1] / "tests" / "golden" / "datasets.json"
SENTENCES = [[1, 2, 3], [4], [], [5, 6], [7, 8, 9, 10]]

PROGRAMS = """
Dataset.range(5)
Dataset.range(2, 10, 3)
Dataset.range(5, 0, -2)
Dataset.range(0)
Dataset.from_tensors([1, 2, 3])
Dataset.from_tensors((1, [2, 3])).repeat(2)
Dataset.from_tensor_slices([3, 4, 5])
Dataset.from_tensor_slices(["a", "b"]).repeat(2)
Dataset.from_tensor_slices(([1, 2], [[3, 4], [5, 6]]))
Dataset.from_tensor_slices({"a": [1, 2, 3], "b": [4, 5, 6]}).batch(2)
Dataset.from_tensor_slices(np.arange(6).reshape(3, 2)).map(lambda row: row * 2)
Dataset.range(10).take(3)
Dataset.range(10).take(0)
Dataset.range(10).take(-1)
Dataset.range(3).take(99)
Dataset.range(5).take(3).repeat(2)
Dataset.range(5).take(3).take(2)
Dataset.range(5).repeat().take(12)
Dataset.range(5).repeat().take(7).repeat(2)
Dataset.range(5).repeat().batch(3).take(4)
stream.take(4)
stream.take(0)
stream.repeat().take(13)
stream.take(4).repeat(2)
Dataset.range(10).skip(7)
Dataset.range(10).skip(0)
Dataset.range(10).skip(-1)
Dataset.range(3).skip(99)
Dataset.range(5).skip(3).repeat(2)
Dataset.range(5).repeat(2).skip(3)
Dataset.range(5).repeat().skip(3).take(6)
stream.skip(7)
stream.skip(99)
stream.skip(8).repeat(2)
Dataset.range(10).skip(2).take(5).batch(2)
Dataset.range(10).filter(lambda x: x % 3 == 0)
Dataset.range(10).filter(lambda x: x % 3 == 0).take(2)
Dataset.range(10).filter(lambda x: x % 3 == 0).skip(1)
Dataset.range(10).filter(lambda x: x % 3 == 0).enumerate()
Dataset.range(10).filter(lambda x: x % 3 == 0).repeat(2).batch(3)
stream.filter(lambda x: x > 6)
Dataset.zip((Dataset.range(3), Dataset.range(3))).filter(lambda x, y: x + y > 1)
Dataset.range(5).map(lambda x: x * x)
Dataset.range(5).map(lambda x: (x, x + 1)).map(lambda x, y: x * y)
Dataset.range(4).map(lambda x: {"a": x, "b": -x}).map(lambda row: row["a"] - row["b"])
Dataset.range(7).batch(3)
Dataset.range(7).batch(3, drop_remainder=True)
Dataset.range(7).batch(batch_size=4)
Dataset.range(8).batch(2).batch(2)
Dataset.range(7).batch(3).map(lambda x: x + 1)
Dataset.range(3).repeat(2).batch(4)
stream.batch(4)
Dataset.range(7).batch(3).unbatch()
Dataset.range(7).batch(3).unbatch().repeat(2)
Dataset.from_tensor_slices({"a": [1, 2, 3], "b": [[4], [5], [6]]}).batch(2).unbatch()
Dataset.from_tensor_slices([[1, 2], [3, 4]]).unbatch()
stream.batch(4).unbatch().batch(3)
sentences.padded_batch(2)
sentences.padded_batch(2, drop_remainder=True)
sentences.padded_batch(2, padded_shapes=[None])
sentences.padded_batch(2, padded_shapes=[5])
sentences.padded_batch(batch_size=3, padded_shapes=[5], padding_values=np.int64(-1))
sentences.map(lambda x: (x, x[:1])).padded_batch(3, padded_shapes=([None], [2]))
sentences.map(lambda x: {"words": x, "twice": 2 * x}).padded_batch(4)
Dataset.from_tensor_slices([[1, 2], [3, 4], [5, 6]]).padded_batch(2, padded_shapes=[3])
Dataset.range(5).padded_batch(2)
Dataset.zip((Dataset.range(3), Dataset.range(10, 15)))
Dataset.zip(Dataset.range(3), Dataset.range(10, 15))
Dataset.zip({"x": Dataset.range(3), "y": (Dataset.range(4), Dataset.range(5))})
Dataset.zip((Dataset.range(3), Dataset.range(5).repeat()))
Dataset.zip((Dataset.range(3), stream)).repeat(2)
Dataset.zip((Dataset.range(3), Dataset.range(4).batch(2))).repeat(2)
Dataset.zip((Dataset.range(6).batch(2), Dataset.range(6).batch(3)))
Dataset.range(3).concatenate(Dataset.range(5, 7))
Dataset.range(3).concatenate(Dataset.range(5, 7)).repeat(2)
Dataset.range(3).concatenate(stream).skip(2)
stream.concatenate(Dataset.range(2)).batch(5)
Dataset.range(3).concatenate(Dataset.range(0)).concatenate(Dataset.range(2))
Dataset.range(2).concatenate(Dataset.range(3).repeat()).take(8)
Dataset.range(3).enumerate()
Dataset.range(3).enumerate(start=5)
Dataset.range(3).enumerate().repeat(2)
Dataset.range(3).repeat(2).enumerate()
Dataset.range(5).batch(2).enumerate()
stream.enumerate().skip(7)
Dataset.range(1, 6).interleave(lambda x: Dataset.from_tensors(x).repeat(6), cycle_length=2, block_length=4)
Dataset.range(1, 6).interleave(lambda x: Dataset.range(x), cycle_length=3, block_length=2)
Dataset.range(1, 6).interleave(lambda x: Dataset.range(x), cycle_length=3)
Dataset.range(5, 0, -1).interleave(lambda x: Dataset.range(x), cycle_length=2, block_length=3)
Dataset.range(3).interleave(lambda x: Dataset.range(x), cycle_length=8, block_length=1)
Dataset.range(4).interleave(lambda x: Dataset.range(x).repeat(2), cycle_length=2).repeat(2)
stream.interleave(lambda x: Dataset.range(x, x + 2), cycle_length=3)
Dataset.range(4).interleave(lambda x: Dataset.range(5).filter(lambda y: y > x), cycle_length=2)
Dataset.range(4).flat_map(lambda x: Dataset.range(x))
Dataset.range(4).flat_map(lambda x: Dataset.range(x)).batch(4)
Dataset.from_tensor_slices([[1, 2], [3, 4]]).flat_map(lambda x: Dataset.from_tensor_slices(x))
Dataset.range(5).cache()
Dataset.range(5).map(lambda x: x + 1).cache().repeat(2)
Dataset.range(9).filter(lambda x: x % 2 == 0).cache().repeat(2)
stream.cache().repeat(2).batch(7)
Dataset.range(10).shard(num_shards=3, index=1)
stream.shard(num_shards=4, index=2)
Dataset.range(5).prefetch(2)
Dataset.range(5).prefetch(buffer_size=-1)
Dataset.range(5).map(lambda x: x * 3, num_parallel_calls=2, deterministic=True)
Dataset.range(5).apply(lambda dataset: dataset.map(lambda x: x + 1))
contents(Dataset.range(10).shuffle(3))
contents(Dataset.range(10).shuffle(buffer_size=3, seed=4, reshuffle_each_iteration=False))
contents(Dataset.range(4).repeat(3).shuffle(5))
contents(Dataset.range(4).shuffle(5).repeat(3))
contents(stream.shuffle(4).repeat(2))
contents(Dataset.range(10).shuffle(10).batch(3).unbatch())
contents(Dataset.range(10).map(lambda x: x * 2).cache().shuffle(4).repeat(2))
Dataset.range(5).cardinality()
Dataset.range(5).repeat(2).cardinality()
Dataset.range(5).repeat().cardinality()
Dataset.range(0).cardinality()
Dataset.range(5).repeat().take(7).cardinality()
Dataset.range(5).repeat().batch(2).cardinality()
Dataset.range(5).batch(2).cardinality()
Dataset.range(5).batch(2, drop_remainder=True).cardinality()
Dataset.range(5).skip(2).cardinality()
Dataset.range(5).skip(9).cardinality()
Dataset.range(5).filter(lambda x: x > 2).cardinality()
Dataset.range(5).filter(lambda x: x > 2).repeat().cardinality()
Dataset.range(5).concatenate(Dataset.range(2)).cardinality()
Dataset.range(5).concatenate(Dataset.range(2).repeat()).cardinality()
Dataset.zip((Dataset.range(5), Dataset.range(3))).cardinality()
Dataset.zip((Dataset.range(5), Dataset.range(3).repeat())).cardinality()
Dataset.range(5).enumerate().cardinality()
Dataset.range(5).cache().cardinality()
Dataset.range(5).interleave(lambda x: Dataset.range(x), cycle_length=2).cardinality()
Dataset.range(10).shard(num_shards=3, index=1).cardinality()
sentences.padded_batch(2).cardinality()
""".strip().splitlines()


def plain(element: Any) -> Any:
    """Return an element as plain JSON."""
    if isinstance(element, dict):
        return {name: plain(part) for name, part in element.items()}
    if isinstance(element, tuple):
        return [plain(part) for part in element]
    element = element.numpy() if hasattr(element, "numpy") else element
    element = element.tolist() if hasattr(element, "tolist") else element
    return element.decode() if isinstance(element, bytes) else element


def result_of(program: str) -> Any:
    """Return what tf.data makes of a program: its elements, or a number."""
    integers, lists = tf.TensorSpec((), tf.int64), tf.TensorSpec((None,), tf.int64)
    names = {
        "Dataset": tf.data.Dataset,
        "np": np,
        "stream": tf.data.Dataset.from_generator(lambda: iter(range(10)), output_signature=integers),
        "sentences": tf.data.Dataset.from_generator(
            lambda: (np.array(words, np.int64) for words in SENTENCES), output_signature=lists
        ),
        "contents": lambda dataset: sorted(map(plain, dataset)),
    }
    result = eval(program, names)
    return [plain(element) for element in result] if isinstance(result, tf.data.Dataset) else plain(result)


def main() -> None:
    results = {program: result_of(program) for program in PROGRAMS}
    lines = [f"{json.dumps(program)}: {json.dumps(result)}" for program, result in results.items()]
    GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{GOLDEN}: {len(results)} programs, TensorFlow {tf.__version__}")


if __name__ == "__main__":
    main()
