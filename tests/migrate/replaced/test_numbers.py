"""The numbers of ported lines beside those of TensorFlow 2.15: one of each kind that `scripts/golden_port` found."""

from __future__ import annotations

import json

import numpy as np
import pytest

from anytpu.migrate.port import ported
from anytpu.migrate.replaced.table import replacements

GIVEN = """\
import numpy as np
import tensorflow as tf
from tensorflow.image import ResizeMethod
METHOD = "nearest"
matrix = np.array([[0.5, -1.5, 2.5], [1.25, 0.25, -0.75]], "float32")
square = np.array([[2.0, 0.5], [0.25, 1.5]], "float32")
counts = np.array([[1, 2, 0], [3, -4, 5]], "int32")
pixels = np.array([[[10, 20, 30], [200, 7, 90]]], "uint8")
"""
LINES = """\
tf.reduce_all(tf.Variable([True, False])) -> b false
tf.reduce_any([False, True]) -> b true
tf.clip_by_value([1.0, 2.0], [1.5, 0.0], [2.0, 1.0]) -> f [1.5, 1.0]
tf.linspace(tf.Variable(0.5), 2.5, 3) -> f [0.5, 1.5, 2.5]
tf.where([True, False], tf.Variable([1.0, 2.0]), [3.0, 4.0]) -> f [1.0, 4.0]
tf.where(square > 1) -> i [[0, 0], [1, 1]]
tf.math.in_top_k([1, 0], [[0.1, 0.9], [0.2, 0.8]], 1) -> b [true, false]
tf.math.top_k([0.5, 2.0, 1.0], 2) -> f [2.0, 1.0]
tf.nn.softmax([0.0, 0.0]) -> f [0.5, 0.5]
tf.nn.moments(tf.Variable([1.0, 3.0]), [0]) -> f 2.0
tf.pad([1, 2], [[0, 1]]) -> i [1, 2, 0]
tf.identity([1, 2]) -> i [1, 2]
tf.tile([1, 2], [2]) -> i [1, 2, 1, 2]
tf.math.reduce_logsumexp([0.0, 0.0]) -> f 0.69315
tf.math.count_nonzero([0.5, 0.0]) -> i 1
tf.stop_gradient([0.5, 1.0]) -> f [0.5, 1.0]
tf.clip_by_norm([3.0, 4.0], 1.0) -> f [0.6, 0.8]
tf.math.squared_difference([1, 4], [3, 1]) -> i [4, 9]
tf.argsort([1.0, 3.0, 2.0, 3.0], direction='DESCENDING') -> i [1, 3, 2, 0]
tf.math.segment_sum([1.0, 2.0, 4.0], [0, 0, 2]) -> f [3.0, 0.0, 4.0]
tf.unravel_index([1, 2], [2, 2]) -> i [[0, 1], [1, 0]]
tf.linalg.cholesky(square) -> f [[1.41421, 0.0], [0.17678, 1.21192]]
tf.reduce_mean(tf.cast(counts, tf.int32) / tf.cast([2, 2, 2], tf.int32)) -> f 0.58333
tf.map_fn(lambda t: t[0] * t[1], (square[0], square[1]), dtype=tf.float32) -> f [0.5, 0.75]
tf.is_tensor(tf.Variable(1.0)) -> b true
tf.math.l2_normalize([[0.03, 0.04]], 1, epsilon=0.01) -> f [[0.3, 0.4]]
tf.math.l2_normalize([1e-8, 0.0], 0) -> f [0.01, 0.0]
tf.saturate_cast(np.float32([1e6, 2]), tf.float16) -> f [65504.0, 2.0]
tf.cast(tf.saturate_cast(counts, tf.bfloat16), tf.float32) -> f [[1.0, 2.0, 0.0], [3.0, -4.0, 5.0]]
tf.cast(tf.saturate_cast(np.float32([-3.4e38, 3.4e38]), tf.bfloat16), tf.float32) -> f [-3.38953e38, 3.38953e38]
tf.argsort(pixels, 1, 'DESCENDING') -> i [[[1, 0, 1], [0, 1, 0]]]
tf.saturate_cast(counts, tf.float32) -> f [[1.0, 2.0, 0.0], [3.0, -4.0, 5.0]]
tf.image.rgb_to_grayscale(pixels / np.float32(255)) -> f [[[0.07117], [0.29078]]]
tf.image.resize(pixels, [1, 1], method='bilinear') -> f [[[105.0, 13.5, 60.0]]]
tf.image.resize(pixels, [1, 1], method='nearest') -> u [[[200, 7, 90]]]
tf.image.resize(pixels, [1, 1], method=METHOD) -> u [[[200, 7, 90]]]
tf.image.resize(pixels, [1, 1], ResizeMethod.NEAREST_NEIGHBOR) -> u [[[200, 7, 90]]]
tf.image.psnr(pixels, pixels // 2, 255.0) -> f 14.98125
tf.keras.backend.constant([1, 2]) -> f [1.0, 2.0]
tf.keras.backend.arange(0.5, 2.5) -> f [0.5, 1.5]
tf.keras.backend.sqrt(tf.constant(matrix)) -> f [[0.70711, 0.0, 1.58114], [1.11803, 0.5, 0.0]]
tf.keras.backend.dot(tf.constant(square)[None], tf.constant(square)[None]) -> f [[[[4.125, 1.75]], [[0.875, 2.375]]]]
tf.keras.backend.variable([1, 2]) -> f [1.0, 2.0]
tf.keras.backend.arange(6, step=2) -> i [0, 2, 4]
tf.keras.backend.arange(1, stop=4) -> i [1, 2, 3]
tf.keras.backend.stop_gradient([square, matrix])[1] -> f [[0.5, -1.5, 2.5], [1.25, 0.25, -0.75]]
tf.keras.backend.any([0, 1]) -> b true
tf.metrics.binary_accuracy([[1, 0]], [[0.9, 0.8]]) -> f [0.5]
tf.losses.sparse_categorical_crossentropy([1, 0], [[0.5, 0.5], [0.25, 0.75]]) -> f [0.69315, 1.38629]
"""
"""Lines, each with the kind of NumPy's type and the numbers of TensorFlow's result, of its first one if it has two."""
CHANGE_NO_NUMBER = {
    "argv", "batch_size", "buffer_output_elements", "cuda_only", "device", "dtype", "filename_suffix",
    "flush_millis", "fn_output_signature", "max_queue", "min_cuda_compute_capability", "name", "num",
    "num_parallel_batches", "num_parallel_calls", "num_threads", "options", "parallel_iterations",
    "prefetch_input_elements", "project", "queue_capacity", "saturate", "seed", "session", "shape", "sloppy",
    "stable", "tpu", "validate_indices", "values", "verbose", "zone",
}  # fmt: skip
"""Parameters that a template may leave out."""
GIVEN_BY_THE_ROW = {
    "direction", "global_step", "mode", "num_lower", "num_upper", "shuffle", "step", "transpose_a", "transpose_b", "x",
}  # fmt: skip
"""Parameters whose value the name of the row has, or that the new code counts by itself."""


