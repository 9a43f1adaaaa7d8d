"""The first TPU in software: a network for handwritten digits in 8-bit integers, as on the chip of 2015.

    python examples/06_chip.py            # less than a minute
    python examples/06_chip.py --smoke    # in seconds

Train a small network in floating point, compile it for the chip, run it bit-exactly, and predict its time on the chip.
The output is model.tpu (the program), trace.json (for https://ui.perfetto.dev), chip.html (all reports) and, if onnx is
installed, model.onnx (the same integers in onnxruntime).
"""

import argparse
import importlib.util
from pathlib import Path

import anytpu as tpu  # isort: skip
import keras
from keras import layers

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--smoke", action="store_true", help="a short training, for a few seconds")
parser.add_argument("--output", type=Path, default=Path(), help="the folder to write to (this one)")
arguments = parser.parse_args()

EPOCHS = 10 if arguments.smoke else 20
FILTERS = 8 if arguments.smoke else 32
CALIBRATION_ROWS = 256  # Examples that show the ranges of the numbers: 100 to 500 are usual.
BATCH = 128  # What the timing is for; results do not depend on it.

# --- The network, trained in floating point

keras.utils.set_random_seed(0)
(x_train, y_train), (x_test, y_test) = tpu.pipeline.digits()

model = keras.Sequential(
    [
        layers.Input(x_train.shape[1:]),
        layers.Conv2D(FILTERS, 3, padding="same", use_bias=False),
        layers.BatchNormalization(momentum=0.9),
        layers.ReLU(),
        layers.MaxPooling2D(),
        layers.Conv2D(2 * FILTERS, 3, padding="same", activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(10, activation="softmax"),
    ]
)
model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
model.fit(x_train, y_train, batch_size=32, epochs=EPOCHS, verbose=0)

# --- Compiled for the chip, and run there

program = tpu.chip.compile(model, calibration=x_train[:CALIBRATION_ROWS])
program.show()

float_accuracy = (model.predict(x_test, verbose=0).argmax(axis=1) == y_test).mean()
chip_accuracy = (program.run(x_test).argmax(axis=1) == y_test).mean()
scores = program.run_int8(x_test)
print(f"accuracy: {float_accuracy:.2%} in float32, {chip_accuracy:.2%} in int8")
print(f"what leaves the chip: {scores.dtype} {scores.shape}, the first row {scores[0].ravel().tolist()}")

# --- How long the chip would take: predicted by a model of it, since nobody can run one

timing = program.time(batch=BATCH)
print(f"predicted: {timing.cycles:,.0f} cycles for {BATCH} digits, {timing.time_s * 1e6:.1f} us at 700 MHz")
print(
    f"the matrix unit: {timing.active_cycles / timing.cycles:.1%} active, "
    f"{timing.stall_cycles / timing.cycles:.1%} waiting for weights, {timing.shift_cycles / timing.cycles:.1%} "
    f"shifting them in, {timing.other_cycles / timing.cycles:.1%} idle for other reasons"
)
alone = program.time(batch=1)
print(f"one digit alone takes {alone.time_s * 1e6:.1f} us, one of {BATCH} takes {timing.time_s / BATCH * 1e6:.2f} us")
faster = program.time(batch=BATCH, host_bytes_per_s=2 * program.design.host_bytes_per_s)
print(f"with a link to the host of twice the rate: {timing.cycles / faster.cycles:.2f} times as fast")

# --- To keep, and to look at

arguments.output.mkdir(parents=True, exist_ok=True)
program.save(arguments.output / "model.tpu")
program.trace(arguments.output / "trace.json", batch=BATCH)
program.to_html(arguments.output / "chip.html")
names = ["model.tpu", "trace.json", "chip.html"]
if importlib.util.find_spec("onnx"):
    program.to_onnx(arguments.output / "model.onnx")
    names.append("model.onnx")
else:
    print("left out model.onnx, which needs: pip install 'anytpu[onnx]'")
for name in names:
    print(f"wrote {arguments.output / name}: {(arguments.output / name).stat().st_size:,} bytes")

again = tpu.chip.load(arguments.output / "model.tpu")
print("read again, it gives the same integers:", bool((again.run_int8(x_test) == scores).all()))
