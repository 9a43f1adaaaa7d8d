"""The Colab survival guide: an LSTM that classifies film reviews, converted to a TPU model.

python examples/02_imdb_lstm.py            # on Keras's local imdb.npz, else on small generated reviews
python examples/02_imdb_lstm.py --smoke    # in seconds
"""

import argparse
import os
import time
from pathlib import Path

import anytpu as tpu  # isort: skip
import keras
import numpy as np
from keras.layers import LSTM, Dense, Embedding, Input
from keras.models import Sequential

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--smoke", action="store_true", help="a small network, for a few seconds")
SMOKE = parser.parse_args().smoke

top_words = 15000
max_review_length = 50 if SMOKE else 250
INDEX_FROM = 3
epochs = 3 if SMOKE else 20
embedding_vector_length = 32
units = 16 if SMOKE else 100

# --- Connect the TPU and test it: an address in the environment, or what there is

TPU_ADDRESS = os.environ.get("COLAB_TPU_ADDR", "")
resolver = tpu.TPUClusterResolver(TPU_ADDRESS)
print(f"Found TPU at: {TPU_ADDRESS or resolver}")

# --- Load and process the data


def make_reviews(count, random):
    """Return reviews of random words by frequency; one in eight is an opinion: words 31 to 50 good, 51 to 70 bad."""
    labels = random.integers(0, 2, count)
    words = np.minimum(random.zipf(1.3, (count, max_review_length)), 4000)
    opinions = np.where(labels, 31, 51)[:, None] + random.integers(0, 20, words.shape)
    return np.where(random.random(words.shape) < 1 / 8, opinions, words).astype("int32"), labels


if (Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser() / "datasets" / "imdb.npz").exists():
    (X_train, y_train), (X_test, y_test) = keras.datasets.imdb.load_data(num_words=top_words, index_from=INDEX_FROM)
    X_train, X_test = (keras.utils.pad_sequences(X, maxlen=max_review_length) for X in (X_train, X_test))
else:
    print("Trained on small generated reviews, because IMDB is missing: keras.datasets.imdb.load_data() downloads it.")
    (X_train, y_train), (X_test, y_test) = (make_reviews(count, np.random.default_rng(count)) for count in (1000, 250))
    epochs = min(epochs, 4)  # They are learned soon.

# --- Build the model, and make it one of the TPU's

model = Sequential()
model.add(Input((max_review_length,), dtype="int32"))
model.add(Embedding(top_words, embedding_vector_length))
model.add(LSTM(units))
model.add(Dense(1, activation="sigmoid"))
model.summary()
model.compile(loss="binary_crossentropy", optimizer="adam", metrics=["accuracy"])


def model_to_tpu(model):
    return tpu.keras_to_tpu_model(model, strategy=tpu.TPUDistributionStrategy(resolver))


model = model_to_tpu(model)

# --- Fit, save, evaluate

began_s = time.perf_counter()
model.fit(X_train, y_train, epochs=epochs, batch_size=64, validation_data=(X_test, y_test), verbose=2)
each_us = (time.perf_counter() - began_s) / epochs / len(X_train) * 1e6
print(f"Average time per sample in each epoch, validation and compilation included: {each_us:.0f} us")

model.save_weights("./tpu_model.h5", overwrite=True)
print("loss, accuracy:", model.evaluate(X_test, y_test, batch_size=128 * 8, verbose=0))

# --- Make a prediction: 6 reviews on 8 cores were an error, and are none here

y_pred = model.predict(X_test[:6], verbose=0)
print("On the TPU:", y_pred[:, 0].round(3))

model = model.sync_to_cpu()
y_pred = model.predict(X_test[:6], verbose=0)
print("On the CPU:", y_pred[:, 0].round(3))
