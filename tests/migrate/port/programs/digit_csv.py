"""Digits from a CSV file with augmentation: a Kaggle script of 2019, moved to a TPU. TensorFlow 2.1, Keras 2.3."""
import numpy as np
import tensorflow as tf
from keras.callbacks import ReduceLROnPlateau
from keras.layers import Conv2D, Dense, Dropout, Flatten, MaxPool2D
from keras.models import Sequential
from keras.optimizers import RMSprop
from keras.preprocessing.image import ImageDataGenerator
from keras.utils.np_utils import to_categorical

table = np.loadtxt("data/digits.csv", delimiter=",", dtype=np.int32)
X = (table[:, 1:] / 255.0).reshape(-1, 8, 8, 1).astype("float32")
Y = to_categorical(table[:, 0], num_classes=10)

resolver = tf.distribute.cluster_resolver.TPUClusterResolver()
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.experimental.TPUStrategy(resolver)
with strategy.scope():
    model = Sequential()
    model.add(Conv2D(filters=8, kernel_size=(5, 5), padding="Same", activation="relu", input_shape=(8, 8, 1)))
    model.add(MaxPool2D(pool_size=(2, 2)))
    model.add(Dropout(0.25))
    model.add(Flatten())
    model.add(Dense(10, activation="softmax"))
    optimizer = RMSprop(lr=0.001, rho=0.9, epsilon=1e-08, decay=0.0)
    model.compile(optimizer=optimizer, loss="categorical_crossentropy", metrics=["accuracy"])

datagen = ImageDataGenerator(rotation_range=10, zoom_range=0.1, width_shift_range=0.1, height_shift_range=0.1)
datagen.fit(X)
history = model.fit_generator(
    datagen.flow(X, Y, batch_size=32),
    epochs=2,
    validation_data=(X[:64], Y[:64]),
    steps_per_epoch=X.shape[0] // 32,
    callbacks=[ReduceLROnPlateau(monitor="val_acc", patience=3, verbose=1, factor=0.5, min_lr=0.00001)],
)
results = np.argmax(model.predict(X[:10]), axis=1)
print(results)
