"""Every kind of layer that the chip has, followed by every kind of step that the host does, in every way.

A node stands for several operations of the program, and must own all values between them: what only the host takes,
what two things take, and what is an output as well as taken.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anytpu  # noqa: F401  # isort: skip
import keras
import numpy as np
import pytest
from keras import layers

from anytpu import program
from anytpu.chip.graph.nodes import HostStep
from anytpu.chip.network import read
from anytpu.chip.quantized.reference import compute as evaluate

Layer = Callable[[Any], Any]
Way = Callable[..., list[Any]]
ops: Any = keras.ops


def normalized() -> list[Layer]:
    return [layers.Conv2D(3, 3, use_bias=False), layers.BatchNormalization(), layers.ReLU()]


def depthwise() -> list[Layer]:
    return [layers.DepthwiseConv2D(3, strides=2, padding="same"), layers.Activation("relu6")]


def residual() -> list[Layer]:
    inner = layers.Conv2D(3, 3, padding="same")
    return [layers.BatchNormalization(), lambda x: layers.add([x, inner(x)]), layers.ReLU()]


def gated() -> list[Layer]:
    gate = [layers.GlobalAveragePooling2D(keepdims=True), layers.Conv2D(3, 1, activation="sigmoid")]
    return [lambda x: x * gate[1](gate[0](x)), layers.Conv2D(3, 1)]


CHIP: dict[str, Callable[[], list[Layer]]] = {
    "convolution": lambda: [layers.Conv2D(3, 3, strides=2), layers.Activation("gelu")],
    "normalized convolution": normalized,
    "depthwise convolution": depthwise,
    "convolution in groups": lambda: [layers.Conv2D(6, 3, groups=3), layers.Conv2D(4, 2, dilation_rate=2)],
    "padded convolution": lambda: [layers.ZeroPadding2D(((1, 0), (2, 1))), layers.Conv2D(3, 3)],
    "padding and cropping": lambda: [layers.ZeroPadding2D(1), layers.Cropping2D(((2, 1), (0, 3)))],
    "dense layers": lambda: [layers.Dense(5, "relu"), layers.Dense(4)],
    "flattened dense layer": lambda: [layers.Flatten(), layers.Dense(4, "tanh"), layers.Dense(3)],
    "flattened, dilated": lambda: [layers.Reshape((1, 1, 108)), layers.Conv2D(3, 1, dilation_rate=2)],
    "reshape": lambda: [layers.Reshape((9, 4, 3)), layers.Reshape((4, 9, 3))],
    "maximum": lambda: [layers.MaxPooling2D(2), layers.MaxPooling2D(2, 1, padding="same")],
    "average": lambda: [layers.AveragePooling2D(2), layers.AveragePooling2D(2, 1)],
    "average up to the border": lambda: [layers.AveragePooling2D(3, 2, padding="same"), layers.ReLU()],
    "global average": lambda: [layers.GlobalAveragePooling2D()],
    "global average, axes kept": lambda: [layers.GlobalAveragePooling2D(keepdims=True)],
    "global average of one axis": lambda: [lambda x: ops.mean(x, axis=2), lambda x: ops.mean(x, axis=1) * 3],
    "average, scaled": lambda: [layers.AveragePooling2D(2), layers.Rescaling(2.0, 0.5)],
    "average, then dense": lambda: [layers.GlobalAveragePooling2D(), layers.Dense(4, "relu")],
    "sum": lambda: [lambda x: ops.sum(x, axis=1), lambda x: ops.sum(x, axis=1) / 7],
    "global maximum": lambda: [layers.GlobalMaxPooling2D(), layers.ReLU()],
    "scale and shift": lambda: [layers.BatchNormalization(), layers.Rescaling(0.5, -1.0)],
    "functions": lambda: [layers.Activation("tanh"), layers.LeakyReLU(), layers.Activation("hard_sigmoid")],
    "residual": residual,
    "gated": gated,
    "with itself": lambda: [lambda x: x * x, lambda x: x - ops.relu(x), lambda x: x + x],
    "side by side": lambda: [lambda x: ops.concatenate([x, ops.tanh(x)], -1), layers.Conv2D(4, 1)],
    "one below the other": lambda: [lambda x: ops.concatenate([x, ops.relu(x)], 1), layers.Conv2D(3, 3)],
    "parts": lambda: [layers.Conv2D(6, 1), lambda x: x[..., 1:5], lambda x: x[:, 1:4], lambda x: x[:, :, ::2]],
    "other way round": lambda: [lambda x: ops.flip(x, 1), layers.Conv2D(3, 2)],
    "recurrent": lambda: [layers.Reshape((12, 9)), layers.Conv1D(4, 3, 2), layers.SimpleRNN(4, return_sequences=True)],
    "gates": lambda: [layers.Reshape((4, 27)), layers.GRU(3)],
}

HOST: dict[str, Callable[[], Layer]] = {
    "normalization": lambda: layers.LayerNormalization(),
    "softmax": lambda: layers.Softmax(),
    "order of axes": lambda: lambda x: ops.transpose(x, (0, *range(len(x.shape) - 1, 0, -1))),
    "repetition": lambda: lambda x: ops.repeat(x, 2, axis=1),
    "place of the greatest": lambda: lambda x: ops.argmax(x, axis=-1),
    "distance from the mean": lambda: lambda x: x - ops.mean(x, axis=-1, keepdims=True),
    "division": lambda: lambda x: x / (1 + ops.abs(x[..., :1])),
    "sorting": lambda: lambda x: ops.sort(x, axis=-1),
    "threshold": lambda: lambda x: ops.where(x > 0.1, x, ops.flip(x, -1)),
    "truth": lambda: lambda x: ops.cast(x > 0.1, "int32"),
    "order and back": lambda: lambda x: 3 * ops.tanh(ops.reshape(ops.cumsum(x, axis=-1), (-1, *x.shape[1:]))),
    "product": lambda: lambda x: ops.einsum("bic,bjc->bij", flat(x), ops.tanh(flat(x))),
}


def flat(x: Any) -> Any:
    return ops.reshape(x, (-1, int(np.prod(x.shape[1:-1])), x.shape[-1]))


def alone(stages: list[Layer], host: Callable[[], Layer], x: Any) -> list[Any]:
    for stage in stages:
        x = stage(x)
    return [host()(x)]


def with_another(stages: list[Layer], host: Callable[[], Layer], x: Any) -> list[Any]:
    for stage in stages:
        x = stage(x)
    return [host()(x), layers.Dense(2)(x)]


def with_outputs(stages: list[Layer], host: Callable[[], Layer], x: Any) -> list[Any]:
    made = []
    for stage in stages:
        x = stage(x)
        made.append(x)
    return [*made, host()(x)]


def with_hosts(stages: list[Layer], host: Callable[[], Layer], x: Any) -> list[Any]:
    made = []
    for stage in stages:
        x = stage(x)
        made += [host()(x), layers.Softmax()(x)]
    return made


def after_host(stages: list[Layer], host: Callable[[], Layer], x: Any) -> list[Any]:
    x = layers.Softmax()(x)
    for stage in stages:
        x = stage(x)
    return [host()(x)]


WAYS = (alone, with_another, with_outputs, with_hosts, after_host)


def shaken(model: Any) -> Any:
    random = np.random.default_rng(1)
    for weight in model.weights:
        drawn = random.normal(size=weight.shape) * 0.4
        weight.assign(np.abs(drawn) + 0.5 if weight.path.endswith(("variance", "gamma")) else drawn)
    return model


def meetings(chip: str) -> dict[Way, list[str]]:
    """Return the steps that a layer meets in each way.

    Averages, of which a node does the most operations, meet every step alone; others every step in some way.
    """
    names = list(HOST)
    every = {way: names[number :: len(WAYS)] for number, way in enumerate(WAYS)}
    return {**every, alone: names} if "average" in chip else every


def sampled(chip: str) -> dict[Way, list[str]]:
    """Return one of these steps for each way, another for the next layer."""
    turn = list(CHIP).index(chip)
    return {way: [names[turn % len(names)]] for way, names in meetings(chip).items()}


@pytest.mark.parametrize("chip", CHIP)
def test_values_are_what_the_model_predicts(chip: str):
    check_values(chip, sampled(chip))


@pytest.mark.battery
@pytest.mark.parametrize("chip", CHIP)
def test_every_value_is_what_the_model_predicts(chip: str):
    check_values(chip, meetings(chip))


def check_values(chip: str, hosts: dict[Way, list[str]]) -> None:
    """Give each step of the host a branch of the model for itself, with an input and layers of its own."""
    inputs, outputs, owners = [], [], []
    for way, names in hosts.items():
        for name in names:
            inputs.append(keras.Input((6, 6, 3)))
            made = way(CHIP[chip](), HOST[name], inputs[-1])
            outputs += made
            owners += [f"{way.__name__}: {name}"] * len(made)
    model = shaken(keras.Model(inputs, outputs))
    network = read(program.of(model, None, mode="infer", tensors=True, batch_size=4))
    random = np.random.default_rng(0)
    given = [random.normal(size=(5, 6, 6, 3)).astype(np.float32) for _ in inputs]
    tensors = evaluate(network, given)
    expected = model.predict_on_batch(given)
    assert any(isinstance(node, HostStep) for node in network.nodes)
    for owner, port, want in zip(owners, network.outputs, expected, strict=True):
        got, want = tensors[port.tensor].reshape(-1, *port.shape), np.asarray(want)
        assert got.shape == want.shape, owner
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4 * np.abs(want).max(), err_msg=owner)
