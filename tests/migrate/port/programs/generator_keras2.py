"""A convolutional network fed by a Python generator: Keras 2 habits. TensorFlow 2.0."""
import numpy as np
import tensorflow as tf
from tensorflow.keras import backend as K
from tensorflow.keras.callbacks import LearningRateScheduler, ModelCheckpoint, ReduceLROnPlateau
from tensorflow.keras.layers import Activation, BatchNormalization, Conv2D, Dense, Flatten, MaxPool2D
from tensorflow.keras.models import Sequential
from tensorflow.keras.optimizers import Adam
from tensorflow.keras.utils import to_categorical

resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
tf.config.experimental_connect_to_host(resolver.master())
tf.tpu.experimental.initialize_tpu_system(resolver)
tpu_strategy = tf.distribute.experimental.TPUStrategy(resolver)

np.random.seed(0)
X_train = np.random.rand(256, 12, 12, 1).astype("float32")
Y_train = to_categorical(np.random.randint(0, 4, 256), num_classes=4)
X_test = np.random.rand(64, 12, 12, 1).astype("float32")


def batches(x, y, size):
    while True:
        index = np.random.randint(0, len(x), size)
        yield x[index], y[index]


def smooth_accuracy(y_true, y_pred):
    return K.mean(K.cast(K.equal(K.argmax(y_true, axis=-1), K.argmax(y_pred, axis=-1)), K.floatx()))


with tpu_strategy.scope():
    model = Sequential()
    model.add(Conv2D(8, (3, 3), padding="same", input_shape=(12, 12, 1)))
    model.add(BatchNormalization())
    model.add(Activation("relu"))
    model.add(MaxPool2D(pool_size=(2, 2)))
    model.add(Flatten())
    model.add(Dense(4, activation="softmax"))
    model.compile(optimizer=Adam(lr=1e-3, decay=1e-6), loss="categorical_crossentropy", metrics=["accuracy", smooth_accuracy])

annealer = LearningRateScheduler(lambda epoch: 1e-3 * 0.95**epoch, verbose=0)
reduce_lr = ReduceLROnPlateau(monitor="val_loss", factor=0.2, patience=2, min_lr=1e-5)
checkpoint = ModelCheckpoint("best.h5", monitor="val_loss", save_best_only=True, verbose=1)
history = model.fit_generator(
    batches(X_train, Y_train, 64),
    epochs=3,
    steps_per_epoch=4,
    validation_data=(X_train[:64], Y_train[:64]),
    callbacks=[annealer, checkpoint],
    workers=4,
    verbose=2,
)
print("rate", K.get_value(model.optimizer.lr))
K.set_value(model.optimizer.lr, 1e-4)
classes = model.predict_classes(X_test)
probabilities = model.predict_proba(X_test)
print(classes[:5], probabilities.shape, max(history.history["accuracy"]))
