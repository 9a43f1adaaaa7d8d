"""The Colab guide of 2018: a Keras ResNet for CIFAR-10, converted to a TPU model.

    python examples/01_cifar10.py           # on Keras's local CIFAR-10, else on small digits
    python examples/01_cifar10.py --smoke   # in seconds

The same task as an estimator: 01_cifar10_estimator.py.
"""

import argparse
import os
import pprint
import time
from pathlib import Path

import anytpu as tpu  # isort: skip
import keras
from keras import layers

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--smoke", action="store_true", help="a small network, for a few seconds")
SMOKE = parser.parse_args().smoke

FILTERS = 4 if SMOKE else 16
BLOCKS = 1 if SMOKE else 3  # 3 of each kind make a ResNet-20
BATCH_SIZE = 64 if SMOKE else 8 * 128
EPOCHS = 4 if SMOKE else 90

# --- The model


def resnet():
    def convolved(x, filters, strides=1, size=3):
        x = layers.Conv2D(filters, size, strides, padding="same", use_bias=False)(x)
        return layers.BatchNormalization(momentum=0.9)(x)

    images = keras.Input((32, 32, 3))
    x = layers.ReLU()(convolved(images, FILTERS))
    for stage in range(3):
        for block in range(BLOCKS):
            filters, strides = FILTERS << stage, 2 if stage > 0 and block == 0 else 1
            shortcut = x if x.shape[-1] == filters else convolved(x, filters, strides, size=1)
            x = convolved(layers.ReLU()(convolved(x, filters, strides)), filters)
            x = layers.ReLU()(layers.Add()([x, shortcut]))
    return keras.Model(images, layers.Dense(10, activation="softmax")(layers.GlobalAveragePooling2D()(x)))


def create_model():
    """Return the compiled model. To plan it: anytpu plan examples/01_cifar10.py:create_model --batch 1024"""
    model = resnet()
    model.compile(optimizer=keras.optimizers.Adam(0.01), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def main():
    # --- Which TPU devices are there

    tpu_address = os.environ.get("COLAB_TPU_ADDR", "")
    if tpu_address:
        print("TPU address is", tpu_address)
    else:
        print("Not connected to a TPU runtime: using this machine's devices or virtual cores")
    resolver = tpu.TPUClusterResolver(tpu_address)
    tpu.initialize_tpu_system(resolver)
    print("TPU devices:")
    pprint.pprint(tpu.list_devices())

    # --- The data

    epochs = EPOCHS
    if (Path(os.environ.get("KERAS_HOME", "~/.keras")).expanduser() / "datasets/cifar-10-batches-py-target").exists():
        (x_train, y_train), (x_test, y_test) = keras.datasets.cifar10.load_data()
    else:
        print("Trained on small digits, because CIFAR-10 is missing: keras.datasets.cifar10.load_data() downloads it.")
        (x_train, y_train), (x_test, y_test) = tpu.pipeline.digits()
        x_train, x_test = (255 * tpu.pipeline.resize(x, (32, 32)).repeat(3, axis=-1) for x in (x_train, x_test))
        y_train, y_test = y_train[:, None], y_test[:, None]
        epochs = min(EPOCHS, 6)  # They are learned soon.
    x_train, x_test = x_train.astype("float32") / 255, x_test.astype("float32") / 255

    # --- The model on the TPU

    resnet_model = tpu.keras_to_tpu_model(create_model(), strategy=tpu.TPUDistributionStrategy(resolver))
    for epoch in range(epochs):
        began_s = time.perf_counter()
        resnet_model.fit(x_train, y_train, batch_size=BATCH_SIZE, initial_epoch=epoch, epochs=epoch + 1, verbose=2)
        print(f"epoch {epoch + 1} took {time.perf_counter() - began_s:.1f} s")

    print("test loss, accuracy:", resnet_model.evaluate(x_test, y_test, batch_size=BATCH_SIZE, verbose=0))

    # --- And back: weights, optimizer slots and step

    cpu_model = resnet_model.sync_to_cpu()
    print("on the CPU:", cpu_model.predict(x_test[:5], verbose=0).argmax(-1), "labels:", y_test[:5, 0])


if __name__ == "__main__":
    main()
