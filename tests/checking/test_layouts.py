"""`tpu.check` of a layout: what does not fit, what was not meant, and the numbers."""

from __future__ import annotations

import keras
import pytest
from jax.sharding import PartitionSpec as P

import anytpu as tpu
from anytpu.checking.shrinking import shrunk
from anytpu.errors import ProgramError, SettingError

L = keras.layers
MESH = {"data": 2, "model": 2}
# `Variable.numpy()` of Keras 3.15 does this with NumPy 2; its `__array__` takes no `copy`.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")


def deep() -> keras.Model:
    """Return a network of three equal blocks."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((32,))
    x = L.Dense(32, name="first")(inputs)
    for block in range(3):
        inner = L.Dense(32, name=f"down{block}")(L.Dense(128, "relu", name=f"up{block}")(x))
        x = L.LayerNormalization(name=f"norm{block}")(x + inner)
    model = keras.Model(inputs, L.Dense(10, name="out")(x), name="deep")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


def test_half_a_pair_computes_the_same_and_moves_a_gradient():
    """Each gradient of "down" is split like its inputs, and the weight is whole: XLA gathers the gradient."""
    layout = {"up[0-9]/kernel": P(None, "model"), "up2/bias": P("model")}
    report = tpu.check(deep(), layout=layout, mesh=MESH, cores=4, batch_size=8, shrink=1)
    assert report.agrees
    assert repr(report) == (
        "<CheckReport: 'deep' computes the same on 1 core, on 4 virtual cores and on 4 devices, in the layout 2 "
        "patterns over data=2, model=2. print() shows each value.>"
    )
    assert [value.name for value in report.layers if value.name.startswith("up")] == ["up0", "up1"]
    assert "note: the compared model is smaller than 'deep': it has 2 of 3 equal blocks." in str(report).splitlines()
    (moved,) = [remark for remark in report.remarks if remark.startswith("the step moves ")]
    assert "between devices at " in moved and "(all-gather): constrain the value there" in moved


def test_a_whole_pair_moves_nothing():
    layout = {"up[0-9]/kernel": P(None, "model"), "down[0-9]/kernel": P("model")}
    report = tpu.check(deep(), layout=layout, mesh=MESH, cores=4, batch_size=8, shrink=1)
    assert report.agrees
    assert not [remark for remark in report.remarks if remark.startswith("the step moves ")]


def test_rows_that_the_mesh_does_not_divide_in_the_layout_of_the_scope():
    """The model is checked in the layout of its strategy; 5 rows are padded for 2 cores of the axis "data"."""
    with tpu.connect("virtual", cores=4, layout={"up[0-9]/kernel": P(None, "model")}, mesh=MESH).scope():
        model = deep()
    report = tpu.check(model, cores=4, batch_size=5)
    assert report.agrees
    assert (report.rows, report.layout) == (5, "1 pattern over data=2, model=2")
    assert tpu.check(model, cores=1, batch_size=5).layout == ""


def test_every_fault_of_a_layout_is_listed():
    layout = {
        "upp": P(None, "model"),
        "out/kernel": P(None, "model"),
        "first/ker": P("model"),
        "st/kernel": P("data"),
        "norm0/gamma": P(None, "model"),
    }
    report = tpu.check(deep(), layout=layout, mesh={"data": 2, "model": 4})
    assert (report.agrees, report.values) == (False, ())
    assert str(report).splitlines() == [
        "the layout 5 patterns over data=2, model=4 does not fit 'deep': 4 faults.",
        "",
        "fault: the pattern 'upp' of the layout matches no weight of 'deep/train'. The nearest names are 'up2/bias', "
        "'up1/bias', 'up0/bias'.",
        "fault: 'first/kernel' matches two patterns of the layout, 'first/ker' (('model',)) and 'st/kernel' "
        "(('data',)). Make one of them narrower",
        "fault: 'norm0/gamma' has the shape (32,), and its partition in the layout is for 2 axes: give it at most 1",
        "fault: 'out/kernel' has the shape (32, 10), and the layout splits axis 1 over 4 cores (model=4), which do not "
        "divide 10. Split another axis, or leave this weight whole",
    ]


def test_a_model_made_smaller():
    model = deep()
    smaller = shrunk(model, 4)
    assert smaller.change == (
        "the compared model is smaller than 'deep': it has 2 of 3 equal blocks and the widths of 5 layers divided by 4."
    )
    shapes = {layer.name: layer.kernel.shape for layer in smaller.model.layers if isinstance(layer, L.Dense)}
    assert shapes == {
        "first": (32, 8),
        "up0": (8, 32),
        "down0": (32, 8),
        "up1": (8, 32),
        "down1": (32, 8),
        "out": (8, 10),
    }
    assert model.get_layer("up2").kernel.shape == (32, 128)


class Own(keras.Model):
    def call(self, inputs):
        return inputs


def residual() -> keras.Model:
    inputs = keras.Input((64,))
    model = keras.Model(inputs, L.Dense(3)(inputs + L.Dense(64)(inputs)), name="residual")
    model.compile("sgd", "mse")
    return model


@pytest.mark.parametrize(
    ("model", "divisor", "message"),
    [
        (
            lambda: Own(name="own"),
            2,
            "shrink=2 cannot make 'own' smaller: it is a Own, and only a Sequential or functional model lists its "
            "layers. Make a smaller one yourself and check it without shrink",
        ),
        (
            residual,
            1,
            "shrink=1 cannot make 'residual' smaller: it has at most 2 equal blocks. Divide the widths of its layers: "
            "shrink=2",
        ),
        (
            residual,
            5,
            "shrink=5 cannot make 'residual' smaller: it has at most 2 equal blocks, and no width that 5 divides. "
            "Check it without shrink, or give another divisor",
        ),
    ],
)
def test_a_model_that_cannot_be_made_smaller(model, divisor, message):
    with pytest.raises(ProgramError) as caught:
        shrunk(model(), divisor)
    assert str(caught.value) == message


def test_a_smaller_model_whose_shapes_do_not_meet():
    with pytest.raises(ProgramError) as caught:
        shrunk(residual(), 4)
    assert str(caught.value) == (
        "shrink=4 cannot make 'residual' smaller: with the widths of 1 layer divided by 4, Cannot broadcast shape, "
        "the failure dim has value 64, which cannot be broadcasted to 16. Input shapes are: [None, 64] and [None, 16]. "
        "Make a smaller one yourself and check it without shrink"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mesh": {"data": 8}}, "mesh={'data': 8} is the mesh of a layout: give one too, such as layout=\"fsdp\""),
        ({"layout": "fsdp", "shrink": 0}, "shrink must be a positive integer, not 0"),
        (
            {"layout": {"up0/kernel": P(None, "model")}, "mesh": {"data": 1, "model": 8}, "shrink": 32},
            "in the model made smaller by shrink=32, 'up0/kernel' has the shape (32, 4), and the layout splits axis 1 "
            "over 8 cores (model=8), which do not divide 4. Split another axis, or leave this weight whole. Give a "
            "smaller shrink; 1 keeps widths",
        ),
    ],
)
def test_bad_settings(settings, message):
    with pytest.raises(SettingError) as caught:
        tpu.check(deep(), batch_size=8, **settings)
    assert str(caught.value) == message
