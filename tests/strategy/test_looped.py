"""Many steps in one loop: what ends early, what is refused, what stays whole."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import DataError, DataExhaustedError, ProgramError, ReplicaError, SettingError, StrategyError


def counting(strategy):
    with strategy.scope():
        total = keras.Variable(0.0, aggregation="sum")

    def step(batch):
        total.assign_add(batch.sum())
        return batch.sum()

    return total, step


def test_data_that_ends_leaves_the_model_at_the_last_step(strategy):
    total, step = counting(strategy)
    iterator = iter(strategy.distribute_dataset([np.ones(4, "float32")] * 3))
    with pytest.raises(DataExhaustedError) as error:
        strategy.run_steps(step, iterator, 5)
    assert str(error.value) == (
        "the data ended after 3 of the 5 steps. The model is at the last finished step. Ask for 3 steps or fewer, "
        "or repeat the data: dataset.repeat()"
    )
    assert float(total.value) == 12.0


def test_a_generator_that_raises_leaves_the_model_whole(strategy):
    total, step = counting(strategy)

    def batches():
        yield np.ones(4, "float32")
        yield np.ones(4, "float32")
        raise OSError("disk")

    with pytest.raises(OSError, match="disk"):
        strategy.run_steps(step, iter(strategy.distribute_dataset(batches())), 5)
    assert float(total.value) in (4.0, 8.0)


def test_writes_between_two_calls_count(strategy):
    total, step = counting(strategy)
    iterator = iter(strategy.distribute_dataset([np.ones(4, "float32")] * 10))
    strategy.run_steps(step, iterator, 2)
    total.assign(100.0)
    before = strategy.compilations
    last = strategy.run_steps(step, iterator, 8)
    assert float(total.value) == 132.0
    assert strategy.reduce("SUM", last) == 4.0
    assert strategy.compilations == before


def test_plain_batches_are_refused(strategy):
    with pytest.raises(DataError) as error:
        strategy.run_steps(lambda x: x.sum(), iter([np.ones(4)]), 1)
    assert str(error.value) == (
        "the iterator yields whole batches, and each of the 2 replicas would run on all of their rows: split them with "
        "iterator = iter(strategy.distribute_dataset(dataset)). A step of the global batch, as for jax.jit or "
        'jax.shard_map, needs a strategy with layout="data" or another layout'
    )


def test_plain_numbers_go_to_all_replicas(strategy):
    last = strategy.run_steps(lambda x: x + tpu.get_replica_context().replica_id_in_sync_group, iter([1, 2, 3]), 3)
    assert [int(part) for part in last.values] == [3, 4]


def test_the_outputs_of_every_step(strategy):
    result = strategy.loop(
        lambda x: x.sum(),
        iter(strategy.distribute_dataset([np.full(4, i, "float32") for i in range(6)])),
        6,
        keeps_every=True,
    )
    every = [np.asarray(strategy.backend.get(outputs))[:count] for outputs, count in result.every]
    assert np.concatenate(every).tolist() == [[2.0 * i, 2.0 * i] for i in range(6)]


@pytest.mark.parametrize("steps", [0, -1, 2.5, True, None])
def test_numbers_of_steps(strategy, steps):
    with pytest.raises(SettingError) as error:
        strategy.run_steps(lambda x: x, iter([1]), steps)
    assert str(error.value) == f"steps must be a positive integer, not {steps!r}"


def test_what_is_no_iterator(strategy):
    with pytest.raises(SettingError) as error:
        strategy.run_steps(lambda x: x, strategy.distribute_dataset([np.zeros(2)]), 1)
    assert str(error.value) == (
        "iterator must be an iterator over batches, not a DistributedDataset, which would start again at its first "
        "batch at each call: make one with iterator = iter(dataset), once"
    )
    with pytest.raises(SettingError) as error:
        strategy.run_steps(3, iter([1]), 1)
    assert (
        str(error.value)
        == "fn must be a function that one replica runs, not 3: strategy.run_steps(fn, iterator, steps)"
    )


def test_a_step_takes_one_batch(strategy):
    with pytest.raises(SettingError) as error:
        strategy.run_steps(lambda x, y: x, iter([1]), 1)
    assert str(error.value) == (
        "<lambda> cannot be called as step(batch): missing a required argument: 'y'. run_steps passes the "
        "result of next(iterator) as one argument; unpack it inside: x, y = batch"
    )


def test_a_pure_step_returns_a_pair(strategy):
    with pytest.raises(ReplicaError) as error:
        strategy.run_steps(lambda state, x: state, iter([1]), 1, state=1.0)
    assert str(error.value).startswith("<lambda> takes a state and must return a pair, (state, metrics), not ")
    assert str(error.value).endswith("Without metrics, return (state, None)")


def test_a_state_that_differs_between_replicas(strategy):
    iterator = iter(strategy.distribute_dataset([np.arange(4.0)]))
    with pytest.raises(ReplicaError) as error:
        strategy.run_steps(lambda state, x: (state + x.sum(), None), iterator, 1, state=jnp.zeros(()))
    assert "returns a state that differs between its 2 replicas" in str(error.value)


def test_inside_of_a_step(strategy):
    with pytest.raises(StrategyError) as error:
        strategy.run(lambda: strategy.run_steps(lambda x: x, iter([1]), 1))
    assert str(error.value) == (
        "strategy.run_steps joins the values of all replicas, and this is inside one of them, in a function that "
        "strategy.run runs. Call it outside, on the result of run; inside, write the loop with jax.lax.fori_loop"
    )


def test_a_whole_number_as_state_does_not_swallow_fractions():
    strategy = tpu.connect("virtual", cores=1)
    with pytest.raises(ProgramError) as error:
        strategy.run_steps(lambda total, x: (total + x.sum(), None), iter([np.full(4, 0.6, "float32")]), 1, state=0)
    assert str(error.value) == (
        "The step of '<lambda>' must return each state as it was given: 'state' was given as int32[] and returned as "
        "float32[]. Cast it back with .astype, or start with a state of the type that comes back."
    )


def test_a_state_of_text_is_refused(strategy):
    with pytest.raises(SettingError) as error:
        strategy.run_steps(lambda state, x: (state, None), iter([np.ones(4)]), 1, state={"name": "x"})
    assert str(error.value) == (
        "state must be a tree of arrays and numbers, which the steps update: Value 'x' with dtype <U1 is not a "
        "valid JAX array type. Only arrays of numeric types are supported by JAX. Let the function close over anything "
        "else"
    )


def test_data_that_ends_leaves_a_pure_state_to_its_owner(strategy):
    with pytest.raises(DataExhaustedError) as error:
        strategy.run_steps(lambda state, x: (state, x), iter([1.0]), 2, state=0.0)
    assert str(error.value) == (
        "the data ended after 1 of the 2 steps. The new state is lost; the state that you passed is unchanged. Ask for "
        "1 steps or fewer, or repeat the data: dataset.repeat()"
    )


def test_weak_types_of_a_state_are_those_of_jit():
    def step(state, batch, axis="replica"):
        rate, weight, total = state
        mean = batch.sum() if axis is None else jax.lax.pmean(batch.sum(), axis)
        return (rate, weight - rate * mean, total + weight.sum()), None

    state = right = 0.3, jnp.ones((3,), "bfloat16"), 0.0
    for _ in range(3):
        right = jax.jit(lambda state, batch: step(state, batch, None)[0])(right, jnp.ones((2,), "bfloat16"))
    strategy = tpu.connect("virtual", cores=2)
    batches = iter([tpu.PerReplica([jnp.ones((2,), "bfloat16")] * 2)] * 3)
    whole = tpu.connect("virtual", cores=2, layout="data")
    for found, _ in (
        strategy.run_steps(step, batches, 3, state=state),
        whole.run_steps(lambda s, b: step(s, b, None), iter([jnp.ones((2,), "bfloat16")] * 3), 3, state=state),
    ):
        assert [(leaf.dtype, leaf.weak_type) for leaf in found] == [(leaf.dtype, leaf.weak_type) for leaf in right]
        assert [np.array(leaf, "float32").tolist() for leaf in found] == [
            np.array(leaf, "float32").tolist() for leaf in right
        ]
