"""IMDB-like sentiment, a 2018 notebook that converts a Keras model. TensorFlow 1.12."""
import os

import numpy as np
import tensorflow as tf
from tensorflow.python.keras.layers import Dense, Dropout, Embedding, Input, LSTM
from tensorflow.python.keras.models import Model
from tensorflow.python.keras.optimizers import Adam

maxlen = 20
max_features = 100


def make_model(batch_size=None):
    source = Input(shape=(maxlen,), batch_size=batch_size, dtype=tf.int32, name="Input")
    embedding = Embedding(input_dim=max_features, output_dim=16, name="Embedding")(source)
    lstm = LSTM(8, name="LSTM")(embedding)
    drop = Dropout(0.5)(lstm)
    predicted_var = Dense(1, activation="sigmoid", name="Output")(drop)
    model = Model(inputs=[source], outputs=[predicted_var])
    model.compile(optimizer=Adam(lr=0.01, decay=1e-4), loss="binary_crossentropy", metrics=["acc"])
    return model


tf.keras.backend.clear_session()
training_model = make_model(batch_size=128)

TPU_WORKER = "grpc://" + os.environ["COLAB_TPU_ADDR"]
tf.logging.set_verbosity(tf.logging.INFO)
tpu_model = tf.contrib.tpu.keras_to_tpu_model(
    training_model,
    strategy=tf.contrib.tpu.TPUDistributionStrategy(tf.contrib.cluster_resolver.TPUClusterResolver(TPU_WORKER)),
)
tpu_model.summary()

random = np.random.RandomState(0)
x_train = random.randint(0, max_features, (512, maxlen))
y_train = (x_train.mean(1) > 50).astype("int32")
history = tpu_model.fit(x_train, y_train, epochs=3, batch_size=128, validation_split=0.25)
tpu_model.save_weights("./tpu_model.h5", overwrite=True)

inferencing_model = make_model(batch_size=None)
inferencing_model.load_weights("./tpu_model.h5")
scores = inferencing_model.evaluate(x_train[:64], y_train[:64], batch_size=8)
prediction = tpu_model.predict_on_batch(x_train[:128])
print(scores, history.history["acc"], prediction.shape)
