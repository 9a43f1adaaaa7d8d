from __future__ import annotations

import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import SettingError, StrategyError


def test_a_part_is_the_first_cores_and_is_kept():
    strategy = tpu.connect("v2-8")
    part = strategy.part(2)
    assert part.num_replicas_in_sync == 2
    assert part.backend.cores == strategy.backend.cores[:2]
    assert strategy.part(2) is part
    assert strategy.part(8) is strategy
    assert repr(part) == "<TPUStrategy: 2 of v2-8, 8 virtual cores>"
    assert repr(tpu.connect("virtual", cores=3).part(1)) == "<TPUStrategy: 1 of 3 virtual cores>"


def test_strategies_of_one_system_share_the_backends_of_their_parts():
    parts = [tpu.connect("virtual", cores=3).part(2) for _ in range(3)]
    assert parts[0] is not parts[1]
    assert len({id(part.backend) for part in parts}) == 1
    callbacks = len(parts[0].system._callbacks)
    tpu.connect("virtual", cores=3).part(2)
    assert len(parts[0].system._callbacks) == callbacks


def test_a_part_compiles_and_counts_by_itself(strategy):
    part, before = strategy.part(1), strategy.compilations
    assert int(part.run(lambda: jnp.int32(tpu.get_strategy().num_replicas_in_sync))) == 1
    assert (part.compilations, strategy.compilations) == (1, before)


@pytest.mark.parametrize("cores", [0, 3])
def test_there_are_not_so_many(cores, strategy):
    with pytest.raises(SettingError) as caught:
        strategy.part(cores)
    assert str(caught.value) == f"a part of <TPUStrategy: 2 virtual cores> has from 1 to 2 cores, not {cores}"


def test_variables_of_the_whole_belong_to_the_part(strategy):
    with strategy.scope():
        variable = keras.Variable(np.ones(2, "float32"))
    strategy.part(1).run(lambda: variable.assign_add([1.0, 2.0]))
    strategy.run(lambda: variable.assign_add([1.0, 2.0]))
    assert np.array(variable.value).tolist() == [3.0, 5.0]


def test_a_part_stops_with_the_system():
    strategy = tpu.connect("virtual", cores=5)
    part = strategy.part(1)
    tpu.shutdown_tpu_system(strategy.cluster_resolver)
    with pytest.raises(StrategyError, match="was shut down"):
        part.run(lambda: 1)
