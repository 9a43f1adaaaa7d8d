"""One model, everywhere: on virtual cores, on the worker of another machine, planned for a TPU v5e, on the first TPU.

    python examples/07_everywhere.py            # a minute
    python examples/07_everywhere.py --smoke    # in seconds

It needs pip install 'anytpu[worker,plan]'. Training begins on virtual cores; a worker continues from the checkpoint.
Only the address differs. The worker is started here. For one of another machine: --worker "grpc://box:8470?cert=...".
"""

import argparse
import contextlib
import subprocess
import sys
import tempfile

import anytpu as tpu  # isort: skip
import keras
from keras import layers

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--smoke", action="store_true", help="a short training, for a few seconds")
parser.add_argument("--worker", help="the address of a worker, as it prints it; without it, one is started here")
arguments = parser.parse_args()

EPOCHS = 2 if arguments.smoke else 10  # On each system.
FILTERS = 8 if arguments.smoke else 32
CALIBRATION_ROWS = 256

(x_train, y_train), (x_test, y_test) = tpu.pipeline.digits()


def create_model():
    model = keras.Sequential(
        [
            layers.Input(x_train.shape[1:]),
            layers.Conv2D(FILTERS, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dense(10, activation="softmax"),
        ]
    )
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def train(address, folder, epochs):
    """Train at an address up to a number of epochs, from the last checkpoint in the folder."""
    keras.utils.set_random_seed(0)
    strategy = tpu.connect(address)
    with strategy.scope():
        model = create_model()
    model.fit(x_train, y_train, batch_size=64, epochs=epochs, checkpoint_dir=folder, verbose=2)
    accuracy = model.evaluate(x_test, y_test, verbose=0)[1]
    print(f"on {address.partition('?')[0]}, after {epochs} epochs: {accuracy:.2%} right")
    return model


@contextlib.contextmanager
def worker():
    """Start a worker with 8 virtual cores on this machine, and yield its address."""
    command = [sys.executable, "-m", "anytpu", "worker", "--host", "127.0.0.1", "--port", "0", "--insecure"]
    with subprocess.Popen([*command, "--tpu", "v2-8"], stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process.stdout.readline().split('"')[1]
        finally:
            tpu.shutdown_tpu_system()
            process.terminate()


with (
    tempfile.TemporaryDirectory() as folder,
    contextlib.nullcontext(arguments.worker) if arguments.worker else worker() as address,
):
    # --- Begun on virtual cores, continued on the worker

    train("v2-8", folder, EPOCHS)
    model = train(address, folder, 2 * EPOCHS)

    # --- Planned for a TPU that nobody here has

    print(tpu.plan(model, batch_size=1024, tpu="v5e-8"))
    print(tpu.find_layouts(model, batch_size=1024, tpu="v5e-8"))

    # --- On the first TPU, in software

    chip = tpu.chip.compile(model, calibration=x_train[:CALIBRATION_ROWS])
    accuracy = (chip.run(x_test).argmax(axis=1) == y_test).mean()
    print(f"on the first TPU, in 8-bit integers: {accuracy:.2%} right")
