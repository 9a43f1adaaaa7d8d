"""A tf.Module with variables of its own, trained in a step. TensorFlow 2.10."""
import numpy as np
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TPUClusterResolver("local")
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)


class Linear(tf.Module):
    def __init__(self, rows, columns, name=None):
        super().__init__(name=name)
        self.w = tf.Variable(tf.random.normal([rows, columns], stddev=0.1), name="w")
        self.b = tf.Variable(tf.zeros([columns]), name="b")

    def __call__(self, x):
        return tf.matmul(x, self.w) + self.b


with strategy.scope():
    layer = Linear(4, 2)
    optimizer = tf.keras.optimizers.Adam(0.05)


@tf.function(jit_compile=True)
def step_fn(x, y):
    with tf.GradientTape() as tape:
        losses = tf.keras.losses.mean_squared_error(y, layer(x))
        loss = tf.nn.compute_average_loss(losses, global_batch_size=64)
    grads = tape.gradient(loss, layer.trainable_variables)
    optimizer.apply_gradients(zip(grads, layer.trainable_variables))
    return loss


x = np.random.RandomState(0).randn(256, 4).astype("float32")
y = x[:, :2] - x[:, 2:]
ds = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((x, y)).batch(64))
for epoch in range(3):
    for batch in ds:
        loss = strategy.reduce("SUM", strategy.run(step_fn, args=batch), axis=None)
    print(epoch, loss.numpy())
