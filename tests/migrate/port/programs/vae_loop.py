"""A variational autoencoder with a loop of its own. TensorFlow 2.5."""
import numpy as np
import tensorflow as tf

strategy = tf.distribute.get_strategy()
try:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect()
    strategy = tf.distribute.TPUStrategy(resolver)
except (ValueError, tf.errors.NotFoundError):
    print("no TPU")


class CVAE(tf.keras.Model):
    """Convolutional variational autoencoder."""

    def __init__(self, latent_dim):
        super(CVAE, self).__init__()
        self.latent_dim = latent_dim
        self.encoder = tf.keras.Sequential(
            [
                tf.keras.layers.InputLayer(input_shape=(8, 8, 1)),
                tf.keras.layers.Conv2D(filters=8, kernel_size=3, strides=(2, 2), activation="relu"),
                tf.keras.layers.Flatten(),
                tf.keras.layers.Dense(latent_dim + latent_dim),
            ]
        )
        self.decoder = tf.keras.Sequential(
            [
                tf.keras.layers.InputLayer(input_shape=(latent_dim,)),
                tf.keras.layers.Dense(units=4 * 4 * 8, activation=tf.nn.relu),
                tf.keras.layers.Reshape(target_shape=(4, 4, 8)),
                tf.keras.layers.Conv2DTranspose(filters=1, kernel_size=3, strides=2, padding="same"),
            ]
        )

    def encode(self, x):
        mean, logvar = tf.split(self.encoder(x), num_or_size_splits=2, axis=1)
        return mean, logvar

    def reparameterize(self, mean, logvar):
        eps = tf.random.normal(shape=mean.shape)
        return eps * tf.exp(logvar * 0.5) + mean

    def decode(self, z, apply_sigmoid=False):
        logits = self.decoder(z)
        if apply_sigmoid:
            return tf.sigmoid(logits)
        return logits


with strategy.scope():
    model = CVAE(2)
    optimizer = tf.keras.optimizers.Adam(1e-4)


def log_normal_pdf(sample, mean, logvar, raxis=1):
    log2pi = tf.math.log(2.0 * np.pi)
    return tf.reduce_sum(-0.5 * ((sample - mean) ** 2.0 * tf.exp(-logvar) + logvar + log2pi), axis=raxis)


def compute_loss(model, x):
    mean, logvar = model.encode(x)
    z = model.reparameterize(mean, logvar)
    x_logit = model.decode(z)
    cross_ent = tf.nn.sigmoid_cross_entropy_with_logits(logits=x_logit, labels=x)
    logpx_z = -tf.reduce_sum(cross_ent, axis=[1, 2, 3])
    logpz = log_normal_pdf(z, 0.0, 0.0)
    logqz_x = log_normal_pdf(z, mean, logvar)
    return -tf.reduce_mean(logpx_z + logpz - logqz_x) / strategy.num_replicas_in_sync


def train_step(x):
    with tf.GradientTape() as tape:
        loss = compute_loss(model, x)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    return loss


@tf.function
def distributed(x):
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(train_step, args=(x,)), axis=None)


images = (np.random.RandomState(0).rand(256, 8, 8, 1) > 0.5).astype("float32")
train_dataset = tf.data.Dataset.from_tensor_slices(images).shuffle(256).batch(64, drop_remainder=True)
for epoch in range(1, 3):
    loss = tf.keras.metrics.Mean()
    for train_x in strategy.experimental_distribute_dataset(train_dataset):
        loss(distributed(train_x))
    print("Epoch: {}, loss: {}".format(epoch, loss.result().numpy()))
print(tf.nn.sigmoid(model.decode(tf.random.normal(shape=(2, 2)))).shape)
