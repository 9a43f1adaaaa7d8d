"""TPUEstimator with a host call for summaries and several evaluation metrics. TensorFlow 1.15."""
from __future__ import absolute_import, division, print_function

import os
import time

import numpy as np
import tensorflow as tf
from absl import app
from absl import flags
from absl import logging
from tensorflow.contrib import summary

FLAGS = flags.FLAGS
flags.DEFINE_string("tpu", default=None, help="The Cloud TPU to use for training.")
flags.DEFINE_string("gcp_project", default=None, help="Project name for the Cloud TPU-enabled project.")
flags.DEFINE_string("tpu_zone", default=None, help="GCE zone where the Cloud TPU is located in.")
flags.DEFINE_string("model_dir", default="host_call_model", help="The directory where the model and training logs are stored.")
flags.DEFINE_integer("train_batch_size", default=64, help="Batch size for training.")
flags.DEFINE_integer("eval_batch_size", default=32, help="Batch size for evaluation.")
flags.DEFINE_integer("train_steps", default=40, help="The number of steps to use for training.")
flags.DEFINE_integer("iterations_per_loop", default=10, help="Number of steps to run on TPU before feeding metrics to the CPU.")
flags.DEFINE_float("base_learning_rate", default=0.05, help="Base learning rate.")
flags.DEFINE_bool("use_tpu", True, help="Use TPU.")

NUM_TRAIN, NUM_EVAL, LABEL_CLASSES = 256, 64, 5
LR_SCHEDULE = [(1.0, 1), (0.1, 4), (0.01, 8)]


def learning_rate_schedule(train_steps, current_epoch):
    scaled_lr = FLAGS.base_learning_rate * (FLAGS.train_batch_size / 256.0)
    decay_rate = scaled_lr * LR_SCHEDULE[0][0] * current_epoch / LR_SCHEDULE[0][1]
    for mult, start_epoch in LR_SCHEDULE:
        decay_rate = tf.where(current_epoch < start_epoch, decay_rate, scaled_lr * mult)
    return decay_rate


def model_fn(features, labels, mode, params):
    if isinstance(features, dict):
        features = features["feature"]
    net = tf.layers.conv2d(features, 8, [3, 3], padding="same", activation=tf.nn.relu6, name="conv1")
    net = tf.layers.max_pooling2d(net, [2, 2], [2, 2])
    net = tf.layers.flatten(net)
    net = tf.layers.dropout(net, rate=0.2, training=(mode == tf.estimator.ModeKeys.TRAIN))
    logits = tf.layers.dense(net, LABEL_CLASSES, kernel_initializer=tf.glorot_uniform_initializer())

    if mode == tf.estimator.ModeKeys.PREDICT:
        predictions = {
            "classes": tf.argmax(logits, axis=1),
            "probabilities": tf.nn.softmax(logits, name="softmax_tensor"),
        }
        return tf.contrib.tpu.TPUEstimatorSpec(mode=mode, predictions=predictions)

    batch_size = params["batch_size"]
    one_hot_labels = tf.one_hot(labels, LABEL_CLASSES)
    cross_entropy = tf.losses.softmax_cross_entropy(logits=logits, onehot_labels=one_hot_labels, label_smoothing=0.1)
    loss = cross_entropy + 1e-4 * tf.add_n(
        [tf.nn.l2_loss(v) for v in tf.trainable_variables() if "batch_normalization" not in v.name]
    )

    host_call = None
    train_op = None
    if mode == tf.estimator.ModeKeys.TRAIN:
        global_step = tf.train.get_global_step()
        steps_per_epoch = NUM_TRAIN / FLAGS.train_batch_size
        current_epoch = tf.cast(global_step, tf.float32) / steps_per_epoch
        learning_rate = learning_rate_schedule(FLAGS.train_steps, current_epoch)
        optimizer = tf.train.MomentumOptimizer(learning_rate=learning_rate, momentum=0.9, use_nesterov=True)
        if FLAGS.use_tpu:
            optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
        update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
        with tf.control_dependencies(update_ops):
            train_op = optimizer.minimize(loss, global_step)

        def host_call_fn(gs, loss, lr, ce):
            gs = gs[0]
            with summary.create_file_writer(FLAGS.model_dir, max_queue=FLAGS.iterations_per_loop).as_default():
                with summary.always_record_summaries():
                    summary.scalar("loss", loss[0], step=gs)
                    summary.scalar("learning_rate", lr[0], step=gs)
                    summary.scalar("current_epoch", ce[0], step=gs)
                    return summary.all_summary_ops()

        gs_t = tf.reshape(global_step, [1])
        loss_t = tf.reshape(loss, [1])
        lr_t = tf.reshape(learning_rate, [1])
        ce_t = tf.reshape(current_epoch, [1])
        host_call = (host_call_fn, [gs_t, loss_t, lr_t, ce_t])

    eval_metrics = None
    if mode == tf.estimator.ModeKeys.EVAL:

        def metric_fn(labels, logits):
            predictions = tf.argmax(logits, axis=1)
            top_1_accuracy = tf.metrics.accuracy(labels, predictions)
            in_top_3 = tf.cast(tf.nn.in_top_k(logits, labels, 3), tf.float32)
            top_3_accuracy = tf.metrics.mean(in_top_3)
            return {"top_1_accuracy": top_1_accuracy, "top_3_accuracy": top_3_accuracy}

        eval_metrics = (metric_fn, [labels, logits])

    return tf.contrib.tpu.TPUEstimatorSpec(
        mode=mode, loss=loss, train_op=train_op, host_call=host_call, eval_metrics=eval_metrics
    )


