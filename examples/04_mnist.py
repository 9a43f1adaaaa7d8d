"""The TPU guide: find the TPU, and train a classifier of handwritten digits on all its cores in three ways.

    python examples/04_mnist.py            # on Keras's local mnist.npz, else on small digits
    python examples/04_mnist.py --smoke    # in seconds

The three ways are Keras's `fit`, a custom training loop, and many steps of that loop in one call.
"""

import argparse
import os
from pathlib import Path

import anytpu as tpu  # isort: skip
import keras
import numpy as np
from keras import layers

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--smoke", action="store_true", help="a small network, for a few seconds")
SMOKE = parser.parse_args().smoke

BATCH_SIZE = 200
FILTERS = 8 if SMOKE else 256
EPOCHS = 2 if SMOKE else 5
STEPS_PER_EXECUTION = 10 if SMOKE else 50

# --- The model


def network():
    return keras.Sequential(
        [
            layers.Input((28, 28, 1)),
            layers.Conv2D(FILTERS, 3, activation="relu"),
            layers.Conv2D(FILTERS, 3, activation="relu"),
            layers.Flatten(),
            layers.Dense(256, activation="relu"),
            layers.Dense(128, activation="relu"),
            layers.Dense(10),
        ]
    )


def create_model():
    """Return the model as `fit` trains it. To plan it: anytpu plan examples/04_mnist.py:create_model --batch 1024"""
    model = network()
    model.compile(
        optimizer="adam",
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["sparse_categorical_accuracy"],
        # How many steps a call runs on the device; left out, the clock chooses.
        steps_per_execution=STEPS_PER_EXECUTION,
    )
    return model


# --- What runs on each core


def matmul_fn(x, y):
    return keras.ops.matmul(x, y)


def main():
    # --- TPU initialization

    resolver = tpu.TPUClusterResolver(tpu="")
    tpu.experimental_connect_to_cluster(resolver)
    tpu.initialize_tpu_system(resolver)
    print("All devices:", tpu.list_logical_devices("TPU"))

    # --- Manual device placement: on one core

    a = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], "float32")
    b = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "float32")
    with tpu.device("/TPU:0"):
        c = keras.ops.matmul(a, b)
    print("c device:", c.device)
    print(c)

    # --- Distribution strategies: on all cores

    strategy = tpu.TPUStrategy(resolver)
    print(strategy.run(matmul_fn, args=(a, b)))

    # --- The data: images from 0 to 1, and labels

    if (Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser() / "datasets" / "mnist.npz").exists():
        (x_train, y_train), (x_test, y_test) = keras.datasets.mnist.load_data()
    else:
        print("Trained on small digits, because MNIST is missing: keras.datasets.mnist.load_data() downloads it.")
        (x_train, y_train), (x_test, y_test) = tpu.pipeline.digits()
        x_train, x_test = (255 * tpu.pipeline.resize(x, (28, 28))[..., 0] for x in (x_train, x_test))
    if SMOKE:
        x_train, y_train, x_test, y_test = x_train[:2000], y_train[:2000], x_test[:400], y_test[:400]

    def get_dataset(batch_size, is_training=True):
        images, labels = (x_train, y_train) if is_training else (x_test, y_test)
        dataset = tpu.pipeline.Dataset.from_arrays((images[..., None].astype("float32") / 255, labels.astype("int32")))
        if is_training:
            dataset = dataset.shuffle().repeat()
        return dataset.batch(batch_size)

    steps_per_epoch = len(x_train) // BATCH_SIZE
    validation_steps = len(x_test) // BATCH_SIZE

    # --- 1. Keras: fit

    with strategy.scope():
        model = create_model()
    model.fit(
        get_dataset(BATCH_SIZE),
        epochs=EPOCHS,
        steps_per_epoch=steps_per_epoch,
        validation_data=get_dataset(BATCH_SIZE, is_training=False),
        validation_steps=validation_steps,
        verbose=2,
    )

    # --- 2. A custom training loop

    with strategy.scope():
        model = network()
        optimizer = keras.optimizers.Adam()
        training_loss = keras.metrics.Mean("training_loss")
        training_accuracy = keras.metrics.SparseCategoricalAccuracy("training_accuracy")

    # Each core has batches of its own size here.
    per_replica_batch_size = BATCH_SIZE // strategy.num_replicas_in_sync
    train_dataset = strategy.distribute_datasets_from_function(lambda _: get_dataset(per_replica_batch_size))
    train_iterator = iter(train_dataset)

    def step_fn(inputs):
        """What one core does in one step."""
        images, labels = inputs

        def loss_fn():
            logits = model(images, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(labels, logits, from_logits=True)
            return tpu.compute_average_loss(losses, global_batch_size=BATCH_SIZE), logits

        (loss, logits), grads = tpu.value_and_grad(loss_fn, model.trainable_variables, has_aux=True)()
        optimizer.apply_gradients(zip(grads, model.trainable_variables, strict=True))
        training_loss.update_state(loss * strategy.num_replicas_in_sync)
        training_accuracy.update_state(labels, logits)

    def report():
        print(
            f"Current step: {int(optimizer.iterations)}, training loss: {float(training_loss.result()):.4f}, "
            f"accuracy: {float(training_accuracy.result()):.2%}"
        )
        training_loss.reset_state()
        training_accuracy.reset_state()

    for epoch in range(EPOCHS):
        print(f"Epoch: {epoch}/{EPOCHS}")
        for _ in range(steps_per_epoch):
            strategy.run(step_fn, args=(next(train_iterator),))
        report()

    # --- 3. The same, many steps in one call

    strategy.run_steps(step_fn, train_iterator, steps_per_epoch)
    report()


if __name__ == "__main__":
    main()
