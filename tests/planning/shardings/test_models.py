"""Layouts of whole Keras models, with the real TPU compiler: a mixture of experts, and a deep model."""

import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu import program as programs
from anytpu.planning.jobs.job import PlanJob
from anytpu.planning.shardings import depth
from anytpu.planning.shardings.candidates import candidates
from anytpu.planning.shardings.search import traced_job
from anytpu.sharding import trace_step
from exact import models

# `Variable.numpy()` of Keras 3.15 does this with NumPy 2; its `__array__` takes no `copy`.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


def mixture():
    keras.utils.set_random_seed(3)
    model = models.experts()
    model.compile(keras.optimizers.SGD(0.1), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.fixture(scope="module")
def expert_layout():
    traced = trace_step(programs.of(mixture(), batch_size=64))
    return next(layout for layout in candidates(traced, 8) if layout.name == "expert=4")


def test_experts_split_over_cores_compile(expert_layout):
    planned = tpu.plan(mixture(), 64, "v5e-8", layout=expert_layout)
    assert planned["v5e-8"].step_s > 0
    assert "3 x (expert, -, -)" not in planned["v5e-8"].layout
    assert "(expert, -, -)" in planned["v5e-8"].layout


@pytest.mark.filterwarnings("ignore:Explicitly requested dtype int64")  # Keras 3.15 with JAX 0.12.
def test_experts_split_over_virtual_cores_train_as_on_one(expert_layout):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(64, 32)).astype("float32"), rng.integers(0, models.CLASSES, 64)
    strategy = tpu.connect("v2-8", layout=expert_layout)
    with strategy.scope():
        split = mixture()
    whole = mixture()
    for model in (split, whole):
        model.fit(x, y, batch_size=32, epochs=2, shuffle=False, verbose=0)
    for ours, theirs in zip(split.get_weights(), whole.get_weights(), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_a_deep_sequential_has_shallow_models_with_its_names():
    """Its layout is by name. A layer that is built before a Sequential adds it has another name."""
    blocks = [keras.layers.Dense(8) for _ in range(depth.DEEP)]
    model = keras.Sequential([keras.Input((8,)), *blocks, keras.layers.Dense(2)], name="deep")
    model.compile("adam", "mse")
    job = PlanJob(model)
    assert list(depth.SearchedJob(job, traced_job(job, 16), 16).shallow) == [*depth.DEPTHS]


def test_a_deep_model_is_predicted_from_two_shallow_ones():
    x = inputs = keras.Input((256,))
    for _ in range(depth.DEEP + 4):
        x = keras.layers.Dense(256, "relu")(x)
    model = keras.Model(inputs, keras.layers.Dense(8)(x), name="deep")
    model.compile("sgd", "mse")
    found = tpu.find_layouts(model, tpu="v5e-8", batch_size=256, compile=1)
    prediction = found.best.prediction
    assert prediction.basis == "extrapolated"
    assert prediction.program == "deep/train"
    few, more = depth.DEPTHS
    assert found.best.stage == "code"
    assert f"Extrapolated: {few} and {more} of {depth.DEEP + 4} equal blocks were compiled" in " ".join(
        prediction.notes
    )
    assert prediction.notes[0] == depth.WHY
    whole = tpu.plan(model, 256, "v5e-8", layout=found)["v5e-8"]
    assert whole.basis == "compiled"
    assert 0.5 < prediction.step_s / whole.step_s < 2
