"""Which rows of a batch come to which replica, and what is refused."""

from __future__ import annotations

import enum
import subprocess

import jax.numpy as jnp
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import DataError, SettingError, StrategyError
from forked import python


def connected(cores: int, **settings: bool) -> tpu.TPUStrategy:
    return tpu.connect("virtual", cores=cores, **settings)


def counts(batch) -> list[int]:
    return [len(part) for part in batch.values]


@pytest.mark.parametrize(
    ("rows", "size", "last"),
    [
        (10, 10, [2, 2, 2, 2, 2, 0, 0, 0]),
        (12, 12, [2, 2, 2, 2, 2, 2, 0, 0]),
        (21, 10, [1, 0, 0, 0, 0, 0, 0, 0]),
        (40, 16, [1] * 8),
        (64, 32, [4] * 8),
    ],
)
def test_rows_go_to_the_first_replicas_first(rows, size, last):
    data = [np.arange(rows)[i : i + size] for i in range(0, rows, size)]
    batches = list(connected(8).distribute_dataset(data))
    assert counts(batches[-1]) == last
    assert np.array_equal(np.concatenate([part for batch in batches for part in batch.values]), np.arange(rows))


def test_batches_of_each_replica_come_from_a_function():
    strategy, seen = connected(8), []

    def make(context):
        seen.append(context)
        return [np.arange(21)[i : i + 2] for i in range(0, 21, 2)]

    batches = list(strategy.distribute_datasets_from_function(make))
    assert [counts(batch) for batch in batches] == [[2] * 8, [2, 2, 1, 0, 0, 0, 0, 0]]
    assert [str(context) for context in seen] == ["InputContext(input pipeline id 0, total: 1)"]
    assert seen[0].num_replicas_in_sync == 8
    first = next(iter(strategy.experimental_distribute_datasets_from_function(make)))
    assert first.values[7].tolist() == [14, 15]


def test_trees_stay_trees_and_lengths_are_known():
    strategy = connected(2)
    data = [{"x": np.ones((4, 3)), "y": (np.arange(4),)}] * 3
    dataset = strategy.experimental_distribute_dataset(data)
    assert len(dataset) == 3
    assert len(strategy.distribute_datasets_from_function(lambda _: data)) == 2
    for _ in range(2):
        batches = list(dataset)
        assert len(batches) == 3
        assert batches[0]["x"].values[1].shape == (2, 3)
        assert batches[0]["y"][0].values[1].tolist() == [2, 3]


def test_one_replica_gets_plain_arrays():
    batch = next(iter(connected(1).distribute_dataset([np.arange(3)])))
    assert isinstance(batch, np.ndarray)
    made = connected(1).distribute_datasets_from_function(lambda context: [np.arange(3)])
    assert isinstance(next(iter(made)), np.ndarray)


def test_the_default_strategy_returns_the_data_set():
    strategy, data = tpu.get_strategy(), [np.arange(3)]
    assert strategy.distribute_dataset(data) is data
    assert strategy.distribute_datasets_from_function(lambda context: [str(context)]) == [
        "InputContext(input pipeline id 0, total: 1)"
    ]
    total, last = strategy.run_steps(lambda s, x: (s + x.sum(), x), iter(data), 1, state=1)
    assert (int(total), last.tolist()) == (4, [0, 1, 2])
    assert int(strategy.run_steps(lambda x: x.sum(), iter(data), 1)) == 3


def test_values_for_each_replica():
    made = connected(3).experimental_distribute_values_from_function(
        lambda context: context.num_replicas_in_sync * 10 + context.replica_id_in_sync_group
    )
    assert made.values == (30, 31, 32)
    assert connected(1).experimental_distribute_values_from_function(lambda context: "one") == "one"


def test_a_per_replica_batch_size():
    assert tpu.InputContext(num_replicas_in_sync=8).get_per_replica_batch_size(24) == 3
    with pytest.raises(SettingError) as error:
        tpu.InputContext(num_replicas_in_sync=8).get_per_replica_batch_size(20)
    assert str(error.value) == (
        "the global_batch_size 20 is not divisible by num_replicas_in_sync, 8: take a multiple, or "
        "strategy.distribute_dataset(dataset), which splits batches of any size"
    )


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (np.zeros((4, 2)), "an array of shape (4, 2)"),
        ((np.zeros(4), np.zeros(4)), "a tuple"),
        (7, "a int"),
    ],
)
def test_what_yields_no_batches(data, what):
    with pytest.raises(DataError) as error:
        connected(2).distribute_dataset(data)
    assert str(error.value) == (
        f"a data set yields batches, one after the other, and this is {what}: for arrays type "
        "tpu.pipeline.Dataset.from_arrays((x, y)).batch(64)"
    )


