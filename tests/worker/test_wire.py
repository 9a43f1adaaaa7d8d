"""The wire: its messages are those of worker.proto, and arrays that do not fit their description are refused."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.errors import DataError
from anytpu.worker.arrays import CHUNK_BYTES, MessageReader, arrays_of, chunks, describe, from_wire, to_host
from anytpu.worker.wire import INLINE_BYTES, messages, parse_proto
from error_texts import error_text


def test_bytes_of_messages():
    """The encoding of protocol buffers, by hand: field number and type, then the value."""
    made = messages()
    assert made.Get(handles=[1, 300]).SerializeToString() == b"\x0a\x03\x01\xac\x02"
    request = made.Request(operation=3, get=made.Get(handles=[1]))
    assert request.SerializeToString() == b"\x08\x03\x2a\x03\x0a\x01\x01"
    assert made.Put(axis=-1).SerializeToString() == b"\x18" + b"\xff" * 9 + b"\x01"


def test_a_request_has_one_kind():
    request = messages().Request(get=messages().Get())
    request.put.SetInParent()
    assert request.WhichOneof("kind") == "put"
    request.free.SetInParent()
    assert request.WhichOneof("kind") == "put"


@pytest.mark.parametrize("line", ["map<string, bytes> names = 1;", "import public;", "optional int32 x = 1;"])
def test_more_of_the_language_is_refused(line: str):
    with pytest.raises(ValueError, match="cannot read") as caught:
        parse_proto(f"message A {{\n  {line}\n}}\n")
    assert str(caught.value) == f"worker.proto has a line that wire.py cannot read: {line!r}"


@pytest.mark.parametrize(
    "array",
    [
        np.float32(2.5),
        np.zeros((0, 3), "float32"),
        np.arange(12, dtype="uint8").reshape(3, 4).T,
        np.array([True, False]),
        np.asarray(jnp.ones(3, jnp.bfloat16)),
        np.arange(INLINE_BYTES, dtype="int32"),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)
def test_an_array_travels(array: Any):
    host, generator = to_host(array)
    (received,) = carried(describe(host, generator), list(chunks(host)))
    assert received.dtype == array.dtype
    assert received.shape == array.shape
    assert received.tobytes() == np.ascontiguousarray(array).tobytes()


def test_a_random_key_travels():
    key = jax.random.split(jax.random.key(3, impl="rbg"), 2)
    host, generator = to_host(key)
    described = describe(host, generator)
    received = from_wire(described, described.content)
    assert received.dtype == key.dtype
    assert np.array_equal(jax.random.key_data(received), jax.random.key_data(key))


text_of = functools.partial(error_text, kind=DataError)


def described(**fields: Any) -> Any:
    return messages().Array(**{"dtype": "float32", "shape": [2], "size_bytes": 8, **fields})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "nothing"}, "there is no dtype 'nothing'"),
        ({"dtype": "object"}, "object of shape [2] is not an array of 8 bytes"),
        ({"shape": [3]}, "float32 of shape [3] is not an array of 8 bytes"),
        (
            {"shape": [2**62, 2**62]},
            "float32 of shape [4611686018427387904, 4611686018427387904] is not an array of 8 bytes",
        ),
        ({"shape": [1] * 65}, "float32 of shape [1, 1, 1, 1, 1, 1, 1, 1] is not an array of 8 bytes"),
        ({"content": b"12345"}, "an array of 8 bytes came with 5 bytes"),
        ({}, "an array of 8 bytes came with 0 bytes"),
        (
            {"dtype": "uint32", "content": bytes(8), "generator": "coin"},
            "there is no random key of 'coin' with these words",
        ),
    ],
    ids=str,
)
def test_a_bad_description(fields: dict[str, Any], message: str):
    array = described(**fields)
    assert text_of(from_wire, array, array.content) == message


def carried(array: Any, sent: list[memoryview], memory_bytes: int = 2**30) -> list[Any]:
    """Return the arrays of a request to put one, and its chunks, as the child reads them."""
    requests: list[Any] = []
    reader = MessageReader(
        messages().Request.FromString, lambda size: size <= memory_bytes, lambda *r: requests.append(r)
    )
    for content in (messages().Request(put=messages().Put(arrays=[array])).SerializeToString(), *sent):
        assert not requests
        reader.add(content)
    return arrays_of(*requests[0])


def large() -> np.ndarray:
    return -np.arange(1, CHUNK_BYTES + 1, dtype="int32")


def padded() -> np.ndarray:
    """Return an array whose last two of three and a half chunks are zeros."""
    array = np.zeros(7 * CHUNK_BYTES // 2, np.uint8)
    array[: CHUNK_BYTES + 3] = np.random.default_rng(0).integers(1, 256, CHUNK_BYTES + 3)
    return array


@pytest.mark.parametrize(
    ("array", "sizes"),
    [
        (large(), [CHUNK_BYTES] * 4),
        (padded(), [CHUNK_BYTES, 3, 1, 1]),
        (np.zeros(2 * CHUNK_BYTES, np.uint8), [1, 1]),
        (np.ones(INLINE_BYTES, np.uint8), []),
    ],
    ids=["whole", "zeros at the end", "zeros alone", "inside the message"],
)
def test_zeros_at_the_end_of_a_chunk_are_not_sent(array: np.ndarray, sizes: list[int]):
    sent = list(chunks(array))
    assert [len(chunk) for chunk in sent] == sizes
    assert np.array_equal(carried(describe(array), sent)[0], array)


def test_the_arrays_of_a_message_follow_it_in_order():
    sent = [np.ones(4, "float32"), large(), padded(), large()[::-1].copy()]
    replies: list[Any] = []
    reader = MessageReader(messages().Reply.FromString, lambda _: True, lambda *r: replies.append(r))
    for _ in range(2):
        described = messages().Arrays(arrays=[describe(array) for array in sent])
        reader.add(messages().Reply(arrays=described).SerializeToString())
        for chunk in (chunk for array in sent for chunk in chunks(array)):
            reader.add(chunk)
    for reply in replies:
        for left, right in zip(arrays_of(*reply), sent, strict=True):
            np.testing.assert_array_equal(left, right)
    assert len(replies) == 2


def test_a_chunk_of_too_many_bytes():
    array = described(shape=[2**15], size_bytes=2**17)
    assert text_of(carried, array, [memoryview(bytes(2**17 + 1))]) == (
        f"a chunk of {2**17 + 1} bytes is not a part of {2**17} bytes"
    )
    assert text_of(carried, describe(large()), [memoryview(bytes(CHUNK_BYTES + 1))]) == (
        f"a chunk of {CHUNK_BYTES + 1} bytes is not a part of {CHUNK_BYTES} bytes"
    )


def test_an_array_without_memory_for_it():
    assert text_of(carried, describe(large()), list(chunks(large())), large().nbytes - 1) == (
        f"an array of {large().nbytes} bytes was sent ahead, and there is no memory for it"
    )
