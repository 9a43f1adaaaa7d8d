"""Keras fit on a TPU, after the TPU guide. TensorFlow 2.8."""
import os

import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
print("Running on TPU ", resolver.cluster_spec().as_dict().get("worker"))
strategy = tf.distribute.TPUStrategy(resolver)


def create_model():
    regularizer = tf.keras.regularizers.L2(1e-5)
    return tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(8, 3, input_shape=(28, 28, 1), activation="relu", kernel_regularizer=regularizer),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(16, activation="relu", kernel_regularizer=regularizer),
            tf.keras.layers.Dense(10, kernel_regularizer=regularizer),
        ]
    )


def make(count):
    random = np.random.RandomState(count)
    labels = random.randint(0, 10, count)
    return random.randint(0, 255, (count, 28, 28, 1)).astype("uint8"), labels


def get_dataset(batch_size, is_training=True):
    dataset = tf.data.Dataset.from_tensor_slices(make(600 if is_training else 200))

    def scale(image, label):
        image = tf.cast(image, tf.float32)
        image /= 255.0
        return image, label

    dataset = dataset.map(scale)
    if is_training:
        dataset = dataset.repeat().shuffle(2048)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.OFF
    return dataset.batch(batch_size).with_options(options).prefetch(tf.data.AUTOTUNE)


with strategy.scope():
    model = create_model()
    model.compile(
        optimizer="adam",
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["sparse_categorical_accuracy"],
        experimental_steps_per_execution=10,
    )

batch_size = 200
steps_per_epoch = 600 // batch_size
model.fit(
    get_dataset(batch_size),
    epochs=2,
    steps_per_epoch=steps_per_epoch,
    validation_data=get_dataset(batch_size, is_training=False),
    validation_steps=1,
)
model.save("saved/model", save_format="tf")
