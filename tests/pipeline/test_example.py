from __future__ import annotations

import functools
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anytpu.errors import RecordError
from anytpu.pipeline import (
    Dataset,
    FixedLenFeature,
    VarLenFeature,
    encode_example,
    encode_sequence_example,
    parse_example,
    parse_examples,
    parse_sequence_example,
    records,
)
from anytpu.pipeline.record import Origin, Record
from error_texts import error_text

GOLDEN = Path(__file__).parent / "golden"
FACTS = json.loads((GOLDEN / "golden.json").read_text())
TYPES = {
    "bytes": bytes,
    **dict.fromkeys(("floats", "no_floats"), "float32"),
    **dict.fromkeys(("integers", "one", "no_integers", "no_kind", "absent"), "int64"),
}
INT64 = st.integers(-(2**63), 2**63 - 1)
FLOAT32 = st.floats(width=32, allow_nan=False)


def golden() -> list[bytes]:
    return list(records(GOLDEN / "examples.tfrecord"))


error_of = functools.partial(error_text, kind=RecordError)


def parsed(spec, **features):
    return parse_example(encode_example(features), spec)


@pytest.mark.parametrize("number", [0, 1], ids=["packed", "not packed"])
def test_what_tensorflow_wrote(number):
    features = parse_example(golden()[number], {name: VarLenFeature(dtype) for name, dtype in TYPES.items()})
    found = {
        name: [value.hex() if isinstance(value, bytes) else value for value in array.tolist()]
        for name, array in features.items()
    }
    assert found == FACTS["parsed"][number]
    assert [str(array.dtype) for array in features.values()] == ["object", "float32", "float32", *["int64"] * 5]


def test_a_sequence_that_tensorflow_wrote():
    step = {"even": FixedLenFeature((2,), "int64"), "uneven": VarLenFeature("int64"), "none": VarLenFeature("int64")}
    context, steps = parse_sequence_example(golden()[2], {"label": FixedLenFeature((), "int64")}, step)
    assert context == {"label": 3}
    assert steps["even"].tolist() == [[1, 2], [3, 4]]
    assert [values.tolist() for values in steps["uneven"]] == [[1], [], [5, 6]]
    assert (steps["none"].shape, steps["none"].dtype) == ((0, 0), np.int64)
    padded = {"uneven": VarLenFeature("int64", length=2)}
    assert parse_sequence_example(golden()[2], {}, padded)[1]["uneven"].tolist() == [[1, 0], [0, 0], [5, 6]]


