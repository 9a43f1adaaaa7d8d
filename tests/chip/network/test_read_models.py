"""Models as networks: what `evaluate` computes is what the model itself predicts, and in which nodes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import anytpu  # noqa: F401  # isort: skip
import keras
import numpy as np
import pytest
from keras import layers

from anytpu import program
from anytpu.chip.graph.nodes import Convolution, HostStep, Network
from anytpu.chip.network import read
from anytpu.chip.quantized.reference import compute as evaluate


def values(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def shaken(model: Any) -> Any:
    """Give every weight a value of its own, so that no bias is 0 and no scale 1."""
    random = np.random.default_rng(1)
    for weight in model.weights:
        drawn = random.normal(size=weight.shape) * 0.4
        weight.assign(np.abs(drawn) + 0.5 if weight.path.endswith(("variance", "gamma")) else drawn)
    return model


def sequential(shape: tuple[int, ...], *stacked: Any) -> Any:
    return shaken(keras.Sequential([keras.Input(shape), *stacked]))


def network_of(model: Any) -> Network:
    return read(program.of(model, None, mode="infer", tensors=True, batch_size=8))


def agree(network: Network, model: Any, inputs: Sequence[np.ndarray]) -> None:
    expected = model.predict(list(inputs) if len(inputs) > 1 else inputs[0], verbose=0)
    tensors = evaluate(network, inputs)
    for port, want in zip(network.outputs, expected if isinstance(expected, list) else [expected], strict=True):
        got = tensors[port.tensor].reshape(-1, *port.shape)
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max())
    assert set(tensors) == set(network.shapes)
    for name, tensor in tensors.items():
        assert tensor.shape[1:] == network.shapes[name]


def kinds(network: Network) -> list[str]:
    return [getattr(node, "kind", type(node).__name__.lower()) for node in network.nodes]


def agrees(model: Any, shape: tuple[int, ...]) -> Network:
    network = network_of(model)
    agree(network, model, [values(11, *shape)])
    return network


@pytest.mark.parametrize(
    ("shape", "stacked", "expected"),
    [
        pytest.param(
            (6, 6, 2),
            lambda: [
                layers.Conv2D(8, 3, use_bias=False),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Flatten(),
                layers.Dense(10, activation="softmax"),
            ],
            ["convolution", "convolution", "softmax"],
            id="convolution, normalization, dense",
        ),
        pytest.param(
            (8, 8, 3),
            lambda: [layers.Conv2D(4, 3, activation="relu"), layers.BatchNormalization(), layers.Conv2D(4, 3)],
            ["convolution", "convolution"],
            id="normalization after the ReLU becomes part of the weights after it",
        ),
        pytest.param(
            (8, 8, 3),
            lambda: [
                layers.Conv2D(4, 3, activation="relu"),
                layers.BatchNormalization(),
                layers.Conv2D(4, 3, padding="same"),
            ],
            ["convolution", "convolution", "convolution"],
            id="but not where a border of zeros follows",
        ),
        pytest.param(
            (10, 10, 3),
            lambda: [layers.MaxPooling2D(), layers.AveragePooling2D(2, padding="same"), layers.GlobalMaxPooling2D()],
            ["max", "average", "max"],
            id="pools",
        ),
        pytest.param(
            (7, 9, 3),
            lambda: [layers.AveragePooling2D((3, 2), (2, 1)), layers.GlobalAveragePooling2D(keepdims=True)],
            ["average", "average"],
            id="averages",
        ),
        pytest.param(
            (7,),
            lambda: [layers.Dense(5, activation="relu"), layers.Dropout(0.5), layers.Dense(3, activation="sigmoid")],
            ["convolution", "convolution", "sigmoid"],
            id="dense layers",
        ),
        pytest.param(
            (9, 9, 3),
            lambda: [
                layers.DepthwiseConv2D(3, depth_multiplier=2),
                layers.SeparableConv2D(6, 3, padding="same", strides=2),
                layers.ZeroPadding2D(((1, 2), (0, 1))),
                layers.Conv2D(4, 3, dilation_rate=2, activation="relu6"),
            ],
            ["convolution"] * 4,
            id="depthwise, separable, padded, dilated",
        ),
        pytest.param(
            (9, 9, 4),
            lambda: [layers.Conv2D(8, 3, groups=2, strides=2, padding="same"), layers.Cropping2D(1)],
            ["convolution", "slice", "slice"],
            id="grouped, strided, cropped",
        ),
        pytest.param(
            (12, 3),
            lambda: [
                layers.Conv1D(5, 3, padding="causal", dilation_rate=2, activation="relu"),
                layers.MaxPooling1D(2),
                layers.Conv1D(4, 3, strides=2, padding="same"),
                layers.GlobalAveragePooling1D(),
            ],
            ["convolution", "max", "convolution", "average"],
            id="sequences",
        ),
        pytest.param(
            (8, 8, 3),
            lambda: [layers.Rescaling(1 / 255), layers.Conv2D(4, 3, padding="same")],
            ["convolution"],
            id="a factor before a convolution becomes part of its weights",
        ),
        pytest.param(
            (8, 8, 3),
            lambda: [layers.Rescaling(1 / 127.5, offset=-1), layers.Conv2D(4, 3, padding="same")],
            ["scale", "convolution"],
            id="a summand before a padded convolution does not",
        ),
        pytest.param(
            (5, 6, 6, 2),
            lambda: [layers.Conv3D(3, 3), layers.Flatten(), layers.Dense(2)],
            ["convolution", "convolution"],
            id="of three axes, on the host",
        ),
        pytest.param(
            (8,),
            lambda: [layers.Dense(6), layers.LayerNormalization(), layers.Dense(3)],
            ["convolution", "layer normalization", "convolution"],
            id="layer normalization, on the host",
        ),
        pytest.param(
            (6, 4),
            lambda: [layers.Permute((2, 1)), layers.Dense(3), layers.Reshape((6, 2)), layers.Conv1D(2, 2)],
            ["transpose", "convolution", "reshape", "convolution"],
            id="a transpose, on the host",
        ),
        pytest.param(
            (5, 3),
            lambda: [layers.TimeDistributed(layers.Dense(4)), layers.Dense(2, activation="relu")],
            ["slice", "convolution"] * 5 + ["concatenate", "convolution"],
            id="a layer at each time",
        ),
    ],
)
def test_a_model_of_layers(shape: tuple[int, ...], stacked: Any, expected: list[str]):
    assert kinds(agrees(sequential(shape, *stacked()), shape)) == expected


@pytest.mark.parametrize(
    ("activation", "kind"),
    [
        ("sigmoid", "sigmoid"),
        ("tanh", "tanh"),
        ("silu", "silu"),
        ("gelu", "gelu"),
        (lambda x: keras.activations.gelu(x, approximate=True), "gelu, by tanh"),
        ("elu", "elu"),
        ("selu", "selu"),
        ("softplus", "softplus"),
        ("softsign", "softsign"),
        ("mish", "mish"),
        ("hard_silu", "hard swish"),
        ("leaky_relu", "leaky relu"),
        ("exponential", "exp"),
        (lambda x: keras.ops.sin(x) + 2 * x * x, "function"),
        (lambda x: (keras.ops.tanh(x / 2) + 1) / 2, "sigmoid"),  # pyright: ignore[reportOptionalOperand],
    ],
)
def test_a_function_of_one_number_is_one_node(activation: Any, kind: str):
    network = agrees(sequential((6,), layers.Dense(8), layers.Activation(activation)), (6,))
    assert kinds(network) == ["convolution", kind]


@pytest.mark.parametrize(
    ("activation", "low", "high"),
    [("relu", 0, np.inf), ("relu6", 0, 6), ("hard_sigmoid", 0, 1), (lambda x: keras.ops.clip(x, -2, 3), -2, 3)],
)
def test_a_clip_is_part_of_the_product_before_it(activation: Any, low: float, high: float):
    network = agrees(sequential((6,), layers.Dense(8), layers.Activation(activation)), (6,))
    (node,) = network.nodes
    assert isinstance(node, Convolution) and (node.low, node.high) == (low, high)


def test_an_untrained_normalization_is_part_of_the_weights():
    model = keras.Sequential([keras.Input((6, 6, 2)), layers.Conv2D(3, 3), layers.BatchNormalization(), layers.ReLU()])
    (node,) = agrees(model, (6, 6, 2)).nodes
    assert isinstance(node, Convolution) and (node.low, node.high) == (0, np.inf)


def residual() -> Any:
    given = keras.Input((8, 8, 4))
    x = layers.Conv2D(8, 3, padding="same", use_bias=False)(given)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    x = layers.BatchNormalization()(layers.Conv2D(8, 3, padding="same")(x))
    short = layers.Conv2D(8, 1)(given)
    y = layers.ReLU()(layers.Add()([x, short]))
    return keras.Model(given, layers.Multiply()([layers.Subtract()([y, short]), x]))


def inception() -> Any:
    given = keras.Input((8, 8, 4))
    a = layers.Conv2D(3, 1, activation="relu")(given)
    b = layers.Conv2D(5, 3, padding="same")(given)
    c = layers.Conv2D(2, 1)(layers.MaxPooling2D(3, 1, padding="same")(given))
    d = layers.AveragePooling2D(3, 1, padding="same")(given)
    return keras.Model(given, layers.Conv2D(4, 3)(layers.Concatenate()([a, b, c, d])))


def squeeze_excite() -> Any:
    given = keras.Input((8, 8, 4))
    x = layers.Conv2D(8, 3, padding="same", activation="silu")(given)
    s = layers.GlobalAveragePooling2D(keepdims=True)(x)
    s = layers.Conv2D(8, 1, activation="sigmoid")(layers.Conv2D(2, 1, activation="relu")(s))
    return keras.Model(given, layers.Conv2D(3, 1)(layers.Multiply()([x, s])))


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (residual, ["convolution", "convolution", "convolution", "add", "subtract", "multiply"]),
        (inception, ["convolution"] * 2 + ["max", "convolution", "average", "concatenate", "convolution"]),
        (
            squeeze_excite,
            ["convolution", "silu", "average", "convolution", "convolution", "sigmoid", "multiply", "convolution"],
        ),
    ],
)
def test_branches(model: Any, expected: list[str]):
    made = shaken(model())
    assert Counter(kinds(agrees(made, made.input_shape[1:]))) == Counter(expected)


def test_several_inputs_and_outputs():
    a, b = keras.Input((5,)), keras.Input((6, 6, 2))
    x = layers.Dense(4, activation="relu")(a)
    y = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3)(b))
    z = layers.Concatenate()([x, y])
    model = shaken(keras.Model([a, b], [layers.Dense(3)(z), layers.Dense(2, activation="softmax")(z), x]))
    network = network_of(model)
    agree(network, model, [values(11, 5), values(11, 6, 6, 2, seed=1)])
    assert [port.tensor for port in network.inputs] == ["input_0", "input_1"]
    assert [port.shape for port in (*network.inputs, *network.outputs)] == [(5,), (6, 6, 2), (3,), (2,), (4,)]


def test_a_convolution_of_the_host_has_its_reason():
    network = agrees(sequential((3, 6, 5, 2), layers.Conv3D(4, 2), layers.Flatten(), layers.Dense(2)), (3, 6, 5, 2))
    assert [node.why for node in network.nodes if isinstance(node, HostStep) and node.kind == "convolution"] == [
        "it convolves in three dimensions, and the chip in one or two"
    ]


def test_a_block_of_a_transformer():
    given = keras.Input((6, 8))
    x = layers.LayerNormalization()(given)
    x = layers.Add()([layers.MultiHeadAttention(2, 4)(x, x), given])
    y = layers.Dense(8)(layers.Dense(16, activation="gelu")(layers.LayerNormalization()(x)))
    x = layers.GlobalAveragePooling1D()(layers.Add()([x, y]))
    network = agrees(shaken(keras.Model(given, layers.Dense(3, activation="softmax")(x))), (6, 8))
    hosted = [(node.layer, node.kind, node.why) for node in network.nodes if isinstance(node, HostStep)]
    assert [kind for _, kind, _ in hosted] == ["layer normalization", "attention", "layer normalization", "softmax"]
    assert hosted[1][2] == "it multiplies activations with activations, and divides by sums over channels"
    assert Counter(kinds(network)) == {
        "convolution": 7,
        "reshape": 4,
        "layer normalization": 2,
        "add": 2,
        "gelu": 1,
        "attention": 1,
        "softmax": 1,
        "average": 1,
    }


def test_names_are_those_of_the_layers():
    model = keras.Sequential([keras.Input((6, 6, 1)), layers.Conv2D(2, 3, activation="relu", name="first")])
    model.add(layers.Dense(3, name="second"))
    network = network_of(model)
    assert [(node.name, node.layer, node.inputs, node.output) for node in network.nodes] == [
        ("first/convolution", "first", ("input",), "first/convolution"),
        ("second/convolution", "second", ("first/convolution",), "second/convolution"),
    ]
    assert network.name == model.name + "/predict"
