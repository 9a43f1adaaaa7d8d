"""Programs written for `keras.distribution`, in the scope of a strategy."""

import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import SettingError, StrategyError

X = np.random.default_rng(0).normal(size=(64, 16)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


def network():
    layers = [keras.layers.Dense(64, "relu", name="up"), keras.layers.Dense(1, name="down")]
    model = keras.Sequential([keras.Input((16,)), *layers], name="net")
    model.compile("sgd", "mse")
    return model


def model_parallel():
    """Return the distribution that a program makes: its mesh is over all devices that Keras lists."""
    devices = keras.distribution.list_devices()
    layouts = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((4, 2), ("batch", "model"), devices))
    layouts[".*up/kernel"] = (None, "model")
    layouts[".*up/output"] = ("batch", "model")
    return keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")


@pytest.fixture(scope="module")
def plain():
    """Losses of plain Keras."""
    keras.utils.set_random_seed(1)
    return losses(network())


@pytest.fixture
def strategy(plain):
    yield tpu.connect("v2-8")
    keras.distribution.set_distribution(None)


def losses(model):
    return model.fit(X, Y, batch_size=16, epochs=3, shuffle=False, verbose=0).history["loss"]


def test_a_distribution_that_is_set_in_a_scope_is_its_layout(strategy, plain):
    keras.utils.set_random_seed(1)
    with strategy.scope():
        keras.distribution.set_distribution(model_parallel())
        model = network()
    assert repr(strategy) == "<TPUStrategy: v2-8, 8 virtual cores, layout LayoutMap over batch=4, model=2>"
    assert keras.distribution.distribution() is None
    np.testing.assert_allclose(losses(model), plain, rtol=1e-5)


def test_a_distribution_that_was_set_before_is_read_too(strategy):
    mesh = keras.distribution.DeviceMesh((8,), ("batch",), [f"cpu:{index}" for index in range(8)])
    keras.distribution.set_distribution(keras.distribution.DataParallel(device_mesh=mesh))
    with strategy.scope():
        model = network()
    assert str(strategy.layout) == "DataParallel over batch=8"
    first, *_, last = losses(model)
    assert last < first


def test_a_mesh_without_devices_is_over_the_cores(strategy):
    with strategy.scope():
        assert keras.distribution.list_devices() == [f"cpu:{index}" for index in range(8)]
        mesh = keras.distribution.DeviceMesh((2, 4), ("batch", "model"))
    assert mesh.devices.shape == (2, 4)
    assert len(keras.distribution.list_devices()) == 1


def test_the_layout_of_connect_may_be_a_distribution():
    with tpu.connect("v2-8").scope():
        distribution = model_parallel()
    strategy = tpu.connect("v2-8", layout=distribution)
    assert strategy.layout.row_axes == ("batch",)


def test_another_number_of_devices_is_refused(strategy):
    mesh = keras.distribution.DeviceMesh((2,), ("batch",), ["cpu:0", "cpu:1"])
    with strategy.scope(), pytest.raises(SettingError) as error:
        keras.distribution.set_distribution(keras.distribution.DataParallel(device_mesh=mesh))
    assert str(error.value) == (
        "the mesh batch=2 has 2 devices, and the system has 8: make a DeviceMesh whose sizes multiply to 8"
    )


def test_a_second_layout_is_refused():
    strategy = tpu.connect("v2-8", layout="fsdp")
    with strategy.scope(), pytest.raises(StrategyError) as error:
        keras.distribution.set_distribution(model_parallel())
    assert str(error.value) == (
        f"{strategy!r} has a layout, and keras.distribution.ModelParallel is another: leave one of them out"
    )


def test_a_distribution_after_a_compiled_model_is_refused(strategy):
    with strategy.scope():
        losses(network())
        with pytest.raises(StrategyError) as error:
            keras.distribution.set_distribution(model_parallel())
    assert str(error.value) == (
        f"keras.distribution.ModelParallel is set after {strategy!r} compiled a model without it: set it before the "
        "model is made"
    )
