"""Embedding tables of a `TPUEstimator`, beside the same tables in a custom loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.embedding import EmbeddingConfigSpec, FeatureConfig, TableConfig, TPUEmbedding
from anytpu.errors import DataError, EstimatorError, SettingError
from error_texts import error_text
from estimator_samples import estimator

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

IDS, WIDTH, ROWS, STEPS = 50, 4, 16, 6
RNG = np.random.default_rng(0)
START = RNG.normal(size=(IDS, WIDTH)).astype("float32")
SEEN = [[RNG.integers(0, IDS, RNG.integers(0, 6)).tolist() for _ in range(ROWS)] for _ in range(STEPS)]
USER = RNG.integers(0, IDS, (STEPS, ROWS))
AGE = RNG.normal(size=(STEPS, ROWS, 1)).astype("float32")
TARGETS = RNG.normal(size=(STEPS, ROWS, 1)).astype("float32")


def features_of() -> dict[str, FeatureConfig]:
    start: Any = keras.initializers.Constant(START)  # pyright: ignore[reportArgumentType]
    items = TableConfig(IDS, WIDTH, start, combiner="sum", name="items")
    users = TableConfig(IDS, WIDTH, start, keras.optimizers.Adam(0.05), name="users")
    return {"seen": FeatureConfig(items), "user": FeatureConfig(users)}


def model_fn(features: Any, labels: Any, mode: str, params: dict[str, Any]) -> Any:
    both = keras.ops.concatenate([features["seen"], features["user"], features["age"]], -1)
    scores = keras.layers.Dense(1, kernel_initializer="ones")(both)
    if mode == tpu.ModeKeys.PREDICT:
        return tpu.TPUEstimatorSpec(mode, predictions={"score": scores})
    loss = keras.ops.mean((scores - labels) ** 2)
    if mode == tpu.ModeKeys.EVAL:
        return tpu.TPUEstimatorSpec(mode, loss=loss)
    optimizer = keras.optimizers.SGD(0.02)
    if params["use_tpu"]:
        optimizer = tpu.CrossShardOptimizer(optimizer)
    return tpu.TPUEstimatorSpec(mode, loss=loss, train_op=optimizer.minimize(loss))


def batches(params: dict[str, Any]) -> Any:
    return [({"seen": SEEN[n], "user": USER[n], "age": AGE[n]}, TARGETS[n]) for n in range(STEPS)]


def last_batches(params: dict[str, Any]) -> Any:
    return batches(params)[3:]


def tables_estimator(folder: Path | str, **more: Any) -> Any:
    return estimator(folder, model_fn, embedding_config_spec=EmbeddingConfigSpec(features_of(), "adagrad"), **more)


def custom_loop() -> tuple[list[float], Any, Any]:
    """The same training by a custom loop on one core: losses, tables and kernel."""
    strategy = tpu.connect("virtual", cores=1)
    with strategy.scope():
        embedding = TPUEmbedding(features_of(), "adagrad")
    kernel, bias, losses = jnp.ones((2 * WIDTH + 1, 1)), jnp.zeros(1), []

    def loss_of(weights: Any, found: Any, step: int) -> Any:
        both = jnp.concatenate([found["seen"], found["user"], AGE[step]], -1)
        return jnp.mean((both @ weights[0] + weights[1] - TARGETS[step]) ** 2)

    for step in range(STEPS):
        embedding.enqueue({"seen": SEEN[step], "user": USER[step]})
        found = embedding.dequeue()
        loss, (own, gradients) = jax.value_and_grad(loss_of, argnums=(0, 1))((kernel, bias), found, step)
        embedding.apply_gradients(gradients)
        kernel, bias = kernel - 0.02 * own[0], bias - 0.02 * own[1]
        losses.append(float(loss))
    return losses, embedding.embedding_tables, kernel


class Losses(tpu.SessionRunHook):
    def __init__(self) -> None:
        self.losses: list[float] = []

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self.losses.append(run_values.results["loss"])


def check_tables(made: Any, expected: dict[str, Any], kernel: Any) -> None:
    # Float32: sums in another order.
    for name in ("items", "users"):
        value = made.get_variable_value(f"embedding_tables/{name}/embeddings")
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=2e-5)
    np.testing.assert_allclose(made.get_variable_value("dense/kernel"), kernel, rtol=0, atol=2e-5)


def test_the_numbers_are_those_of_a_custom_loop(tmp_path: Path):
    expected, tables, kernel = custom_loop()
    hook = Losses()
    made = tables_estimator(tmp_path, cores=4, loop=1).train(batches, hooks=[hook], max_steps=STEPS)
    np.testing.assert_allclose(hook.losses, expected, rtol=1e-4)
    check_tables(made, tables, kernel)
    # Evaluation and prediction read the same tables, on another number of cores.
    scores = np.concatenate([
        np.concatenate([
            np.stack([tables["items"][np.array(row, int)].sum(0) for row in SEEN[n]]), tables["users"][USER[n]], AGE[n],
        ], 1) @ kernel for n in range(STEPS)
    ]) + made.get_variable_value("dense/bias")  # fmt: skip
    other = tables_estimator(tmp_path, cores=2, eval_on_tpu=False)
    loss = other.evaluate(batches, steps=STEPS)["loss"]
    np.testing.assert_allclose(loss, np.mean((scores - TARGETS.reshape(-1, 1)) ** 2), rtol=1e-4)
    predicted = [row["score"] for row in other.predict(batches)]
    np.testing.assert_allclose(np.array(predicted), scores, rtol=0, atol=1e-4)


def test_a_resumed_training_on_another_number_of_cores(tmp_path: Path):
    _, tables, kernel = custom_loop()
    tables_estimator(tmp_path, cores=2).train(batches, max_steps=3)
    resumed = tables_estimator(tmp_path, cores=4).train(last_batches, max_steps=STEPS)
    check_tables(resumed, tables, kernel)
    names = [name for name in resumed.get_variable_names() if name.startswith("embedding_tables/users")]
    assert names == [
        f"embedding_tables/users/{name}"
        for name in ("embeddings", "embeddings_mean", "embeddings_square", "learning_rate", "steps")
    ]
    # Without a TPU, from the same checkpoint; and a program of the prediction.
    cpu = tables_estimator(tmp_path, use_tpu=False)
    assert np.isfinite(cpu.evaluate(batches)["loss"])
    path = resumed.export_saved_model(str(tmp_path / "served"), {"seen": USER[:1].T, "user": USER[0], "age": AGE[0]})
    program = tpu.program.read(path, tensors=True)
    _, outputs = program.step(program.tensors, {"seen": USER[:1].T, "user": USER[0], "age": AGE[0]})
    expected = [row["score"] for row in resumed.predict(lambda params: [{
        "seen": USER[0][:, None], "user": USER[0], "age": AGE[0],
    }])]  # fmt: skip
    np.testing.assert_allclose(outputs["score"], expected, rtol=0, atol=1e-5)


def test_an_input_fn_of_replicas(tmp_path: Path):
    _, tables, kernel = custom_loop()

    def halves(params: dict[str, Any]) -> Any:
        for features, labels in batches(params):
            for rows in (slice(0, 8), slice(8, 16)):
                yield {name: value[rows] for name, value in features.items()}, labels[rows]

    pipeline = {"per_host_input_for_training": tpu.InputPipelineConfig.PER_HOST_V2}
    made = tables_estimator(tmp_path, tpu_config=pipeline).train(halves, max_steps=STEPS)
    check_tables(made, tables, kernel)


def test_variables_of_stacked_tables_have_the_name_of_their_table(tmp_path: Path):
    start: Any = keras.initializers.Constant(START)  # pyright: ignore[reportArgumentType]
    users, items = (
        TableConfig(IDS, WIDTH, start, name="users"),
        TableConfig(7, WIDTH, "ones", combiner="sum", name="items"),
    )
    spec = EmbeddingConfigSpec({"user": FeatureConfig(users), "seen": FeatureConfig(items)}, keras.optimizers.SGD(0.0))
    made = estimator(tmp_path, model_fn, embedding_config_spec=spec)
    seen = [[each % 7 for each in row] for row in SEEN[0]]
    batch = {"seen": seen, "user": USER[0], "age": AGE[0]}, TARGETS[0]
    made.train(lambda params: [batch], max_steps=1)
    names = [name for name in made.get_variable_names() if name.startswith("embedding_tables")]
    assert names == [
        f"embedding_tables/{table}/{name}"
        for table in ("items", "users")
        for name in ("embeddings", "learning_rate", "steps")
    ]
    np.testing.assert_array_equal(made.get_variable_value("embedding_tables/items/embeddings"), np.ones((7, WIDTH)))
    np.testing.assert_array_equal(made.get_variable_value("embedding_tables/users/embeddings"), START)
    assert made.get_variable_value("embedding_tables/users/steps") == 1


def test_what_is_refused(tmp_path: Path):
    assert error_text(lambda: estimator(tmp_path, embedding_config_spec=3), kind=SettingError) == (
        "embedding_config_spec must be a tpu.embedding.EmbeddingConfigSpec, not 3: type "
        'tpu.embedding.EmbeddingConfigSpec({"seen": tpu.embedding.FeatureConfig(table)}, "adagrad")'
    )
    assert error_text(lambda: tables_estimator(tmp_path, batch_axis=(1, 0)), kind=SettingError) == (
        "batch_axis is (1, 0), and embedding_config_spec needs the rows of all features in axis 0: leave batch_axis "
        "out, and transpose in model_fn"
    )
    assert error_text(lambda: EmbeddingConfigSpec({}, "adam"), kind=SettingError) == (
        "feature_to_config_dict must be a dictionary with a FeatureConfig for each feature of ids, by its name, such "
        'as {"seen": FeatureConfig(table)}, not {}'
    )
    assert error_text(lambda: EmbeddingConfigSpec(features_of(), "adam", True), kind=SettingError) == (
        "pipeline_execution_with_tensor_core=True would look rows up before the update of the last step: leave it out"
    )
    made = tables_estimator(tmp_path)
    whole = {"seen": SEEN[0], "user": USER[0], "age": AGE[0]}
    for call in (lambda: made.program((whole, TARGETS[0])), lambda: tpu.plan(made, tpu="v5e-1")):
        assert error_text(call, kind=EstimatorError) == (
            "a training step with embedding_config_spec is three programs: a lookup, the step of model_fn, and an "
            "update. To plan it as one, put tpu.layers.ShardedEmbedding into a Keras model, and type tpu.plan(model, "
            "batch)"
        )

    def train(features: Any) -> str:
        return error_text(lambda: made.train(lambda params: [(features, TARGETS[0])], max_steps=1), kind=DataError)

    assert train(AGE[0]) == (
        "the features of input_fn must be a dictionary with the ids 'seen', 'user', which embedding_config_spec names, "
        "not ndarray"
    )
    assert train({"seen": SEEN[0], "age": AGE[0]}) == (
        "the features of input_fn are ['age', 'seen'], and embedding_config_spec names 'user': return its ids, or "
        "leave it out of feature_to_config_dict"
    )
    assert train({**whole, "user": np.where(np.arange(ROWS) == 3, IDS, USER[0])}) == (
        "'user', row 3, has the id 50, and the table 'users' has the ids 0 to 49; -1 stands for no id. "
        "Enlarge vocabulary_size, or pass validate_weights_and_indices=False to leave such ids out"
    )
