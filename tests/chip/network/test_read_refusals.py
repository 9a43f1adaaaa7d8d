"""What cannot be read, and what is said about it, word for word."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu import program
from anytpu.chip.network import read
from anytpu.errors import QuantizationError
from anytpu.program import REPLICATED, ROWS, Program
from refusals import refusal

WEIGHTS = {"w": np.ones((4, 3), np.float32)}


def made(function: Callable[[Any, Any], Any], batch: Any = None, state: Any = None) -> Program:
    state = WEIGHTS if state is None else state
    batch = np.ones((8, 4), np.float32) if batch is None else batch

    def step(state: Any, batch: Any) -> Any:
        return state, function(state, batch)

    return dataclasses.replace(program.of(step, (state, batch), tensors=True), name="mine", mode="infer")


def test_training():
    assert refusal(
        QuantizationError, read, dataclasses.replace(made(lambda state, x: x @ state["w"]), mode="train")
    ) == (
        "The program 'mine' trains, and the chip only infers. Make it with mode='infer': anytpu.program.of(model, "
        "mode='infer', tensors=True, batch_size=8)."
    )


def test_no_values():
    assert refusal(
        QuantizationError, read, dataclasses.replace(made(lambda state, x: x @ state["w"]), tensors=None)
    ) == (
        "The program 'mine' does not carry the values of its weights, which become part of what the chip runs. Make it "
        "with tensors=True: anytpu.program.of(model, mode='infer', tensors=True, batch_size=8)."
    )


def test_per_replica():
    assert refusal(QuantizationError, read, dataclasses.replace(made(lambda state, x: x @ state["w"]), replicas=8)) == (
        "The program 'mine' is written for each of 8 replicas, and the chip is one. Make it of the model itself: "
        "anytpu.program.of(model, mode='infer', tensors=True, batch_size=8)."
    )


def test_an_input_that_all_examples_share():
    given = made(lambda state, x: x["a"] @ state["w"] + x["b"], {"a": np.ones((8, 4)), "b": np.ones((8, 3))})
    assert refusal(QuantizationError, read, dataclasses.replace(given, layout={"a": ROWS, "b": REPLICATED})) == (
        "The input 'b' of 'mine' is not split over the batch, and the chip computes each example by itself. Hand it in "
        "with the state, as a weight, or give each example its own."
    )


MIXES = (
    " The chip computes each example by itself: give each its own result, with axis 0 of inputs and outputs the batch."
)


def moved(x: Any) -> Any:
    """Multiply the rows of examples, one example after another, with the first rows of all, then the second ones."""
    rows = x.reshape(8, 2, 2)
    return jnp.einsum("ri,rj->rij", rows.reshape(16, 2), jnp.swapaxes(rows, 0, 1).reshape(16, 2)).reshape(8, 2, 2, 2)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda _, x: x.mean(0) + x, "reduces over the batch (a sum, a mean or a maximum of all examples)."),
        (lambda _, x: x @ x.T, "multiplies each example with all others."),
        (lambda _, x: x[:4], "takes some examples of the batch."),
        (lambda _, x: x[::-1], "reverses the batch."),
        (lambda _, x: jnp.concatenate([x, x]), "puts examples one after another."),
        (lambda _, x: jnp.pad(x, ((1, 0), (0, 0))), "adds examples to the batch."),
        (lambda _, x: x + jnp.arange(8.0)[:, None], "uses a constant that differs from example to example."),
        (
            lambda _, x: jnp.concatenate([x, jnp.arange(8.0)[:, None]], 1),
            "uses a constant that differs from example to example.",
        ),
        (
            lambda _, x: jnp.einsum("bi,bij->bj", x, jnp.arange(64.0).reshape(8, 4, 2)),
            "uses a constant that differs from example to example.",
        ),
        (
            lambda _, x: jnp.take_along_axis(jnp.arange(32.0).reshape(8, 4), jnp.argsort(x), 1),
            "uses a constant that differs from example to example.",
        ),
        (lambda _, x: moved(x), "multiplies an example with others."),
        (lambda _, x: x.reshape(4, 8) * 2, "reshapes an array so that rows of several examples come together."),
        (lambda _, x: jnp.sum(jnp.ones((3, 8)) @ x, 0), "sums products over the batch."),
        (lambda _, x: jnp.sort(x, 0), "so does its operation 'sort'."),
        (lambda _, x: jnp.cumsum(x, 0), "pools over the batch."),
        (lambda _, x: x[jnp.array([3, 1])], "picks some examples of the batch."),
    ],
)
def test_examples_that_are_mixed(function: Any, said: str):
    def named(state: Any, x: Any) -> Any:
        with jax.named_scope("bad"):
            return function(state, x)

    with pytest.raises(QuantizationError) as caught:
        read(made(named))
    it = "" if said.startswith("so") else "it "
    assert str(caught.value) == f"The layer 'bad' mixes the examples of a batch: {it}{said}{MIXES}"


def test_an_output_whose_batch_is_elsewhere():
    assert refusal(QuantizationError, read, made(lambda state, x: (x @ state["w"]).T)) == (
        "Output 0 has the batch along axis 1, or merged with other axes, in its shape (3, 8): return it with the batch "
        "as axis 0."
    )


def test_a_layer_without_numbers():
    assert refusal(QuantizationError, read, made(lambda state, x: x @ state["w"][:, :0])) == (
        "The layer 'dot_general' makes no numbers, an array of the shape (8, 0). Leave it out."
    )


def test_a_loop_of_unknown_length():
    def function(state: Any, x: Any) -> Any:
        with jax.named_scope("loop"):
            return jax.lax.while_loop(lambda carried: carried.sum() < 100, lambda carried: carried * 2, x)

    assert refusal(QuantizationError, read, made(function)) == (
        "The layer 'loop' has a loop whose number of rounds depends on its inputs, and a program for the chip has all "
        "of its steps written out. Give it a count that is known beforehand: jax.lax.scan, or jax.lax.fori_loop with "
        "numbers for bounds, over the longest input."
    )


def test_a_loop_that_is_too_long():
    assert refusal(
        QuantizationError, read, made(lambda _, x: x * jax.lax.fori_loop(0, 10**6, lambda _, y: y, 1.0))
    ) == (
        "The model has a loop of more than 10,000 rounds, and each would be written out. Put the loop outside of the "
        "model."
    )


def test_a_branch():
    def function(_: Any, x: Any) -> Any:
        return jax.lax.cond(x.sum() > 0, lambda y: y, lambda y: -y, x)

    assert refusal(QuantizationError, read, made(function)) == (
        "The model chooses between branches by a number that depends on its inputs, and a program for the chip has no "
        "branches: compute both and choose between the results with jax.numpy.where."
    )


def test_complex_numbers():
    assert refusal(QuantizationError, read, made(lambda _, x: jnp.abs(jnp.fft.fft(x)))) == (
        "The layer 'convert' computes with complex64, and the chip's numbers come from float32. Make the model with "
        "float32."
    )
    assert refusal(QuantizationError, read, made(lambda _, x: jnp.abs(x), np.ones((8, 4), np.complex64))) == (
        "The input 'batch' of 'mine' is complex64, and the chip's numbers come from float32. Cast it to float32 before "
        "it goes in."
    )


def test_nothing_to_compute():
    assert (
        refusal(QuantizationError, read, made(lambda state, x: (x, state["w"])))
        == "Output 1 of 'mine' does not depend on the inputs: leave it out of what is returned."
    )
    assert (
        refusal(QuantizationError, read, made(lambda state, _: state["w"], ()))
        == "The program 'mine' takes no inputs beside its state: hand them in as batch."
    )
    assert (
        refusal(QuantizationError, read, made(lambda *_: ()))
        == "The program 'mine' returns nothing beside its state: return the result."
    )
