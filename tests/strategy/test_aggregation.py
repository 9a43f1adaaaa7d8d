from __future__ import annotations

import keras
import pytest

import anytpu as tpu
from anytpu.errors import ReplicaError

ONE_AND_TWO = tpu.PerReplica([1.0, 2.0])


def test_eight_replicas_add_their_numbers_once():
    eight = tpu.connect("virtual", cores=8)
    numbers = tpu.PerReplica([float(number) for number in range(1, 9)])
    made = {name: keras.Variable(0.0, aggregation=name) for name in ("sum", "mean", "only_first_replica")}
    eight.run(lambda x: [v.assign_add(x) for v in made.values()], args=(numbers,))
    assert {name: float(v) for name, v in made.items()} == {"sum": 36.0, "mean": 4.5, "only_first_replica": 1.0}


@pytest.mark.parametrize(("aggregation", "value"), [("sum", 3.0), ("mean", 1.5), ("only_first_replica", 1.0)])
def test_assigned_without_being_read(strategy, aggregation, value):
    variable = keras.Variable(5.0, aggregation=aggregation)
    strategy.run(variable.assign, args=(ONE_AND_TWO,))
    assert float(variable) == value


def test_whole_numbers(strategy):
    made = {name: keras.Variable(4, dtype="int32", aggregation=name) for name in ("sum", "only_first_replica")}
    strategy.run(lambda x: [v.assign_add(x) for v in made.values()], args=(tpu.PerReplica([1, 2]),))
    assert {name: int(v) for name, v in made.items()} == {"sum": 7, "only_first_replica": 5}
    mean = keras.Variable(4, dtype="int32", aggregation="mean", name="level")
    with pytest.raises(ReplicaError) as caught:
        strategy.run(mean.assign_add, args=(tpu.PerReplica([1, 2]),))
    assert str(caught.value) == (
        "the variable 'level' holds int32, and its aggregation is the mean, which is not a whole number: make it with "
        "a "
        'floating dtype, or with aggregation="sum" or "only_first_replica"'
    )


def test_without_aggregation(strategy):
    variable = keras.Variable(0.0, name="level")
    with pytest.raises(ReplicaError) as caught:
        strategy.run(variable.assign_add, args=(ONE_AND_TWO,))
    assert str(caught.value) == (
        "you must specify an aggregation method to update the variable 'level' in a replica: its new value differs "
        "between "
        'the replicas, and after a step every replica must hold the same. Make it with aggregation="sum", "mean" or '
        '"only_first_replica", for example keras.Variable(0.0, aggregation="sum"), or write a value that is the same '
        "on all of them"
    )
    assert float(variable) == 0.0
    strategy.run(variable.assign_add, args=(2.0,))
    assert float(variable) == 2.0
