"""Tells shapes apart on a TPU when there is one, on anything else when there is none. TensorFlow 2.1."""

import numpy as np
import tensorflow as tf

# Detect the hardware.
try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    print("Running on TPU", tpu.master())
except ValueError:
    tpu = None

if tpu:
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
else:
    strategy = tf.distribute.get_strategy()
print("Replicas:", strategy.num_replicas_in_sync)

AUTO = tf.data.experimental.AUTOTUNE
BATCH = 16 * strategy.num_replicas_in_sync


def shapes(count):
    random = np.random.default_rng(0)
    labels = random.integers(0, 2, count)
    images = random.random((count, 6, 6, 1)) * 0.3
    images[labels == 1, 2:4] += 1.0
    return images.astype("float32"), labels.astype("int32")


dataset = tf.data.Dataset.from_tensor_slices(shapes(512)).shuffle(512).repeat().batch(BATCH).prefetch(AUTO)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(4, 3, activation="relu", input_shape=(6, 6, 1)),
            tf.keras.layers.GlobalAveragePooling2D(),
            tf.keras.layers.Dense(2, activation="softmax"),
        ]
    )
    model.compile(optimizer="adam", loss="sparse_categorical_crossentropy", metrics=["accuracy"])

history = model.fit(dataset, epochs=2, steps_per_epoch=4, verbose=0)
print("losses:", [round(loss, 3) for loss in history.history["loss"]])
