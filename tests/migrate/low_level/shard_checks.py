"""What low-level programs may do, checked on the system in use: each check raises when it does not hold.

The tests run them on virtual cores and on the twin, in float32; a child process runs them on a mesh, in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax

import anytpu as tpu
from anytpu.migrate.low_level.arguments import in_use
from strategy.replica_checks import floats, near

ROWS = 24


def cores() -> int:
    return in_use().num_replicas_in_sync


def start() -> dict[str, np.ndarray]:
    return {"w": floats((4, 3), 1) / 4, "b": np.zeros(3, keras.config.floatx())}


def loss_of(params: Any, x: Any, y: Any) -> Any:
    return jnp.mean((jnp.tanh(x @ params["w"] + params["b"]) - y) ** 2)


def batch(seed: int = 0) -> list[np.ndarray]:
    return [floats((ROWS, 4), seed), floats((ROWS, 3), seed + 50)]


def train(optimizer: Any, spread: Callable, gradients_of: Callable = jax.grad) -> dict[str, np.ndarray]:
    """Train for 4 steps in one function; `spread` runs it. Only what is wrapped around the optimizer differs."""

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        gradients = gradients_of(lambda params: loss_of(params, x, y))(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    params, state = start(), optimizer.init(start())
    for seed in range(4):
        params, state = spread(step, params, state, *batch(seed))
    return jax.tree.map(np.array, params)


def over_shards(step: Callable, params: Any, state: Any, x: Any, y: Any) -> Any:
    return tpu.shard(step, [params, state, x, y], None, [None, None, 0, 0], outputs_from_all_shards=False)


def alone(step: Callable, *args: Any) -> Any:
    return jax.jit(step)(*args)


def nears(actual: Any, expected: Any) -> None:
    jax.tree.map(near, actual, expected)


def check_an_optax_optimizer_trains_as_on_one_device() -> None:
    for plain in (optax.sgd(0.3), optax.adam(0.05)):
        nears(train(tpu.CrossShardOptimizer(plain), over_shards), train(plain, alone))


def check_sum_is_the_mean_times_the_shards() -> None:
    summed = train(tpu.CrossShardOptimizer(optax.sgd(0.3), reduction="sum"), over_shards)
    nears(summed, train(optax.sgd(0.3 * cores()), alone))


def check_an_optimizer_in_a_chain() -> None:
    chained = optax.chain(optax.scale(0.5), tpu.CrossShardOptimizer(optax.sgd(0.3)))
    nears(train(chained, over_shards), train(optax.sgd(0.15), alone))


def check_computed_gradients_are_not_summed_again() -> None:
    optimizer = tpu.CrossShardOptimizer(optax.sgd(0.3))

    def gradients_of(loss: Callable) -> Callable:
        return lambda params: optimizer.compute_gradients(loss, params)

    nears(train(optimizer, over_shards, gradients_of), train(optax.sgd(0.3), alone))


def check_local_gradients_are_this_shards_and_are_summed_when_applied() -> None:
    optimizer = tpu.CrossShardOptimizer(optax.sgd(1.0))

    def step(params: Any, x: Any, y: Any) -> Any:
        own = optimizer.compute_gradients(lambda params: loss_of(params, x, y), params, local=True)
        clipped = jax.tree.map(lambda one: jnp.clip(one, -0.01, 0.01), own)
        new, _ = optimizer.apply_gradients(clipped, optimizer.init(params), params)
        return own["b"], new

    x, y = batch()
    own, new = tpu.shard(step, [start(), x, y], None, [None, 0, 0], [True, False])
    shards = list(zip(np.split(x, cores()), np.split(y, cores()), strict=True))
    expected = [jax.tree.map(lambda g: g / cores(), jax.grad(loss_of)(start(), *shard)) for shard in shards]
    near(own, np.concatenate([gradients["b"] for gradients in expected]))
    total = jax.tree.map(lambda *gs: sum(np.clip(g, -0.01, 0.01) for g in gs), *expected)
    nears(new, jax.tree.map(lambda old, step: old - step, start(), total))


def check_a_keras_optimizer_trains_as_on_one_device() -> None:
    def trained(optimizer: Any, wrapped: Any, spread: Callable, is_summed: bool) -> list[np.ndarray]:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(3, activation="relu")])
        optimizer.build(model.trainable_variables)

        def step(x: Any, y: Any) -> Any:
            loss_fn = lambda: jnp.mean((model(x) - y) ** 2)  # noqa: E731
            if not is_summed:
                variables = model.trainable_variables
                _, gradients = tpu.value_and_grad(loss_fn, variables)()
                wrapped.apply_gradients(zip(gradients, variables, strict=True))
            else:
                wrapped.apply_gradients(wrapped.compute_gradients(loss_fn, model.trainable_variables))
            return loss_fn()

        for seed in range(3):
            spread(step, batch(seed))
        assert int(optimizer.iterations) == 3
        return [np.array(weight.value) for weight in model.weights]

    inner = keras.optimizers.SGD(0.3, momentum=0.9)
    actual = trained(inner, tpu.CrossShardOptimizer(inner), tpu.batch_parallel, True)
    plain = keras.optimizers.SGD(0.3, momentum=0.9)
    expected = trained(plain, plain, lambda step, given: step(*given), False)
    nears(actual, expected)


def check_groups_train_models_of_their_own() -> None:
    count = cores()
    groups = [list(range(0, count, 2)), list(range(1, count, 2))]
    if count % 2:
        groups = [[index] for index in range(count)]
    optimizer = tpu.CrossShardOptimizer(optax.sgd(0.3), group_assignment=groups)

    def step(x: Any, y: Any) -> Any:
        params = jax.tree.map(jnp.asarray, start())
        gradients = jax.grad(loss_of)(params, x, y)
        computed = optimizer.compute_gradients(lambda params: loss_of(params, x, y), params)
        updates, _ = optimizer.update(gradients, optimizer.init(params))
        others, _ = optimizer.update(computed, optimizer.init(params))
        return jax.tree.map(lambda one: one[None], (updates, others))

    ((updates, others),) = [tpu.shard(step, batch())]
    parts = [np.split(array, count) for array in batch()]
    for group in groups:
        x, y = (np.concatenate([part[member] for member in group]) for part in parts)
        expected = jax.tree.map(lambda g: -0.3 * g, jax.grad(loss_of)(start(), x, y))
        for member in group:
            for got in (updates, others):
                nears(jax.tree.map(lambda one, member=member: np.asarray(one)[member], got), expected)


def check_cross_replica_sum() -> None:
    count = cores()
    x = floats((count, 5))
    half = list(range(0, count, 2)) + list(range(1, count, 2))
    groups = [half[: count // 2], half[count // 2 :]] if count % 2 == 0 else [half]

    def sums(x: Any) -> Any:
        tree = {"rows": x, "number": x.sum(), "flags": x > 0}
        return tpu.cross_replica_sum(tree), tpu.cross_replica_sum(tree, groups), tpu.cross_replica_sum(2)

    every, grouped, twos = tpu.shard(sums, [x])
    near(every["rows"], np.stack([x.sum(0)] * count))
    near(every["number"], np.full(count, x.sum()))
    for group in groups:
        for member in group:
            near(np.asarray(grouped["rows"])[member], x[group].sum(0))
            near(np.asarray(grouped["number"])[member], x[group].sum())
    assert np.asarray(twos).tolist() == [2 * count] * count


def check_axes_trees_and_numbers() -> None:
    count = cores()
    tree = {"x": floats((3, 2 * count)), "n": (np.arange(count * 4).reshape(1, -1),)}
    whole = jnp.arange(3)

    def computation(tree: Any, whole: Any) -> Any:
        return jax.tree.map(lambda leaf: leaf * 2, tree), whole + 1, tree["n"][0].sum(), tree["x"].T

    doubled, mine, sums, turned = tpu.shard(
        computation, [tree, whole], None, [-1, None], [True, False, True, True], [1, 0, 0, 0]
    )
    near(doubled["x"], tree["x"] * 2)
    assert np.array_equal(doubled["n"][0], tree["n"][0] * 2)
    assert np.asarray(mine).tolist() == [1, 2, 3]
    assert np.asarray(sums).tolist() == [int(part.sum()) for part in np.split(tree["n"][0], count, 1)]
    near(turned, tree["x"].T)


def check_what_comes_back() -> None:
    rows = np.arange(float(cores()))
    assert tpu.shard(lambda x: None, [rows]) is None
    assert tpu.rewrite(lambda: None) is None
    (only,) = tpu.batch_parallel(lambda x: x, [rows])
    assert np.array_equal(only, rows)
    assert [float(value) for value in tpu.rewrite(lambda x, flag: (x, jnp.where(flag, 1, 2)), [3.0, True])] == [
        3.0,
        1.0,
    ]
    state = optax.sgd(0.1, momentum=0.9).init(np.ones(2))
    (again,) = tpu.rewrite(lambda: optax.ScaleState() if state is None else state[0])
    assert type(again) is type(state[0])


def check_replicate_gives_each_replica_its_own() -> None:
    count = cores()
    given = [[{"x": np.full(2, float(index))}, index] for index in range(count)]
    got = tpu.replicate(lambda tree, n: (tree["x"] * 2, tpu.cross_replica_sum(n)), given)
    assert [np.asarray(outputs[0]).tolist() for outputs in got] == [[2.0 * index] * 2 for index in range(count)]
    assert [int(outputs[1]) for outputs in got] == [sum(range(count))] * count
    assert [int(outputs[0]) for outputs in tpu.replicate(lambda: tpu.cross_replica_sum(1))] == [count] * count
    assert tpu.replicate(lambda: None) == [None] * count
    assert [int(outputs[0]) for outputs in tpu.replicate(lambda n: tpu.cross_replica_sum(n), [[5]])] == [5]


def check_fewer_shards_than_cores() -> None:
    for shards in range(1, cores() + 1):
        (got,) = tpu.shard(lambda: tpu.cross_replica_sum(1), num_shards=shards)
        assert np.asarray(got).tolist() == [shards] * shards


def check_the_same_function_compiles_once() -> None:
    strategy = in_use()
    before, part = strategy.compilations, strategy.part(1).compilations
    for number in range(3):

        def computation(x: Any) -> Any:
            return x + 41

        assert np.asarray(tpu.batch_parallel(computation, [np.full(cores(), number)])[0])[0] == number + 41
        assert int(tpu.rewrite(computation, [number])[0]) == number + 41
    own = 1 if strategy.part(1) is not strategy else 2
    assert strategy.compilations == before + own
    assert strategy.part(1).compilations == part + (1 if own == 1 else 2)


def check_outputs_go_back_in() -> None:
    (x,) = tpu.batch_parallel(lambda x: x + 1, [np.zeros(cores() * 2)])
    (x,) = tpu.batch_parallel(lambda x: x + 1, [x])
    (total,) = tpu.rewrite(lambda x: x.sum(), [x])
    assert float(total) == cores() * 4


def check_loops_on_the_device() -> None:
    def computation(x: Any, n: Any) -> Any:
        (total,) = tpu.repeat(n, lambda t: t + tpu.cross_replica_sum(x.sum()), [jnp.zeros((), x.dtype)])
        (power,) = tpu.while_loop(lambda p: p < 100, lambda p: p * 2, [n])
        return total, power

    x = floats((cores(), 2))
    total, power = tpu.shard(computation, [x, 5], None, [None, None] if cores() == 1 else [0, None])
    near(total, np.full(cores(), 5 * x.sum()))
    assert np.asarray(power).tolist() == [160] * cores()


def check_a_loop_on_the_device_may_train_a_keras_model() -> None:
    x, y = batch()

    def trained(turns: Callable) -> list[np.ndarray]:
        keras.utils.set_random_seed(5)
        model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dropout(0.5, seed=7), keras.layers.Dense(3)])
        optimizer, mean = keras.optimizers.Adam(0.05), keras.metrics.Mean()
        optimizer.build(model.trainable_variables)
        wrapped = tpu.CrossShardOptimizer(optimizer)

        def step(x: Any, y: Any) -> None:
            loss_fn = lambda: jnp.mean((model(x, training=True) - y) ** 2)  # noqa: E731
            wrapped.apply_gradients(wrapped.compute_gradients(loss_fn, model.trainable_variables))
            mean.update_state(x)

        tpu.batch_parallel(lambda x, y: turns(lambda: step(x, y)), [x, y])
        assert int(optimizer.iterations) == 4
        assert np.isclose(mean.result(), x.mean(), atol=1e-7)  # Keras counts in float32.
        return [np.array(variable.value) for variable in [*model.weights, *optimizer.variables]]

    def one_after_the_other(step: Callable) -> None:
        for _ in range(4):
            step()

    def in_a_loop(step: Callable) -> None:
        tpu.repeat(4, step)

    nears(trained(in_a_loop), trained(one_after_the_other))


def check_the_number_of_turns_compiles_nothing() -> None:
    part = in_use().part(1)

    def body(x: Any) -> Any:
        return x * 2

    before = part.compilations
    assert [int(tpu.repeat(n, body, [1])[0]) for n in (0, 3, 10)] == [1, 8, 1024]
    assert [int(tpu.while_loop(lambda x, most: x < most, lambda x, most: (body(x), most), [1, most])[0])
            for most in (5, 100)] == [8, 128]  # fmt: skip
    assert part.compilations == before + 2


def check_the_host_is_called() -> None:
    seen: list[float] = []
    rows = np.arange(float(cores()))

    def computation(x: Any) -> Any:
        tpu.outside_compilation(lambda x: seen.append(float(x[0])), x)
        return tpu.outside_compilation(lambda x: np.asarray(x) * 2, x, returns=x)

    (doubled,) = tpu.batch_parallel(computation, [rows])
    jax.effects_barrier()
    near(doubled, rows * 2)
    assert sorted(seen) == rows.tolist()


def check_the_shards_are_known() -> None:
    context = tpu.get_tpu_context()
    (count,) = tpu.shard(lambda: jnp.int32(context.number_of_shards))
    assert np.asarray(count).tolist() == [cores()] * cores()
    assert context.number_of_shards is None


CHECKS = {name.removeprefix("check_"): check for name, check in list(globals().items()) if name.startswith("check_")}
