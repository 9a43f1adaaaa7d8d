"""The table of what replaces what: each new line runs, and each name that people try says what to type."""

from __future__ import annotations

import contextlib
import logging
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import anytpu as tpu  # isort: skip
import keras

from anytpu.migrate.port import old_api
from anytpu.migrate.port.rules import new_name, rule_of
from anytpu.migrate.port.tree import canonical
from anytpu.migrate.replaced.table import Replacement, replacements
from error_texts import error_text

# What shuts the system down comes last: the strategy that the others share does not survive it.
ROWS = sorted((row for rows in replacements().values() for row in rows), key=lambda row: "shutdown" in row.new)
PRELUDE = """
import absl.app, absl.flags, absl.logging, fsspec, functools, logging, os, re
import jax, keras, optax, numpy as np, anytpu as tpu
from keras import backend as K
"""
# Keras 3.15's own `Variable.__array__` has no copy keyword, which NumPy 2 warns of.
pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy keyword"),
    pytest.mark.filterwarnings("ignore:Do not pass an `input_shape`"),  # as Keras 2 took it
]

IN_A_STEP = ("get_replica_context", "compute_average_loss", "scale_regularization_loss")
"""What only works where a replica runs."""


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the lines of the table take as given: a strategy, a model, arrays, functions, files."""
    folder: Path = tmp_path_factory.mktemp("replaced")
    (folder / "lines.txt").write_text("one\ntwo\n")
    (folder / "fixed").write_bytes(b"aaaabbbb")
    tpu.pipeline.write_records(folder / "some.tfrecord", [b"one", b"two"])
    tpu.pipeline.write_records(folder / "zipped.tfrecord", [b"one", b"two"], compression="gzip")
    (folder / "table.csv").write_text("a,b\n1,2\n3,4\n")
    labels = np.zeros(20, "uint8")
    np.savez(folder / "mnist.npz", x_train=labels[:, None, None], y_train=labels, x_test=labels, y_test=labels)
    image = np.zeros((16, 16, 3), "uint8")
    resolver = tpu.TPUClusterResolver("virtual", cores=2)
    tpu.initialize_tpu_system(resolver)
    strategy = tpu.TPUStrategy(resolver)
    x = y = np.ones((16, 3), "float32")
    with strategy.scope():
        model: Any = keras.Sequential([keras.layers.Input((3,)), keras.layers.Dense(3)])
        model.compile("sgd", "mse")
        training_loss, accuracy = keras.metrics.Mean(), keras.metrics.MeanSquaredError()
    training_loss.update_state(1.0)
    batches = iter(strategy.distribute_dataset([(x, y)] * 4))
    estimator = tpu.TPUEstimator(
        _model_fn, str(folder / "estimator"), tpu.RunConfig(cluster=resolver), train_batch_size=16, eval_batch_size=16
    )
    for name in ("old_file", "old_folder"):
        (folder / name).mkdir() if "folder" in name else (folder / name).write_text("")
    return {
        **_names_of(PRELUDE),
        "resolver": resolver,
        "strategy": strategy,
        "per_replica": strategy.run(lambda: np.float32(2.0)),
        "tpu_address": "",
        "target": "",
        "model": model,
        "tpu_model": tpu.keras_to_tpu_model(model, strategy=tpu.TPUDistributionStrategy(resolver)),
        "optimizer": model.optimizer,
        "training_loss": training_loss,
        "accuracy": accuracy,
        "x": x,
        "y": y,
        "wave": np.ones(512, "float32"),
        "words": np.array([[0, 1], [1, 2]]),
        "probabilities": np.full((2, 6, 4), 0.25, "float32"),
        "a": np.ones((2, 2), "float32"),
        "b": np.ones((2, 2), "float32"),
        "targets": np.eye(2, dtype="float32"),
        "classes": np.array([0, 1]),
        "total": keras.ops.ones(2),
        "variable": keras.Variable(1.0),
        "losses": np.ones(8, "float32"),
        "scores": np.ones(8, "float32"),
        "columns": {"x": np.ones(8, "float32"), "y": np.ones(8, "float32")},
        "loss": np.float32(1.0),
        "mode": "train",
        "config": tpu.RunConfig(),
        "model_fn": lambda features, labels, mode, params: None,
        "step_fn": lambda batch: keras.ops.mean(batch[0]),
        "batch": (x, y),
        "iterator": batches,
        "steps": 2,
        "train_step": lambda x, y: keras.ops.mean(x - y),
        "matmul_fn": lambda x, y: keras.ops.matmul(x, y),
        "double": lambda one: one * 2,
        "is_small": lambda one: keras.ops.sum(one) < 100,
        "path": str(folder / "lines.txt"),
        **{name: str(folder / name) for name in ("new_folder", "new_file", "old_folder", "old_file")},
        "folder": str(folder),
        "estimator": estimator,
        "input_fn": lambda params: (x, y),
        "main": lambda argv: None,
        "pictures": np.ones((2, 8, 8, 3), "float32"),
        "kernel": np.ones((3, 3, 3, 4), "float32"),
        "is_training": False,
        "gradients": [(np.zeros(v.shape, "float32"), v) for v in model.trainable_variables],
        "files": tpu.pipeline.Dataset.from_source([str(folder / "lines.txt")]),
        "read": lambda name: tpu.pipeline.Dataset.from_source([name]),
        "pairs": tpu.pipeline.Dataset.from_arrays((x, y)),
        "images": tpu.pipeline.Dataset.from_arrays(np.stack([image, image])),
        "kind": "nearest",
        "image": image,
        "content": tpu.pipeline.encode_png(image),
        "record": tpu.pipeline.encode_example({"image": b"x", "label": 1}),
        "feature_config": tpu.embedding.FeatureConfig(tpu.embedding.TableConfig(100, 8)),
        "feature_configs": {"seen": tpu.embedding.FeatureConfig(tpu.embedding.TableConfig(100, 8))},
        "table": tpu.embedding.TableConfig(100, 8),
        "features": {"label": tpu.pipeline.FixedLenFeature([], "int64")},
        "dataset": tpu.pipeline.Dataset.from_arrays(x),
        "dataset_fn": lambda context: [(x, y)],
        "rows": lambda: iter([x]),
        "record_files": str(folder / "some.tfrecord"),
        "zipped_files": str(folder / "zipped.tfrecord"),
        "csv_file": str(folder / "table.csv"),
        "fixed_files": str(folder / "fixed"),
        "text_files": str(folder / "lines.txt"),
    }


def _model_fn(features: Any, labels: Any, mode: str, params: Any) -> Any:
    predicted = keras.layers.Dense(3)(features)
    if labels is None:
        return tpu.TPUEstimatorSpec(mode, predictions={"targets": predicted})
    loss = keras.ops.mean(keras.ops.square(predicted - labels))
    train_op = tpu.CrossShardOptimizer(keras.optimizers.SGD()).minimize(loss)
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=train_op)


def _names_of(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(code, names)
    return names


def test_every_new_line_runs(given: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("keras.src.datasets.mnist.get_file", lambda **_: f"{given['folder']}/mnist.npz")
    monkeypatch.setattr(sys, "argv", ["program"])
    faults = []
    for number, row in enumerate(row for row in ROWS if row.new):
        (tmp_path / str(number)).mkdir()
        monkeypatch.chdir(tmp_path / str(number))
        try:
            _run(row, given)
        except Exception as error:
            faults.append(f"{row.old}\n  becomes {row.new}\n  {type(error).__name__}: {error}")
    assert not faults, "\n".join(faults)


def _run(row: Replacement, given: dict[str, Any]) -> None:
    names, strategy = dict(given), given["strategy"]
    if any(name in row.new for name in IN_A_STEP) and "def " not in row.new:
        exec("def step():\n    " + re.sub(r"^\w+ = ", "return ", row.new), names)
        strategy.run(names["step"])
        return
    if "absl.app.run" in row.new:
        # absl.app.run sets the level and the handlers of Python's root logger, which later tests read.
        root = logging.getLogger()
        level, handlers = root.level, root.handlers[:]
        with pytest.raises(SystemExit) as ended:
            exec(row.new, names)
        root.setLevel(level)
        root.handlers[:] = handlers
        assert not ended.value.code
        return
    with strategy.scope() if "model.compile" in row.new else contextlib.nullcontext():
        exec(row.new, names)
    if "def step_fn" in row.new:
        strategy.run(names["step_fn"], args=(given["x"], given["y"]))
    if row.line:
        exec(row.line.replace(": ...", ": pass"), names)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "GradientTape",
            "anytpu has no GradientTape: in place of tf.GradientTape write `loss, grads = tpu.value_and_grad(lambda: "
            "keras.ops.mean(model(x)), model.trainable_variables)()` (the body of the tape becomes a function that "
            "returns the loss, and beside it what is used later). `anytpu docs migrate` has the rest",
        ),
        (
            "Session",
            "anytpu has no Session: in place of tf.Session write `strategy.run(train_step, args=(x, y))` (there are no "
            "sessions: a function of arrays is a step, with layers that are made before it, and strategy.run runs it "
            "on every core). "
            "`anytpu docs migrate` has the rest",
        ),
        (
            "contrib",
            "anytpu has no contrib: in place of tf.contrib write `tpu_model = tpu.keras_to_tpu_model(model)` (any "
            "batch size is right: nothing has to be divisible by the cores). `anytpu docs migrate` has the rest",
        ),
        (
            "function",
            "anytpu has no function: in place of tf.function write nothing (strategy.run compiles the step). "
            "`anytpu docs migrate` has the rest",
        ),
        (
            "float32",
            'anytpu has no float32: in place of tf.float32 write `"float32"` (a type is its name). '
            "`anytpu docs migrate` has the rest",
        ),
        (
            "reduce_sum",
            "anytpu has no reduce_sum: in place of tf.reduce_sum write `c = keras.ops.sum(a, axis=-1)`. "
            "`anytpu docs migrate` has the rest",
        ),
        (
            "placeholder",
            "anytpu has no placeholder: in place of tf.placeholder write `outputs = strategy.run(train_step, args=(x, "
            "y))` (a placeholder is an argument of the step). `anytpu docs migrate` has the rest",
        ),
    ],
)
def test_a_name_of_tensorflows(name: str, message: str):
    assert error_text(lambda: getattr(tpu, name), kind=AttributeError) == message


def test_every_old_name_has_its_error():
    """What exists here under the old name needs none."""
    names = {name.rpartition(".")[2] for row in ROWS for name in row.names if name.rpartition(".")[2]}
    names |= {name for row in ROWS for name in row.also}
    public = {name for name in names - set(dir(tpu)) if not name.startswith("_")}
    missing = [name for name in public if " write " not in _error_of(name)]
    assert {name for name in missing if not hasattr(tpu, name)} == set()


def _error_of(name: str) -> str:
    try:
        getattr(tpu, name)
    except AttributeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", ["infeed_dequeue", "outfeed_enqueue_tuple", "InfeedQueue"])
def test_feeds_of_old(name: str):
    assert "`outputs = strategy.run_steps(double, iter(strategy.distribute_dataset([x, x])), 2)`" in _error_of(name)


def test_the_new_names_exist():
    """Each recorded function and class that a row renames, also below a name of the table."""
    packages = _names_of("import jax, keras, numpy as np, optax, os, shutil, logging, anytpu as tpu")
    names = set(old_api.names())
    recorded = [canonical(f"tensorflow.{name}") for name in names if name.rpartition(".")[0] not in names]
    by_row = {name for row in ROWS if "*" in row.target and row.how == "rename" for name in row.names}
    missing, seen = [], 0
    for old in sorted({*recorded, *by_row} - {""}):
        rule = rule_of(old)
        target = new_name(old) if rule is not None and rule[1].how == "rename" else None
        seen += target is not None
        try:
            eval(target or "None", packages)
        except AttributeError as error:
            missing.append(f"{old}: {error}")
    assert missing == []
    assert seen > 1400


def test_porting_is_light():
    loaded = "; import sys; print(sorted({'jax', 'jaxlib', 'keras', 'tensorflow'} & set(sys.modules)))"
    program = (
        "import anytpu, anytpu.migrate.port; anytpu.migrate.port.ported('import tensorflow as tf; tf.exp(1)')" + loaded
    )
    run = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True)
    assert (run.stdout, run.stderr) == ("[]\n", "")
