"""Custom loops answer what TensorFlow answered: golden values, made by scripts/golden_custom_loops.py."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "custom_loops.json").read_text())


@pytest.fixture(scope="module")
def eight():
    return tpu.connect("virtual", cores=8)


def parts(strategy, value):
    return [np.asarray(part).tolist() for part in strategy.experimental_local_results(value)]


def test_values(eight):
    golden = GOLDEN["values"]
    a, b = np.arange(1.0, 7.0, dtype="float32").reshape(2, 3), np.arange(1.0, 7.0, dtype="float32").reshape(3, 2)
    z = eight.run(jnp.matmul, args=(a, b))
    assert eight.reduce("SUM", z, axis=None).tolist() == golden["matmul_sum"]
    assert eight.reduce("MEAN", z, axis=0).tolist() == golden["matmul_mean_of_rows"]
    assert list(eight.gather(z, axis=0).shape) == golden["gathered_shape"]
    printed = str(eight.run(lambda: jnp.int32(1)))
    assert [line.split(":")[0] for line in printed.splitlines()] == golden["printed_keys"]

    def ids():
        context = tpu.get_replica_context()
        index = context.replica_id_in_sync_group.astype("float32")
        gradient = jax.grad(lambda x: (index + 1) * context.all_reduce("SUM", x))(2.0)
        return (
            context.all_reduce("SUM", index),
            context.all_reduce("MEAN", index),
            context.all_gather(index[None], 0),
            gradient,
        )

    total, mean, gathered, gradient = eight.run(ids)
    assert parts(eight, total) == golden["sum_of_ids"]
    assert parts(eight, mean) == golden["mean_of_ids"]
    assert parts(eight, gathered) == golden["gathered_ids"]
    assert parts(eight, gradient) == golden["gradient_of_sum"]


@pytest.mark.parametrize("name", GOLDEN["splits"]["global"])
def test_splits(eight, name):
    rows, size = map(int, name.split(" by "))
    data = [np.arange(rows)[first : first + size] for first in range(0, rows, size)]
    made = [[len(part) for part in batch.values] for batch in eight.distribute_dataset(data)]
    assert made == GOLDEN["splits"]["global"][name]


def test_splits_from_a_function(eight):
    data = [np.arange(21)[first : first + 2] for first in range(0, 21, 2)]
    contexts = []
    made = eight.distribute_datasets_from_function(lambda context: contexts.append(str(context)) or data)
    assert [[len(part) for part in batch.values] for batch in made] == GOLDEN["splits"]["from_function"]
    assert [f"tf.distribute.{context}" for context in contexts] == GOLDEN["splits"]["context"]


@pytest.mark.parametrize("aggregation", GOLDEN["variables"]["assign_add"])
def test_variables(eight, aggregation):
    with eight.scope():
        variable = keras.Variable(0.0, aggregation=aggregation)

    def add():
        variable.assign_add(tpu.get_replica_context().replica_id_in_sync_group.astype("float32") + 1)

    eight.run(add)
    assert float(variable.value) == GOLDEN["variables"]["assign_add"][aggregation]


def index():
    return tpu.get_replica_context().replica_id_in_sync_group.astype("float32")


def twice(variable):
    variable.assign(index() + 1)
    variable.assign_add(index())


OUTER = jnp.ones(())
WRITES = {
    "assign": lambda variable: variable.assign(index() + 1),
    "assign_add": lambda variable: variable.assign_add(index() + 1),
    "assign_sub": lambda variable: variable.assign_sub(index() + 1),
    "assign of a change": lambda variable: variable.assign(variable + index()),
    "twice": twice,
    "made in the step": lambda variable: variable.assign_add(jnp.float32(1.0)),
    "a number": lambda variable: variable.assign(1.0),
    "a number added": lambda variable: variable.assign_add(1.0),
    "made outside": lambda variable: variable.assign(OUTER),
}


@pytest.mark.parametrize("name", GOLDEN["aggregates"])
def test_a_variable_is_read_after_an_assignment(eight, name):
    (aggregation, *on_read), write = name.split(", ")[0].split(), WRITES[name.split(", ")[1]]
    synchronization = "on_read" if on_read else "auto"
    with eight.scope():
        variable = keras.Variable(
            0.0 if on_read else 2.0, aggregation=aggregation, synchronization=synchronization, name="level"
        )

    def step():
        write(variable)
        return variable.value

    def found():
        return {"read": parts(eight, eight.run(step)), "after": float(variable.value)}

    golden = GOLDEN["aggregates"][name]
    if "raises" in golden:
        with pytest.raises(ValueError, match=r"^the variable 'level' has aggregation=\"sum\" and was assigned "):
            found()
    else:
        assert found() == golden


@pytest.mark.parametrize("name", GOLDEN["plain_reductions"])
def test_reductions_of_a_plain_value(eight, name):
    given = {"3": np.float32(3), "0": np.float32(0), "vector": np.float32([1, 2]), "zeros": np.zeros(2, "float32")}
    (op, axis, value), golden = name.split(), GOLDEN["plain_reductions"][name]

    def found():
        return eight.reduce(op, given[value], axis=None if axis == "None" else int(axis)).tolist()

    if isinstance(golden, dict):
        with pytest.raises(ValueError, match=r'^strategy.reduce\("SUM", ...\) was given '):
            found()
    else:
        assert found() == golden


def test_contexts(eight):
    found = []

    def state(*_):
        found.append([tpu.has_strategy(), tpu.in_cross_replica_context(), tpu.get_replica_context() is None])

    def merging(*_):
        return tpu.get_replica_context().merge_call(state)

    def scoped(strategy):
        with strategy.scope():
            state()

    default = tpu.get_strategy()
    calls = {
        "outside": state,
        "scope": lambda: scoped(eight),
        "run": lambda: eight.run(state),
        "merge": lambda: eight.run(merging),
        "default run": lambda: default.run(state),
        "default scope": lambda: scoped(default),
        "default merge": merging,
    }
    for name, call in calls.items():
        found.clear()
        call()
        assert found[0] == GOLDEN["contexts"][name], name


def test_batches_that_may_be_missing(eight):
    data = [np.arange(21)[first : first + 10] for first in range(0, 21, 10)]
    batches = iter(eight.distribute_dataset(data))
    found = [batches.get_next_as_optional() for _ in range(5)]
    assert [
        [optional.has_value(), parts(eight, optional.get_value()) if optional.has_value() else None]
        for optional in found
    ] == GOLDEN["optionals"]


def test_gathering(eight):
    golden = GOLDEN["gathered"]
    lengths = eight.experimental_distribute_values_from_function(
        lambda one: np.full((one.replica_id_in_sync_group + 1, 2), one.replica_id_in_sync_group)
    )
    assert eight.gather(lengths, axis=0).tolist() == golden["gather"]
    data = [np.arange(21)[first : first + 10] for first in range(0, 21, 10)]
    batches = eight.distribute_dataset(data)
    every = [eight.run(lambda x: tpu.get_replica_context().all_gather(x, 0), args=(batch,)) for batch in batches]
    assert [parts(eight, gathered)[7] for gathered in every] == golden["of batches"]


def test_what_a_step_makes(eight):
    def twice(make, use):
        made = []

        def step():
            if not made:
                made.append(make())
            return use(made[0])

        return [parts(eight, eight.run(step)), parts(eight, eight.run(step))]

    def anew():
        return keras.Variable(1.0).assign_add(1.0)

    def trained(optimizer):
        optimizer.apply_gradients([(jnp.float32(1.0), weight)])
        return weight.value

    with eight.scope():
        weight = keras.Variable(1.0)
    x = np.ones((1, 2), "float32")
    golden = GOLDEN["made_in_steps"]
    assert twice(lambda: keras.Variable(1.0), lambda one: one.assign_add(1.0)) == golden["variable"]
    first = twice(
        lambda: keras.Variable(lambda shape, dtype: jnp.full(shape, index(), dtype), shape=()), lambda one: one.value
    )
    assert first == golden["variable of the first replica's value"]
    assert twice(lambda: keras.layers.Dense(2, kernel_initializer="ones"), lambda one: one(x)) == golden["layer"]
    assert twice(lambda: keras.optimizers.SGD(0.1, momentum=0.9), trained) == golden["optimizer"]
    with pytest.raises(ValueError, match=r"^anew makes the variable 'variable.*' anew each time it runs"):
        eight.run(anew)


def test_metrics(eight):
    with eight.scope():
        mean = keras.metrics.Mean()
    eight.run(lambda: mean.update_state(tpu.get_replica_context().replica_id_in_sync_group))
    assert float(mean.result()) == GOLDEN["variables"]["metric_mean_of_ids"]


def test_losses(eight):
    given = eight.experimental_distribute_values_from_function(
        lambda context: np.array([1.0, 2.0], "float32") * (context.replica_id_in_sync_group + 1)
    )
    weights = np.array([1.0, 0.5], "float32")

    def step(x):
        return {
            "average": tpu.compute_average_loss(x),
            "average_of_20": tpu.compute_average_loss(x, global_batch_size=20),
            "weighted": tpu.compute_average_loss(x, sample_weight=weights, global_batch_size=16),
            "regularization": tpu.scale_regularization_loss(jnp.array([1.0, 3.0])),
        }

    made = eight.reduce("SUM", eight.run(step, args=(given,)), axis=None)
    assert {name: float(value) for name, value in made.items()} == pytest.approx(GOLDEN["losses"], rel=1e-6)


@pytest.mark.parametrize("cores", [1, 3, 8])
def test_training(cores):
    golden, strategy = GOLDEN["training"], tpu.connect("virtual", cores=cores)
    x, y = np.array(golden["x"], "float32"), np.array(golden["y"])
    with strategy.scope():
        weights = keras.Variable(np.array(golden["start"], "float32"))
        optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
        accuracy = keras.metrics.SparseCategoricalAccuracy()

    def step(batch):
        x, y = batch

        def loss_fn():
            logits = x @ weights
            rows = keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)
            return tpu.compute_average_loss(rows, global_batch_size=10), logits

        (loss, logits), gradients = tpu.value_and_grad(loss_fn, [weights], has_aux=True)()
        optimizer.apply_gradients(zip(gradients, [weights], strict=True))
        accuracy.update_state(y, logits)
        return loss

    data = [(x[first : first + 10], y[first : first + 10]) for first in range(0, len(x), 10)]
    losses = [
        float(strategy.reduce("SUM", strategy.run(step, args=(batch,)))) for batch in strategy.distribute_dataset(data)
    ]
    # Float32, three steps: sums in another order.
    assert losses == pytest.approx(golden["losses"], rel=1e-6)
    assert np.allclose(np.asarray(weights.value), golden["weights"], atol=1e-6)
    assert float(accuracy.result()) == pytest.approx(golden["accuracy"])
    assert int(optimizer.iterations.value) == golden["iterations"]


@pytest.mark.parametrize("name", GOLDEN["uneven_fit"])
def test_fit_is_one_device_where_keras_2_was_not(eight, name):
    rows, size = map(int, name.split(" by "))
    with eight.scope():
        model = keras.Sequential([keras.layers.Dense(1, use_bias=False, kernel_initializer="ones")])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    x = np.linspace(-1, 1, rows, dtype="float32")[:, None]
    model.fit(x, x**2, batch_size=size, shuffle=False, verbose=0)
    golden, weight = GOLDEN["uneven_fit"][name], float(model.weights[0].value[0, 0])
    assert weight == pytest.approx(golden["one_device"], rel=1e-6)
    if rows % size:
        assert abs(weight - golden["eight_replicas"]) > 1e-3
