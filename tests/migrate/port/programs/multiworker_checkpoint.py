"""A loop with checkpoints, summaries and several steps a call. TensorFlow 2.7."""
import os

import numpy as np
import tensorflow as tf
from absl import logging

resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=os.environ.get("TPU_NAME", "local"))
tf.config.experimental_connect_to_cluster(resolver)
tf.tpu.experimental.initialize_tpu_system(resolver)
strategy = tf.distribute.TPUStrategy(resolver)
per_replica_batch_size = 8
global_batch_size = per_replica_batch_size * strategy.num_replicas_in_sync


def dataset_fn(ctx):
    random = np.random.RandomState(0)
    x = random.randn(512, 5).astype(np.float32)
    y = (x.sum(axis=1, keepdims=True) > 0).astype(np.float32)
    batch_size = ctx.get_per_replica_batch_size(global_batch_size)
    d = tf.data.Dataset.from_tensor_slices((x, y)).repeat()
    d = d.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
    return d.batch(batch_size).prefetch(2)


train_dataset = strategy.distribute_datasets_from_function(dataset_fn)
train_iterator = iter(train_dataset)
with strategy.scope():
    model = tf.keras.Sequential([tf.keras.layers.Dense(16, activation="relu", input_shape=(5,)), tf.keras.layers.Dense(1)])
    optimizer = tf.keras.optimizers.SGD(learning_rate=tf.keras.optimizers.schedules.ExponentialDecay(0.1, 100, 0.9))
    training_loss = tf.keras.metrics.Mean("training_loss", dtype=tf.float32)
    training_accuracy = tf.keras.metrics.BinaryAccuracy("accuracy")

checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
manager = tf.train.CheckpointManager(checkpoint, "checkpoints", max_to_keep=2)
if manager.latest_checkpoint:
    checkpoint.restore(manager.latest_checkpoint)


@tf.function
def train_multiple_steps(iterator, steps):
    def step_fn(inputs):
        features, labels = inputs
        with tf.GradientTape() as tape:
            logits = model(features, training=True)
            loss = tf.keras.losses.binary_crossentropy(labels, logits, from_logits=True)
            loss = tf.nn.compute_average_loss(loss, global_batch_size=global_batch_size)
        grads = tape.gradient(loss, model.trainable_variables)
        grads, _ = tf.clip_by_global_norm(grads, 1.0)
        optimizer.apply_gradients(list(zip(grads, model.trainable_variables)))
        training_loss.update_state(loss * strategy.num_replicas_in_sync)
        training_accuracy.update_state(labels, tf.nn.sigmoid(logits))

    for _ in tf.range(steps):
        strategy.run(step_fn, args=(next(iterator),))


for epoch in range(2):
    train_multiple_steps(train_iterator, tf.convert_to_tensor(10))
    logging.info("epoch %d", epoch)
    print(
        "Current step: {}, training loss: {}, accuracy: {}%".format(
            optimizer.iterations.numpy(), round(float(training_loss.result()), 4), round(float(training_accuracy.result()) * 100, 2)
        )
    )
    training_loss.reset_states()
    training_accuracy.reset_states()
    manager.save()
