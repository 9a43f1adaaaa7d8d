"""The wire: its messages are those of worker.proto, and arrays that do not fit their description are refused."""

from __future__ import annotations

import functools
import itertools
import os
import socket
import struct
import zlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.errors import DataError
from anytpu.worker.arrays import ArrayStore, ChunkStore, bytes_apart, describe, from_wire, to_host
from anytpu.worker.chunk import CHUNK_BYTES, HEAD_BYTES, ChunkWriter, read_head
from anytpu.worker.shared import SharedArrays, map_shared, receive_shared
from anytpu.worker.wire import INLINE_BYTES, messages
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
    described, store = describe(host, generator), ArrayStore(2**30)
    joined = ChunkStore(store, 2**30)
    for message in messages_of(7, host):
        joined.add(message)
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


def large() -> np.ndarray:
    return np.arange(CHUNK_BYTES, dtype="int32")


def messages_of(operation: int, array: np.ndarray, rate: float | None = None) -> list[bytes]:
    writer = ChunkWriter(None if rate is None else lambda: rate)
    return [b"".join(chunk) for chunk in writer.chunks(operation, 0, bytes_apart(array))]


def test_chunks_in_another_order():
    first, second, third, *_ = messages_of(1, large())
    store = ChunkStore(ArrayStore(2**30), 2**30)
    assert text_of(store.add, second) == f"a chunk starts at byte {CHUNK_BYTES}, and byte 0 is next"
    store.add(first)
    expected = (1, 0, CHUNK_BYTES, 4 * CHUNK_BYTES)
    for message, head in [
        (first, (1, 0, 0)),
        (third, (1, 0, 2 * CHUNK_BYTES)),
        (messages_of(2, large())[1], (2, 0, CHUNK_BYTES)),
    ]:
        assert text_of(store.add, message) == f"a chunk has the head {(*head, 4 * CHUNK_BYTES)}, and {expected} is next"
    assert text_of(store.add, b"short") == "a chunk has 5 bytes, and its head takes 29"
    for size, text in [
        (9, f"a chunk of {CHUNK_BYTES - 1} bytes and coding 0 is not a part of 9 bytes"),
        (0, "a chunk belongs to an array of no bytes"),
    ]:
        message = first[:21] + size.to_bytes(8, "little") + first[HEAD_BYTES:]
        assert text_of(ChunkStore(ArrayStore(2**30), 2**30).add, message) == text


