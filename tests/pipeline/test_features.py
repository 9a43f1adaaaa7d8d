from __future__ import annotations

import numpy as np
import pytest

from anytpu.errors import SettingError
from anytpu.pipeline import FixedLenFeature, VarLenFeature


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: FixedLenFeature((-1,), "int64"),
            "shape must be integers of at least 0, such as () or (28, 28), not (-1,)",
        ),
        (
            lambda: FixedLenFeature((), "complex64"),
            'dtype must be bytes, or a numeric type such as "int64" or "float32", not \'complex64\'',
        ),
        (
            lambda: VarLenFeature("nothing"),
            'dtype must be bytes, or a numeric type such as "int64" or "float32", not \'nothing\'',
        ),
        (
            lambda: FixedLenFeature((2,), "int64", default_value=[1, 2, 3]),
            "default_value must be int64, a scalar or of shape (2,), not [1, 2, 3]",
        ),
        (
            lambda: FixedLenFeature((), "uint8", default_value=256),
            "default_value must be uint8, a scalar or of shape (), not 256",
        ),
        (
            lambda: FixedLenFeature((), bytes, default_value=1),
            "default_value must be bytes, a scalar or of shape (), not 1",
        ),
        (
            lambda: VarLenFeature("int64", length=-2),
            "length must be an integer of at least 0, or None, not -2",
        ),
    ],
)
def test_arguments(make, message):
    with pytest.raises(SettingError) as caught:
        make()
    assert str(caught.value) == message


def test_shape_and_type_are_as_one_would_write_them():
    assert FixedLenFeature([2, 3], np.float32) == FixedLenFeature((2, 3), "float32")
    assert FixedLenFeature(4, int) == FixedLenFeature((4,), "int64")
    assert {VarLenFeature(dtype).dtype for dtype in (bytes, str, "string", "S")} == {bytes}


def test_a_default_may_be_text():
    assert FixedLenFeature((), bytes, default_value="Süß").missing("x") == "Süß".encode()


def test_what_an_example_calls_them():
    kinds = [VarLenFeature(dtype).kind for dtype in (bytes, "float16", "int8", "bool", "uint64")]
    assert kinds == ["bytes_list", "float_list", "int64_list", "int64_list", "int64_list"]