def test_the_numbers_are_those_of_tensorflow():
    rows = [line.rpartition(" -> ") for line in LINES.splitlines()]
    outcome = ported(GIVEN + "".join(f"made.append(lambda: {line})\n" for line, _, _ in rows))
    assert not outcome.by_hand
    made: list = []
    exec(outcome.new, {"made": made})
    faults = []
    for (line, _, expected), function in zip(rows, made, strict=True):
        result = function()
        result = np.asarray(result[0] if isinstance(result, tuple | list) else result)
        kind, numbers = expected[0], np.asarray(json.loads(expected[2:]), "float64")
        is_same = result.shape == numbers.shape and np.allclose(result.astype("float64"), numbers, 1e-4, 1e-4)
        faults += [] if is_same and result.dtype.kind == kind else [f"{line}: {result!r} against {expected}"]
    assert not faults, "\n".join(faults)


def test_a_row_leaves_out_only_what_changes_no_number():
    rows = [row for rows in replacements().values() for row in rows if row.how == "call"]
    left_out = {
        f"{row.names[0]}: {name}"
        for row in rows
        for name in row.parameters.keys() - CHANGE_NO_NUMBER - GIVEN_BY_THE_ROW
        if f"{{{name}}}" not in row.target
    }
    assert left_out == set()


@pytest.mark.parametrize(
    "line",
    [
        "tf.nn.dropout(matrix, rate=0.5, noise_shape=[2, 1])",
        "tf.keras.backend.switch(square[0, 0] > 1, lambda: matrix, lambda: square)",
        "tf.compat.v1.train.polynomial_decay(0.1, 3, 100, cycle=True)",
        "tf.compat.v1.layers.dropout(matrix, 0.5, noise_shape=[2, 1])",
        "tf.math.segment_max(matrix, [0, 2])",
        "tf.nn.embedding_lookup([matrix], [0, 1])",
        "tf.keras.backend.mean(tf.keras.backend.cast(matrix, 'int32'))",
    ],
)
def test_what_no_line_replaces_is_listed(line: str):
    assert [found.kind for found in ported(f"{GIVEN}c = {line}\n").findings] == ["by hand"]


@pytest.mark.parametrize("numbers", ["[-1, 2]", "tf.cast(counts, tf.int32)"])
def test_a_mean_of_integers_is_listed(numbers: str):
    (found,) = ported(f"{GIVEN}c = tf.reduce_mean({numbers})\n").findings
    assert found.advice == (
        "write `c = keras.ops.cast(keras.ops.mean(keras.ops.cast(a, 'int32')), 'int32')` (TensorFlow's mean of "
        "integers is an integer; this one counts in float32, so it is the same for sums below 2 ** 24)"
    )


def test_a_function_that_is_passed_makes_an_array_of_a_variable():
    outcome = ported(
        f"{GIVEN}v = tf.Variable([1.0])\n(kept,) = tf.nest.map_structure(tf.identity, [v])\nv.assign([2.0])\n"
    )
    names: dict = {}
    exec(outcome.new, names)
    assert float(names["kept"][0]) == 1.0


def test_a_model_of_layers_takes_what_replaces_calls():
    text = (
        "i, j = tf.keras.Input((4, 4, 3)), tf.keras.Input((4, 4, 3))\n"
        "o = [tf.image.rgb_to_grayscale(i), tf.argsort(i, direction='DESCENDING'), tf.add_n([i, j])]\n"
        "text = tf.identity('a')\n"
        "is_seen = tf.test.is_gpu_available\nseen = is_seen()\n"
    )
    outcome = ported(GIVEN + text)
    names: dict = {}
    exec(outcome.new, names)
    assert [part.shape[1:] for part in names["o"]] == [(4, 4, 1), (4, 4, 3), (4, 4, 3)]
    assert not outcome.by_hand and names["seen"] is False
    assert "keras.ops.size([['a'], ['b']])" in ported(f"{GIVEN}n = tf.size([['a'], ['b']])\n").new
