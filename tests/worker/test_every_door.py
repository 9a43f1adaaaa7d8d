"""Every way of programming a TPU, on a worker: only the address differs from virtual cores of this process."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import WorkerLostError
from anytpu.system import shutdown_tpu_system
from estimator_samples import input_fn, model_fn
from forked import python
from source_tree import ROOT
from test_examples import PRINTS
from worker.worker_process import WorkerProcess

X = np.random.default_rng(0).random((128, 16), dtype="float32")
Y = np.arange(128) % 4


@pytest.mark.parametrize("name", ["03_iris", "04_mnist"])
def test_an_example(worker: WorkerProcess, name: str, tmp_path: Path):
    shutdown_tpu_system()  # The worker serves one program at a time.
    environment = {**os.environ, "HOME": str(tmp_path), "JAX_PLATFORMS": "cpu", "TPU_NAME": worker.url}
    words = [] if name.startswith("03") else ["--smoke"]
    command = [*python(), str(ROOT / "examples" / f"{name}.py"), *words]
    ran = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert ran.returncode == 0, ran.stderr
    for pattern in PRINTS[name]:
        assert re.search(pattern, ran.stdout), f"no {pattern!r} in:\n{ran.stdout}"


def made(address: str, **arguments: Any) -> Any:
    keras.utils.set_random_seed(7)
    with tpu.connect(address, **arguments).scope():
        layers = [keras.layers.Dense(16, "relu"), keras.layers.Dropout(0.3), keras.layers.Dense(4)]
        model = keras.Sequential([keras.Input((16,)), *layers])
        model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True), steps_per_execution=1)
    return model


def fitted(model: Any, **arguments: Any) -> list[np.ndarray]:
    model.fit(X, Y, batch_size=16, epochs=4, verbose=0, **arguments)
    return [np.asarray(variable.value) for variable in [*model.variables, *model.optimizer.variables]]


def assert_equal(left: list[np.ndarray], right: list[np.ndarray]) -> None:
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_sharded_model(worker: WorkerProcess):
    assert_equal(fitted(made(worker.url, layout="fsdp")), fitted(made("v2-8", layout="fsdp")))


def with_table(address: str) -> list[np.ndarray]:
    keras.utils.set_random_seed(7)
    with tpu.connect(address).scope():
        ids = keras.Input((3,), dtype="int32")
        table = tpu.layers.ShardedEmbedding(1024, 8, "mean")
        model = keras.Model(ids, keras.layers.Dense(1)(table(ids)))
        model.compile("adam", "mse", steps_per_execution=2)
    model.fit(np.arange(3 * 64).reshape(64, 3), X[:64, :1], batch_size=16, epochs=2, verbose=0)
    return [np.asarray(table.embeddings), *(np.asarray(variable.value) for variable in model.variables)]


def test_an_embedding_table(worker: WorkerProcess):
    assert_equal(with_table(worker.url), with_table("v2-8"))


def planned(address: str) -> list[np.ndarray]:
    model = made(address)
    assert len(tpu.plan(model, batch_size=64, tpu="v2-8").predictions) == 1
    return fitted(model)


def test_plan_beside_a_worker(worker: WorkerProcess):
    assert_equal(planned(worker.url), planned("v2-8"))


class Kills(keras.callbacks.Callback):
    """Kills a worker and its children after some steps."""

    def __init__(self, worker: WorkerProcess) -> None:
        super().__init__()
        self._worker, self._steps = worker, 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._steps += 1
        if self._steps == 13:
            for child in self._worker.children():
                os.kill(child, 9)
            self._worker.process.kill()


def test_fit_continues_after_the_death_of_the_worker(tmp_path: Path):
    whole = fitted(made("v2-8"))
    saved = tpu.Checkpointer(tmp_path / "run", every_steps=5)
    doomed = WorkerProcess(tmp_path, "--tpu", "v2-8", "--lease", "1")
    try:
        model = made(doomed.url)
        with pytest.raises(WorkerLostError):
            fitted(model, checkpoint_dir=saved, callbacks=[Kills(doomed)])
    finally:
        shutdown_tpu_system()
        doomed.stop()
    (tmp_path / "second").mkdir()
    second = WorkerProcess(tmp_path / "second", "--tpu", "v2-8")
    try:
        assert_equal(fitted(made(second.url), checkpoint_dir=tmp_path / "run"), whole)
    finally:
        shutdown_tpu_system()
        second.stop()


def estimated(address: str, folder: Path) -> Any:
    keras.utils.set_random_seed(7)
    config = tpu.RunConfig(cluster=tpu.TPUClusterResolver(address), tpu_config=tpu.TPUConfig(iterations_per_loop=4))
    sizes = {"train_batch_size": 16, "eval_batch_size": 16, "predict_batch_size": 8}
    estimator = tpu.TPUEstimator(model_fn, str(folder), config, **sizes)
    estimator.train(input_fn, steps=6)
    estimator.train(input_fn, max_steps=10)  # Continues from the checkpoint.
    return estimator.evaluate(input_fn, steps=2), [row["logits"] for row in estimator.predict(input_fn)]


def test_an_estimator(worker: WorkerProcess, tmp_path: Path):
    remote, local = estimated(worker.url, tmp_path / "remote"), estimated("v2-8", tmp_path / "local")
    assert remote[0] == local[0]
    np.testing.assert_array_equal(remote[1], local[1])


def test_compare_with_a_worker(worker: WorkerProcess, monkeypatch: pytest.MonkeyPatch):
    def job(strategy: Any) -> Any:
        with strategy.scope():
            model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(4)])
            model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        return model, X, Y, 16

    monkeypatch.setenv("TPU_NAME", worker.url)
    comparison = tpu.compare(job, rounds=1)
    local, remote = comparison.measurements[1], comparison.measurements[-1]
    assert remote.name == f"worker at {worker.target}"
    assert remote.metrics == local.metrics
    assert (remote.cores, remote.is_virtual) == (8, True)


def looped(address: str, folder: Path, steps: int) -> np.ndarray:
    """Run a custom loop up to a number of steps, and return its weights."""
    keras.utils.set_random_seed(7)
    strategy = tpu.connect(address)
    with strategy.scope():
        model = keras.Sequential([keras.Input((16,)), keras.layers.Dense(1)])
        optimizer = keras.optimizers.Adam(0.1)
        optimizer.build(model.trainable_variables)

    def step(x: Any) -> Any:
        def loss(_: Any = None) -> Any:
            return tpu.compute_average_loss(jnp.square(model(x))[:, 0])

        value, gradients = tpu.value_and_grad(loss, model.trainable_variables)()
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return value

    batches = iter(strategy.distribute_dataset(tpu.pipeline.Dataset.from_arrays((X,)).repeat().batch(32)))
    saved = tpu.Checkpointer(folder, every_steps=2)
    for _ in saved.steps(steps, model=model, optimizer=optimizer, batches=batches):
        strategy.run(step, args=(next(batches)[0],))
    return np.asarray(model.weights[0].value)


def test_fit_continues_on_a_worker(worker: WorkerProcess, tmp_path: Path):
    made("v2-8").fit(X, Y, batch_size=16, epochs=2, verbose=0, checkpoint_dir=tmp_path / "run")
    assert_equal(fitted(made(worker.url), checkpoint_dir=tmp_path / "run"), fitted(made("v2-8")))


def test_a_custom_loop_continues_on_a_worker(worker: WorkerProcess, tmp_path: Path):
    whole = looped("v2-8", tmp_path / "whole", 9)
    looped("v2-8", tmp_path / "run", 4)
    np.testing.assert_array_equal(looped(worker.url, tmp_path / "run", 9), whole)
