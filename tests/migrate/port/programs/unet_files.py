"""Segmentation of image files: list_files, zip, decoding, random crops, a small U-Net. TensorFlow 2.4."""
import os

import tensorflow as tf
from tensorflow.keras.layers import Concatenate, Conv2D, Input, MaxPooling2D, UpSampling2D

AUTOTUNE = tf.data.experimental.AUTOTUNE
SIZE = 16
FOLDER = "data/images"
try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ["TPU_NAME"])
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.TPUStrategy(tpu)
except (KeyError, ValueError):
    strategy = tf.distribute.get_strategy()


def read(path):
    image = tf.io.read_file(path)
    image = tf.image.decode_png(image, channels=3)
    image = tf.image.convert_image_dtype(image, tf.float32)
    return tf.image.resize(image, (SIZE + 4, SIZE + 4))


def crop(image):
    image = tf.image.random_crop(image, size=[SIZE, SIZE, 3])
    mask = tf.cast(tf.reduce_mean(image, axis=-1, keepdims=True) > 0.5, tf.float32)
    return image, mask


def make_dataset(pattern, batch_size):
    files = tf.data.Dataset.list_files(pattern, shuffle=False)
    images = files.map(read, num_parallel_calls=AUTOTUNE)
    return images.cache().map(crop, num_parallel_calls=AUTOTUNE).repeat().shuffle(64).batch(batch_size).prefetch(AUTOTUNE)


def dice_coef(y_true, y_pred, smooth=1.0):
    y_true_f = tf.reshape(y_true, [-1])
    y_pred_f = tf.reshape(y_pred, [-1])
    intersection = tf.reduce_sum(y_true_f * y_pred_f)
    return (2.0 * intersection + smooth) / (tf.reduce_sum(y_true_f) + tf.reduce_sum(y_pred_f) + smooth)


def dice_loss(y_true, y_pred):
    return 1.0 - dice_coef(y_true, y_pred)


def unet():
    inputs = Input((SIZE, SIZE, 3))
    a = Conv2D(4, 3, activation="relu", padding="same")(inputs)
    b = Conv2D(8, 3, activation="relu", padding="same")(MaxPooling2D()(a))
    c = Concatenate(axis=3)([a, UpSampling2D(size=(2, 2))(b)])
    return tf.keras.Model(inputs, Conv2D(1, 1, activation="sigmoid")(c))


with strategy.scope():
    model = unet()
    model.compile(optimizer=tf.keras.optimizers.Adam(lr=1e-3), loss=dice_loss, metrics=[dice_coef])
model.fit(make_dataset(os.path.join(FOLDER, "*.png"), 16), steps_per_epoch=2, epochs=2)
model.save("unet.h5")
restored = tf.keras.models.load_model("unet.h5", custom_objects={"dice_loss": dice_loss, "dice_coef": dice_coef})
print(restored.count_params())
