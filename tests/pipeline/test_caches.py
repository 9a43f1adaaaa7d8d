"""The file of a cache: the same elements in another process, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import DataError, RecordError

Dataset = tpu.pipeline.Dataset
ROW = {
    "image": np.arange(6, dtype=np.uint8).reshape(2, 3),
    "parts": (np.float32(1.5), [True, 2, 0.25, None]),
    "name": "a",
    "file": b"\0x\0",
    "names": np.array(["a", "bc"]),
    "rows": np.array([["a", b"b"], [None, 2]], object),
    "none": np.zeros((0, 2), ">i2"),
    "last": {3: {b"key": np.array(7)}},
}


def unreadable() -> Any:
    raise AssertionError("the file has the elements")
    yield


def test_elements_come_back_from_a_file(tmp_path: Path):
    path = tmp_path / "rows"
    first = list(Dataset.from_generator(lambda: iter([ROW] * 2)).cache(path))
    other = Dataset.from_generator(lambda: iter([ROW] * 2)).cache(path)
    for row in (*first, *other):
        assert row["image"].tolist() == ROW["image"].tolist() and row["image"].dtype == np.uint8
        assert row["parts"][0] == np.float32(1.5) and row["parts"][1] == [True, 2, 0.25, None]
        assert (row["name"], row["file"], list(row["names"])) == ("a", b"\0x\0", ["a", "bc"])
        assert row["rows"].tolist() == [["a", b"b"], [None, 2]]
        assert (row["none"].shape, row["none"].dtype.str, row["last"][3][b"key"].shape) == ((0, 2), ">i2", ())


def test_a_record_of_another_format(tmp_path: Path):
    path = tmp_path / "rows"
    tpu.pipeline.write_records(path, [b"range(3)", b'\1\0\0\0\0\0\0\0{"x"'])
    with pytest.raises(DataError) as caught:
        list(Dataset.range(3).cache(path))
    assert str(caught.value) == (
        f"element 0 of the cache {str(path)!r} cannot be read: Expecting property name enclosed in double quotes: line "
        "1 column 2 (char 1). Delete the file"
    )


def test_a_file_serves_without_its_source(tmp_path: Path):
    path = tmp_path / "rows"

    def numbers() -> Any:
        yield from range(3)

    assert list(Dataset.from_generator(numbers).cache(path)) == [0, 1, 2]
    unreadable.__name__ = "numbers"
    dataset = Dataset.from_generator(unreadable).cache(path)
    walk = iter(dataset)
    assert next(walk) == 0
    assert list(dataset.resume(walk.get_state())) == [1, 2]


def test_cached_arrays_cannot_be_changed():
    dataset = Dataset.from_generator(lambda: iter([np.zeros(2)])).cache()
    for _ in range(2):
        (row,) = dataset
        with pytest.raises(ValueError, match="read-only"):
            row += 1


def test_the_file_of_another_data_set(tmp_path: Path):
    path = tmp_path / "rows"
    list(Dataset.range(3).cache(path))
    with pytest.raises(DataError) as caught:
        list(Dataset.range(4).cache(path))
    assert str(caught.value) == (
        f"{str(path)!r} is the cache of another data set, range(3); this is range(4). Delete the file, or pass "
        "another path"
    )


def test_a_damaged_file(tmp_path: Path):
    path = tmp_path / "rows"
    list(Dataset.range(3).cache(path))
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(RecordError, match="do not match their checksum"):
        list(Dataset.range(3).cache(path))


class Named(dict):
    pass


def nested(levels: int, container: Any) -> Any:
    """Return 1 in so many containers, the outermost a dict with the key "x"."""
    value: Any = 1
    for _ in range(levels - 1):
        value = container(value)
    return {"x": value}


def array_of(value: Any) -> np.ndarray:
    array = np.empty(1, object)
    array[0] = value
    return array


CONTAINERS = [lambda value: {"x": value}, lambda value: (value,), lambda value: [value], array_of]
TOO_DEEP = (
    "a file holds elements of up to 60 levels of dicts, lists and tuples, and x has more: flatten it in map, before "
    "cache"
)
TOO_LONG = "a file holds integers of up to 4,300 digits, and {} has more: convert it in map, before cache"


@pytest.mark.parametrize("container", CONTAINERS)
def test_the_deepest_element_comes_back(tmp_path: Path, container: Any):
    element = nested(60, container)
    for _ in range(2):
        assert list(Dataset.from_generator(lambda: iter([element])).cache(tmp_path / "x")) == [element]


def test_the_longest_integer_comes_back(tmp_path: Path):
    element = [10**4300 - 1, 1 - 10**4300]
    for _ in range(2):
        assert list(Dataset.from_generator(lambda: iter([element])).cache(tmp_path / "x")) == [element]


@pytest.mark.parametrize(
    ("element", "message"),
    [
        (
            {"x": np.zeros(2, ml_dtypes.bfloat16)},
            "a file holds numbers of up to 64 bits and text, and x is bfloat16: convert it in map, before cache",
        ),
        (
            (np.zeros(2, np.complex128),),
            "a file holds numbers of up to 64 bits and text, and 0 is complex128: convert it in map, before cache",
        ),
        (
            {(1, 2): 3},
            "a file holds dicts with keys of type str or int, not (1, 2): convert it in map, before cache",
        ),
        (
            Named(x=1),
            "a file holds dicts, lists and tuples, not Named: convert it in map, before cache",
        ),
        *((nested(levels, container), TOO_DEEP) for levels in (61, 500) for container in CONTAINERS),
        ({"x": [1, -(10**4300)]}, TOO_LONG.format("x.1")),
        ({"x": {10**4300: 1}}, TOO_LONG.format("x")),
    ],
)
def test_elements_that_a_file_cannot_hold(tmp_path: Path, element: Any, message: str):
    with pytest.raises(DataError) as caught:
        list(Dataset.from_generator(lambda: iter([element])).cache(tmp_path / "x"))
    assert str(caught.value) == message
    assert list(tmp_path.iterdir()) == []


def test_a_position_does_not_depend_on_the_place_of_the_file(tmp_path: Path):
    walk = iter(Dataset.range(4).cache(tmp_path / "one").repeat(2))
    seen = [int(next(walk)) for _ in range(3)]
    rest = Dataset.range(4).cache(tmp_path / "two").repeat(2).resume(walk.get_state())
    assert [*seen, *map(int, rest)] == [0, 1, 2, 3] * 2
