"""A small residual network with TPUEstimator, after the ResNet tutorial. TensorFlow 1.14."""
import functools

import numpy as np
import tensorflow.compat.v1 as tf
from absl import app, flags

FLAGS = flags.FLAGS
flags.DEFINE_integer("train_batch_size", default=32, help="Batch size for training.")
flags.DEFINE_integer("train_steps", default=100, help="The number of steps to use for training.")
flags.DEFINE_float("momentum", 0.9, "Momentum.")
flags.DEFINE_float("weight_decay", 1e-4, "Weight decay.")

IMAGE_SIZE = 16
NUM_CLASSES = 4


def batch_norm_relu(inputs, is_training, relu=True):
    inputs = tf.layers.batch_normalization(
        inputs=inputs, axis=3, momentum=0.9, epsilon=1e-5, center=True, scale=True, training=is_training, fused=True
    )
    return tf.nn.relu(inputs) if relu else inputs


def residual_block(inputs, filters, is_training, strides):
    shortcut = inputs
    if strides > 1:
        shortcut = tf.layers.conv2d(inputs=inputs, filters=filters, kernel_size=1, strides=strides, use_bias=False)
    inputs = batch_norm_relu(inputs, is_training)
    inputs = tf.layers.conv2d(
        inputs=inputs,
        filters=filters,
        kernel_size=3,
        strides=strides,
        padding="SAME",
        use_bias=False,
        kernel_initializer=tf.variance_scaling_initializer(),
    )
    return inputs + shortcut


def resnet_model_fn(features, labels, mode, params):
    is_training = mode == tf.estimator.ModeKeys.TRAIN
    x = tf.layers.conv2d(features, 8, 3, padding="SAME", name="initial_conv")
    x = tf.identity(x, "initial_conv")
    for filters, strides in ((8, 1), (16, 2)):
        x = residual_block(x, filters, is_training, strides)
    x = tf.reduce_mean(x, axis=[1, 2])
    logits = tf.layers.dense(x, NUM_CLASSES, kernel_initializer=tf.random_normal_initializer(stddev=0.01))

    one_hot_labels = tf.one_hot(labels, NUM_CLASSES)
    cross_entropy = tf.losses.softmax_cross_entropy(logits=logits, onehot_labels=one_hot_labels, label_smoothing=0.1)
    loss = cross_entropy
    train_op = None
    if is_training:
        global_step = tf.train.get_global_step()
        rate = tf.train.cosine_decay(0.1, global_step, params["train_steps"])
        optimizer = tf.train.MomentumOptimizer(learning_rate=rate, momentum=FLAGS.momentum, use_nesterov=True)
        optimizer = tf.tpu.CrossShardOptimizer(optimizer)
        update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies(update_ops):
            train_op = optimizer.minimize(loss, global_step)
    eval_metrics = None
    if mode == tf.estimator.ModeKeys.EVAL:

        def metric_fn(labels, logits):
            predictions = tf.argmax(logits, axis=1)
            return {"top_1_accuracy": tf.metrics.accuracy(labels, predictions)}

        eval_metrics = (metric_fn, [labels, logits])
    return tf.estimator.tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op, eval_metrics=eval_metrics)


def images(count):
    random = np.random.RandomState(1)
    labels = random.randint(0, NUM_CLASSES, count).astype(np.int32)
    return random.randint(0, 60, (count, IMAGE_SIZE, IMAGE_SIZE, 3)).astype(np.uint8) + 40 * labels[:, None, None, None].astype(np.uint8), labels


def parse(image, label, is_training):
    image = tf.image.convert_image_dtype(image, dtype=tf.float32)
    if is_training:
        image = tf.image.random_flip_left_right(image)
    return image, label


def input_fn(params, is_training):
    dataset = tf.data.Dataset.from_tensor_slices(images(256))
    if is_training:
        dataset = dataset.apply(tf.data.experimental.shuffle_and_repeat(256))
    dataset = dataset.apply(
        tf.data.experimental.map_and_batch(
            functools.partial(parse, is_training=is_training),
            batch_size=params["batch_size"],
            num_parallel_batches=8,
            drop_remainder=True,
        )
    )
    return dataset.prefetch(tf.data.experimental.AUTOTUNE)


def main(unused_argv):
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver("", zone=None, project=None)
    config = tf.estimator.tpu.RunConfig(
        cluster=resolver,
        model_dir="resnet",
        save_checkpoints_steps=100,
        tpu_config=tf.estimator.tpu.TPUConfig(
            iterations_per_loop=50, per_host_input_for_training=tf.estimator.tpu.InputPipelineConfig.PER_HOST_V2
        ),
    )
    resnet = tf.estimator.tpu.TPUEstimator(
        use_tpu=True,
        model_fn=resnet_model_fn,
        config=config,
        params={"train_steps": FLAGS.train_steps},
        train_batch_size=FLAGS.train_batch_size,
        eval_batch_size=FLAGS.train_batch_size,
    )
    resnet.train(input_fn=functools.partial(input_fn, is_training=True), max_steps=FLAGS.train_steps)
    results = resnet.evaluate(input_fn=functools.partial(input_fn, is_training=False), steps=2)
    tf.logging.info("Eval results: %s", results)


if __name__ == "__main__":
    tf.logging.set_verbosity(tf.logging.INFO)
    app.run(main)
