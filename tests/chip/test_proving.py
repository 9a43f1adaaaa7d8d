"""What was read from a program is run beside it before anything is made of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import anytpu as tpu  # isort: skip
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.chip.graph.nodes import Convolution, Network, Port
from anytpu.chip.network import read
from anytpu.chip.proving import prove
from anytpu.errors import QuantizationError
from anytpu.program import of
from refusals import refusal

X = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)


def predict(weights: Any, x: Any) -> Any:
    return weights, x @ weights


@pytest.fixture(scope="module")
def program() -> Any:
    return of(predict, (np.ones((3, 2), np.float32), np.zeros((8, 3), np.float32)), "infer", True)


def test_a_network_that_was_read_rightly(program: Any):
    prove(program, read(program), [X])
    prove(program, read(program), [X[:1]])


def test_a_network_that_was_not(program: Any):
    network = read(program)
    (node,) = network.nodes
    assert isinstance(node, Convolution)
    wrong = dataclasses.replace(network, name="net", nodes=(dataclasses.replace(node, weights=node.weights * 0.99),))
    assert refusal(QuantizationError, prove, program, wrong, [X]) == (
        f"net was read wrongly: on the examples its output {node.output!r} is off by 0.0257, where the model's largest "
        "is 2.57. This is a fault of anytpu: please report it, with the model. Nothing was compiled."
    )


@pytest.mark.parametrize("dtype", ["int32", "bool"])
def test_integers_and_booleans_are_compared_too(dtype: str):
    def counted(weights: Any, x: Any) -> Any:
        return weights, jnp.round(x * 10).astype(dtype)

    program = of(counted, (np.ones(1, np.float32), np.zeros((8, 3), np.float32)), "infer", True)
    prove(program, read(program), [X])
    with pytest.raises(QuantizationError) as caught:
        prove(program, read(_negated(dtype)), [X])
    assert "was read wrongly: on the examples its output" in str(caught.value)


def _negated(dtype: str) -> Any:
    def negated(weights: Any, x: Any) -> Any:
        made = jnp.round(x * 10)
        return weights, (made == 0 if dtype == "bool" else -made.astype(dtype))

    return of(negated, (np.ones(1, np.float32), np.zeros((8, 3), np.float32)), "infer", True)


def test_a_model_whose_examples_have_places():
    def place(weights: Any, x: Any) -> Any:
        return weights, x * jnp.arange(1.0, 9.0)[:, None]

    program = of(place, (np.ones(1, np.float32), np.zeros((8, 3), np.float32)), "infer", True)
    # What a reader that believes in the numbers of the first row would make of it.
    network = Network("places", (Port("x", (3,)),), (Port("x", (3,)),), {"x": (1, 1, 3)}, {}, ())
    with pytest.raises(QuantizationError) as caught:
        prove(program, network, [X[:1]])
    assert str(caught.value).startswith("places was read wrongly: on the examples its output 'x' is off by ")


def test_examples_in_another_order():
    def mixed(weights: Any, x: Any) -> Any:
        return weights, x - x[:1] * (x[:1, :1] > -0.99)

    program = of(mixed, (np.ones(1, np.float32), np.zeros((8, 3), np.float32)), "infer", True)
    network = Network("mixed", (Port("x", (3,)),), (Port("x", (3,)),), {"x": (1, 1, 3)}, {}, ())
    assert refusal(QuantizationError, prove, program, network, [X]) == (
        "the output 'x' of mixed depends on the position of an example in its batch: in another order it is off by "
        "0.571, where its largest is 1.29. The chip computes each example by itself; remove the operation that mixes "
        "them from the model."
    )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_compared_roughly(dtype: str):
    def rough(weights: Any, x: Any) -> Any:
        return weights, jnp.tanh(x.astype(dtype) @ weights.astype(dtype)).astype(jnp.float32)

    program = of(rough, (np.full((3, 2), 0.3, np.float32), np.zeros((8, 3), np.float32)), "infer", True)
    prove(program, read(program), [X])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_integers_of_half_precision_differ_only_where_they_tie(dtype: str):
    x = np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3)

    def counted(most: float) -> Any:
        def function(weights: Any, x: Any) -> Any:
            y = jnp.tanh(x.astype(dtype) * weights.astype(dtype)) * 40  # many of these nearly tie
            return weights, jnp.round(y + 3 * (x > most)).astype("int32")

        return of(function, (np.full(3, 1.3, np.float32), np.zeros((8, 3), np.float32)), "infer", True)

    prove(counted(2), read(counted(2)), [x])
    with pytest.raises(QuantizationError) as caught:  # a quarter of the integers is off by 3
        prove(counted(2), read(counted(0.5)), [x])
    assert str(caught.value).startswith(
        "function/infer was read wrongly: on the examples its output 'convert' is off by 3, "
    )


def test_a_model_that_computes_with_its_number_of_examples():
    def sized(weights: Any, x: Any) -> Any:
        return x @ weights / x.shape[0]

    with pytest.raises(QuantizationError) as caught:
        tpu.chip.compile(sized, X, state=np.ones((3, 2), np.float32))
    assert str(caught.value).startswith("the output 'dense' of sized depends on how many examples a batch has: with ")
    assert str(caught.value).endswith(
        "The chip computes each example by itself; remove the size of the batch from the model."
    )


def test_a_model_that_only_knows_it():
    def known(weights: Any, x: Any) -> Any:
        return (x @ weights + jnp.float32(x.shape[0])) - jnp.float32(x.shape[0])

    assert tpu.chip.compile(known, X, state=np.ones((3, 2), np.float32)).run(X).shape == (5, 2)


def test_large_integers_are_compared_as_the_floats_that_they_were():
    def scaled(weights: Any, x: Any) -> Any:
        return weights, jnp.round((x @ weights) * 1e6).astype("int32")

    rng = np.random.default_rng(0)
    program = of(scaled, (rng.normal(size=(64, 8)).astype("float32"), np.zeros((8, 64), np.float32)), "infer", True)
    prove(program, read(program), [rng.normal(size=(16, 64)).astype("float32")])


@pytest.mark.parametrize("factor", [2, -3])
def test_integers_that_all_tie_are_compared_as_numbers(factor: int):
    def counted(factor: int) -> Any:
        def function(weights: Any, x: Any) -> Any:
            y = x.astype("bfloat16") * weights["rows"].astype("bfloat16")
            return weights, jnp.round(y.astype("float32") * factor * 1e4).astype("int32")

        # A model may hold a key of random numbers, which is no number.
        state = {"rows": np.full(3, 1.3, np.float32), "key": jax.random.key(0)}
        return of(function, (state, np.zeros((8, 3), np.float32)), "infer", True)

    prove(counted(1), read(counted(1)), [X])
    with pytest.raises(QuantizationError) as caught:
        prove(counted(1), read(counted(factor)), [X])
    assert str(caught.value).startswith("function/infer was read wrongly: on the examples its output 'convert' is off ")
