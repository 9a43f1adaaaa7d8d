"""Learns to add with a loop of its own: placement, replicas, one step a call, many steps a call. TensorFlow 2.15."""

import os

import numpy as np
import tensorflow as tf

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
tf.random.set_seed(7)

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu="")
tf.config.experimental_connect_to_cluster(resolver)
# This clears what is on the TPU.
tf.tpu.experimental.initialize_tpu_system(resolver)
print("cores:", len(tf.config.list_logical_devices("TPU")))

a = tf.constant([[1.0, 2.0], [3.0, 4.0]])
with tf.device("/TPU:0"):
    b = tf.matmul(a, tf.transpose(a))
print("on one core:", b.numpy().tolist())

strategy = tf.distribute.TPUStrategy(resolver)


@tf.function
def squared(x):
    return tf.matmul(x, x)


print(strategy.run(squared, args=(a,)))

BATCH = 32
PER_REPLICA = BATCH // strategy.num_replicas_in_sync
STEPS = 20


def numbers(count):
    x = np.random.default_rng(5).normal(size=(count, 3)).astype("float32")
    return x * 255.0, (x.sum(axis=1) > 0).astype("int32")


def get_dataset(batch, is_training=True):
    dataset = tf.data.Dataset.from_tensor_slices(numbers(640))

    def scale(row, label):
        row = tf.cast(row, tf.float32)
        row /= 255.0
        return row, label

    dataset = dataset.map(scale, num_parallel_calls=tf.data.AUTOTUNE)
    if is_training:
        dataset = dataset.shuffle(640)
        dataset = dataset.repeat()
    return dataset.batch(batch)


def create_model():
    return tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu"), tf.keras.layers.Dense(2)])


with strategy.scope():
    model = create_model()
    optimizer = tf.keras.optimizers.Adam(learning_rate=0.02)
    training_loss = tf.keras.metrics.Mean("training_loss", dtype=tf.float32)
    training_accuracy = tf.keras.metrics.SparseCategoricalAccuracy("training_accuracy", dtype=tf.float32)
    model.build((None, 3))

train_dataset = strategy.experimental_distribute_datasets_from_function(lambda _: get_dataset(PER_REPLICA))
train_iterator = iter(train_dataset)


def step_fn(inputs):
    """The step of one replica."""
    x, y = inputs
    with tf.GradientTape() as tape:
        logits = model(x, training=True)
        loss = tf.keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
        loss = tf.nn.compute_average_loss(loss, global_batch_size=BATCH)
    grads = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
    training_loss.update_state(loss * strategy.num_replicas_in_sync)
    training_accuracy.update_state(y, logits)


@tf.function
def train_step(iterator):
    strategy.run(step_fn, args=(next(iterator),))


@tf.function
def train_multiple_steps(iterator, steps):
    for _ in tf.range(steps):
        strategy.run(step_fn, args=(next(iterator),))


def report():
    step, loss, accuracy = optimizer.iterations.numpy(), training_loss.result(), training_accuracy.result()
    print(f"Current step: {step}, training loss: {float(loss):.4f}, accuracy: {float(accuracy) * 100:.2f}%")
    training_loss.reset_states()
    training_accuracy.reset_states()


for _ in range(STEPS):
    train_step(train_iterator)
report()
train_multiple_steps(train_iterator, tf.convert_to_tensor(STEPS))
report()


def ids():
    context = tf.distribute.get_replica_context()
    return tf.cast(context.replica_id_in_sync_group, tf.float32)


total = strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(ids), axis=None)
print("sum of the replicas' numbers:", total.numpy())
