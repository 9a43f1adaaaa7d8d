"""Reads whether a sentence is kind: an LSTM converted for the TPU of a notebook. TensorFlow 1.12."""

import os

import numpy as np
import tensorflow as tf
from tensorflow.keras import backend as K
from tensorflow.keras.layers import LSTM, Dense, Embedding
from tensorflow.keras.models import Sequential
from tensorflow.keras.preprocessing.sequence import pad_sequences

WORDS = 50
LENGTH = 12

if "COLAB_TPU_ADDR" in os.environ:
    with tf.Session("grpc://" + os.environ["COLAB_TPU_ADDR"]) as session:
        # One line for each core.
        for one in session.list_devices():
            print(one)

tpu_worker = "grpc://" + os.environ["COLAB_TPU_ADDR"]
tf.logging.set_verbosity(tf.logging.INFO)
tf.set_random_seed(3)


def sentences(count, seed):
    """Kind sentences have words above the middle."""
    random = np.random.RandomState(seed)
    labels = random.randint(0, 2, count)
    words = [random.randint(1, 25, random.randint(5, 15)) + 25 * label for label in labels]
    return pad_sequences(words, LENGTH), labels


def build():
    K.clear_session()
    model = Sequential()
    model.add(Embedding(WORDS, 8, input_length=LENGTH))
    model.add(LSTM(8))
    model.add(Dense(1, activation="sigmoid"))
    model.compile(loss="binary_crossentropy", optimizer=tf.keras.optimizers.Adam(lr=0.02), metrics=["accuracy"])
    return model


x_train, y_train = sentences(256, 0)
x_test, y_test = sentences(64, 1)
model = tf.contrib.tpu.keras_to_tpu_model(
    build(),
    strategy=tf.contrib.tpu.TPUDistributionStrategy(tf.contrib.cluster_resolver.TPUClusterResolver(tpu_worker)),
)
model.fit(x_train, y_train, epochs=3, batch_size=64, validation_data=(x_test, y_test), verbose=0)
model.save_weights("./tpu_model.h5", overwrite=True)
loss, accuracy = model.evaluate(x_test, y_test, batch_size=8 * 8, verbose=0)
print("accuracy", accuracy)
cpu_model = model.sync_to_cpu()
print(cpu_model.predict(x_test[:6]).shape)