def padded() -> np.ndarray:
    """Return an array whose last two of three and a half chunks are zeros."""
    array = np.zeros(7 * CHUNK_BYTES // 2, np.uint8)
    array[: CHUNK_BYTES + 3] = np.random.default_rng(0).integers(1, 256, CHUNK_BYTES + 3)
    return array


def sent_bytes(array: np.ndarray, rate: float | None = None) -> list[int]:
    """Return the bytes of each chunk; they are checked to be those of the array."""
    store = ArrayStore(2**30)
    joined, messages_ = ChunkStore(store, 2**30), messages_of(7, array, rate)
    for message in messages_:
        joined.add(message)
    assert np.array_equal(store.take(7, 0, describe(array)), array)
    return [len(message) - HEAD_BYTES for message in messages_]


def test_zeros_at_the_end_of_a_chunk_are_not_sent():
    assert sent_bytes(padded()) == [CHUNK_BYTES, 3, 0, 0]
    assert sent_bytes(np.zeros(2 * CHUNK_BYTES, np.uint8)) == [0, 0]


def test_only_a_slow_connection_compresses():
    image = np.tile(np.arange(64, dtype="uint8"), CHUNK_BYTES // 32)
    assert sent_bytes(image, 1e9) == [CHUNK_BYTES] * 2
    assert max(sent_bytes(image, 1e4)) < CHUNK_BYTES // 50


def test_bytes_that_compression_does_not_make_smaller_are_sent_as_they_are():
    noise = np.random.default_rng(0).integers(1, 256, 4 * CHUNK_BYTES, np.uint8)
    assert sent_bytes(noise, 1e4) == [CHUNK_BYTES] * 4


def test_a_connection_that_is_faster_than_zlib_does_not_compress(monkeypatch: pytest.MonkeyPatch):
    """On a busy machine zlib takes a second for each chunk, and the connection carries ten chunks in it."""
    monkeypatch.setattr("anytpu.worker.chunk.time.perf_counter", itertools.count().__next__)
    sizes = sent_bytes(np.ones(36 * CHUNK_BYTES, np.uint8), 10 * CHUNK_BYTES)
    assert [size < CHUNK_BYTES for size in sizes] == [True, *[False] * 16, True, *[False] * 16, True, False]


@pytest.mark.parametrize(
    "content",
    [
        zlib.compress(bytes(CHUNK_BYTES + 1)),
        zlib.compress(bytes(9))[:-1],
        zlib.compress(bytes(9)) + b"more",
    ],
    ids=["too large", "cut", "more"],
)
def test_a_compressed_chunk_that_is_none(content: bytes):
    head = struct.pack("<QIBQQ", 1, 0, 1, 0, 4 * CHUNK_BYTES)
    text = f"a chunk of {len(content)} bytes and coding 1 is not a part of {CHUNK_BYTES} bytes"
    assert text_of(ChunkStore(ArrayStore(2**30), 2**30).add, head + content) == text


def test_a_compressed_chunk_with_a_changed_byte():
    content = bytearray(zlib.compress(bytes(1000)))
    content[-1] ^= 1
    head = struct.pack("<QIBQQ", 1, 0, 1, 0, 4 * CHUNK_BYTES)
    text = "a chunk cannot be decompressed: Error -3 while decompressing data: incorrect data check"
    assert text_of(ChunkStore(ArrayStore(2**30), 2**30).add, head + content) == text


def test_a_missing_chunk():
    store = ArrayStore(2**30)
    ChunkStore(store, 2**30).add(messages_of(1, large())[0])
    store.close()
    assert text_of(store.take, 1, 0, describe(large())) == f"an array of {4 * CHUNK_BYTES} bytes came with 0 bytes"


def test_more_than_the_store_holds():
    store = ArrayStore(CHUNK_BYTES)
    store.add(1, 0, np.zeros(CHUNK_BYTES + 1, np.uint8))
    assert store._held_bytes == 0
    assert text_of(store.take, 1, 0, describe(large())) == f"arrays of more than {CHUNK_BYTES} bytes were sent ahead"


def test_arrays_of_an_operation_that_is_over_are_dropped():
    store = ArrayStore(2**30)
    for operation in (1, 2, 3):
        store.add(operation, 0, np.zeros(9, np.uint8))
    store.end(2)
    store.add(1, 1, np.zeros(9, np.uint8))
    assert list(store._arrays) == [(3, 0)]
    assert store._held_bytes == 9
    assert text_of(store.take, 1, 0, describe(large())) == "request 1 came after request 2"


def test_operations_between_those_that_did_not_fit_are_refused():
    store = ArrayStore(20)
    for operation, size in [(1, 9), (3, 30), (4, 9), (6, 30), (7, 9)]:
        store.add(operation, 0, np.zeros(size, np.uint8))
    assert list(store._arrays) == [(1, 0), (7, 0)]
    assert text_of(store.take, 4, 0, describe(large())) == "arrays of more than 20 bytes were sent ahead"
    store.end(6)
    for operation in range(8, 10**5):
        store.add(operation, 0, None)
        store.end(operation)
    assert store._refused == range(operation, operation + 1)


def shared(max_bytes: int, array: np.ndarray, count: int | None = None) -> tuple[SharedArrays, socket.socket]:
    """Pass the first chunks of an array on, as the front does; return it, and the child's socket."""
    here, there = socket.socketpair()
    front = SharedArrays(here)
    front.max_bytes = max_bytes
    for message in messages_of(7, array)[:count]:
        front.send(message)
    return front, there


def test_an_array_through_shared_memory():
    front, there = shared(2**30, large())
    received = receive_shared(there)
    assert received is not None
    head, file = received
    assert file is not None
    assert read_head(head) == (7, 0, large().nbytes)
    assert map_shared(file, large().nbytes).tobytes() == large().tobytes()
    front._connection.close()
    assert receive_shared(there) is None
    there.close()


def test_an_array_larger_than_the_session():
    front, there = shared(large().nbytes - 1, large())
    received = receive_shared(there)
    assert received is not None
    assert received[1] is None
    front._connection.close()
    there.close()


def test_memory_of_an_array_that_is_not_complete():
    before = len(os.listdir("/proc/self/fd"))
    front, there = shared(2**30, large(), count=2)
    assert len(os.listdir("/proc/self/fd")) == before + 3
    front.close()
    assert len(os.listdir("/proc/self/fd")) == before + 2
    with pytest.raises(BrokenPipeError):
        front.send(messages_of(7, large())[2])
    front._connection.close()
    there.close()
