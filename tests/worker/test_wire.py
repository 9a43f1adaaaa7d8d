"""The wire: its messages are those of worker.proto, and arrays that do not fit their description are refused."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.errors import DataError
from anytpu.worker.arrays import ChunkStore, chunks, describe, from_wire, to_host
from anytpu.worker.wire import CHUNK_BYTES, INLINE_BYTES, messages, parse_proto


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
    described, store = describe(host, generator), ChunkStore(2**30)
    for chunk in chunks(7, 0, host):
        store.add(chunk)
    received = store.take(7, 0, described)
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


def text_of(call: Any, *arguments: Any) -> str:
    with pytest.raises(DataError) as caught:
        call(*arguments)
    return str(caught.value)


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


def large() -> np.ndarray:
    return np.arange(CHUNK_BYTES, dtype="int32")


def test_chunks_in_another_order():
    first, second, *_ = chunks(1, 0, large())
    store = ChunkStore(2**30)
    assert text_of(store.add, second) == f"a chunk starts at byte {CHUNK_BYTES}, and byte 0 is next"
    store.add(first)
    assert text_of(store.add, first) == f"a chunk starts at byte 0, and byte {CHUNK_BYTES} is next"


def test_a_missing_chunk():
    store = ChunkStore(2**30)
    store.add(next(chunks(1, 0, large())))
    store.close()
    assert text_of(store.take, 1, 0, describe(large())) == (
        f"an array of {4 * CHUNK_BYTES} bytes came with {CHUNK_BYTES} bytes"
    )


def test_more_than_the_store_holds():
    store = ChunkStore(CHUNK_BYTES)
    for chunk in chunks(1, 0, large()):
        store.add(chunk)
    assert store._held_bytes == 0
    assert text_of(store.take, 1, 0, describe(large())) == f"arrays of more than {CHUNK_BYTES} bytes were sent ahead"


def test_chunks_of_a_refused_operation_are_dropped():
    store = ChunkStore(2**30)
    store.refuse(1)
    for chunk in chunks(1, 0, large()):
        store.add(chunk)
    assert store._held_bytes == 0
