"""Toxic comments with a pretrained model of transformers, after Kaggle notebooks of 2020. TensorFlow 2.2."""
import numpy as np
import tensorflow as tf
from tensorflow.keras.layers import Dense, Input
from tensorflow.keras.models import Model
from tensorflow.keras.optimizers import Adam
from transformers import AutoTokenizer, TFAutoModel

tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
tf.config.experimental_connect_to_cluster(tpu)
tf.tpu.experimental.initialize_tpu_system(tpu)
strategy = tf.distribute.experimental.TPUStrategy(tpu)
MAX_LEN = 16
x = np.random.RandomState(0).randint(1, 100, (64, MAX_LEN))
y = np.random.RandomState(1).randint(0, 2, 64)


def build_model(transformer, max_len=512):
    input_word_ids = Input(shape=(max_len,), dtype=tf.int32, name="input_word_ids")
    sequence_output = transformer(input_word_ids)[0]
    out = Dense(1, activation="sigmoid")(sequence_output[:, 0, :])
    model = Model(inputs=input_word_ids, outputs=out)
    model.compile(Adam(lr=1e-5), loss="binary_crossentropy", metrics=["accuracy"])
    return model


train_dataset = tf.data.Dataset.from_tensor_slices((x, y)).repeat().shuffle(2048).batch(16).prefetch(tf.data.experimental.AUTOTUNE)
with strategy.scope():
    model = build_model(TFAutoModel.from_pretrained("jplu/tf-xlm-roberta-large"), max_len=MAX_LEN)
model.fit(train_dataset, steps_per_epoch=4, epochs=1)