@given(
    floats=st.lists(FLOAT32, min_size=1, max_size=120),
    integers=st.lists(INT64, min_size=1, max_size=120),
    contents=st.lists(st.binary(max_size=20), min_size=1, max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_round_trip(floats, integers, contents):
    features = parsed(
        {"f": VarLenFeature("float32"), "i": VarLenFeature("int64"), "b": FixedLenFeature((len(contents),), bytes)},
        f=floats,
        i=np.array(integers),
        b=contents,
    )
    assert features["f"].tolist() == floats
    assert features["i"].tolist() == integers
    assert features["b"].tolist() == contents


@given(steps=st.lists(st.lists(INT64, min_size=2, max_size=2), min_size=1, max_size=5), text=st.text(max_size=9))
@settings(max_examples=30, deadline=None)
def test_round_trip_of_a_sequence(steps, text):
    message = encode_sequence_example({"text": text}, {"steps": steps})
    context, found = parse_sequence_example(
        message, {"text": FixedLenFeature((), "string")}, {"steps": FixedLenFeature((2,), "int64")}
    )
    assert context == {"text": text.encode()}
    assert found["steps"].tolist() == steps


@pytest.mark.parametrize(
    ("value", "spec", "expected"),
    [
        (True, FixedLenFeature((), "bool"), True),
        ([1, 0], FixedLenFeature((2,), "bool"), [True, False]),
        (np.uint8(255), FixedLenFeature((), "uint8"), 255),
        ([1, 2.5], VarLenFeature("float64"), [1.0, 2.5]),
        (np.arange(4.0).reshape(2, 2), FixedLenFeature((2, 2), "float32"), [[0, 1], [2, 3]]),
        (np.zeros(0, "int32"), VarLenFeature("int64", length=2, padding=-1), [-1, -1]),
        ("Süß", FixedLenFeature((), "string"), "Süß".encode()),
        (bytearray(b"ab"), FixedLenFeature((), bytes), b"ab"),
        (np.array(["a", "bc"]), VarLenFeature(bytes, length=3), [b"a", b"bc", b""]),
        (np.array([b"a"], object), FixedLenFeature((1,), bytes), [b"a"]),
        ((2**63 - 1, -(2**63)), VarLenFeature("int64"), [2**63 - 1, -(2**63)]),
        (np.uint64(7), FixedLenFeature((), "uint64"), 7),
        (float("inf"), FixedLenFeature((), "float32"), float("inf")),
    ],
)
def test_values(value, spec, expected):
    found = parsed({"x": spec}, x=value)["x"]
    assert (found.tolist() if isinstance(found, np.ndarray) else found) == expected
    if spec.dtype is not bytes:
        assert found.dtype == spec.dtype


@pytest.mark.parametrize("nothing", [None, [], (), [[]], [[], []]])
def test_a_feature_without_a_kind_is_missing(nothing):
    spec = {
        "x": FixedLenFeature((2,), "int64", default_value=7),
        "y": FixedLenFeature((), bytes, b"none"),
        "z": VarLenFeature("float32"),
    }
    found = parsed(spec, x=nothing)
    assert (found["x"].tolist(), found["y"], found["z"].tolist()) == ([7, 7], b"none", [])
    assert found["x"].flags.writeable


def test_the_same_dict_makes_the_same_bytes():
    features = {f"feature {i}": i for i in range(50)}
    assert encode_example(features) == encode_example(dict(reversed(features.items())))


def test_several_at_once():
    messages = [encode_example({"x": [i, i + 1], "name": f"{i}"}) for i in range(3)]
    found = parse_examples(messages, {"x": FixedLenFeature((2,), "int32"), "name": FixedLenFeature((), bytes)})
    assert found["x"].tolist() == [[0, 1], [1, 2], [2, 3]]
    assert (found["x"].dtype, found["name"].dtype) == ("int32", object)
    assert found["name"].tolist() == [b"0", b"1", b"2"]


def test_several_of_different_lengths():
    messages = [encode_example({"x": list(range(n))}) for n in (2, 3)]
    assert error_of(parse_examples, messages, {"x": VarLenFeature("int64")}) == (
        "feature 'x' has 2 and 3 values in one batch; VarLenFeature(length=...) pads them"
    )
    assert error_of(parse_examples, [], {}) == "records must contain at least one record, not []"


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (FixedLenFeature((), "int64"), "feature 'y' is missing; if that is allowed, give it a default_value"),
        (FixedLenFeature((), "float32"), "feature 'x' holds integers, but the specification says float32"),
        (FixedLenFeature((), bytes), "feature 'x' holds integers, but the specification says bytes"),
        (FixedLenFeature((), "int64"), "feature 'x' must have 1 value for its shape (), not 3"),
        (FixedLenFeature((2, 2), "int64"), "feature 'x' must have 4 values for its shape (2, 2), not 3"),
        (FixedLenFeature((3,), "uint8"), "feature 'x' has the value 300, which uint8 cannot hold"),
        (FixedLenFeature((3,), "bool"), "feature 'x' has the value 300, which bool cannot hold"),
        (VarLenFeature("int64", length=2), "feature 'x' must have at most 2 values, not 3"),
    ],
)
def test_what_does_not_fit(spec, message):
    name = message.split("'")[1]
    content = encode_example({"x": [1, 300, 2]})
    assert error_of(parse_example, content, {name: spec}) == message
    record = Record.at(content, Origin("train.tfrecord", 4, 567))
    assert error_of(parse_example, record, {name: spec}) == f"train.tfrecord, record 4 at byte 567: {message}"


def test_what_is_no_example():
    record = Record.at(b"\xff\xff", Origin("a", 0, 0))
    assert error_of(parse_example, record, {}).startswith("a, record 0 at byte 0: these 2 bytes are not a tf.Example: ")
    assert error_of(parse_sequence_example, b"\xff", {}, {}).startswith("these 1 bytes are not a tf.SequenceExample: ")
    assert error_of(parse_example, {"x": 1}, {}) == "a record to parse must be bytes, not dict"


