"""`tpu.smoke` with real models: sound ones, and one for each fault that it finds."""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import jax
import keras
import pytest

import anytpu as tpu
from anytpu.errors import ProgramError, SettingError, SmokeTestError

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

SPARSE = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def compiled(inputs: Any, outputs: Any, loss: Any = SPARSE, name: str = "net") -> Any:
    model = keras.Model(inputs, outputs, name=name)
    model.compile(keras.optimizers.Adam(0.01), loss)
    return model


def create_cnn() -> Any:
    images = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(8, 3, padding="same", name="stem")(images)
    x = keras.layers.BatchNormalization(name="norm")(x)
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.ReLU()(x))
    return compiled(images, keras.layers.Dense(10, name="out")(x), name="cnn")


def create_transformer(width: int = 32, blocks: int = 3) -> Any:
    ids = keras.Input((8,), dtype="int32")
    x = keras.layers.Embedding(100, width, name="tokens")(ids)
    for index in range(blocks):
        y = keras.layers.LayerNormalization(name=f"norm_{index}")(x)
        x = x + keras.layers.MultiHeadAttention(2, width // 2, use_bias=False, name=f"attention_{index}")(y, y)
        y = keras.layers.Dense(2 * width, "gelu", name=f"up_{index}")(x)
        x = x + keras.layers.Dense(width, name=f"down_{index}")(keras.layers.Dropout(0.1)(y))
    return compiled(ids, keras.layers.Dense(100, name="out")(x), name="transformer")


@pytest.mark.parametrize("layout", ["fsdp", "data"])
def test_a_transformer_is_trained_with_two_of_its_blocks(layout: str, capsys: pytest.CaptureFixture):
    report = tpu.smoke(create_transformer, batch_size=64, tpu="v5e-8", layout=layout)
    assert len(report.losses) == 10 and report.losses[-1] < report.losses[0]
    assert (report.cores, report.rows, report.layout) == (8, 16, f"{layout} over data=8")
    assert report.change == "the trained model is smaller than 'transformer': it has 2 of 3 equal blocks."
    assert report.plan["v5e-8"].fits and report.plan["v5e-8"].layout_name == layout
    assert "\n" not in repr(report) and repr(report).startswith("<SmokeReport: 'transformer' trains, loss ")
    report.show()
    shown = capsys.readouterr().out
    assert str(report) in shown and "v5e-8" in shown


def test_a_cnn_is_trained_as_it_is():
    report = tpu.smoke(create_cnn, batch_size=64, tpu="v5e-4")
    assert (report.cores, report.layout) == (4, "")
    assert report.change == "nothing of 'cnn' was made smaller, except for its batch."
    with pytest.raises(dataclasses.FrozenInstanceError):
        report.rows = 1  # pyright: ignore[reportAttributeAccessIssue]


def test_arguments_make_the_smaller_model():
    report = tpu.smoke(create_transformer, 64, "v5e-1", small={"width": 8, "blocks": 1})
    assert report.change == "the trained model is make_model(width=8, blocks=1)."
    assert report.cores == 1


def test_a_subclassed_model_comes_with_specs():
    class Net(keras.Model):
        def __init__(self) -> None:
            super().__init__(name="own")
            self.hidden, self.out = keras.layers.Dense(8, "relu"), keras.layers.Dense(4)

        def call(self, x: Any) -> Any:
            return self.out(self.hidden(x))

    def create() -> Any:
        model = Net()
        model.compile("adam", SPARSE)
        return model, (jax.ShapeDtypeStruct((64, 6), "float32"), jax.ShapeDtypeStruct((64,), "int32"))

    assert len(tpu.smoke(create, 64, "v5e-4").losses) == 10


class Log(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        return keras.ops.log(x)


class Root(keras.layers.Layer):
    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(), initializer="zeros", name="scale")

    def call(self, x: Any) -> Any:
        return x + keras.ops.sqrt(self.scale * self.scale)  # The gradient at 0 is a NaN.


def create_unused() -> Any:
    x = keras.Input((4,))
    unused = keras.layers.Dense(3, name="unused")(x)
    return compiled(x, keras.layers.Add()([keras.layers.Dense(3)(x), keras.ops.stop_gradient(unused)]))


def create_logarithm() -> Any:
    x = keras.Input((4,))
    return compiled(x, keras.layers.Dense(3, name="out")(Log(name="log")(x)))


def create_still() -> Any:
    model = create_cnn()
    model.compile(keras.optimizers.SGD(0.0), SPARSE)
    return model


def create_root() -> Any:
    x = keras.Input((4,))
    return compiled(x, Root(name="root", dtype="bfloat16")(keras.layers.Dense(3)(x)))


@pytest.mark.parametrize(
    ("create", "message"),
    [
        (
            create_unused,
            "10 steps of 'net/train' did not change the weights 'unused/kernel', 'unused/bias': no gradient arrives "
            "there. Use the output of the layer in the loss, or set its trainable=False",
        ),
        (
            create_logarithm,
            "the loss of 'net/train' is nan at step 1: the first value that is not finite is that of the layer 'log'. "
            "Look for a logarithm, a division or a square root of 0 there, or lower the learning rate",
        ),
        (
            create_still,
            "10 steps of 'cnn/train' changed no weight: check that the learning rate is not 0, and that the loss "
            "depends on the outputs",
        ),
        (
            create_root,
            "the loss of 'net/train' is nan at step 2: the first value that is not finite is that of the weight "
            "'root/scale', after the step before. Look for a logarithm, a division or a square root of 0 there, or "
            "lower the learning rate",
        ),
    ],
)
def test_a_fault_of_the_steps_is_named(create: Any, message: str):
    with pytest.raises(SmokeTestError) as caught:
        tpu.smoke(create, 64, "v5e-4")
    assert str(caught.value) == message


def create_large(width: int = 2**18) -> Any:
    x = keras.Input((width,))
    return compiled(x, keras.layers.Dense(1)(keras.layers.Dense(width, name="wide")(x)), "mse", "large")


def test_a_loss_that_grows_without_end_is_named():
    def create_diverging() -> Any:
        inputs = keras.Input((16,))
        model = keras.Model(inputs, keras.layers.Dense(1, name="out")(inputs), name="diverging")
        model.compile(keras.optimizers.SGD(2.0), "mse")
        return model

    with pytest.raises(SmokeTestError) as caught:
        tpu.smoke(create_diverging, batch_size=64, tpu="v5e-1")
    text = str(caught.value)
    first, last = (float(number) for number in re.findall(r"from (\S+) to (\S+) in", text)[0])
    assert last > 10 * max(1.0, first)
    assert text == (
        f"the loss of 'diverging/train' grows from {first:.4g} to {last:.4g} in 10 steps on one batch: the training "
        "diverges. Lower the learning rate, or clip gradients: keras.optimizers.Adam(clipnorm=1.0)"
    )


def test_a_model_that_does_not_fit():
    with pytest.raises(SmokeTestError) as caught:
        tpu.smoke(create_large, 64, "v5e-1", small={"width": 16})
    start, _, rest = str(caught.value).partition(": a device needs ")
    assert start == "the real model 'large' does not fit on v5e-1 with batch 64"
    assert rest.endswith("; anytpu.max_batch_size(model, 'v5e-1') finds the largest batch")
    report = tpu.smoke(create_large, 64, "v5e-1", small={"width": 16}, fits=False)
    assert not report.plan["v5e-1"].fits


def test_a_model_too_large_to_train_asks_for_arguments():
    with pytest.raises(ProgramError) as caught:
        tpu.smoke(create_large, 64, "v5e-1")
    assert str(caught.value) == (
        "the model 'large' to train has 68,720,001,025 parameters, and a smoke test trains 100,000,000 at most. Give "
        "make_model arguments for its sizes, and their small values: "
        'tpu.smoke(make_model, ..., small={"hidden": 32}); or divide the widths of a functional model: shrink=8'
    )


def test_a_step_that_takes_too_long():
    with pytest.raises(SmokeTestError) as caught:
        tpu.smoke(create_cnn, 64, "v5e-4", max_step_s=1e-9)
    start, _, rest = str(caught.value).partition(" takes ")
    assert start == "a step of the real model 'cnn'"
    assert rest.endswith(
        " on v5e-4, more than max_step_s=1e-09. Print anytpu.plan(...).show() for the slowest layers, or raise "
        "max_step_s"
    )


@pytest.mark.parametrize("scale_on_one_core", [1.0, float("nan")])
def test_a_layer_that_depends_on_the_cores(scale_on_one_core: float):
    class Scaled(keras.layers.Layer):
        def call(self, x: Any) -> Any:
            return x * (scale_on_one_core if tpu.get_strategy().num_replicas_in_sync == 1 else 4.0)

    def create() -> Any:
        x = keras.Input((4,))
        return compiled(x, Scaled()(keras.layers.Dense(3)(x)))

    with pytest.raises(SmokeTestError) as caught:
        tpu.smoke(create, 64, "v5e-4", layout="fsdp")
    start, _, rest = str(caught.value).partition(" is ")
    assert start == "the loss of 'net/train' at step 1"
    assert rest.endswith(" on 1 core. anytpu.check(model, cores=4, layout='fsdp') names the first layer that differs")


def test_weights_that_become_nan_are_named():
    def create() -> Any:
        x = keras.Input((4,))
        model = compiled(x, keras.layers.Dense(1, name="out")(x), "mse")
        model.compile(keras.optimizers.SGD(1e30), "mse")
        return model

    with pytest.raises(SmokeTestError, match=r"^the loss of 'net/train' is (inf|nan) at step 2: the first value"):
        tpu.smoke(create, 64, "v5e-4")


def test_a_floor_is_no_answer_but_a_bound():
    report = tpu.smoke(create_cnn, 72, "v5e-4", timeout_s=0.001)  # A batch that no other test compiles.
    assert report.plan["v5e-4"].is_floor
    assert "at least" in repr(report)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 0}, "batch_size must be a positive integer, not 0"),
        ({"tpu": ["v5e-4"]}, "tpu must be the name of one slice, such as \"v5e-8\", not ['v5e-4']"),
        ({"max_step_s": 0}, "max_step_s must be a positive number of seconds, or None, not 0"),
        (
            {"small": {}, "shrink": 2},
            "small={} and shrink=2 both make the model smaller: leave one of them out",
        ),
        (
            {"small": {"hidden": 8}},
            "small={'hidden': 8} does not fit make_model() -> 'Any': got an unexpected keyword argument 'hidden'. Give "
            "make_model such arguments, each with the value of the real model as its default",
        ),
        ({"mesh": {"data": 4}}, "mesh={'data': 4} is the mesh of a layout: give one too, such as layout=\"fsdp\""),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], message: str):
    with pytest.raises(SettingError) as caught:
        tpu.smoke(create_cnn, **{"batch_size": 64, "tpu": "v5e-4"} | arguments)
    assert str(caught.value) == message
