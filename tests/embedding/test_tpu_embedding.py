"""`TPUEmbedding` in a custom loop, beside dense tables in JAX."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.embedding import FeatureConfig, TableConfig, TPUEmbedding
from anytpu.errors import DataError, ProgramError, ReplicaError, SettingError, StrategyError
from error_texts import error_text

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning"),
]

IDS, WIDTH, ROWS, STEPS = 50, 4, 8, 6
RNG = np.random.default_rng(0)
START = RNG.normal(size=(IDS, WIDTH)).astype("float32")
KERNEL = RNG.normal(size=(2 * WIDTH, 1)).astype("float32")
DENSE = RNG.integers(0, IDS, (STEPS, ROWS, 3))
RAGGED = [[RNG.integers(0, IDS, RNG.integers(1, 4)).tolist() for _ in range(ROWS)] for _ in range(STEPS)]
TARGETS = RNG.normal(size=(STEPS, ROWS, 1)).astype("float32")


def loss_of(embeddings: Any, targets: Any) -> Any:
    both = jnp.concatenate([embeddings["liked"] + embeddings["seen"], embeddings["user"]], 1)
    return jnp.sum((both @ KERNEL - targets) ** 2) / ROWS


def embedding_of(strategy: Any, **settings: Any) -> TPUEmbedding:
    items, users = TableConfig(IDS, WIDTH, combiner="sum", name="items"), TableConfig(IDS, WIDTH, name="users")
    features = {"liked": FeatureConfig(items), "seen": FeatureConfig(items), "user": FeatureConfig(users)}
    with strategy.scope():
        embedding = TPUEmbedding(features, keras.optimizers.Adagrad(0.1), **settings)
    embedding.assign("items", START)
    embedding.assign("users", START[::-1])
    return embedding


def step_of(embedding: TPUEmbedding) -> Callable[[Any], Any]:
    """Return a training step on the batch that is enqueued."""

    def step(targets: Any) -> Any:
        value, gradients = jax.value_and_grad(loss_of)(embedding.dequeue(), targets)
        embedding.apply_gradients(gradients)
        return value

    return step


def enqueue(embedding: TPUEmbedding, step: int, **settings: Any) -> None:
    embedding.enqueue({"liked": DENSE[step], "seen": RAGGED[step], "user": RAGGED[step]}, **settings)


def reference() -> tuple[list[float], Any]:
    def loss(tables: Any, step: int) -> Any:
        items, users = tables
        bags = [jnp.stack([f(t[np.array(row)], 0) for row in rows]) for t, rows, f in (
            (items, DENSE[step], jnp.sum), (items, RAGGED[step], jnp.sum), (users, RAGGED[step], jnp.mean)
        )]  # fmt: skip
        return loss_of(dict(zip(("liked", "seen", "user"), bags, strict=True)), TARGETS[step])

    tables, losses = (jnp.asarray(START), jnp.asarray(START[::-1])), []
    totals = tuple(jnp.full(table.shape, 0.1) for table in tables)
    for step in range(STEPS):
        value, gradients = jax.value_and_grad(loss)(tables, step)
        losses.append(float(value))
        totals = tuple(total + g * g for total, g in zip(totals, gradients, strict=True))
        triples = zip(tables, gradients, totals, strict=True)
        tables = tuple(table - 0.1 * g / jnp.sqrt(total + 1e-7) for table, g, total in triples)
    return losses, tables


@pytest.mark.parametrize("cores", [1, 4])
def test_in_a_custom_loop(cores: int):
    strategy = tpu.connect("virtual", cores=cores)
    embedding = embedding_of(strategy)
    step, losses = step_of(embedding), []
    for number, targets in enumerate(strategy.distribute_dataset(list(TARGETS))):
        enqueue(embedding, number)
        losses.append(float(strategy.reduce("SUM", strategy.run(step, args=(targets,)))))
    expected, (items, users) = reference()
    # Float32: sums in another order.
    np.testing.assert_allclose(losses, expected, rtol=1e-4)
    np.testing.assert_allclose(embedding.embedding_tables["items"], items, rtol=0, atol=1e-4)
    np.testing.assert_allclose(embedding.embedding_tables["users"], users, rtol=0, atol=1e-4)


def test_outside_of_a_replica_and_without_training():
    embedding = embedding_of(tpu.connect("virtual", cores=2))
    losses = []
    for number in range(STEPS):
        enqueue(embedding, number)
        losses.append(float(step_of(embedding)(TARGETS[number])))
    np.testing.assert_allclose(losses, reference()[0], rtol=1e-4)
    before = embedding.embedding_tables["items"]
    enqueue(embedding, 0, training=False)
    np.testing.assert_array_equal(embedding.dequeue()["liked"][0], np.asarray(before)[DENSE[0, 0]].sum(0))
    np.testing.assert_array_equal(embedding.embedding_tables["items"], before)


def test_sequences_are_cut_and_filled(caplog: Any):
    table = TableConfig(IDS, WIDTH)
    with tpu.connect("virtual", cores=2).scope():
        embedding = TPUEmbedding([FeatureConfig(table, max_sequence_length=3)], "sgd")
    embedding.enqueue([[[1, 2], [3, 4, 5, 6]]], training=False)
    embedding.enqueue([[[1, 2], [3, 4, 5, 6]]])
    assert caplog.messages == [
        "'0', row 1, has 4 ids, and its max_sequence_length is 3: only the first ids of such rows are used. Later rows "
        "are cut without a line."
    ]
    (result,) = embedding.dequeue()
    rows = np.asarray(embedding_tables(embedding))
    np.testing.assert_array_equal(result, [[*rows[[1, 2]], [0] * WIDTH], rows[[3, 4, 5]]])


def embedding_tables(embedding: TPUEmbedding) -> Any:
    embedding.apply_gradients([None])
    return embedding.embedding_tables["table_0"]


def test_what_is_refused():
    strategy = tpu.connect("virtual", cores=4)
    embedding = embedding_of(strategy)
    assert error_text(embedding.dequeue, kind=ProgramError) == (
        "there is nothing to dequeue: call enqueue(features) before the step"
    )
    assert error_text(lambda: embedding.apply_gradients({}), kind=ProgramError) == (
        "there is nothing to update: call enqueue(features) before the step"
    )
    whole = {"liked": DENSE[0], "seen": DENSE[0], "user": DENSE[0]}
    bad = DENSE[0].copy()
    bad[3, 1] = IDS
    assert error_text(lambda: embedding.enqueue({**whole, "seen": bad}), kind=DataError) == (
        "'seen', row 3, has the id 50, and the table 'items' has the ids 0 to 49; -1 stands for no id. "
        "Enlarge vocabulary_size, or pass validate_weights_and_indices=False to leave such ids out"
    )
    assert error_text(lambda: embedding.enqueue({name: ids[:6] for name, ids in whole.items()}), kind=DataError) == (
        "the features have 6 rows, and 4 replicas need the same number in each, which they divide: pass full batches, "
        "batch(rows, drop_remainder=True)"
    )
    assert error_text(lambda: embedding.enqueue({"liked": DENSE[0]}), kind=DataError) == (
        "features must have the structure of feature_config, one value for each of 'liked', 'seen', 'user'; it is a "
        "dict, the keys ['liked']"
    )
    tables: Any = embedding.embedding_tables
    assert error_text(lambda: tables.__setitem__("items", START), kind=SettingError) == (
        "embedding_tables['items'] = ... would change a copy: call embedding.assign('items', array)"
    )
    weights = {name: np.ones(ids.shape) for name, ids in whole.items()}
    weights["liked"][2, 0] = np.nan
    assert error_text(lambda: embedding.enqueue(whole, weights), kind=DataError) == (
        f"'liked', row 2, has the weight nan for the id {DENSE[0, 2, 0]}: a weight must be a finite number"
    )
    embedding.enqueue(whole)
    assert error_text(lambda: embedding.enqueue(whole), kind=ProgramError) == (
        "apply_gradients was not called for the batch that was enqueued last. Call it in the step, or "
        "enqueue(..., training=False)"
    )
    embedding.enqueue(whole)
    wrong = {name: np.zeros((ROWS, WIDTH + 1)) for name in whole}
    assert error_text(lambda: embedding.apply_gradients(wrong), kind=DataError) == (
        "the gradient of 'liked' is for embeddings of the shape (8, 5), and those of the batch have (8, 4)"
    )
    inside = error_text(lambda: strategy.run(lambda: embedding.enqueue(whole)), kind=ProgramError)
    assert inside == "enqueue takes ids on the host: call it before strategy.run, not inside"
    assert error_text(lambda: embedding.assign("movies", START), kind=SettingError) == (
        "there is no table 'movies'; the tables are 'items', 'users'"
    )
    assert error_text(lambda: embedding.assign("items", START[:3]), kind=SettingError) == (
        "the table 'items' has the shape (50, 4), not (3, 4)"
    )
    assert "make it inside, with tpu.connect().scope()" in error_text(
        lambda: TPUEmbedding(FeatureConfig(TableConfig(3, 2)), "sgd"), kind=StrategyError
    )
    for make, text in (
        (lambda: TableConfig(0, 2), "vocabulary_size of a table must be a positive integer, not 0"),
        (
            lambda: TableConfig(3, 2, combiner="max"),
            'combiner of a table must be "mean", "sum" or "sqrtn", not \'max\'',
        ),
        (lambda: FeatureConfig("items"), "table of a FeatureConfig must be a TableConfig, not 'items'"),  # type: ignore
        (
            lambda: FeatureConfig(TableConfig(3, 2), max_sequence_length=-3),
            "max_sequence_length of a feature must be a positive integer, or 0 to combine the ids of a row, not -3",
        ),
        (
            lambda: FeatureConfig(TableConfig(3, 2), max_sequence_length=None),  # type: ignore
            "max_sequence_length of a feature must be a positive integer, or 0 to combine the ids of a row, not None",
        ),
    ):
        assert error_text(make, kind=SettingError) == text


def test_a_configuration_without_features():
    with tpu.connect("virtual", cores=2).scope():
        assert error_text(lambda: TPUEmbedding({}, "sgd"), kind=SettingError) == (
            "feature_config has no feature: pass a FeatureConfig, or a nested structure of them, not {}"
        )


def test_tables_without_a_name_take_names_that_are_free():
    first, second, third, named = (TableConfig(3, 2, name=name) for name in (None, None, None, "table_1"))
    with tpu.connect("virtual", cores=2).scope():
        TPUEmbedding(FeatureConfig(first), "sgd")
        embedding = TPUEmbedding([FeatureConfig(table) for table in (second, first, third, named)], "sgd")
    assert [table.name for table in (first, second, third, named)] == ["table_0", "table_2", "table_3", "table_1"]
    assert sorted(embedding.embedding_tables) == ["table_0", "table_1", "table_2", "table_3"]


@pytest.mark.parametrize("way", ["one pass", "value_and_grad"])
def test_with_a_layer_that_is_trained_too(way: str):
    results = []
    for cores in (1, 4):
        strategy = tpu.connect("virtual", cores=cores)
        embedding = embedding_of(strategy)
        with strategy.scope():
            dense = keras.layers.Dense(1)
            dense.build((None, 2 * WIDTH))
            optimizer = keras.optimizers.SGD(0.1)
        dense.kernel.assign(KERNEL)

        def loss(embeddings: Any, targets: Any, dense: Any = dense) -> Any:
            both = jnp.concatenate([embeddings["liked"] + embeddings["seen"], embeddings["user"]], 1)
            return jnp.sum((dense(both) - targets) ** 2) / ROWS

        def step(
            targets: Any, embedding: Any = embedding, dense: Any = dense, optimizer: Any = optimizer, loss: Any = loss
        ) -> Any:
            found, variables = embedding.dequeue(), dense.trainable_variables
            if way == "one pass":

                def whole(found: Any, weights: Any) -> Any:
                    return loss(found, targets, lambda x: dense.stateless_call(weights, [], x)[0])

                weights = [variable.value for variable in variables]
                value, (of_rows, of_weights) = jax.value_and_grad(whole, argnums=(0, 1))(found, weights)
            else:
                _, of_rows = tpu.value_and_grad(lambda found: loss(found, targets), found)()
                value, of_weights = tpu.value_and_grad(lambda: loss(found, targets), variables)()
            embedding.apply_gradients(of_rows)
            optimizer.apply_gradients(zip(of_weights, variables, strict=True))
            return value

        for number, targets in enumerate(strategy.distribute_dataset(list(TARGETS))):
            enqueue(embedding, number)
            value = float(strategy.reduce("SUM", strategy.run(step, args=(targets,))))
        results.append((value, np.asarray(embedding.embedding_tables["items"]), np.asarray(dense.kernel)))
    for one, four in zip(*results, strict=True):
        np.testing.assert_allclose(one, four, rtol=1e-4, atol=1e-5)


def test_gradients_that_are_summed_are_refused():
    strategy = tpu.connect("virtual", cores=2)
    embedding = embedding_of(strategy)
    enqueue(embedding, 0)

    def of_copies() -> None:
        found = jax.tree.map(lambda array: array + 0, embedding.dequeue())
        _, gradients = tpu.value_and_grad(lambda found: sum(array.sum() for array in found.values()), found)()
        embedding.apply_gradients(gradients)

    def of_both() -> None:
        tpu.value_and_grad(lambda found: found["seen"].sum(), {**embedding.dequeue(), "scale": jnp.ones(())})()

    assert error_text(lambda: strategy.run(of_copies), kind=ReplicaError) == (
        "apply_gradients was given gradients that tpu.value_and_grad has summed over the replicas, and the embeddings "
        "differ between them: differentiate by the arrays of dequeue() themselves, or use jax.value_and_grad"
    )
    assert error_text(lambda: strategy.run(of_both), kind=ReplicaError) == (
        "the tree has embeddings of TPUEmbedding.dequeue, which differ between the replicas, and arrays that all "
        "replicas share: differentiate by each in a call of its own"
    )


def test_apply_gradients_once_for_a_training_batch():
    strategy = tpu.connect("virtual", cores=2)
    embedding = embedding_of(strategy)

    def step() -> None:
        embedding.apply_gradients(jax.tree.map(jnp.ones_like, embedding.dequeue()))

    before = np.asarray(embedding.embedding_tables["items"])
    enqueue(embedding, 0)
    strategy.run(step)
    strategy.run(step)
    assert error_text(lambda: embedding.embedding_tables, kind=ProgramError) == (
        "apply_gradients was called 2 times for one batch: call it once after each enqueue, with the sum of the "
        "gradients. This batch has not updated the tables"
    )
    np.testing.assert_array_equal(embedding.embedding_tables["items"], before)
    enqueue(embedding, 0, training=False)
    strategy.run(step)
    assert error_text(lambda: enqueue(embedding, 1), kind=ProgramError) == (
        "apply_gradients was called for a batch of enqueue(..., training=False), which updates no table: leave it out "
        "of the step, or enqueue with training=True"
    )
    np.testing.assert_array_equal(embedding.embedding_tables["items"], before)
    enqueue(embedding, 1)
    strategy.run(step)
    assert not np.array_equal(embedding.embedding_tables["items"], before)


def test_a_step_that_failed_is_no_pending_batch():
    strategy = tpu.connect("virtual", cores=2)
    embedding = embedding_of(strategy)

    def step() -> None:
        embedding.dequeue()
        raise ZeroDivisionError

    for _ in range(2):
        enqueue(embedding, 0)
        with pytest.raises(ZeroDivisionError):
            strategy.run(step)
    enqueue(embedding, 0)
    assert "apply_gradients was not called" in error_text(lambda: enqueue(embedding, 0), kind=ProgramError)


def test_forms_of_arguments():
    embedding = embedding_of(tpu.connect("virtual", cores=2))
    whole = {"liked": DENSE[0], "seen": DENSE[0], "user": DENSE[0]}
    assert error_text(lambda: embedding.enqueue({**whole, "user": None}), kind=DataError) == (
        "the ids of 'user' are None: pass an array of ids, in which -1 stands for no id"
    )
    mixed = np.array([[1, "a"]] * ROWS, object)
    assert error_text(lambda: embedding.enqueue({**whole, "user": mixed}), kind=DataError).startswith(
        "'user' holds <U21"
    )
    embedding.enqueue(whole, {"liked": np.full(DENSE[0].shape, 2.0)}, training=False)
    found = embedding.dequeue()
    np.testing.assert_allclose(found["liked"], 2 * found["seen"], rtol=1e-6)
    tables = embedding.embedding_tables
    table = TableConfig(IDS, WIDTH, name="items")
    np.testing.assert_array_equal(tables[table], tables["items"])
    embedding.assign(table, START + 1)
    np.testing.assert_array_equal(embedding.embedding_tables[table], START + 1)
    assert (
        error_text(lambda: tables["movies"], kind=KeyError)
        == "\"there is no table 'movies'; the tables are 'items', 'users'\""
    )


def test_a_checkpointer_saves_tables_in_steps(tmp_path: Path):
    targets = list(TARGETS)

    def train(folder: Path, last: int, cores: int) -> Any:
        strategy = tpu.connect("virtual", cores=cores)
        embedding = embedding_of(strategy)
        step, checkpointer = step_of(embedding), tpu.Checkpointer(str(folder), every_steps=2)
        with strategy.scope():
            for number in checkpointer.steps(last, embedding=embedding):
                enqueue(embedding, number)
                (rows,) = strategy.distribute_dataset([targets[number]])
                strategy.run(step, args=(rows,))
        return embedding.embedding_tables

    whole = train(tmp_path / "whole", STEPS, 2)
    train(tmp_path / "parts", 3, 2)
    # Loaded at another number of cores; float32 sums are in another order.
    resumed = train(tmp_path / "parts", STEPS, 4)
    for name, table in whole.items():
        np.testing.assert_allclose(resumed[name], table, rtol=0, atol=1e-5)
    np.testing.assert_allclose(whole["items"], reference()[1][0], rtol=0, atol=1e-4)