def test_a_step_that_does_not_fit():
    message = encode_sequence_example({}, {"steps": [[1], [1, 2]]})
    assert error_of(parse_sequence_example, message, {}, {"steps": FixedLenFeature((1,), "int64")}) == (
        "feature 'steps[1]' must have 1 value for its shape (1,), not 2"
    )


def test_bytes_know_their_record():
    record = Record.at(encode_example({"image": b"..."}), Origin("a", 3, 40))
    assert parse_example(record, {"image": FixedLenFeature((), bytes)})["image"].origin == Origin("a", 3, 40)


KINDS = "must be bytes, text, integers of 64 bits or floats, or a list of one of these, not"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"a": 1}, f"feature 'x' {KINDS} {{'a': 1}}"),
        ([1, "a"], f"feature 'x' {KINDS} [1, 'a']"),
        (["a", 1], "feature 'x' mixes bytes or text with 1"),
        (1j, f"feature 'x' {KINDS} 1j"),
        ([2**70], f"feature 'x' {KINDS} [1180591620717411303424]"),
        ([-1, 2**63], f"feature 'x' {KINDS} [-1, 9223372036854775808]"),
        (2**63, "feature 'x' has the value 9223372036854775808, which int64 cannot hold"),
        ([1.0, 1e39], "feature 'x' has the value 1e+39, which float32 cannot hold"),
        ([None], f"feature 'x' {KINDS} [None]"),
    ],
)
def test_what_cannot_be_written(value, message):
    assert error_of(encode_example, {"x": value}) == message


def test_names_are_text():
    assert error_of(encode_example, {1: 2}) == "a feature's name must be text, not 1"


def test_a_damaged_example_never_does_more_than_raise():
    whole = golden()[0]
    spec = {name: VarLenFeature(dtype) for name, dtype in TYPES.items()}
    for place in range(len(whole)):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << place % 8
        for content in (bytes(damaged), whole[:place]):
            try:
                assert set(parse_example(content, spec)) == set(spec)
            except RecordError as error:
                assert str(error)


@pytest.mark.parametrize(
    ("step", "shape", "dtype"),
    [
        (FixedLenFeature((), "int64"), (), "int64"),
        (FixedLenFeature((4,), "float32"), (4,), "float32"),
        (FixedLenFeature((2, 0), "int8", default_value=1), (2, 0), "int8"),
        (FixedLenFeature((), bytes), (), "object"),
        (FixedLenFeature((2,), bytes, default_value=b"z"), (2,), "object"),
        (VarLenFeature("int64"), (0,), "int64"),
        (VarLenFeature(bool, length=3), (3,), "bool"),
        (VarLenFeature(bytes, length=3), (3,), "object"),
    ],
)
def test_a_sequence_without_steps_has_the_dtype_and_the_shape_of_a_step(step, shape: tuple[int, ...], dtype: str):
    for sequences in ({}, {"words": []}, {"words": np.zeros((0, 3))}):
        _, found = parse_sequence_example(encode_sequence_example({}, sequences), {}, {"words": step})
        assert (found["words"].shape, found["words"].dtype) == ((0, *shape), dtype)


def test_padded_batches_of_examples_without_values():
    features = [{"id": [5, 6], "name": ["a"]}, {"id": [], "name": []}, {}]
    spec = {"id": VarLenFeature("int64"), "name": VarLenFeature(bytes)}
    for order in ([0, 1, 2], [1, 2, 0]):
        messages = [encode_example(features[index]) for index in order]
        batch = next(iter(Dataset.from_source(messages).map(lambda r: parse_example(r, spec)).padded_batch(3)))
        rows = [[[5, 6], [0, 0], [0, 0]][index] for index in order]
        assert (batch["id"].dtype, batch["id"].tolist()) == (np.int64, rows)
        assert batch["name"].tolist() == [[[b"a"], [b""], [b""]][index] for index in order]
    # NumPy makes floats of an empty list.
    lists = Dataset.from_source([0, 2]).map(lambda count: {"id": np.array([5] * count), "s": np.array(["a"] * count)})
    batch = next(iter(lists.padded_batch(2)))
    assert (batch["id"].dtype, batch["s"].tolist()) == (np.int64, [["", ""], ["a", "a"]])
