"""What a batch of a model looks like, without data: its inputs by their shapes, its labels by the loss."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import anytpu as tpu  # isort: skip
import jax
import keras
from jax.sharding import AbstractMesh, AxisType, Mesh, NamedSharding, PartitionSpec, SingleDeviceSharding
from keras import layers

from anytpu import program
from anytpu.errors import ProgramError
from anytpu.train.batch_specs import input_specs_of, label_specs_of, with_batch_size
from anytpu.train.makers import ESTIMATOR_MAKER

LOGITS = {"from_logits": True}


def text(tree) -> list[str]:
    return [f"{leaf.dtype}{list(leaf.shape)}" for leaf in jax.tree.leaves(tree)]


def compiled(loss, units: int = 5, **options) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), layers.Dense(units)], name="small")
    model.compile("sgd", loss, **options)
    return model


def two_headed(loss, inputs: str = "list", outputs: str = "list") -> keras.Model:
    a, b = keras.Input((3,), name="a"), keras.Input((4,), name="b", dtype="int32")
    joined = layers.Concatenate()([a, layers.Flatten()(layers.Embedding(9, 2)(b))])
    heads = {"p": layers.Dense(5, name="p")(joined), "q": layers.Dense(1, name="q")(joined)}
    given = {"a": a, "b": b} if inputs == "dict" else [a, b]
    model = keras.Model(given, heads if outputs == "dict" else list(heads.values()), name="two")
    model.compile("sgd", loss)
    return model


def error_of(model, batch_size: int = 4, **options) -> str:
    with pytest.raises(ProgramError) as caught:
        tpu.program.of(model, batch_size=batch_size, **options)
    return str(caught.value)


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        ("sparse_categorical_crossentropy", "int32[8]"),
        (keras.losses.SparseCategoricalCrossentropy(**LOGITS), "int32[8]"),
        (keras.losses.sparse_categorical_crossentropy, "int32[8]"),
        (keras.losses.Circle(), "int32[8]"),
        ("categorical_crossentropy", "float32[8, 5]"),
        (keras.losses.BinaryCrossentropy(**LOGITS), "float32[8, 5]"),
        ("mse", "float32[8, 5]"),
        (keras.losses.Huber(), "float32[8, 5]"),
        (None, "float32[8, 5]"),
    ],
)
def test_labels_by_the_loss(loss, expected: str):
    model = compiled(loss)
    program = tpu.program.of(model, batch_size=8)
    assert text(program.batch) == ["float32[8, 3]", expected]
    assert (program.rows, program.name) == (8, "small/train")
    _, logs = jax.eval_shape(program.step, program.state, program.batch)
    assert "loss" in logs


@pytest.mark.parametrize("inputs", ["list", "dict"])
@pytest.mark.parametrize(
    ("outputs", "kind"), [("list", "list"), ("list", "dict"), ("list", "one"), ("dict", "dict"), ("dict", "one")]
)
def test_several_inputs_and_outputs(inputs: str, outputs: str, kind: str):
    losses = {"p": "sparse_categorical_crossentropy", "q": "mse"}
    model = two_headed({"list": list(losses.values()), "dict": losses, "one": "mse"}[kind], inputs, outputs)
    x, y = tpu.program.of(model, batch_size=8).batch
    assert text(x) == ["float32[8, 3]", "int32[8, 4]"]
    assert type(x).__name__ == inputs and type(y).__name__ == outputs
    assert text(y) == ["int32[8]" if kind != "one" else "float32[8, 5]", "float32[8, 1]"]


def test_no_labels_to_infer():
    program = tpu.program.of(two_headed("mse", "dict"), batch_size=8, mode="infer")
    assert text(program.batch) == ["float32[8, 3]", "int32[8, 4]"]
    assert program.mode == "infer"


def test_no_compiled_loss_is_needed_to_infer():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)], name="plain")
    assert tpu.program.of(model, batch_size=8, mode="infer").rows == 8
    assert error_of(model) == (
        "the model 'plain' is not compiled: call model.compile(optimizer, loss) first, or ask for mode=\"infer\" "
        "(--infer)"
    )


class Written(keras.Model):
    """A model written as a class."""

    def __init__(self):
        super().__init__(name="written")
        self.dense = layers.Dense(3)

    def call(self, x):
        return self.dense(x)


@pytest.mark.filterwarnings("ignore:`build\\(\\)` was called on layer:UserWarning")
@pytest.mark.parametrize("by", ["call", "build"])
def test_a_class_that_was_built(by: str):
    model = Written()
    model.compile("sgd", "sparse_categorical_crossentropy")
    if by == "call":
        model(np.zeros((2, 7), "float32"))
    else:
        model.build((None, 7))
    assert text(tpu.program.of(model, batch_size=8).batch) == ["float32[8, 7]", "int32[8]"]


@pytest.mark.parametrize("make", [Written, lambda: keras.Sequential([layers.Dense(3)], name="written")])
def test_a_model_that_does_not_know_its_inputs(make):
    model = make()
    model.compile("sgd", "mse")
    assert error_of(model) == (
        "the model 'written' does not know the shapes of its inputs. Start it with keras.Input(shape), for example "
        "keras.Sequential([keras.Input((28, 28, 1)), ...]), or pass the shapes of a batch: input_specs=(x, y), arrays "
        "or jax.ShapeDtypeStruct; for `anytpu plan`, a function of a file returns the pair (model, input_specs)"
    )
    assert error_of(model, mode="infer") == error_of(model)


@pytest.mark.parametrize(
    ("shape", "axes", "typed"), [((None, None, 3), "axes 1 and 2 are", "..., ..., 3"), ((None,), "axis 1 is", "...,")]
)
def test_sizes_that_are_left_open(shape, axes: str, typed: str):
    model = keras.Sequential([keras.Input(shape, name="x"), layers.Flatten()], name="open")
    model.compile("sgd", "mse")
    assert error_of(model) == (
        f"the input 'x' of the model 'open' has the shape {(None, *shape)}: only the size of the batch may be left "
        f"open, and {axes} open too. A TPU program has one size for each: make the model with keras.Input(({typed})), "
        "the sizes in place of the dots. Or leave it as it is: pass the shapes of a batch: input_specs=(x, y), arrays "
        "or jax.ShapeDtypeStruct of 4 rows, for example program.of(open, input_specs=(x_train[:4], y_train[:4])); "
        "for `anytpu plan`, a function of a file returns the pair (model, input_specs)"
    )


def test_a_batch_that_the_model_fixes():
    model = keras.Sequential([keras.Input(batch_shape=(32, 3), name="x"), layers.Dense(2)], name="fixed")
    model.compile("sgd", "mse")
    assert tpu.program.of(model, batch_size=32).rows == 32
    assert error_of(model) == (
        "the input 'x' of the model 'fixed' has the shape (32, 3): its batch has 32 rows, and 4 are asked for. Give "
        "batch_size=32, or make the model with keras.Input(shape) without a batch size"
    )


def own_loss(y_true, y_pred):
    return keras.losses.sparse_categorical_crossentropy(y_true, y_pred)


class OwnStep(keras.Model):
    """A model whose step wants labels that nobody could guess."""

    def train_step(self, state, data):
        _, y = data
        return {"loss": keras.ops.mean(y["not there"])}, state


@pytest.mark.parametrize("own", ["loss", "step"])
def test_labels_that_cannot_be_guessed(own: str):
    model = compiled(own_loss)
    why = (
        "ValueError: Arguments `target` and `output` must have the same shape up until the last dimension: "
        "target.shape=(4, 5), output.shape=(4, 5)"
    )
    if own == "step":
        x = keras.Input((3,))
        model = OwnStep(x, layers.Dense(5)(x), name="small")
        model.compile("sgd", "mse")
        why = error_of(model).split("float32[4,5]: ")[1].split(". Pass the")[0]
        assert why.startswith("TypeError: ")
    assert error_of(model) == (
        "a training step of the model 'small' cannot be traced with the labels that its outputs and its loss suggest, "
        f"float32[4,5]: {why}. Pass the shapes of a batch: input_specs=(x, y), arrays or jax.ShapeDtypeStruct of 4 "
        "rows, for example program.of(small, input_specs=(x_train[:4], y_train[:4])); "
        "for `anytpu plan`, a function of a file returns the pair (model, input_specs)"
    )
    if own == "loss":
        program = tpu.program.of(model, (np.zeros((2, 3), "float32"), np.zeros(2, "int32")), batch_size=4)
        assert text(program.batch) == ["float32[4, 3]", "int32[4]"]


@pytest.mark.parametrize(
    ("specs", "mode", "why"),
    [
        ("x", "train", "ValueError: Invalid dtype: str32"),
        ((np.array(["a"]), np.zeros(1)), "train", "ValueError: Invalid dtype: str32"),
        (
            keras.Input((3,)),
            "train",
            "ValueError: A KerasTensor is symbolic: it's a placeholder for a shape an a dtype. It doesn't have any "
            "actual numerical value. You cannot convert it to a NumPy array",
        ),
        (
            np.zeros((4, 2)),
            "infer",
            "ValueError: Input 0 with name 'None' of layer 'dense' is incompatible with the layer: expected axis -1 of "
            "input shape to have value 3, but received input with shape (4, 2)",
        ),
    ],
)
def test_specs_that_a_model_does_not_take(specs, mode, why):
    model = keras.Sequential([keras.Input((3,)), layers.Dense(5, name="dense")], name="small")
    model.compile("sgd", "mse")
    with pytest.raises(ProgramError) as caught:
        tpu.program.of(model, specs, mode)
    step = "a training step" if mode == "train" else "a prediction"
    assert str(caught.value) == (
        f"{step} of the model 'small' cannot be traced with these input_specs: {why}. Pass the shapes of a "
        "batch: input_specs=(x, y), arrays or jax.ShapeDtypeStruct of 64 rows, for example program.of(small, "
        "input_specs=(x_train[:64], y_train[:64])); for `anytpu plan`, a function of a file returns the pair (model, "
        "input_specs)"
    )


def test_a_loss_of_ones_own_that_takes_what_the_output_looks_like():
    program = tpu.program.of(compiled(lambda y, p: keras.ops.mean((y - p) ** 2, -1)), batch_size=8)
    assert text(program.batch) == ["float32[8, 3]", "float32[8, 5]"]


def test_a_class_that_is_built_for_the_specs():
    model = Written()
    program = tpu.program.of(model, jax.ShapeDtypeStruct((2, 7), "float32"), mode="infer", batch_size=8)
    assert text(program.batch) == ["float32[8, 7]"]
    assert text(program.state) == ["float32[7, 3]", "float32[3]"]


def test_labels_are_float32_in_bfloat16():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, dtype="mixed_bfloat16")])
    model.compile("sgd", "mse")
    assert text(label_specs_of(model, input_specs_of(model, 8))) == ["float32[8, 2]"]


def test_other_rows():
    batch = {"x": np.zeros((2, 3), "float32"), "scale": np.float32(1)}
    assert text(with_batch_size(batch, 64)) == ["float32[]", "float32[64, 3]"]


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
