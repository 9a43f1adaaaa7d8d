from __future__ import annotations

import keras

import anytpu as tpu
from anytpu.errors import SettingError
from anytpu.system.lifecycle import current_system
from error_texts import error_text


def test_a_system_is_started_and_stopped():
    resolver = tpu.TPUClusterResolver("v2-8")
    topology = tpu.initialize_system(resolver)
    assert repr(topology) == "Topology('v2-8': 8 virtual cores, 2x2x1 chips, 1 host)"
    assert tpu.initialize_system() is topology
    system = current_system()
    tpu.shutdown_system(resolver)
    tpu.shutdown_system(resolver)
    assert not system.is_running
    tpu.initialize_system(resolver)
    assert current_system().is_running


def test_devices_are_listed_as_a_session_did(strategy):
    devices = tpu.list_devices()
    assert [device.device_type for device in devices] == ["CPU", "TPU", "TPU", "TPU", "TPU", "TPU_SYSTEM"]
    assert repr(devices[1]) == (
        f"_DeviceAttributes(/job:worker/replica:0/task:0/device:TPU:0, TPU, 0, {devices[1].incarnation}, virtual)"
    )
    assert repr(devices[0]) == (
        f"_DeviceAttributes(/job:localhost/replica:0/task:0/device:CPU:0, CPU, 0, {devices[0].incarnation})"
    )
    assert tpu.list_devices() == devices


def test_a_core_is_named_for_tpu_device(strategy):
    assert tpu.core(2) == "device:TPU_REPLICATED_CORE:2"
    with tpu.device(tpu.core(2)) as core:
        assert core.index == 2
    assert error_text(lambda: tpu.core(4), kind=SettingError) == "num must be the index of a core, from 0 to 3, not 4"


def test_bfloat16_scope_ends_where_it_ends():
    before = keras.config.dtype_policy().name
    with tpu.bfloat16_scope():
        inside = keras.layers.Dense(2)
    assert (inside.variable_dtype, inside.compute_dtype) == ("float32", "bfloat16")
    assert keras.config.dtype_policy().name == before


def test_gradients_of_bfloat16_layers_are_float32(strategy):
    with tpu.bfloat16_scope():
        layer = keras.layers.Dense(2)
    layer.build((None, 3))

    def step(x):
        _, (gradient, _) = tpu.value_and_grad(lambda: layer(x).sum().astype("float32"), layer.trainable_variables)()
        return gradient.array, layer(x)

    gradient, out = tpu.rewrite(step, [keras.ops.ones((4, 3))])
    assert (gradient.dtype, out.dtype) == ("float32", "bfloat16")
