"""The user's arrays as tensors of the chip, and what cannot be taken."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from anytpu.chip import ports
from anytpu.chip.graph.nodes import Port, Quantization
from anytpu.errors import ChipError

PICTURE, WORDS = Port("x", (4, 3)), Port("w", (5,), "int32")


def refusal(given: list[Port], *arrays: Any) -> str:
    with pytest.raises(ChipError) as caught:
        ports.check_arrays("net", given, [np.asarray(one) for one in arrays])
    return str(caught.value)


def test_one_array_a_list_or_a_dictionary():
    a, b = np.zeros(2), np.ones(2)
    assert [one.tolist() for one in ports.arrays_of("net", [PICTURE], a)] == [[0, 0]]
    assert [one.tolist() for one in ports.arrays_of("net", [PICTURE, WORDS], (a, b))] == [[0, 0], [1, 1]]
    # By name: the order of the inputs is neither that of the dictionary nor that of the alphabet.
    assert [one.tolist() for one in ports.arrays_of("net", [PICTURE, WORDS], {"w": b, "x": a})] == [[0, 0], [1, 1]]
    with pytest.raises(ChipError) as caught:
        ports.arrays_of("net", [PICTURE, WORDS], {"x": a, "y": b})
    assert str(caught.value) == "the inputs of net are 'x', 'w', and those given are 'x', 'y'."


def test_rows_are_counted():
    assert ports.check_arrays("net", [PICTURE, WORDS], [np.zeros((7, 4, 3)), np.zeros((7, 5), int)]) == 7
    assert ports.check_arrays("net", [PICTURE], [np.zeros((0, 4, 3), np.uint8)]) == 0


def test_another_number_of_inputs():
    assert refusal([PICTURE], np.zeros((2, 4, 3)), np.zeros(2)) == (
        "net takes one input, not 2: 'x' (rows, 4, 3) float32."
    )
    assert refusal([PICTURE, WORDS], np.zeros((2, 4, 3))) == (
        "net takes 2 inputs, not 1: 'x' (rows, 4, 3) float32, 'w' (rows, 5) int32."
    )


def test_another_shape():
    assert refusal([PICTURE], np.zeros((4, 3))) == "the input of net must have the shape (rows, 4, 3), not (4, 3)."
    assert refusal([PICTURE, WORDS], np.zeros((2, 4, 3)), np.zeros((2, 6), int)) == (
        "input 1 of net must have the shape (rows, 5), not (2, 6)."
    )


def test_another_kind_of_numbers():
    assert refusal([PICTURE], np.full((2, 4, 3), "a")) == "the input of net must hold numbers (float32), not <U1."
    assert refusal([WORDS], np.zeros((2, 5))) == "the input of net must hold integers (int32), not float64."


def test_whole_numbers_that_would_wrap():
    assert refusal([WORDS], np.full((2, 5), 2**32 + 5)) == (
        "the input of net must hold numbers from -2147483648 to 2147483647 (int32), not from 4294967301 to 4294967301."
    )
    assert ports.check_arrays("net", [WORDS], [np.full((2, 5), 2**31 - 1)]) == 2


def test_a_nan_has_no_whole_number():
    x = np.zeros((3, 4, 3), np.float32)
    x[1, 2, 0] = np.nan
    assert refusal([PICTURE], x) == (
        "the input of net has a NaN in row 1, which no integer represents; np.nan_to_num(x) puts 0 in its place."
    )


def test_unequal_rows():
    assert refusal([PICTURE, WORDS], np.zeros((2, 4, 3)), np.zeros((3, 5), int)) == (
        "the inputs of net must have as many rows each, not 2, 3."
    )


def test_there_and_back():
    quantizations = {"x": Quantization(0.5, 3)}
    x = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    tensor = ports.tensor_of(PICTURE, x, {"x": (1, 4, 3)}, quantizations)
    assert tensor.shape == (2, 1, 4, 3) and tensor.dtype == np.int8 and tensor[0, 0, 0, 1] == 5
    assert (ports.array_of(PICTURE, tensor, quantizations) == x).all()
    words = ports.tensor_of(WORDS, np.ones((2, 5), np.int64), {"w": (1, 1, 5)}, quantizations)
    assert words.dtype == np.int32 and words.shape == (2, 1, 1, 5)