class ImageInput(object):
    def __init__(self, is_training, count):
        self.is_training = is_training
        random = np.random.RandomState(3)
        self.labels = random.randint(0, LABEL_CLASSES, count).astype(np.int32)
        self.images = random.rand(count, 12, 12, 3).astype(np.float32) + self.labels[:, None, None, None]

    def dataset_parser(self, image, label):
        image = tf.image.per_image_standardization(image)
        if self.is_training:
            image = tf.image.random_flip_left_right(image)
        return image, label

    def input_fn(self, params):
        batch_size = params["batch_size"]
        dataset = tf.data.Dataset.from_tensor_slices((self.images, self.labels))
        if self.is_training:
            dataset = dataset.apply(tf.data.experimental.shuffle_and_repeat(1024))
        dataset = dataset.apply(
            tf.data.experimental.map_and_batch(
                self.dataset_parser, batch_size=batch_size, num_parallel_batches=8, drop_remainder=True
            )
        )
        dataset = dataset.prefetch(tf.contrib.data.AUTOTUNE)
        return dataset


def main(unused_argv):
    tpu_cluster_resolver = tf.contrib.cluster_resolver.TPUClusterResolver(
        FLAGS.tpu, zone=FLAGS.tpu_zone, project=FLAGS.gcp_project
    )
    config = tf.contrib.tpu.RunConfig(
        cluster=tpu_cluster_resolver,
        model_dir=FLAGS.model_dir,
        save_checkpoints_steps=20,
        keep_checkpoint_max=None,
        session_config=tf.ConfigProto(allow_soft_placement=True, log_device_placement=False),
        tpu_config=tf.contrib.tpu.TPUConfig(
            iterations_per_loop=FLAGS.iterations_per_loop,
            per_host_input_for_training=tf.contrib.tpu.InputPipelineConfig.PER_HOST_V2,
        ),
    )
    estimator = tf.contrib.tpu.TPUEstimator(
        use_tpu=FLAGS.use_tpu,
        model_fn=model_fn,
        config=config,
        train_batch_size=FLAGS.train_batch_size,
        eval_batch_size=FLAGS.eval_batch_size,
    )
    imagenet_train, imagenet_eval = ImageInput(True, NUM_TRAIN), ImageInput(False, NUM_EVAL)
    start_timestamp = time.time()
    current_step = estimator.get_variable_value("global_step") if estimator.latest_checkpoint() else 0
    while current_step < FLAGS.train_steps:
        next_checkpoint = min(current_step + 20, FLAGS.train_steps)
        estimator.train(input_fn=imagenet_train.input_fn, max_steps=int(next_checkpoint))
        current_step = next_checkpoint
        logging.info("Finished training up to step %d. Elapsed seconds %d.", next_checkpoint, int(time.time() - start_timestamp))
        eval_results = estimator.evaluate(input_fn=imagenet_eval.input_fn, steps=NUM_EVAL // FLAGS.eval_batch_size)
        logging.info("Eval results: %s", eval_results)
    tf.gfile.MakeDirs(os.path.join(FLAGS.model_dir, "done"))


if __name__ == "__main__":
    tf.logging.set_verbosity(tf.logging.INFO)
    app.run(main)
