"""Inputs and outputs that do not go together, and places of tensors that make no sense: refused, whole texts."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest

from anytpu.chip.assembly import assemble
from anytpu.chip.checking import check
from anytpu.chip.graph.nodes import Quantization
from anytpu.chip.image.image import Binding, Image, Resident, Tag
from anytpu.errors import ChipError
from chip_samples import binding, dense_image, service_image
from refusals import refusal

TOGETHER = {
    "two inputs in one place": (
        '.input "a", [1, 1, 3], 0, 1\n.input "b", [2, 1, 3], 32, 1\n.input "c", [1, 1, 3], 64, 1\nhalt',
        "The inputs 'b' and 'c' overlap at bytes 64 to 95 of the host's buffer. Move one of them.",
    ),
    "an input within another": (
        '.input "a", [9, 1, 3], 0, 1\n.input "b", [1, 1, 3], 64, 1\nhalt',
        "The inputs 'a' and 'b' overlap at bytes 64 to 95 of the host's buffer. Move one of them.",
    ),
    "two inputs of one name": (
        '.input "a", [1, 1, 3], 0, 1\n.input "a", [1, 1, 3], 32, 1\nhalt',
        "Two inputs have the name 'a'. Give each a name of its own.",
    ),
    "two outputs of one name": (
        '.input "a", [2, 1, 3], 0, 1\n.output "b", [1, 1, 3], 0, 1\n.output "b", [1, 1, 3], 32, 1\nhalt',
        "Two outputs have the name 'b'. Give each a name of its own.",
    ),
    "an output that is an input of other numbers": (
        '.input "a", [1, 1, 3], 0, 1\n.output "a", [1, 1, 3], 0, 2\nhalt',
        "An input and an output have the name 'a', and another shape or other numbers.",
    ),
}


@pytest.mark.parametrize("name", TOGETHER)
def test_what_does_not_go_together(name: str):
    text, expected = TOGETHER[name]
    assert refusal(ChipError, check, assemble(".host_bytes 320\n" + text)) == expected


def test_a_step_of_the_host_has_its_tensors_as_they_are():
    image = service_image()
    other = dataclasses.replace(image.inputs[0], shape=(2, 1, 8))
    service = dataclasses.replace(image.services[0], inputs=(other,))
    expected = "Step 0 of the host takes or makes 'x' as another shape or other numbers."
    assert refusal(ChipError, check, dataclasses.replace(image, services=(service,))) == expected


def test_what_does_go_together():
    inputs = '.input "a", [1, 1, 3], 32, 1\n.input "b", [1, 1, 3], 0, 1\n'
    check(assemble(f'.host_bytes 64\n{inputs}.output "a", [1, 1, 3], 0, 1\nhalt'))


PLACES: list[tuple[dict[str, Any], str]] = [
    ({"tensor": 3}, "The location of 3 is invalid: a tensor has a name, not 3."),
    *(
        (
            {"shape": shape},
            "The location of 'x' is invalid: a shape is [height, width, channels] of one example, each above 0, not "
            f"{listed}.",
        )
        for shape, listed in [((1, 8), [1, 8]), ((1, 0, 8), [1, 0, 8]), ((1, 1.0, 8), [1, 1.0, 8]), (8, 8)]
    ),
    *(
        (
            {"host_address": address},
            f"The location of 'x' is invalid: host_address must be 0 or a positive multiple of 32, not {address!r}.",
        )
        for address in (-64, 8, 32.0, True, None)
    ),
    *(
        (
            {"lanes": lanes},
            "The location of 'x' is invalid: lanes are those of each plane: they must be above 0 and add up to 8, "
            f"unlike {listed}.",
        )
        for lanes, listed in [((), []), ((2,), [2]), ((0, 8), [0, 8]), ((4, 4.0), [4, 4.0]), (8, 8)]
    ),
    ({"quantization": 0.5}, "The quantization of 'x' must be a Quantization, not 0.5."),
]


@pytest.mark.parametrize(("changes", "message"), PLACES)
def test_a_place_that_makes_no_sense(changes: dict[str, Any], message: str):
    assert refusal(ChipError, dataclasses.replace, binding("x", 0), **changes) == message


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        *(
            ((scale,), f"a scale is a float32 number above 0, not {scale!r}.")
            for scale in (0.0, -1.0, math.nan, math.inf, 1e-60, 1e39, 10**400, True, "1", None)
        ),
        *(((1.0, 0, bits), f"bits must be 8 or 16, not {bits!r}.") for bits in (4, 24, 8.5, True, "8", None)),
        *(
            ((1.0, zero, 8), f"a zero point of 8 bits is an integer from -128 to 127, not {zero!r}.")
            for zero in (-129, 128, 0.0, math.nan, False, "0")
        ),
        ((1.0, 2**15, 16), "a zero point of 16 bits is an integer from -32768 to 32767, not 32768."),
    ],
)
def test_a_quantization_that_makes_no_sense(numbers: tuple[Any, ...], message: str):
    assert refusal(ChipError, Quantization, *numbers) == message


def test_the_ends_of_a_quantization():
    for scale in (2.0**-149, 3.4028234663852886e38, np.float32(0.1), 1):
        assert np.isfinite(Quantization(scale, -32768, 16).dequantize(np.int16([-32768]))).all()
    assert Quantization(1.0, 32767, 16).high == Quantization(1.0, -128).high + 32640


IMAGES: list[tuple[dict[str, Any], str]] = [
    ({"name": 5}, "The name of a program must be a str, not 5."),
    *(
        ({"batch": batch}, f"The batch of 'dense' must be an integer from 1 to 4294967295, not {batch!r}.")
        for batch in (0, -1, "a", 2.5, True, None, 2**32)
    ),
    *(
        (
            {"host_bytes": size},
            f"The size of the host's buffer of 'dense' must be an integer from 0 to 1099511627776, not {size!r}.",
        )
        for size in (-1, 2**40 + 1, 0.5)
    ),
    ({"weights": b"ab"}, "The weights of 'dense' must be a ndarray, not b'ab'."),
    (
        {"weights": np.zeros((2, 3), np.int8)},
        "The weights of 'dense' must be bytes, a vector of uint8, not int8 (2, 3).",
    ),
    ({"design": None}, "The chip of 'dense' must be a Design, not None."),
]


@pytest.mark.parametrize(("changes", "message"), IMAGES)
def test_an_image_that_makes_no_sense(changes: dict[str, Any], message: str):
    assert refusal(ChipError, dataclasses.replace, dense_image(), **changes) == message


def test_parts_and_stretches_that_make_no_sense():
    for make, message in (
        (lambda: Tag(3), "The name of a part of a program must be a str, not 3."),  # type: ignore[arg-type]
        (lambda: Tag("a", note=None), "The note of a part of a program must be a str, not None."),  # type: ignore[arg-type]
        (
            lambda: Tag("a", macs=-1),
            "The multiply-adds of part 'a' must be an integer from 0 to 9223372036854775807, not -1.",
        ),
        (lambda: Resident(1, 0, 1, 0, 1), "The tensor of a stretch of the Unified Buffer must be a str, not 1."),  # type: ignore[arg-type]
        (
            lambda: Resident("x", 0, 1, 0, 1.5),  # type: ignore[arg-type]
            "last of 'x' in the Unified Buffer must be an integer from 0 to 9223372036854775807, not 1.5.",
        ),
    ):
        assert refusal(ChipError, make) == message


def test_numbers_of_numpy_are_as_good():
    place = Binding("x", (np.int64(1), 1, 8), Quantization(np.float32(0.5), np.int8(3)), np.int64(32), (np.int32(8),))
    assert Image("a", (), np.zeros(0, np.uint8), np.int64(4), np.int64(160), (place,)).inputs[0].total_bytes(4) == 128
