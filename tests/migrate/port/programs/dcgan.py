"""A DCGAN with a custom training loop on a TPU. TensorFlow 2.3."""
import time

import numpy as np
import tensorflow as tf
from tensorflow.keras import layers

tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
tf.config.experimental_connect_to_cluster(tpu)
tf.tpu.experimental.initialize_tpu_system(tpu)
strategy = tf.distribute.TPUStrategy(tpu)

BUFFER_SIZE = 512
BATCH_SIZE = 64
EPOCHS = 2
noise_dim = 16

train_images = np.random.RandomState(0).rand(256, 8, 8, 1).astype("float32")
train_images = (train_images - 0.5) / 0.5
train_dataset = tf.data.Dataset.from_tensor_slices(train_images).shuffle(BUFFER_SIZE).batch(BATCH_SIZE, drop_remainder=True)


def make_generator_model():
    model = tf.keras.Sequential()
    model.add(layers.Dense(4 * 4 * 8, use_bias=False, input_shape=(noise_dim,)))
    model.add(layers.BatchNormalization())
    model.add(layers.LeakyReLU())
    model.add(layers.Reshape((4, 4, 8)))
    assert model.output_shape == (None, 4, 4, 8)
    model.add(layers.Conv2DTranspose(1, (5, 5), strides=(2, 2), padding="same", use_bias=False, activation="tanh"))
    return model


def make_discriminator_model():
    model = tf.keras.Sequential()
    model.add(layers.Conv2D(8, (5, 5), strides=(2, 2), padding="same", input_shape=[8, 8, 1]))
    model.add(layers.LeakyReLU(alpha=0.2))
    model.add(layers.Dropout(0.3))
    model.add(layers.Flatten())
    model.add(layers.Dense(1))
    return model


with strategy.scope():
    generator = make_generator_model()
    discriminator = make_discriminator_model()
    cross_entropy = tf.keras.losses.BinaryCrossentropy(from_logits=True, reduction=tf.keras.losses.Reduction.NONE)
    generator_optimizer = tf.keras.optimizers.Adam(1e-4)
    discriminator_optimizer = tf.keras.optimizers.Adam(1e-4)


def discriminator_loss(real_output, fake_output):
    real_loss = cross_entropy(tf.ones_like(real_output), real_output)
    fake_loss = cross_entropy(tf.zeros_like(fake_output), fake_output)
    return tf.nn.compute_average_loss(real_loss + fake_loss, global_batch_size=BATCH_SIZE)


def generator_loss(fake_output):
    return tf.nn.compute_average_loss(cross_entropy(tf.ones_like(fake_output), fake_output), global_batch_size=BATCH_SIZE)


def train_step(images):
    noise = tf.random.normal([tf.shape(images)[0], noise_dim])
    with tf.GradientTape() as gen_tape, tf.GradientTape() as disc_tape:
        generated_images = generator(noise, training=True)
        real_output = discriminator(images, training=True)
        fake_output = discriminator(generated_images, training=True)
        gen_loss = generator_loss(fake_output)
        disc_loss = discriminator_loss(real_output, fake_output)
    gradients_of_generator = gen_tape.gradient(gen_loss, generator.trainable_variables)
    gradients_of_discriminator = disc_tape.gradient(disc_loss, discriminator.trainable_variables)
    generator_optimizer.apply_gradients(zip(gradients_of_generator, generator.trainable_variables))
    discriminator_optimizer.apply_gradients(zip(gradients_of_discriminator, discriminator.trainable_variables))
    return gen_loss, disc_loss


@tf.function
def distributed_step(images):
    gen, disc = strategy.run(train_step, args=(images,))
    return strategy.reduce(tf.distribute.ReduceOp.SUM, gen, axis=None), strategy.reduce(
        tf.distribute.ReduceOp.SUM, disc, axis=None
    )


seed = tf.random.normal([4, noise_dim])
for epoch in range(EPOCHS):
    start = time.time()
    for image_batch in strategy.experimental_distribute_dataset(train_dataset):
        g, d = distributed_step(image_batch)
    predictions = generator(seed, training=False)
    print("epoch", epoch + 1, "generator", g.numpy(), "discriminator", d.numpy(), predictions.shape, time.time() - start)
