"""Shardings on the inputs of Keras models and estimators: data-parallel, or refused by name."""

from __future__ import annotations

from typing import Any

import jax
import keras
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding

from anytpu import program
from anytpu.errors import ProgramError
from anytpu.train.makers import ESTIMATOR_MAKER

MESH = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto,) * 2)
REFUSED = (
    "{of} of the input_specs of {what} has the sharding {sharding} over a mesh (data=2, model=4), which its Program "
    "would not follow: it is data-parallel, axis 0 of each input split over all devices. Leave the sharding out, or "
    "plan the step as a JAX function, step(state, batch), whose shardings are followed"
)


def spec(*parts: Any, mesh: AbstractMesh | Mesh = MESH) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((16, 8), "float32", sharding=NamedSharding(mesh, PartitionSpec(*parts)))


def made(inputs: Any, **settings: Any) -> program.Program:
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8)], name="net")
    model.compile("sgd", "mse")
    return program.of(model, (inputs, np.zeros((16, 8), "float32")), **settings)


@pytest.mark.parametrize(
    "inputs",
    [
        spec(("data", "model")),
        spec(("model", "data"), None),
        spec("data", mesh=AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))),
        spec(mesh=AbstractMesh((1,), ("data",), axis_types=(AxisType.Auto,))),
        jax.ShapeDtypeStruct((16, 8), "float32", sharding=SingleDeviceSharding(jax.devices()[0])),
        jax.numpy.zeros((16, 8)),
    ],
)
def test_data_parallel_inputs_are_planned_so(inputs):
    one = made(inputs)
    assert (one.rows, one.placement) == (16, None)


@pytest.mark.parametrize("parts", [("data", "model"), ("data",), (None, "model"), ()])
def test_other_layouts_are_refused(parts):
    for settings in ({}, {"batch_size": 32}, {"mode": "infer"}):
        with pytest.raises(ProgramError) as raised:
            made(spec(*parts), **settings)
        assert str(raised.value) == REFUSED.format(of="'0'", what="the model 'net'", sharding=PartitionSpec(*parts))


def test_other_layouts_of_an_estimator_are_refused():
    with pytest.raises(ProgramError) as raised:
        ESTIMATOR_MAKER.make(None, ({"x": spec("data")}, spec()), "train")
    assert str(raised.value) == REFUSED.format(of="'0/x'", what="a TPUEstimator", sharding=PartitionSpec("data"))
