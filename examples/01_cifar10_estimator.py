"""CIFAR-10 as an estimator: train, evaluate and predict with the 2018 Colab guide's model function on all TPU cores.

    python examples/01_cifar10_estimator.py           # on Keras's local CIFAR-10, else on small digits
    python examples/01_cifar10_estimator.py --smoke   # in seconds

A restarted program continues from the newest checkpoint in MODEL_DIR.
"""

import argparse
import logging
import os
import pprint
import tempfile
from pathlib import Path

import anytpu as tpu  # isort: skip
import keras
import numpy as np
from keras import layers, ops

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--smoke", action="store_true", help="a small network, for a few seconds")
parser.add_argument("--model-dir", help="the folder of the checkpoints; a temporary one if left away")
FLAGS = parser.parse_args()

USE_TPU = True
FILTERS = 4 if FLAGS.smoke else 16
BLOCKS = 1 if FLAGS.smoke else 3
BATCH_SIZE = 40 if FLAGS.smoke else 8 * 128
EPOCHS = 6 if FLAGS.smoke else 90
LEARNING_RATE = 0.01 if FLAGS.smoke else 0.003
MODEL_DIR = FLAGS.model_dir or tempfile.mkdtemp(prefix="cifar10-")

logging.basicConfig(level=logging.INFO, format="%(message)s")

# --- The TPU

resolver = tpu.TPUClusterResolver(tpu="")
tpu.initialize_tpu_system(resolver)
print("TPU devices:")
pprint.pprint(tpu.list_logical_devices("TPU"))

# --- The data

if (Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser() / "datasets/cifar-10-batches-py-target").exists():
    (x_train, y_train), (x_test, y_test) = keras.datasets.cifar10.load_data()
else:
    print("Trained on small digits, because CIFAR-10 is missing: keras.datasets.cifar10.load_data() downloads it.")
    (x_train, y_train), (x_test, y_test) = tpu.pipeline.digits()
    x_train, x_test = (255 * tpu.pipeline.resize(x, (32, 32)).repeat(3, axis=-1) for x in (x_train, x_test))
    y_train, y_test = y_train[:, None], y_test[:, None]


def pixels(image):
    return tpu.pipeline.normalize(image, mean=(125.3, 123.0, 113.9), deviation=(63.0, 62.1, 66.7))


def augmented(row, random):
    image, label = row
    return tpu.pipeline.random_flip(tpu.pipeline.random_crop(image, random), random), label


def train_input_fn(params):
    dataset = tpu.pipeline.Dataset.from_arrays((x_train, y_train[:, 0].astype("int32"))).shuffle(seed=1).repeat()
    dataset = dataset.random_map(augmented).map(lambda row: (pixels(row[0]), row[1]))
    return dataset.batch(params["batch_size"], drop_remainder=True)


def eval_input_fn(params):
    dataset = tpu.pipeline.Dataset.from_arrays((x_test, y_test[:, 0].astype("int32")))
    return dataset.map(lambda row: (pixels(row[0]), row[1])).batch(params["batch_size"])


def predict_input_fn(params):
    return pixels(x_test[:10])


# --- The model function


def resnet(images, is_training):
    def convolved(x, filters, strides=1, size=3):
        x = layers.Conv2D(filters, size, strides, padding="same", use_bias=False)(x)
        return layers.BatchNormalization(momentum=0.9)(x, training=is_training)

    x = ops.relu(convolved(images, FILTERS))
    for stage in range(3):
        for block in range(BLOCKS):
            filters, strides = FILTERS << stage, 2 if stage > 0 and block == 0 else 1
            shortcut = x if x.shape[-1] == filters else convolved(x, filters, strides, size=1)
            x = convolved(ops.relu(convolved(x, filters, strides)), filters)
            x = ops.relu(x + shortcut)
    return layers.Dense(10)(layers.GlobalAveragePooling2D()(x))


def metric_fn(labels, logits):
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    accuracy.update_state(labels, logits)
    return {"accuracy": accuracy}


def model_fn(features, labels, mode, params):
    logits = resnet(features, is_training=mode == tpu.ModeKeys.TRAIN)
    if mode == tpu.ModeKeys.PREDICT:
        predictions = {"class": ops.argmax(logits, axis=-1), "probabilities": ops.softmax(logits)}
        return tpu.TPUEstimatorSpec(mode, predictions=predictions)
    loss = ops.mean(keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True))
    if mode == tpu.ModeKeys.EVAL:
        return tpu.TPUEstimatorSpec(mode, loss=loss, eval_metrics=(metric_fn, [labels, logits]))

    optimizer = keras.optimizers.Adam(LEARNING_RATE)
    if params["use_tpu"]:
        optimizer = tpu.CrossShardOptimizer(optimizer)

    train_op = optimizer.minimize(loss, global_step=tpu.get_global_step())
    return tpu.TPUEstimatorSpec(mode=mode, loss=loss, train_op=train_op)


# --- The estimator

steps_per_epoch = len(x_train) // BATCH_SIZE
estimator = tpu.TPUEstimator(
    model_fn,
    model_dir=MODEL_DIR,
    config=tpu.RunConfig(
        cluster=resolver,
        tf_random_seed=1,
        tpu_config=tpu.TPUConfig(iterations_per_loop=steps_per_epoch),
        save_checkpoints_steps=5 * steps_per_epoch,
        log_step_count_steps=steps_per_epoch,
    ),
    use_tpu=USE_TPU,
    train_batch_size=BATCH_SIZE,
    eval_batch_size=40,
    predict_batch_size=16,
)
estimator.train(train_input_fn, max_steps=EPOCHS * steps_per_epoch)
print(estimator.evaluate(eval_input_fn, steps=len(x_test) // 40))

predictions = list(estimator.predict(predict_input_fn))
print("predicted:", [int(prediction["class"]) for prediction in predictions])
print("labels:   ", y_test[:10, 0].tolist())

# The program that serves it, with its weights, for a process that has none of the code above.
path = estimator.export_saved_model(MODEL_DIR, np.zeros((10, 32, 32, 3), "float32"))
print("exported to", path)
