from __future__ import annotations

import keras
import numpy as np

import anytpu as tpu
from anytpu.migrate.low_level.evidence import Evidence
from anytpu.system.cores import Core


def test_virtual_cores_are_called_virtual(strategy):
    seen = tpu.evidence(lambda x: tpu.cross_replica_sum(x @ x.T), [np.ones((8, 64), "float32")], num_shards=None)
    assert seen.cores == strategy.backend.cores
    assert not seen.is_on_accelerator
    assert len(seen.devices) == 1
    assert min(seen.call_s, seen.host_cpu_s, seen.plain_call_s) > 0
    assert repr(seen).startswith(
        "Evidence: ran on 4 virtual cores, simulated on this machine's CPU; the results are on"
    )


def test_one_core_behind_handles():
    tpu.connect("twin", cores=2)
    seen = tpu.evidence(lambda tree: tree["x"] + 1, [{"x": np.ones(3)}])
    assert [core.index for core in seen.cores] == [0]
    assert seen.devices == ()


def test_what_changes_keras_variables_runs_on_the_plain_host_too(strategy):
    counter = keras.Variable(0.0)
    tpu.evidence(lambda: counter.assign_add(1.0))
    assert 2 <= float(counter) <= 21


def test_what_it_says():
    cores = tuple(Core(index, "tpu", virtual=False) for index in range(8))
    seen = Evidence(cores, ("TPU_0", "TPU_1"), call_s=0.002, host_cpu_s=0.00002, plain_call_s=0.03)
    assert seen.is_on_accelerator
    assert (seen.host_share, seen.speedup) == (0.01, 15.0)
    assert repr(seen) == (
        "Evidence: ran on 8 TPU cores; the results are on TPU_0, TPU_1\n"
        "  host: 20 µs of processor time a call, 1% of the call\n"
        "  time: 2 ms a call, 30 ms on the plain host CPU: 15.0 x as fast"
    )
