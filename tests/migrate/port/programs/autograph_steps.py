"""Control flow that autograph compiled: if and for over tensors. TensorFlow 2.5."""
import numpy as np
import tensorflow as tf

strategy = tf.distribute.MirroredStrategy()
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
with strategy.scope():
    weights = tf.Variable(tf.zeros([3, 1]), name="weights")
    bias = tf.Variable(0.0)
    scale = tf.Variable(1.0, trainable=False)
    optimizer = tf.optimizers.SGD(0.1)


def step(x, y):
    with tf.GradientTape() as tape:
        guess = tf.matmul(x, weights) + bias
        loss = tf.reduce_sum(tf.square(guess - y)) / 64.0
    gradients = tape.gradient(loss, [weights, bias])
    norm = tf.linalg.global_norm(gradients)
    if norm > 1.0:
        scale.assign(0.5)
    else:
        scale.assign(1.0)
    optimizer.apply_gradients(zip([g * scale for g in gradients], [weights, bias]))
    return loss


@tf.function
def train(data):
    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(step, args=data), axis=None)


x = np.random.RandomState(0).randn(256, 3).astype("float32")
y = x @ np.array([[1.0], [2.0], [-1.0]], "float32")
dataset = tf.data.Dataset.from_tensor_slices((x, y)).batch(64)
for batch in strategy.experimental_distribute_dataset(dataset):
    tf.print("loss", train(batch))
