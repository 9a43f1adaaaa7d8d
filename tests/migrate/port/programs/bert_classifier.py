"""Fine-tuning of BERT with TPUEstimator, after run_classifier.py. TensorFlow 1.11."""
from __future__ import absolute_import
from __future__ import division
from __future__ import print_function

import collections
import math
import os

import numpy as np
import tensorflow as tf

flags = tf.flags
FLAGS = flags.FLAGS
flags.DEFINE_string("data_dir", "bert_data", "The input data dir.")
flags.DEFINE_string("output_dir", "bert_output", "The output directory.")
flags.DEFINE_integer("max_seq_length", 16, "The maximum total input sequence length.")
flags.DEFINE_bool("do_train", True, "Whether to run training.")
flags.DEFINE_bool("do_eval", True, "Whether to run eval on the dev set.")
flags.DEFINE_bool("do_predict", True, "Whether to run the model in inference mode.")
flags.DEFINE_integer("train_batch_size", 32, "Total batch size for training.")
flags.DEFINE_integer("eval_batch_size", 8, "Total batch size for eval.")
flags.DEFINE_integer("predict_batch_size", 8, "Total batch size for predict.")
flags.DEFINE_float("learning_rate", 5e-4, "The initial learning rate for Adam.")
flags.DEFINE_float("num_train_epochs", 2.0, "Total number of training epochs to perform.")
flags.DEFINE_float("warmup_proportion", 0.1, "Proportion of training to warm up for.")
flags.DEFINE_integer("save_checkpoints_steps", 1000, "How often to save the model checkpoint.")
flags.DEFINE_integer("iterations_per_loop", 10, "How many steps to make in each estimator call.")
flags.DEFINE_bool("use_tpu", True, "Whether to use TPU or GPU/CPU.")
tf.flags.DEFINE_string("tpu_name", None, "The Cloud TPU to use for training.")
tf.flags.DEFINE_string("tpu_zone", None, "[Optional] GCE zone.")
tf.flags.DEFINE_string("gcp_project", None, "[Optional] Project name.")
tf.flags.DEFINE_string("master", None, "[Optional] TensorFlow master URL.")
flags.DEFINE_integer("num_tpu_cores", 8, "Only used if `use_tpu` is True.")

VOCAB_SIZE, HIDDEN, HEADS = 100, 16, 2


def create_int_feature(values):
    return tf.train.Feature(int64_list=tf.train.Int64List(value=list(values)))


