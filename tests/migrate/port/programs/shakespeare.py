"""Character generation with Keras on a TPU, after the Shakespeare notebook. TensorFlow 1.14 with eager data."""
import distutils
import os

import numpy as np
import tensorflow as tf

tf.enable_v2_behavior()
TEXT = "to be or not to be that is the question whether tis nobler in the mind to suffer " * 40
EMBEDDING_DIM = 16


def transform(txt):
    return np.asarray([ord(c) for c in txt if ord(c) < 255], dtype=np.int32)


def input_fn(seq_len=20, batch_size=32):
    source = tf.constant(transform(TEXT), dtype=tf.int32)
    ds = tf.data.Dataset.from_tensor_slices(source).batch(seq_len + 1, drop_remainder=True)

    def split_input_target(chunk):
        input_text = chunk[:-1]
        target_text = chunk[1:]
        return input_text, target_text

    BUFFER_SIZE = 1000
    ds = ds.map(split_input_target).shuffle(BUFFER_SIZE).batch(batch_size, drop_remainder=True)
    return ds.repeat()


def lstm_model(seq_len, batch_size, stateful):
    source = tf.keras.Input(name="seed", shape=(seq_len,), batch_size=batch_size, dtype=tf.int32)
    embedding = tf.keras.layers.Embedding(input_dim=256, output_dim=EMBEDDING_DIM)(source)
    lstm_1 = tf.keras.layers.LSTM(EMBEDDING_DIM, stateful=stateful, return_sequences=True)(embedding)
    predicted_char = tf.keras.layers.TimeDistributed(tf.keras.layers.Dense(256, activation="softmax"))(lstm_1)
    return tf.keras.Model(inputs=[source], outputs=[predicted_char])


tf.keras.backend.clear_session()
resolver = tf.contrib.cluster_resolver.TPUClusterResolver("grpc://" + os.environ["COLAB_TPU_ADDR"])
tf.contrib.distribute.initialize_tpu_system(resolver)
strategy = tf.contrib.distribute.TPUStrategy(resolver)
with strategy.scope():
    training_model = lstm_model(seq_len=20, batch_size=None, stateful=False)
    training_model.compile(
        optimizer=tf.keras.optimizers.RMSprop(lr=0.01),
        loss="sparse_categorical_crossentropy",
        metrics=["sparse_categorical_accuracy"],
    )
training_model.fit(input_fn(), steps_per_epoch=4, epochs=2)
training_model.save_weights("/tmp/bard.h5", overwrite=True)

prediction_model = lstm_model(seq_len=1, batch_size=4, stateful=True)
prediction_model.load_weights("/tmp/bard.h5")
prediction_model.reset_states()
last = np.full((4, 1), ord("t"), dtype=np.int32)
for _ in range(3):
    probs = prediction_model.predict(last)[:, 0, :]
    last = probs.argmax(axis=1).reshape(4, 1)
print([chr(c) for c in last[:, 0]])
