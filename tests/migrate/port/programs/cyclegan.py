"""CycleGAN on two data sets, after the tutorial and the Kaggle notebooks. TensorFlow 2.2."""
import numpy as np
import tensorflow as tf
from tensorflow import keras
from tensorflow.keras import layers

try:
    tpu = tf.distribute.cluster_resolver.TPUClusterResolver()
    print("Device:", tpu.master())
    tf.config.experimental_connect_to_cluster(tpu)
    tf.tpu.experimental.initialize_tpu_system(tpu)
    strategy = tf.distribute.experimental.TPUStrategy(tpu)
except:
    strategy = tf.distribute.get_strategy()
AUTOTUNE = tf.data.experimental.AUTOTUNE
LAMBDA = 10
SIZE = 8


def load(seed):
    images = np.random.RandomState(seed).randint(0, 255, (64, SIZE, SIZE, 3)).astype("uint8")
    return tf.data.Dataset.from_tensor_slices(images)


def normalize(image):
    image = (tf.cast(image, tf.float32) / 127.5) - 1
    image = tf.image.random_flip_left_right(image)
    return tf.reshape(image, [SIZE, SIZE, 3])


monet_ds = load(0).map(normalize, num_parallel_calls=AUTOTUNE).cache().batch(16, drop_remainder=True)
photo_ds = load(1).map(normalize, num_parallel_calls=AUTOTUNE).cache().batch(16, drop_remainder=True)


def downsample(filters, size):
    initializer = tf.random_normal_initializer(0.0, 0.02)
    gamma_init = keras.initializers.RandomNormal(mean=0.0, stddev=0.02)
    result = keras.Sequential()
    result.add(layers.Conv2D(filters, size, strides=2, padding="same", kernel_initializer=initializer, use_bias=False))
    result.add(layers.GroupNormalization(groups=1, gamma_initializer=gamma_init))
    result.add(layers.LeakyReLU())
    return result


def Generator():
    inputs = layers.Input(shape=[SIZE, SIZE, 3])
    x = downsample(8, 4)(inputs)
    x = layers.Conv2DTranspose(3, 4, strides=2, padding="same", activation="tanh")(x)
    return keras.Model(inputs=inputs, outputs=x)


def Discriminator():
    inp = layers.Input(shape=[SIZE, SIZE, 3], name="input_image")
    x = downsample(8, 4)(inp)
    zero_pad = layers.ZeroPadding2D()(x)
    return tf.keras.Model(inputs=inp, outputs=layers.Conv2D(1, 4, strides=1)(zero_pad))


with strategy.scope():
    monet_generator, photo_generator = Generator(), Generator()
    monet_discriminator, photo_discriminator = Discriminator(), Discriminator()
    bce = tf.keras.losses.BinaryCrossentropy(from_logits=True, reduction=tf.keras.losses.Reduction.NONE)
    m_gen_opt = tf.keras.optimizers.Adam(2e-4, beta_1=0.5)
    p_gen_opt = tf.keras.optimizers.Adam(2e-4, beta_1=0.5)
    m_disc_opt = tf.keras.optimizers.Adam(2e-4, beta_1=0.5)
    p_disc_opt = tf.keras.optimizers.Adam(2e-4, beta_1=0.5)


def mean(values):
    return tf.reduce_mean(values) / strategy.num_replicas_in_sync


def discriminator_loss(real, generated):
    return (mean(bce(tf.ones_like(real), real)) + mean(bce(tf.zeros_like(generated), generated))) * 0.5


def train_step(real_monet, real_photo):
    with tf.GradientTape(persistent=True) as tape:
        fake_monet = monet_generator(real_photo, training=True)
        fake_photo = photo_generator(real_monet, training=True)
        cycled = mean(tf.abs(real_photo - photo_generator(fake_monet, training=True)))
        cycled += mean(tf.abs(real_monet - monet_generator(fake_photo, training=True)))
        disc_fake_monet = monet_discriminator(fake_monet, training=True)
        disc_fake_photo = photo_discriminator(fake_photo, training=True)
        monet_gen_loss = mean(bce(tf.ones_like(disc_fake_monet), disc_fake_monet)) + LAMBDA * cycled
        photo_gen_loss = mean(bce(tf.ones_like(disc_fake_photo), disc_fake_photo)) + LAMBDA * cycled
        monet_disc_loss = discriminator_loss(monet_discriminator(real_monet, training=True), disc_fake_monet)
        photo_disc_loss = discriminator_loss(photo_discriminator(real_photo, training=True), disc_fake_photo)
    monet_generator_gradients = tape.gradient(monet_gen_loss, monet_generator.trainable_variables)
    photo_generator_gradients = tape.gradient(photo_gen_loss, photo_generator.trainable_variables)
    monet_discriminator_gradients = tape.gradient(monet_disc_loss, monet_discriminator.trainable_variables)
    photo_discriminator_gradients = tape.gradient(photo_disc_loss, photo_discriminator.trainable_variables)
    m_gen_opt.apply_gradients(zip(monet_generator_gradients, monet_generator.trainable_variables))
    p_gen_opt.apply_gradients(zip(photo_generator_gradients, photo_generator.trainable_variables))
    m_disc_opt.apply_gradients(zip(monet_discriminator_gradients, monet_discriminator.trainable_variables))
    p_disc_opt.apply_gradients(zip(photo_discriminator_gradients, photo_discriminator.trainable_variables))
    return monet_gen_loss


@tf.function
def distributed(batch):
    losses = strategy.run(train_step, args=batch)
    return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)


dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.zip((monet_ds, photo_ds)))
for epoch in range(2):
    for batch in dataset:
        loss = distributed(batch)
    print("epoch", epoch, float(loss))
