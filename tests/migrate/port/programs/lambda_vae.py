"""A VAE with a Lambda layer, after the Keras 2 examples. Keras 2.2 with TensorFlow 1.12."""
import numpy as np
import tensorflow as tf
from keras import backend as K
from keras.layers import Dense, Input, Lambda
from keras.losses import binary_crossentropy, mse
from keras.models import Model


def sampling(args):
    z_mean, z_log_var = args
    batch = K.shape(z_mean)[0]
    dim = K.int_shape(z_mean)[1]
    epsilon = K.random_normal(shape=(batch, dim))
    return z_mean + K.exp(0.5 * z_log_var) * epsilon


x_train = np.random.RandomState(0).rand(256, 20).astype("float32")
inputs = Input(shape=(20,), name="encoder_input")
x = Dense(16, activation="relu")(inputs)
z_mean = Dense(2, name="z_mean")(x)
z_log_var = Dense(2, name="z_log_var")(x)
z = Lambda(sampling, output_shape=(2,), name="z")([z_mean, z_log_var])
outputs = Dense(20, activation="sigmoid")(Dense(16, activation="relu")(z))
vae = Model(inputs, outputs, name="vae_mlp")
vae.compile(optimizer="adam", loss="mse")
vae = tf.contrib.tpu.keras_to_tpu_model(vae)
vae.fit(x_train, x_train, epochs=2, batch_size=64)