@pytest.mark.parametrize(
    ("batch", "shapes"),
    [
        (np.float32(3), "()"),
        ((np.zeros((4, 2)), np.zeros(3)), "(4, 2), (3,)"),
        (np.zeros((0, 2)), "(0, 2)"),
        ((), "no array"),
    ],
)
def test_batches_without_rows(batch, shapes):
    with pytest.raises(DataError) as error:
        next(iter(connected(2).distribute_dataset([batch])))
    assert str(error.value) == (
        "the arrays of a batch must have the same number of rows in front, at least one, and these have the shapes "
        f"{shapes}: batch the data set first, dataset.batch(64)"
    )


def test_a_strict_strategy_refuses_uneven_batches():
    iterator = iter(connected(8, strict=True).distribute_dataset([np.zeros(16), np.zeros(6)]))
    next(iterator)
    with pytest.raises(DataError) as error:
        next(iterator)
    assert str(error.value) == (
        "a batch of 6 rows is not divisible by the number of TPU cores in use (6 vs 8): make batches of a multiple of "
        "8 and leave the last one out, for example with batch(rows, drop_remainder=True), or make the strategy without "
        "strict=True"
    )


def test_next_is_for_outside_of_a_step():
    strategy = connected(2)
    iterator = iter(strategy.distribute_dataset([np.zeros(4)]))
    with pytest.raises(StrategyError) as error:
        strategy.run(lambda: next(iterator))
    assert str(error.value) == (
        "strategy.distribute_dataset joins the values of all replicas, and this is inside one of them, in a function "
        "that strategy.run runs. Call it outside, on the result of run; inside, use the batch that run was given: "
        "strategy.run(fn, args=(next(batches),))"
    )


def test_a_generator_may_fill_one_buffer_again_and_again():
    strategy = connected(2)
    room = np.zeros(2**16 + 16, "float32")
    # On a cache line, where JAX would use the memory as it is.
    start = -room.ctypes.data % 64 // 4
    buffer = room[start : start + 2**16]

    def batches():
        for number in range(6):
            buffer[:] = number
            yield buffer

    means = [strategy.run(lambda x: jnp.sort(x).mean(), args=(b,)) for b in strategy.distribute_dataset(batches())]
    assert [float(mean.values[0]) for mean in means] == [0, 1, 2, 3, 4, 5]


def test_a_data_set_may_have_numbers_of_its_own():
    class Numbered:
        numbers = (1, 2)

        def __iter__(self):
            return iter([np.ones(4)])

    assert next(iter(connected(2).distribute_dataset(Numbered()))).values[0].tolist() == [1, 1]


def test_a_program_that_ends_within_a_pass_is_quiet():
    program = """
import anytpu as tpu, numpy as np
dataset = tpu.pipeline.Dataset.from_arrays(np.ones(8)).repeat().batch(4)
batches = iter(tpu.connect("virtual", cores=2).distribute_dataset(dataset))
next(batches)
"""
    done = subprocess.run([*python(), "-c", program], capture_output=True, text=True)
    said = "anytpu: the 2 cores are virtual: simulated on this machine's CPU (2 virtual cores).\n"
    assert (done.returncode, done.stderr) == (0, said)


class Options:
    class Mode(enum.Enum):
        PER_WORKER, PER_REPLICA = 0, 1

    def __init__(self, mode: str) -> None:
        self.experimental_replication_mode = Options.Mode[mode]


def test_options_and_the_number_of_batches():
    strategy = tpu.connect("virtual", cores=2)
    batches = tpu.pipeline.Dataset.from_arrays(np.ones((20, 2))).batch(8)
    for dataset, count in ((batches, 3), (batches.repeat(), -1), ([np.ones(2)] * 4, 4), (iter([np.ones(2)]), -2)):
        assert strategy.experimental_distribute_dataset(dataset, Options("PER_WORKER")).cardinality == count
    made = strategy.distribute_datasets_from_function(lambda context: batches, None)
    assert (made.cardinality, len(made)) == (3, 2)
    with pytest.raises(SettingError) as caught:
        strategy.distribute_datasets_from_function(lambda context: batches, Options("PER_REPLICA"))
    assert str(caught.value) == (
        "options ask for experimental_replication_mode=PER_REPLICA, a data set for each replica, and dataset_fn is "
        "called once on each host: leave the mode out, and let dataset_fn return batches of one replica's size, of "
        "which each replica takes its own"
    )
