#!/usr/bin/env python3
"""Train on this machine's GPU or TPU, and compare with one virtual core of its CPU.

    scripts/check_accelerator.py [--tpu local] [--only fit,table,...] [--at-once 6] [--record FILE]

Each check is a process of its own, so the test of one front door cannot hide the failure of another. Products of
float32 have full precision in the comparisons ("highest"); the tolerance is that of different orders of sums.
CI has no accelerator: this script is run by hand, and its results are recorded.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLES = ("01_cifar10", "02_imdb_lstm", "03_iris", "04_mnist", "05_flowers", "08_recommender")
TOLERANCE = 2e-4
"""Largest difference of a weight, relative to the largest weight of its array, after ten steps."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tpu", default="local", help="address of the system to check (local)")
    parser.add_argument("--only", help="names of checks, with commas")
    parser.add_argument("--at-once", type=int, default=6, help="processes at once (6)")
    parser.add_argument("--timeout", type=float, default=180, help="seconds for one check (180)")
    parser.add_argument("--record", type=Path, help="write the results here, as JSON")
    parser.add_argument("--check", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.check:
        print("result", json.dumps(CHECKS[options.check](options.tpu)), flush=True)
        return
    names = options.only.split(",") if options.only else list(CHECKS)
    with ThreadPoolExecutor(options.at_once) as pool:
        results = list(pool.map(functools.partial(run_check, tpu=options.tpu, timeout_s=options.timeout), names))
    for result in results:
        print(f"{result['check']:<20} {result['result']:<7} {result['seconds']:6.1f} s  {result['detail']}")
    if options.record:
        record = {"machine": f"{platform.machine()}, {os.cpu_count()} processors, Python {platform.python_version()}"}
        record |= {name: importlib.metadata.version(name) for name in ("jax", "keras", "numpy")}
        record["system"] = describe(options.tpu)
        options.record.write_text(json.dumps(record | {"checks": results}, indent=1) + "\n")
    sys.exit(any(result["result"] != "passed" for result in results))


def run_check(name: str, tpu: str, timeout_s: float) -> dict[str, Any]:
    """Run one check in a process, and return its result as a row."""
    began_s = time.perf_counter()
    command = [sys.executable, __file__, "--check", name, "--tpu", tpu]
    # Several processes share the memory of the device.
    environment = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return {"check": name, "result": "FAILED", "seconds": timeout_s, "detail": "the time is over"}
    found = re.search("^result (.*)$", done.stdout, re.MULTILINE)
    seconds = round(time.perf_counter() - began_s, 1)
    if done.returncode == 0 and found:
        return {"check": name, "result": "passed", "seconds": seconds, "detail": json.loads(found[1])}
    sys.stderr.write(f"== {name}\n{done.stdout[-1500:]}{done.stderr[-4000:]}\n")
    last = (done.stderr.strip() or "no error").splitlines()[-1]
    return {"check": name, "result": "FAILED", "seconds": seconds, "detail": last[:300]}


def describe(tpu: str) -> str:
    """Return the name and the number of the devices of a system."""
    program = f"import anytpu as tpu; print('core:', tpu.connect({tpu!r}), sep='|')"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    return done.stdout.strip().rpartition("core:|")[2] or done.stderr.strip()[-300:]


# --- Commands


def check_commands(tpu: str) -> str:
    """Run the commands that describe a machine; each must end with status 0 and name the system."""
    shown = []
    for command in (["devices"], ["doctor"], ["devices", "--tpu", tpu], ["demo", "--tpu", tpu, "--epochs", "1"]):
        done = subprocess.run(
            [sys.executable, "-m", "anytpu", *command],
            capture_output=True,
            text=True,
            cwd=tempfile.mkdtemp(),
            check=False,
        )
        print(f"$ anytpu {' '.join(command)}\n{done.stdout}{done.stderr}")
        if done.returncode != 0:
            raise SystemExit(
                f"anytpu {' '.join(command)}: status {done.returncode}: {(done.stderr or done.stdout)[-1500:]}"
            )
        shown.append(command[0])
    return ", ".join(shown)


def check_example(tpu: str, name: str) -> str:
    """Run an example that chooses its system itself, shortened."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--smoke"],
        capture_output=True,
        text=True,
        cwd=tempfile.mkdtemp(),
        env=os.environ | {"TPU_NAME": tpu},
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"{name}: {done.stdout[-500:]}{done.stderr[-3000:]}")
    return done.stdout.strip().splitlines()[-1]


# --- Training, beside one virtual core


def check_fit(tpu: str, name: str, address: str = "{}") -> str:
    """Fit, evaluate and predict with one model on both systems."""
    import anytpu as _  # noqa: F401  isort: skip
    import keras
    import numpy as np

    def train(system: Any) -> tuple[list[Any], Any]:
        keras.utils.set_random_seed(0)
        make, x, y = MODELS[name]()
        with system.scope():
            model = make()
        model.fit(x, y, batch_size=len(x) // 5, epochs=2, shuffle=False, verbose=0)
        loss = model.evaluate(x, y, batch_size=len(x) // 5, verbose=0)
        outputs = model.predict(x[:7], verbose=0)
        return [np.asarray(weight) for weight in model.get_weights()], (loss, outputs)

    return compared(train, address.format(tpu))


def check_loop(tpu: str) -> str:
    """Train with `strategy.run` and `tpu.value_and_grad`, one step a call."""
    import anytpu as tpus  # isort: skip
    import keras
    import numpy as np

    def train(system: Any) -> tuple[list[Any], Any]:
        keras.utils.set_random_seed(0)
        make, x, y = dense_model()
        with system.scope():
            model = make()
            optimizer = keras.optimizers.Adam(0.01)
        loss_of = keras.losses.SparseCategoricalCrossentropy(reduction="none")

        def step(x: Any, y: Any) -> Any:
            def mean_loss(x: Any, y: Any) -> Any:
                return tpus.compute_average_loss(loss_of(y, model(x, training=True)), global_batch_size=80)

            loss, gradients = tpus.value_and_grad(mean_loss, model.trainable_variables)(x, y)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
            return loss

        replicas = system.num_replicas_in_sync

        def split(rows: Any) -> Any:
            return tpus.PerReplica(np.split(rows, replicas)) if replicas > 1 else rows

        batches = [(split(x[i::5]), split(y[i::5])) for i in range(5)]
        losses = [float(system.reduce("SUM", system.run(step, args=batch), axis=None)) for batch in batches]
        return [np.asarray(weight) for weight in model.get_weights()], losses

    return compared(train, tpu)


def check_table(tpu: str, optimizer: str) -> str:
    """Train a table of embeddings whose step updates the rows it uses, with duplicate ids and unused rows."""
    import anytpu as tpus  # isort: skip
    import keras
    import numpy as np

    def train(system: Any) -> tuple[list[Any], Any]:
        keras.utils.set_random_seed(0)
        rng = np.random.default_rng(0)
        ids, y = rng.integers(0, 1000, (400, 6)).astype("int32"), rng.normal(size=(400, 1)).astype("float32")
        with system.scope():
            rule = keras.optimizers.SGD(0.1, momentum=0.9) if optimizer == "momentum" else optimizer
            table = tpus.layers.ShardedEmbedding(5000, 16, "mean", optimizer=rule)
            model = keras.Sequential([keras.Input((6,), dtype="int32"), table, keras.layers.Dense(1)])
            model.compile("adam", "mse")
        model.fit(ids, y, batch_size=40, epochs=2, shuffle=False, verbose=0)
        return [np.asarray(weight) for weight in model.get_weights()], model.predict(ids[:9], verbose=0)

    return compared(train, tpu)


def check_bad_ids(tpu: str) -> str:
    """An id outside the table must be an error with its value."""
    import anytpu as tpus  # isort: skip
    import keras
    import numpy as np

    with tpus.connect(tpu).scope():
        table = tpus.layers.ShardedEmbedding(50, 4, "mean", optimizer="sgd")
        model = keras.Sequential([keras.Input((3,), dtype="int32"), table, keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    try:
        model.fit(np.array([[1, 2, 777]] * 8, "int32"), np.ones((8, 1), "float32"), verbose=0)
    except ValueError as error:
        if "777" in str(error):
            return str(error).splitlines()[0]
        raise
    raise SystemExit("the id 777 of a table of 50 rows was no error")


def check_checkpoint(tpu: str) -> str:
    """A fit that continues from a checkpoint must end with the bits of one that was never interrupted."""
    import anytpu as tpus  # isort: skip
    import keras
    import numpy as np

    os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_gpu_deterministic_ops=true"

    def train(*epochs: int) -> list[Any]:
        folder = tempfile.mkdtemp()
        for last in epochs:
            keras.utils.set_random_seed(0)
            make, x, y = conv_model()
            with tpus.connect(tpu).scope():
                model = make()
            model.fit(x, y, batch_size=len(x) // 5, epochs=last, checkpoint_dir=folder, verbose=0)
        return [np.asarray(weight) for weight in model.get_weights()]

    for whole, continued in zip(train(3), train(1, 3), strict=True):
        if not np.array_equal(whole, continued):
            raise SystemExit(f"the weights differ by {np.abs(whole - continued).max()}")
    return "the same bits"


def check_layout(tpu: str) -> str:
    """Train under a layout by name, on all devices of the system."""
    import anytpu as tpus  # isort: skip
    import keras
    import numpy as np

    def train(system: Any) -> tuple[list[Any], Any]:
        keras.utils.set_random_seed(0)
        make, x, y = dense_model()
        with system.scope():
            model = make()
        model.fit(x, y, batch_size=len(x) // 5, epochs=2, shuffle=False, verbose=0)
        return [np.asarray(weight) for weight in model.get_weights()], None

    return compared(train, tpu, tpus.connect(tpu, layout="fsdp"))


def check_worker(tpu: str) -> str:
    """Train on a worker that serves the system; the client has the CPU alone."""
    program = (
        "import sys, anytpu as tpu, keras\n"
        "(x, y), _ = tpu.pipeline.digits()\n"
        "with tpu.connect(sys.argv[1]).scope():\n"
        "    model = keras.Sequential([keras.layers.Flatten(), keras.layers.Dense(64, 'relu'),"
        " keras.layers.Dense(10, 'softmax')])\n"
        "    model.compile('adam', 'sparse_categorical_crossentropy', metrics=['accuracy'])\n"
        "history = model.fit(x, y, batch_size=64, epochs=8, verbose=0)\n"
        "print('accuracy', history.history['accuracy'][-1])\n"
        "print(tpu.list_logical_devices('TPU') or tpu.list_logical_devices('GPU'))\n"
    )
    command = [
        sys.executable,
        "-m",
        "anytpu",
        "worker",
        "--host",
        "127.0.0.1",
        "--port",
        "0",
        "--insecure",
        "--tpu",
        tpu,
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        try:
            line = next(line for line in worker.stdout if "grpc://" in line)
            address = line.split('"')[1]
            done = subprocess.run(
                [sys.executable, "-c", program, address],
                capture_output=True,
                text=True,
                env=os.environ | {"JAX_PLATFORMS": "cpu", "CUDA_VISIBLE_DEVICES": ""},
                check=False,
            )
        finally:
            worker.terminate()
    if done.returncode != 0:
        raise SystemExit(done.stdout + done.stderr[-3000:])
    accuracy = float(done.stdout.split()[1])
    if accuracy < 0.9:
        raise SystemExit(f"the accuracy is {accuracy}")
    return f"accuracy {accuracy:.3f}; {done.stdout.splitlines()[-1][:150]}"


def check_virtual(tpu: str) -> str:
    """Beside an accelerator, eight virtual cores must train as ever, on the CPU."""
    import anytpu as tpus  # isort: skip
    import jax
    import keras
    import numpy as np

    tpus.connect(tpu)
    keras.utils.set_random_seed(0)
    make, x, y = dense_model()
    with tpus.connect("v2-8").scope():
        model = make()
    history = model.fit(x, y, batch_size=80, epochs=3, verbose=0)
    platforms = {device.platform for weight in model.weights for device in jax.numpy.asarray(weight.value).devices()}
    if not np.isfinite(history.history["loss"]).all():
        raise SystemExit("the loss is not finite")
    return f"loss {history.history['loss'][-1]:.4f}, values on {sorted(platforms)}"


# --- Comparison


def compared(train: Callable[[Any], tuple[list[Any], Any]], tpu: str, system: Any = None) -> str:
    """Return the largest difference between the system and one virtual core; raise SystemExit above the tolerance."""
    import anytpu as tpus  # isort: skip
    import jax
    import numpy as np

    numerics = {"numerics": "tpu"} if "numerics=tpu" in tpu else {}
    address = tpu.partition("?")[0]
    jax.config.update("jax_default_matmul_precision", None if numerics else "highest")
    weights, outputs = train(system or tpus.connect(address, **numerics))
    expected, expected_outputs = train(tpus.connect("virtual", cores=1, **numerics))
    worst = max(differences(weights + jax.tree.leaves(outputs), expected + jax.tree.leaves(expected_outputs)))
    if not worst <= TOLERANCE:
        raise SystemExit(f"the largest relative difference is {worst:.2e}; the tolerance is {TOLERANCE:.0e}")
    return f"{len(weights)} arrays, largest relative difference {worst:.1e} ({np.size(weights[0])} values first)"


def differences(arrays: list[Any], expected: list[Any]) -> Iterator[float]:
    """Yield the largest difference of each array, relative to the largest value expected in it."""
    import numpy as np

    for array, wanted in zip(arrays, expected, strict=True):
        wide = np.asarray(wanted, "float64")
        yield float(np.abs(np.asarray(array, "float64") - wide).max() / max(np.abs(wide).max(), 1e-3))


# --- Models


def digits() -> tuple[Any, Any]:
    import anytpu as tpus  # isort: skip

    (x, y), _ = tpus.pipeline.digits()
    return x[:400].astype("float32"), y[:400]


def dense_model() -> Any:
    """Return a maker of a dense model, with its data."""
    import keras
    from keras import layers

    x, y = digits()

    def make() -> Any:
        model = keras.Sequential(
            [layers.Input(x.shape[1:]), layers.Flatten(), layers.Dense(64, "relu"), layers.Dense(10, "softmax")]
        )
        model.compile(keras.optimizers.Adam(0.003), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    return make, x, y


def conv_model() -> Any:
    """Return a maker of a model with convolutions, pooling and batch normalization, with its data."""
    import keras
    from keras import layers

    x, y = digits()

    def make() -> Any:
        model = keras.Sequential(
            [
                layers.Input(x.shape[1:]),
                layers.Conv2D(16, 3, padding="same", use_bias=False),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.MaxPooling2D(),
                layers.Conv2D(16, 3, padding="same", activation="relu"),
                layers.GlobalAveragePooling2D(),
                layers.Dense(10, "softmax"),
            ]
        )
        model.compile(keras.optimizers.SGD(0.05, 0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    return make, x, y


def recurrent_model(kind: str) -> Any:
    """Return a maker of a model with an LSTM or a GRU on words, with its data."""
    import keras
    import numpy as np
    from keras import layers

    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 500, (320, 30)).astype("int32"), rng.integers(0, 2, (320, 1)).astype("float32")

    def make() -> Any:
        recurrent = getattr(layers, kind)(32)
        model = keras.Sequential(
            [layers.Input((30,), dtype="int32"), layers.Embedding(500, 16), recurrent, layers.Dense(1)]
        )
        model.compile(keras.optimizers.Adam(0.003), keras.losses.BinaryCrossentropy(from_logits=True))
        return model

    return make, x, y


def attention_model() -> Any:
    """Return a maker of a small transformer block, with its data."""
    import keras
    import numpy as np
    from keras import layers

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(160, 24, 32)).astype("float32"), rng.normal(size=(160, 24, 32)).astype("float32")

    def make() -> Any:
        inputs = layers.Input((24, 32))
        attended = layers.LayerNormalization()(inputs + layers.MultiHeadAttention(4, 8)(inputs, inputs))
        model = keras.Model(inputs, layers.Dense(32)(layers.Dense(64, "gelu")(attended)))
        # No Adam: the gradient of the keys' bias is zero but for rounding, and Adam makes that as large as the others.
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    return make, x, y


MODELS: dict[str, Callable[[], Any]] = {
    "dense": dense_model,
    "conv": conv_model,
    "lstm": functools.partial(recurrent_model, "LSTM"),
    "gru": functools.partial(recurrent_model, "GRU"),
    "attention": attention_model,
}
CHECKS: dict[str, Callable[[str], str]] = {
    "commands": check_commands,
    **{f"example_{name[:2]}": functools.partial(check_example, name=name) for name in EXAMPLES},
    "example_estimator": functools.partial(check_example, name="01_cifar10_estimator"),
    **{f"fit_{name}": functools.partial(check_fit, name=name) for name in MODELS},
    "fit_tpu_numerics": functools.partial(check_fit, name="dense", address="{}?numerics=tpu"),
    "loop": check_loop,
    **{
        f"table_{name}": functools.partial(check_table, optimizer=name)
        for name in ("sgd", "momentum", "adagrad", "adam", "ftrl")
    },
    "bad_ids": check_bad_ids,
    "checkpoint": check_checkpoint,
    "layout": check_layout,
    "worker": check_worker,
    "virtual": check_virtual,
}

if __name__ == "__main__":
    main()
