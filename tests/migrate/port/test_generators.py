"""The types of `from_generator` made arrays of what a generator yields."""

from __future__ import annotations

import pytest

from anytpu.migrate.port import ported


@pytest.mark.parametrize(
    ("types", "row"),
    [
        ("tf.float32", 'np.asarray(row, "float32")'),
        ("output_types='int32', output_shapes=[None]", 'np.asarray(row, "int32")'),
        ("(tf.string, (tf.int64,))", '(np.asarray(row[0], bytes), (np.asarray(row[1][0], "int64"),))'),
        ("output_types={'a': tf.int32}", "{'a': np.asarray(row['a'], \"int32\")}"),
        ("output_signature=tf.TensorSpec([None])", 'np.asarray(row, "float32")'),
        ("output_signature=tf.TensorSpec([None], dtype=tf.int32)", 'np.asarray(row, "int32")'),
    ],
)
def test_types_become_a_map(types: str, row: str):
    outcome = ported(f"import tensorflow as tf\nd = tf.data.Dataset.from_generator(rows, {types})\n")
    assert outcome.by_hand == ()
    assert outcome.new.splitlines()[-1] == f"d = tpu.pipeline.Dataset.from_generator(rows).map(lambda row: {row})"


def test_lists_of_different_lengths_are_padded_as_in_tensorflow():
    outcome = ported(
        "import tensorflow as tf\ndef rows():\n    yield [1, 2, 3], 4\n    yield [5], 6\n"
        "d = tf.data.Dataset.from_generator(rows, (tf.int32, tf.int32))\n"
        "batch = next(iter(d.padded_batch(2, padded_shapes=([None], []))))\n"
    )
    names: dict = {}
    exec(outcome.new, names)
    words, labels = names["batch"]
    assert words.tolist() == [[1, 2, 3], [5, 0, 0]]
    assert labels.tolist() == [4, 6]


def test_types_that_are_no_literal_are_listed():
    outcome = ported("import tensorflow as tf\nd = tf.data.Dataset.from_generator(rows, output_types=types)\n")
    assert [finding.advice for finding in outcome.by_hand] == [
        "these types made arrays of what the generator yields: yield arrays, or add "
        '.map(lambda row: (np.asarray(row[0], "float32"), np.asarray(row[1], "int32")))'
    ]
