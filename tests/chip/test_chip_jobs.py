"""What is handed in to be compiled, and what is said of what cannot be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anytpu as tpu  # isort: skip
import jax
import keras
import numpy as np
import pytest
from keras import layers

from anytpu.errors import AnyTPUError, ProgramError, QuantizationError, SettingError

X = np.random.default_rng(0).normal(size=(30, 6)).astype(np.float32)
STATE = {"w": np.eye(6, 3, dtype=np.float32)}
JOBS = (
    "give a Keras model, a PyTorch module, a JAX function and state=weights, a Program, or the path of a '.anytpu' or "
    "a quantized '.onnx' or '.mlir' file"
)


def mine(weights: Any, x: Any) -> Any:
    return x @ weights["w"]


def refusal(kind: type[AnyTPUError], job: Any, calibration: Any = X, state: Any = None) -> str:
    with pytest.raises(kind) as caught:
        tpu.chip.compile(job, calibration, state=state, batch=4)
    return str(caught.value)


@pytest.mark.parametrize("function", [mine, jax.jit(mine)], ids=["plain", "jit"])
def test_a_function_without_weights(function: Any):
    assert refusal(ProgramError, function) == (
        "The weights of the function 'mine' are missing: tpu.chip.compile(function, calibration, state=weights), where "
        "function(weights, x) returns the outputs; state={} for one without weights."
    )


def test_a_function_that_fails_on_the_examples():
    assert refusal(ProgramError, mine, X[:, :4], STATE).startswith(
        "The function 'mine' cannot be called with examples (rows, 4): dot_general requires contracting dimensions"
    )
    assert refusal(ProgramError, mine, {"a": X, "b": [X, X]}, STATE).startswith(
        "The function 'mine' cannot be called with examples {'a': (rows, 6), 'b': (rows, 30, 6)}: "
    )


def test_a_file_of_keras(tmp_path: Path):
    path = tmp_path / "mine.keras"
    assert refusal(ProgramError, path) == refusal(ProgramError, str(path))
    assert refusal(ProgramError, path) == (
        f"{str(path)!r} is a file of Keras: hand in the model itself, keras.models.load_model({str(path)!r})."
    )


def test_a_file_of_stablehlo():
    assert refusal(ProgramError, "mine.mlir") == (
        "'mine.mlir' is a StableHLO file, which holds no values of weights, and the chip's program has them: hand in "
        "the function that it was made of, with state=weights, or a program file of it (.anytpu)."
    )


def test_a_function_that_multiplies_integers():
    def mine(weights: Any, x: Any) -> Any:
        taken = jax.numpy.clip(jax.numpy.round(x * 20), -127, 127).astype("int8")
        dims = (((1,), (0,)), ((), ()))
        return jax.lax.dot_general(taken, weights, dims, preferred_element_type="int32").astype("float32") * 0.01

    assert refusal(QuantizationError, mine, state=np.ones((6, 3), np.int8)) == (
        "Nothing of 'mine' can be computed on the chip: 'dot_general' (it multiplies integers, which the chip takes "
        "from a quantized ONNX file, or from StableHLO with !quant types; in JAX, write the model in floats, and "
        "calibration quantizes it)."
    )


@pytest.mark.filterwarnings("ignore:__array__ implementation")  # Keras's quantize
def test_a_model_that_keras_has_quantized():
    given = keras.Input((6,), dtype="int32")
    model = keras.Model(
        given, layers.Dense(3, name="mine")(layers.Flatten()(layers.Embedding(4, 2)(given))), name="all"
    )
    for layer in model.layers[1::2]:  # Flatten has no weights
        layer.quantize("int8")
    assert refusal(QuantizationError, model, np.ones((30, 6), np.int32)) == (
        "The layer 'mine' of 'all' was quantized by Keras (int8), which computes the scale of each row when it runs; "
        "the chip's scales are fixed. Hand in the model as it was before quantize(...): tpu.chip.compile quantizes it, "
        "with calibration=x_train[:256]."
    )


def test_a_layer_in_place_of_a_model():
    assert refusal(ProgramError, layers.Dense(3, name="mine")) == (
        "The Keras layer 'mine' is not a model: hand in one with the shape of its inputs, "
        "keras.Sequential([keras.Input(shape), layer])."
    )


def test_a_model_that_jax_has_for_no_cpu():
    def product(weights: Any, x: Any) -> Any:
        return jax.lax.dot(x.astype("float16"), weights, precision=jax.lax.DotAlgorithmPreset.F16_F16_F32)

    assert refusal(QuantizationError, product, state=np.eye(6, 3, dtype=np.float16)) == (
        "product cannot be computed on the host, which compares the chip's network with it (The precision "
        "'F16_F16_F32' is not supported by dot_general on CPU). Make the model with float32; in mixed_float16, JAX has "
        "some products (Keras's attention) for no CPU."
    )


def test_what_nobody_can_compile():
    assert refusal(ProgramError, 3) == f"3 cannot be compiled for the chip: {JOBS}."
    assert refusal(ProgramError, "model.txt") == f"'model.txt' cannot be compiled for the chip: {JOBS}."
    assert refusal(ProgramError, 3, state=STATE) == f"3 cannot be compiled for the chip: {JOBS}."


def test_a_state_for_what_has_its_own():
    model = keras.Sequential([keras.Input((6,)), layers.Dense(2)], name="mine")
    assert refusal(SettingError, model, state={"w": 1}) == (
        "state is for the weights of a JAX function, and the Keras model 'mine' has its own: leave state out."
    )
    assert refusal(SettingError, "mine.anytpu", state={}) == (
        "state is for the weights of a JAX function, and the program 'mine.anytpu' has its own: leave state out."
    )


def test_a_model_without_layers():
    assert refusal(ProgramError, keras.Sequential(name="mine")) == (
        "The Keras model 'mine' cannot be called with examples (rows, 6): Sequential model mine cannot be built "
        "because it has no layers. Call `model.add(layer)`."
    )
