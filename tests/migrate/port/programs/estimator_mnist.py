"""MNIST with TPUEstimator, as in the tpu/models examples. TensorFlow 1.13."""
from __future__ import absolute_import, division, print_function

import numpy as np
import tensorflow as tf

tf.flags.DEFINE_string("tpu", default=None, help="The Cloud TPU to use.")
tf.flags.DEFINE_string("model_dir", "model", "Where the checkpoints go.")
tf.flags.DEFINE_integer("batch_size", 64, "Mini-batch size.")
tf.flags.DEFINE_integer("train_steps", 200, "Total number of training steps.")
tf.flags.DEFINE_integer("eval_steps", 2, "Number of evaluation steps.")
tf.flags.DEFINE_float("learning_rate", 0.05, "Learning rate.")
tf.flags.DEFINE_bool("use_tpu", True, "Use TPUs rather than plain CPUs.")
tf.flags.DEFINE_integer("iterations", 50, "Iterations per TPU training loop.")

FLAGS = tf.flags.FLAGS


def metric_fn(labels, logits):
    accuracy = tf.metrics.accuracy(labels=labels, predictions=tf.argmax(logits, axis=1))
    return {"accuracy": accuracy}


def model_fn(features, labels, mode, params):
    del params
    image = tf.reshape(features, [-1, 28, 28, 1])
    net = tf.layers.conv2d(image, 8, 5, padding="same", activation=tf.nn.relu)
    net = tf.layers.max_pooling2d(net, (2, 2), (2, 2), padding="same")
    net = tf.layers.flatten(net)
    net = tf.layers.dense(net, 32, activation=tf.nn.relu)
    net = tf.layers.dropout(net, rate=0.4, training=(mode == tf.estimator.ModeKeys.TRAIN))
    logits = tf.layers.dense(net, 10)

    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {"class_ids": tf.argmax(logits, axis=1), "probabilities": tf.nn.softmax(logits)}
        return tf.contrib.tpu.TPUEstimatorSpec(mode, predictions=predictions)

    loss = tf.losses.sparse_softmax_cross_entropy(labels=labels, logits=logits)

    if mode == tf.estimator.ModeKeys.TRAIN:
        learning_rate = tf.train.exponential_decay(
            FLAGS.learning_rate, tf.train.get_global_step(), decay_steps=100, decay_rate=0.96
        )
        optimizer = tf.train.GradientDescentOptimizer(learning_rate=learning_rate)
        if FLAGS.use_tpu:
            optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
        return tf.contrib.tpu.TPUEstimatorSpec(
            mode=mode, loss=loss, train_op=optimizer.minimize(loss, tf.train.get_global_step())
        )

    return tf.contrib.tpu.TPUEstimatorSpec(mode=mode, loss=loss, eval_metrics=(metric_fn, [labels, logits]))


def digits(count):
    random = np.random.RandomState(0)
    labels = random.randint(0, 10, count).astype(np.int32)
    return (random.rand(count, 784) * 0.1 + labels[:, None] / 10.0).astype(np.float32), labels


def train_input_fn(params):
    batch_size = params["batch_size"]
    ds = tf.data.Dataset.from_tensor_slices(digits(512)).cache().repeat().shuffle(buffer_size=500)
    return ds.batch(batch_size, drop_remainder=True)


def eval_input_fn(params):
    ds = tf.data.Dataset.from_tensor_slices(digits(128))
    ds = ds.apply(tf.contrib.data.batch_and_drop_remainder(params["batch_size"]))
    return ds


def main(argv):
    del argv
    tf.logging.set_verbosity(tf.logging.INFO)
    resolver = tf.contrib.cluster_resolver.TPUClusterResolver(FLAGS.tpu)
    run_config = tf.contrib.tpu.RunConfig(
        cluster=resolver,
        model_dir=FLAGS.model_dir,
        session_config=tf.ConfigProto(allow_soft_placement=True, log_device_placement=True),
        tpu_config=tf.contrib.tpu.TPUConfig(FLAGS.iterations),
    )
    estimator = tf.contrib.tpu.TPUEstimator(
        model_fn=model_fn,
        use_tpu=FLAGS.use_tpu,
        train_batch_size=FLAGS.batch_size,
        eval_batch_size=FLAGS.batch_size,
        config=run_config,
    )
    estimator.train(input_fn=train_input_fn, max_steps=FLAGS.train_steps)
    if FLAGS.eval_steps:
        print(estimator.evaluate(input_fn=eval_input_fn, steps=FLAGS.eval_steps))


if __name__ == "__main__":
    tf.app.run()
