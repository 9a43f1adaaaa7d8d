"""What is wrong with examples is said whole; tensors are observed piece by piece."""

from __future__ import annotations

import numpy as np
import pytest

from anytpu.chip.graph.nodes import UNSCALED, Convolution, Function, Network, Port
from anytpu.chip.quantized import calibration, quantize
from anytpu.chip.quantized.calibration import check, evaluate_chunks, observe
from anytpu.errors import CalibrationError, QuantizationError
from refusals import refusal

RNG = np.random.default_rng(0)
GOOD = RNG.normal(size=(5, 2, 3)).astype(np.float32)
SHAPES = {"x": (1, 2, 3), "n": (1, 1, 1), "y": (1, 2, 3)}


X = Port("x", (2, 3))


def network(function=np.tanh, ports=(X,)) -> Network:
    node = Function("f", "gate", ("x",), "y", "function", function)
    return Network("net", ports, (Port("y", (2, 3)),), SHAPES, {}, (node,))


TWO = network(ports=(Port("x", (2, 3)), Port("n", (), "int32")))


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (
            [GOOD[:0]],
            "calibration has no examples, and the ranges of the integers are taken from it: give about 100 examples "
            "of what the model will see, such as calibration=x_train[:256]",
        ),
        ([], "calibration has 0 arrays and the model 1 input: give a list of one array for each of x (examples, 2, 3)"),
        (
            [GOOD, GOOD],
            "calibration has 2 arrays and the model 1 input: give a list of one array for each of x (examples, 2, 3)",
        ),
        (
            [GOOD[:, :1]],
            "calibration of input 'x' has the shape (5, 1, 3), and the model takes (examples, 2, 3)",
        ),
        (GOOD[0], "calibration of input 'x' has the shape (2, 3), and the model takes (examples, 2, 3)"),
        (
            [np.where(np.arange(30).reshape(5, 2, 3) == 16, np.nan, GOOD)],
            "calibration of input 'x' is nan in example 2, at (1, 1): leave out or repair such examples",
        ),
        (
            [np.where(np.arange(30).reshape(5, 2, 3) == 0, -np.inf, GOOD)],
            "calibration of input 'x' is -inf in example 0, at (0, 0): leave out or repair such examples",
        ),
        (
            [GOOD.astype(str)],
            "calibration of input 'x' is of dtype <U32, not of numbers: give an array of float32",
        ),
        (
            [np.ones((5, 2, 3)) * GOOD[:1]],
            "the 5 examples of calibration are all the same, so that the ranges taken from them would fit no other: "
            "give about 100 examples of what the model will see, such as calibration=x_train[:256]",
        ),
        (
            [np.full((1, 2, 3), 0.5)],
            "the only example of calibration is 0.5 everywhere, so that the ranges taken from it would fit no other: "
            "give about 100 examples of what the model will see, such as calibration=x_train[:256]",
        ),
    ],
)
def test_examples_that_cannot_be_used(given, text: str):
    assert refusal(CalibrationError, quantize, network(), given) == text


def test_examples_of_two_inputs():
    assert refusal(CalibrationError, check, TWO, [GOOD]) == (
        "calibration has 1 array and the model 2 inputs: give a list of one array for each of x (examples, 2, 3), "
        "n (examples,)"
    )
    assert refusal(CalibrationError, check, TWO, [GOOD, np.arange(4)]) == (
        "the arrays of calibration have different numbers of examples: x 5, n 4; give as many of each"
    )
    # One of the inputs may be the same for all.
    x, n = check(TWO, [GOOD.astype(np.float64), np.ones(5)])
    assert (x.dtype, n.dtype) == (np.float32, np.int32)


def test_one_example_is_enough_and_needs_no_list():
    assert check(network(), GOOD[:1])[0].shape == (1, 2, 3)
    assert check(network(), (GOOD,))[0].shape == (5, 2, 3)


def test_a_layer_that_is_not_finite_is_named():
    with pytest.raises(QuantizationError) as caught, np.errstate(all="ignore"):
        quantize(network(lambda x: np.float32(1) / (x - GOOD[2, 1, 1])), [GOOD])
    assert str(caught.value) == (
        "layer 'gate' gives inf for an example of calibration, which no integer represents: look for weights that are "
        "not finite, a division by 0, or a mask of infinities"
    )


@pytest.mark.parametrize("what", ["weights", "bias"])
def test_weights_that_are_not_finite(what: str):
    arrays = {"weights": np.ones((1, 1, 3, 3), np.float32), "bias": np.zeros(3, np.float32)}
    arrays[what].flat[1] = np.nan
    node = Convolution("c", "dense", ("x",), "y", **arrays, weight_scales=UNSCALED)
    broken = Network("net", (Port("x", (2, 3)),), (Port("y", (2, 3)),), SHAPES, {}, (node,))
    assert refusal(QuantizationError, quantize, broken, [GOOD]) == (
        f"layer 'dense' has nan in its {what}, which no integer represents: load or train the model again"
    )


def test_tensors_are_observed_piece_by_piece(monkeypatch: pytest.MonkeyPatch):
    x = RNG.normal(size=(50, 2, 3)).astype(np.float32)
    whole = observe(network(), [x], ["x", "y"], "mse")
    monkeypatch.setattr(calibration, "CHUNK_BYTES", 4 * 13 * 7)  # seven examples of 13 numbers
    assert [len(values["y"]) for values in evaluate_chunks(network(), [x])] == [7] * 7 + [1]
    pieces = observe(network(), [x], ["x", "y"], "mse")
    for name, values in (("x", x), ("y", np.tanh(x))):
        assert (pieces[name].low, pieces[name].high) == (values.min(), values.max())
        assert pieces[name].counts.sum() == values.size
        assert np.array_equal(pieces[name].counts, whole[name].counts)
    assert observe(network(), [x], ["x"], "minmax")["x"].counts.sum() == 0