def file_based_convert_examples_to_features(count, output_file, seed):
    """Convert a set of examples to a TFRecord file."""
    random = np.random.RandomState(seed)
    writer = tf.python_io.TFRecordWriter(output_file)
    for ex_index in range(count):
        if ex_index % 10000 == 0:
            tf.logging.info("Writing example %d of %d" % (ex_index, count))
        ids = random.randint(1, VOCAB_SIZE, FLAGS.max_seq_length)
        features = collections.OrderedDict()
        features["input_ids"] = create_int_feature(ids)
        features["input_mask"] = create_int_feature([1] * FLAGS.max_seq_length)
        features["segment_ids"] = create_int_feature([0] * FLAGS.max_seq_length)
        features["label_ids"] = create_int_feature([int(ids[0] > VOCAB_SIZE // 2)])
        tf_example = tf.train.Example(features=tf.train.Features(feature=features))
        writer.write(tf_example.SerializeToString())
    writer.close()


def file_based_input_fn_builder(input_file, seq_length, is_training, drop_remainder):
    """Creates an `input_fn` closure to be passed to TPUEstimator."""
    name_to_features = {
        "input_ids": tf.FixedLenFeature([seq_length], tf.int64),
        "input_mask": tf.FixedLenFeature([seq_length], tf.int64),
        "segment_ids": tf.FixedLenFeature([seq_length], tf.int64),
        "label_ids": tf.FixedLenFeature([], tf.int64),
    }

    def _decode_record(record, name_to_features):
        """Decodes a record to a TensorFlow example."""
        example = tf.parse_single_example(record, name_to_features)
        # tf.Example only supports tf.int64, but the TPU only supports tf.int32.
        for name in list(example.keys()):
            t = example[name]
            if t.dtype == tf.int64:
                t = tf.to_int32(t)
            example[name] = t
        return example

    def input_fn(params):
        """The actual input function."""
        batch_size = params["batch_size"]
        d = tf.data.TFRecordDataset(input_file)
        if is_training:
            d = d.repeat()
            d = d.shuffle(buffer_size=100)
        d = d.apply(
            tf.contrib.data.map_and_batch(
                lambda record: _decode_record(record, name_to_features),
                batch_size=batch_size,
                drop_remainder=drop_remainder))
        return d

    return input_fn


def gelu(input_tensor):
    """Gaussian Error Linear Unit."""
    cdf = 0.5 * (1.0 + tf.erf(input_tensor / tf.sqrt(2.0)))
    return input_tensor * cdf


def layer_norm(input_tensor, name=None):
    return tf.contrib.layers.layer_norm(inputs=input_tensor, begin_norm_axis=-1, begin_params_axis=-1, scope=name)


def dropout(input_tensor, dropout_prob):
    if dropout_prob is None or dropout_prob == 0.0:
        return input_tensor
    return tf.nn.dropout(input_tensor, 1.0 - dropout_prob)


def transpose_for_scores(input_tensor, batch_size, seq_length):
    output_tensor = tf.reshape(input_tensor, [batch_size, seq_length, HEADS, HIDDEN // HEADS])
    return tf.transpose(output_tensor, [0, 2, 1, 3])


def attention_layer(x, mask, batch_size, seq_length):
    initializer = tf.truncated_normal_initializer(stddev=0.02)
    query = tf.layers.dense(x, HIDDEN, name="query", kernel_initializer=initializer)
    key = tf.layers.dense(x, HIDDEN, name="key", kernel_initializer=initializer)
    value = tf.layers.dense(x, HIDDEN, name="value", kernel_initializer=initializer)
    query = transpose_for_scores(query, batch_size, seq_length)
    key = transpose_for_scores(key, batch_size, seq_length)
    scores = tf.matmul(query, key, transpose_b=True)
    scores = tf.multiply(scores, 1.0 / math.sqrt(float(HIDDEN // HEADS)))
    adder = (1.0 - tf.cast(tf.expand_dims(mask, axis=[1]), tf.float32)) * -10000.0
    scores += tf.expand_dims(adder, axis=1)
    probs = dropout(tf.nn.softmax(scores), 0.1)
    context = tf.matmul(probs, transpose_for_scores(value, batch_size, seq_length))
    context = tf.transpose(context, [0, 2, 1, 3])
    return tf.reshape(context, [batch_size, seq_length, HIDDEN])


def create_model(is_training, input_ids, input_mask, segment_ids, labels, num_labels):
    """Creates a classification model."""
    batch_size, seq_length = input_ids.shape.as_list()[:2]
    with tf.variable_scope("bert"):
        table = tf.get_variable("word_embeddings", [VOCAB_SIZE, HIDDEN],
                                initializer=tf.truncated_normal_initializer(stddev=0.02))
        positions = tf.get_variable("position_embeddings", [FLAGS.max_seq_length, HIDDEN],
                                    initializer=tf.truncated_normal_initializer(stddev=0.02))
        x = tf.nn.embedding_lookup(table, input_ids)
        x += tf.reshape(positions, [1, FLAGS.max_seq_length, HIDDEN])
        x = layer_norm(x)
        for layer_idx in range(2):
            with tf.variable_scope("layer_%d" % layer_idx):
                attention = attention_layer(x, input_mask, batch_size, seq_length)
                x = layer_norm(x + attention)
                y = tf.layers.dense(x, 4 * HIDDEN, activation=gelu)
                x = layer_norm(x + tf.layers.dense(y, HIDDEN))
        with tf.variable_scope("pooler"):
            first_token_tensor = tf.squeeze(x[:, 0:1, :], axis=1)
            output_layer = tf.layers.dense(first_token_tensor, HIDDEN, activation=tf.tanh)
    hidden_size = output_layer.shape[-1].value
    output_weights = tf.get_variable("output_weights", [num_labels, hidden_size],
                                     initializer=tf.truncated_normal_initializer(stddev=0.02))
    output_bias = tf.get_variable("output_bias", [num_labels], initializer=tf.zeros_initializer())
    with tf.variable_scope("loss"):
        if is_training:
            output_layer = tf.nn.dropout(output_layer, keep_prob=0.9)
        logits = tf.matmul(output_layer, output_weights, transpose_b=True)
        logits = tf.nn.bias_add(logits, output_bias)
        probabilities = tf.nn.softmax(logits, axis=-1)
        log_probs = tf.nn.log_softmax(logits, axis=-1)
        one_hot_labels = tf.one_hot(labels, depth=num_labels, dtype=tf.float32)
        per_example_loss = -tf.reduce_sum(one_hot_labels * log_probs, axis=-1)
        loss = tf.reduce_mean(per_example_loss)
        return (loss, per_example_loss, logits, probabilities)


def create_optimizer(loss, init_lr, num_train_steps, num_warmup_steps, use_tpu):
    """Creates an optimizer training op."""
    global_step = tf.train.get_or_create_global_step()
    learning_rate = tf.constant(value=init_lr, shape=[], dtype=tf.float32)
    learning_rate = tf.train.polynomial_decay(
        learning_rate, global_step, num_train_steps, end_learning_rate=0.0, power=1.0, cycle=False)
    if num_warmup_steps:
        global_steps_int = tf.cast(global_step, tf.int32)
        warmup_steps_int = tf.constant(num_warmup_steps, dtype=tf.int32)
        global_steps_float = tf.cast(global_steps_int, tf.float32)
        warmup_steps_float = tf.cast(warmup_steps_int, tf.float32)
        warmup_percent_done = global_steps_float / warmup_steps_float
        warmup_learning_rate = init_lr * warmup_percent_done
        is_warmup = tf.cast(global_steps_int < warmup_steps_int, tf.float32)
        learning_rate = (1.0 - is_warmup) * learning_rate + is_warmup * warmup_learning_rate
    optimizer = tf.train.AdamOptimizer(learning_rate=learning_rate, beta1=0.9, beta2=0.999, epsilon=1e-6)
    if use_tpu:
        optimizer = tf.contrib.tpu.CrossShardOptimizer(optimizer)
    tvars = tf.trainable_variables()
    grads = tf.gradients(loss, tvars)
    (grads, _) = tf.clip_by_global_norm(grads, clip_norm=1.0)
    return optimizer.apply_gradients(zip(grads, tvars), global_step=global_step)


def model_fn_builder(num_labels, learning_rate, num_train_steps, num_warmup_steps, use_tpu):
    """Returns `model_fn` closure for TPUEstimator."""

    def model_fn(features, labels, mode, params):  # pylint: disable=unused-argument
        tf.logging.info("*** Features ***")
        for name in sorted(features.keys()):
            tf.logging.info("  name = %s, shape = %s" % (name, features[name].shape))
        input_ids = features["input_ids"]
        input_mask = features["input_mask"]
        segment_ids = features["segment_ids"]
        label_ids = features["label_ids"]
        is_training = (mode == tf.estimator.ModeKeys.TRAIN)
        (total_loss, per_example_loss, logits, probabilities) = create_model(
            is_training, input_ids, input_mask, segment_ids, label_ids, num_labels)
        output_spec = None
        if mode == tf.estimator.ModeKeys.TRAIN:
            train_op = create_optimizer(total_loss, learning_rate, num_train_steps, num_warmup_steps, use_tpu)
            output_spec = tf.contrib.tpu.TPUEstimatorSpec(mode=mode, loss=total_loss, train_op=train_op,
                                                          scaffold_fn=None)
        elif mode == tf.estimator.ModeKeys.EVAL:

            def metric_fn(per_example_loss, label_ids, logits):
                predictions = tf.argmax(logits, axis=-1, output_type=tf.int32)
                accuracy = tf.metrics.accuracy(label_ids, predictions)
                loss = tf.metrics.mean(per_example_loss)
                return {"eval_accuracy": accuracy, "eval_loss": loss}

            eval_metrics = (metric_fn, [per_example_loss, label_ids, logits])
            output_spec = tf.contrib.tpu.TPUEstimatorSpec(mode=mode, loss=total_loss, eval_metrics=eval_metrics,
                                                          scaffold_fn=None)
        else:
            output_spec = tf.contrib.tpu.TPUEstimatorSpec(mode=mode, predictions=probabilities, scaffold_fn=None)
        return output_spec

    return model_fn


def main(_):
    tf.logging.set_verbosity(tf.logging.INFO)
    tf.gfile.MakeDirs(FLAGS.output_dir)
    tf.gfile.MakeDirs(FLAGS.data_dir)
    tpu_cluster_resolver = None
    if FLAGS.use_tpu and FLAGS.tpu_name:
        tpu_cluster_resolver = tf.contrib.cluster_resolver.TPUClusterResolver(
            FLAGS.tpu_name, zone=FLAGS.tpu_zone, project=FLAGS.gcp_project)
    is_per_host = tf.contrib.tpu.InputPipelineConfig.PER_HOST_V2
    run_config = tf.contrib.tpu.RunConfig(
        cluster=tpu_cluster_resolver,
        master=FLAGS.master,
        model_dir=FLAGS.output_dir,
        save_checkpoints_steps=FLAGS.save_checkpoints_steps,
        tpu_config=tf.contrib.tpu.TPUConfig(
            iterations_per_loop=FLAGS.iterations_per_loop,
            num_shards=FLAGS.num_tpu_cores,
            per_host_input_for_training=is_per_host))
    num_train_steps = int(256 / FLAGS.train_batch_size * FLAGS.num_train_epochs)
    num_warmup_steps = int(num_train_steps * FLAGS.warmup_proportion)
    model_fn = model_fn_builder(2, FLAGS.learning_rate, num_train_steps, num_warmup_steps, FLAGS.use_tpu)
    estimator = tf.contrib.tpu.TPUEstimator(
        use_tpu=FLAGS.use_tpu,
        model_fn=model_fn,
        config=run_config,
        train_batch_size=FLAGS.train_batch_size,
        eval_batch_size=FLAGS.eval_batch_size,
        predict_batch_size=FLAGS.predict_batch_size)
    if FLAGS.do_train:
        train_file = os.path.join(FLAGS.data_dir, "train.tf_record")
        file_based_convert_examples_to_features(256, train_file, 0)
        tf.logging.info("***** Running training *****")
        tf.logging.info("  Batch size = %d", FLAGS.train_batch_size)
        train_input_fn = file_based_input_fn_builder(train_file, FLAGS.max_seq_length, True, True)
        estimator.train(input_fn=train_input_fn, max_steps=num_train_steps)
    if FLAGS.do_eval:
        eval_file = os.path.join(FLAGS.data_dir, "eval.tf_record")
        file_based_convert_examples_to_features(64, eval_file, 1)
        eval_steps = int(64 / FLAGS.eval_batch_size)
        eval_input_fn = file_based_input_fn_builder(eval_file, FLAGS.max_seq_length, False, True)
        result = estimator.evaluate(input_fn=eval_input_fn, steps=eval_steps)
        output_eval_file = os.path.join(FLAGS.output_dir, "eval_results.txt")
        with tf.gfile.GFile(output_eval_file, "w") as writer:
            for key in sorted(result.keys()):
                tf.logging.info("  %s = %s", key, str(result[key]))
                writer.write("%s = %s\n" % (key, str(result[key])))
    if FLAGS.do_predict:
        predict_file = os.path.join(FLAGS.data_dir, "eval.tf_record")
        predict_input_fn = file_based_input_fn_builder(predict_file, FLAGS.max_seq_length, False, False)
        result = estimator.predict(input_fn=predict_input_fn)
        output_predict_file = os.path.join(FLAGS.output_dir, "test_results.tsv")
        with tf.gfile.GFile(output_predict_file, "w") as writer:
            for prediction in result:
                output_line = "\t".join(str(class_probability) for class_probability in prediction) + "\n"
                writer.write(output_line)


if __name__ == "__main__":
    tf.app.run()
