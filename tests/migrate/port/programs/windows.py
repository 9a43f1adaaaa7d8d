"""Time series in windows with a Dense network. TensorFlow 2.4."""
import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
series = np.sin(np.arange(600) / 10.0).astype("float32")


def windowed_dataset(series, window_size, batch_size, shuffle_buffer):
    dataset = tf.data.Dataset.from_tensor_slices(series)
    dataset = dataset.window(window_size + 1, shift=1, drop_remainder=True)
    dataset = dataset.flat_map(lambda window: window.batch(window_size + 1))
    dataset = dataset.shuffle(shuffle_buffer).map(lambda window: (window[:-1], window[-1]))
    return dataset.batch(batch_size).prefetch(1)


with strategy.scope():
    model = tf.keras.models.Sequential(
        [tf.keras.layers.Dense(10, input_shape=[20], activation="relu"), tf.keras.layers.Dense(1)]
    )
    model.compile(loss=tf.keras.losses.Huber(), optimizer=tf.keras.optimizers.SGD(lr=1e-3, momentum=0.9))
model.fit(windowed_dataset(series, 20, 32, 500), epochs=2, verbose=0)
print(model.predict(series[np.newaxis, :20]).shape)
