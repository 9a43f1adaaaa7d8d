"""Sentences of any length: from_generator, padded_batch, a GRU. TensorFlow 2.3."""
import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver("")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.experimental.TPUStrategy(resolver)


def sentences():
    random = np.random.RandomState(0)
    for _ in range(256):
        label = random.randint(0, 2)
        yield random.randint(1, 20, random.randint(4, 12)) + 20 * label, label


dataset = tf.data.Dataset.from_generator(
    sentences, output_types=(tf.int64, tf.int64), output_shapes=(tf.TensorShape([None]), tf.TensorShape([]))
)
dataset = dataset.filter(lambda words, label: tf.size(words) > 4)
train = dataset.skip(64).shuffle(200).padded_batch(32, padded_shapes=([12], []), drop_remainder=True)
test = dataset.take(64).padded_batch(32, padded_shapes=([12], []))
print(train.element_spec)

with strategy.scope():
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Embedding(50, 8, input_length=12),
            tf.keras.layers.Bidirectional(tf.keras.layers.GRU(8)),
            tf.keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(loss="binary_crossentropy", optimizer=tf.keras.optimizers.Adam(1e-2), metrics=["accuracy"])
model.fit(train, epochs=2, validation_data=test, verbose=2)
for words, label in test.take(1).as_numpy_iterator():
    print(words.shape, label[:5])
