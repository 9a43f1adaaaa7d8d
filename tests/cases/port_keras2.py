"""Kind: a ported program of Keras 2 means something else: arguments by position, defaults, members, names of weights.

Each right value is what TensorFlow 2.15 prints for the old program, or follows from its text.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from case import check_equal, finish

from anytpu.migrate.port import ported

HEAD = """
import numpy as np
import tensorflow as tf
from tensorflow.keras import backend as K, layers
strategy = tf.distribute.TPUStrategy(tf.distribute.cluster_resolver.TPUClusterResolver(tpu=""))
x, y = np.ones((16, 4), "float32"), np.zeros((16, 1), "float32")
with strategy.scope():
    net = tf.keras.Sequential([layers.Dense(3, "relu", input_shape=(4,), name="decay"), layers.Dense(1, name="free")])
"""
PROGRAMS = {
    "metrics by position": (
        "with strategy.scope():\n    net.compile('sgd', 'mse', ['mae'])\nOUT = sorted(net.fit(x, y, 8, 2, 0).history)",
        "['loss', 'mae']",
    ),
    "a reduction by position": (
        "class Own(tf.keras.losses.Loss):\n    def __init__(self):\n        super().__init__('none')\n"
        "    def call(self, a, b):\n        return tf.reduce_mean((a - b) ** 2, axis=-1)\n"
        "OUT = tuple(Own()(y, y).shape)",
        "(16,)",
    ),
    "a mask by position": (
        "mask = np.zeros((1, 2, 2), bool)\nmask[:, :, 0] = True\nq = np.array([[[1.0], [5.0]]], 'float32')\n"
        "mha = layers.MultiHeadAttention(1, 1, kernel_initializer='ones')\n"
        "OUT = np.asarray(mha(q, q, q, mask)).ravel().tolist()",
        "[1.0, 1.0]",
    ),
    "defaults": (
        "OUT = int(K.argmax(tf.constant([[1.0, 3.0], [5.0, 0.0]]))[0]), "
        "tuple(K.concatenate([tf.constant(x), tf.constant(x)]).shape), "
        "round(float(tf.keras.regularizers.l1_l2(0.1)(np.ones(2, 'float32'))), 4)",
        "(1, (16, 8), 0.22)",
    ),
    "weights by name": (
        "OUT = sorted(v.name for v in net.trainable_variables if 'decay/' in v.name)",
        "['decay/bias:0', 'decay/kernel:0']",
    ),
    "shapes of layers": (
        "OUT = [(layer.input_shape, layer.output_shape) for layer in net.layers][1]",
        "((None, 3), (None, 1))",
    ),
    "a function to a hidden layer": (
        "OUT = K.function([net.input], [net.get_layer('decay').output])([x])[0].shape",
        "(16, 3)",
    ),
    "a length of sequences": (
        "words = tf.keras.Sequential()\nwords.add(layers.Embedding(10, 4, input_length=6))\n"
        "words.add(layers.Flatten())\n"
        "words.add(layers.Dense(1))\nOUT = words.output_shape, words.count_params()",
        "((None, 1), 65)",
    ),
}

for name, (body, right) in PROGRAMS.items():
    outcome = ported(f"{HEAD}{body}\nprint('OUT', OUT)\n")
    path = Path(tempfile.mkdtemp()) / "ported.py"
    path.write_text(outcome.new)
    run = subprocess.run([sys.executable, path], capture_output=True, text=True)
    lines = [line[4:] for line in run.stdout.splitlines() if line.startswith("OUT ")]
    check_equal(name, ([right], ()), (lines or run.stderr.splitlines()[-1:], outcome.by_hand))
finish()
