"""A custom loop with values per replica, gradient accumulation, clipping, EMA and a checkpoint. TensorFlow 2.6 (2021)."""
import os
import time

import numpy as np
import tensorflow as tf
from absl import app, flags, logging

FLAGS = flags.FLAGS
flags.DEFINE_string("tpu", "", "Name of the TPU.")
flags.DEFINE_integer("global_batch_size", 64, "Global batch size.")
flags.DEFINE_integer("epochs", 3, "Number of epochs.")
flags.DEFINE_integer("steps_per_epoch", 8, "Steps per epoch.")
flags.DEFINE_float("learning_rate", 1e-3, "Peak learning rate.")
flags.DEFINE_float("ema_decay", 0.99, "Decay of the moving average of the weights.")
flags.DEFINE_string("model_dir", "values_model", "Folder of checkpoints and summaries.")


class WarmupCosine(tf.keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, base, warmup, total):
        super().__init__()
        self.base, self.warmup, self.total = base, warmup, total

    def __call__(self, step):
        step = tf.cast(step, tf.float32)
        rising = self.base * step / self.warmup
        progress = (step - self.warmup) / tf.cast(self.total - self.warmup, tf.float32)
        falling = 0.5 * self.base * (1.0 + tf.cos(np.pi * tf.clip_by_value(progress, 0.0, 1.0)))
        return tf.where(step < self.warmup, rising, falling)

    def get_config(self):
        return {"base": self.base, "warmup": self.warmup, "total": self.total}


class Residual(tf.keras.layers.Layer):
    def __init__(self, units, rate=0.1, **kwargs):
        super().__init__(**kwargs)
        self.units, self.rate = units, rate

    def build(self, input_shape):
        self.kernel = self.add_weight("kernel", shape=[int(input_shape[-1]), self.units],
                                      initializer=tf.keras.initializers.VarianceScaling(2.0))
        self.scale = tf.Variable(tf.ones([self.units]), trainable=True, name="scale")

    def call(self, x, training=None):
        y = tf.einsum("bd,du->bu", x, self.kernel)
        mean, variance = tf.nn.moments(y, axes=[-1], keepdims=True)
        y = (y - mean) * tf.math.rsqrt(variance + 1e-6) * self.scale
        y = tf.nn.swish(y)
        if training:
            y = tf.nn.dropout(y, rate=self.rate)
        return x + y if x.shape[-1] == self.units else y


def build_model():
    inputs = tf.keras.Input(shape=(16,))
    x = Residual(32)(inputs)
    x = Residual(32)(x)
    outputs = tf.keras.layers.Dense(4, dtype="float32")(x)
    return tf.keras.Model(inputs, outputs)


def make_data(count):
    rng = np.random.RandomState(0)
    x = rng.randn(count, 16).astype(np.float32)
    return x, np.argmax(x[:, :4], axis=1).astype(np.int32)


def main(argv):
    del argv
    tf.get_logger().setLevel("ERROR")
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=FLAGS.tpu)
    tf.config.experimental_connect_to_cluster(resolver)
    topology = tf.tpu.experimental.initialize_tpu_system(resolver)
    strategy = tf.distribute.TPUStrategy(resolver)
    logging.info("replicas: %d", strategy.num_replicas_in_sync)
    logging.info("topology: %s", topology.mesh_shape)

    x, y = make_data(512)

    def input_fn(ctx):
        batch_size = ctx.get_per_replica_batch_size(FLAGS.global_batch_size)
        ds = tf.data.Dataset.from_tensor_slices((x, y))
        ds = ds.shard(ctx.num_input_pipelines, ctx.input_pipeline_id)
        ds = ds.shuffle(512, seed=1).repeat().batch(batch_size, drop_remainder=True)
        return ds.prefetch(tf.data.experimental.AUTOTUNE)

    train_iter = iter(strategy.distribute_datasets_from_function(input_fn))
    total_steps = FLAGS.epochs * FLAGS.steps_per_epoch

    with strategy.scope():
        model = build_model()
        ema_weights = [tf.Variable(w, trainable=False) for w in model.trainable_variables]
        optimizer = tf.keras.optimizers.Adam(WarmupCosine(FLAGS.learning_rate, 4, total_steps), clipnorm=1.0)
        train_loss = tf.keras.metrics.Mean(name="train_loss")
        train_acc = tf.keras.metrics.SparseCategoricalAccuracy(name="train_acc")
        loss_obj = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=tf.keras.losses.Reduction.NONE)
        checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
    manager = tf.train.CheckpointManager(checkpoint, FLAGS.model_dir, max_to_keep=2)
    if manager.latest_checkpoint:
        checkpoint.restore(manager.latest_checkpoint)

    # A noise level for each replica.
    def value_fn(ctx):
        return tf.constant(0.01 * ctx.replica_id_in_sync_group)

    noise = strategy.experimental_distribute_values_from_function(value_fn)

    def train_step(images, labels, level):
        images = images + level
        with tf.GradientTape() as tape:
            logits = model(images, training=True)
            per_example = loss_obj(labels, logits)
            loss = tf.nn.compute_average_loss(per_example, global_batch_size=FLAGS.global_batch_size)
            loss += tf.nn.scale_regularization_loss(1e-4 * tf.add_n([tf.nn.l2_loss(v) for v in model.trainable_variables]))
        grads = tape.gradient(loss, model.trainable_variables)
        grads, norm = tf.clip_by_global_norm(grads, 5.0)
        optimizer.apply_gradients(list(zip(grads, model.trainable_variables)))
        for average, weight in zip(ema_weights, model.trainable_variables):
            average.assign(FLAGS.ema_decay * average + (1.0 - FLAGS.ema_decay) * weight)
        train_loss.update_state(loss * strategy.num_replicas_in_sync)
        train_acc.update_state(labels, logits)
        return norm

    @tf.function
    def run_steps(iterator):
        for _ in tf.range(FLAGS.steps_per_epoch):
            images, labels = next(iterator)
            strategy.run(train_step, args=(images, labels, noise))

    writer = tf.summary.create_file_writer(os.path.join(FLAGS.model_dir, "logs"))
    for epoch in range(FLAGS.epochs):
        start = time.time()
        run_steps(train_iter)
        with writer.as_default():
            tf.summary.scalar("loss", train_loss.result(), step=optimizer.iterations)
            tf.summary.scalar("accuracy", train_acc.result(), step=optimizer.iterations)
        logging.info("epoch %d loss %.4f accuracy %.3f (%.1f s)", epoch, train_loss.result().numpy(), train_acc.result().numpy(), time.time() - start)
        manager.save(checkpoint_number=epoch)
        train_loss.reset_states()
        train_acc.reset_states()

    @tf.function
    def predict(images):
        return strategy.run(lambda batch: tf.nn.softmax(model(batch, training=False)), args=(images,))

    test = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(x).batch(FLAGS.global_batch_size))
    outputs = []
    for batch in test:
        outputs.append(tf.concat(strategy.experimental_local_results(predict(batch)), axis=0).numpy())
    predictions = np.concatenate(outputs)
    print("accuracy", np.mean(predictions.argmax(-1) == y))


if __name__ == "__main__":
    app.run(main)
