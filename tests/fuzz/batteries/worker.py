"""The wire of a worker: frames of a link, chunks of arrays, requests to a child, replies and status to a client.

A child executes the requests, as it does for a client, on one virtual core. The code of programs is left out: MLIR's
parser ends the process at some inputs, which ends the session (docs/security.md).
"""

from __future__ import annotations

import contextlib
import functools
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from google.protobuf.message import DecodeError

from anytpu.errors import AnyTPUError
from anytpu.program import ROWS, Program
from anytpu.program.file import encode
from anytpu.system import TPUClusterResolver
from anytpu.worker.arrays import ArrayStore, ChunkStore, bytes_apart, describe
from anytpu.worker.child import ChildSession, collect_arrays
from anytpu.worker.chunk import ChunkWriter
from anytpu.worker.frames import FrameSocket
from anytpu.worker.link import HEAD, Link
from anytpu.worker.report import status_lines
from anytpu.worker.session import RemoteOperation, content_of, read_status
from anytpu.worker.shared import SharedArrays
from anytpu.worker.wire import INLINE_BYTES, messages
from fuzz.battery import Battery

MEMORY_BYTES = 64 * 2**20
LARGE = INLINE_BYTES // 4 + 1
"""Number of float32 values of an array that is sent as chunks."""
_LENGTH = struct.Struct("<I")


def frames() -> list[bytes]:
    """Return what a client sends over a link: three messages, with what it has received."""
    return [_joined(struct.pack("<Q", count) + b"x" * 20 * count for count in range(3))]


def parse_frames(content: bytes) -> list[bytes]:
    link = Link()
    for _ in range(3):
        link.send(b"reply")
    connection, _ = link.attach(0)
    return [bytes(link.accept(connection, frame)) for frame in _parts(content)]


def chunks() -> list[bytes]:
    """Return the chunks of two arrays, as they are and compressed."""
    arrays = np.arange(LARGE, dtype="float32"), np.zeros(LARGE, "float32")
    return [
        _joined(
            [b"".join(chunk) for index in range(2) for chunk in writer.chunks(3, index, bytes_apart(arrays[index]))]
        )
        for writer in (ChunkWriter(), ChunkWriter(lambda: 0.0))
    ]


def parse_chunks(content: bytes) -> list[int]:
    """Put the chunks together as a client does; return the sizes of the arrays."""
    store = ArrayStore(MEMORY_BYTES)
    reader = ChunkStore(store, MEMORY_BYTES)
    for part in _parts(content):
        reader.add(part)
    return [len(array) for array in store._arrays.values()]


def replies() -> list[bytes]:
    """Return the replies of a worker, and the chunks of a large array."""
    made, small, large = messages(), np.ones(4, "float32"), np.ones(LARGE, "float32")
    sent = [
        made.Reply(operation=2, done=made.Done(duration_s=0.5)),
        made.Reply(operation=3, failed=made.Failed(kind="DataError", text="an array of 2 axes")),
        made.Reply(operation=4, arrays=made.Arrays(arrays=[describe(small), describe(large)])),
    ]
    parts = [b"c" + b"".join(chunk) for chunk in ChunkWriter().chunks(4, 1, bytes_apart(large))]
    return [_joined([*parts, *(b"r" + reply.SerializeToString() for reply in sent)])]


def parse_replies(content: bytes) -> list[Any]:
    """Read replies as a client does; return their kinds and arrays."""
    store, found = ArrayStore(MEMORY_BYTES), []
    reader, parts = ChunkStore(store, MEMORY_BYTES), _parts(content)
    for part in parts:
        if part.startswith(b"c"):
            reader.add(part[1:])
    store.close()
    for part in parts:
        if not part.startswith(b"c"):
            reply = messages().Reply.FromString(part[1:])
            found.append(reply.WhichOneof("kind"))
            operation = RemoteOperation(reply.operation)
            operation.complete(reply)
            if found[-1] == "arrays":
                content_of(store, operation)
    return found


def statuses() -> list[bytes]:
    """Return the answer to `anytpu worker status`."""
    made = messages()
    session = made.SessionStatus(client="ipv4:10.0.0.7:39484", began_s=1.7e9, away_s=2.5, received_bytes=10)
    return [made.Status(sessions=[session, session], max_sessions=2, closed=3).SerializeToString()]


def parse_status(content: bytes) -> list[str]:
    return status_lines(read_status(content))


def requests() -> list[bytes]:
    """Return a session: arrays are put, one of them as chunks; a program runs; results are fetched and freed."""
    made, small, large = messages(), np.ones(4, "float32"), np.zeros(LARGE, "float32")
    argument = made.Argument
    run = made.Run(program=1, state=[argument(handle=2)], batch=[argument(array=describe(small))], results=[4, 5])
    sent = [
        made.Request(operation=2, put=made.Put(handles=[2], arrays=[describe(small)], axis=-1, cores=1)),
        made.Request(operation=3, put=made.Put(handles=[3], arrays=[describe(large)], axis=0, cores=1)),
        made.Request(operation=4, run=run),
        made.Request(operation=5, get=made.Get(handles=[4, 5, 3])),
        made.Request(operation=6, free=made.Free(handles=[4], programs=[1])),
    ]
    chunks = ChunkWriter().chunks(3, 0, bytes_apart(large))
    return [_joined([*(b"c" + b"".join(chunk) for chunk in chunks), *(b"r" + r.SerializeToString() for r in sent)])]


def parse_requests(content: bytes) -> list[str]:
    """Execute the requests in a new session, which has one program, and return the kinds of the replies."""
    session = ChildSession(TPUClusterResolver("virtual", cores=1), MEMORY_BYTES, deadline_s=60.0)
    session._programs.update(_programs())
    replies: list[bytes] = []
    with _drained(replies) as control, _drained([]) as buffers:
        parts = _parts(content)
        _pass_on([part[1:] for part in parts if part.startswith(b"c")], session.store)
        session.store.close()
        for part in parts:
            if not part.startswith(b"c"):
                session.execute(messages().Request.FromString(part[1:]), control, buffers)
    return [str(messages().Reply.FromString(reply[len(HEAD) :]).WhichOneof("kind")) for reply in replies]


def _pass_on(messages: list[bytes], store: ArrayStore) -> None:
    """Send chunks as the front does, and receive the arrays as the child does."""
    here, there = socket.socketpair()
    arrays = SharedArrays(here)
    arrays.max_bytes = MEMORY_BYTES
    with here, there, contextlib.closing(arrays):
        reader = threading.Thread(target=collect_arrays, args=(there, store))
        reader.start()
        try:
            for message in messages:
                arrays.send(message)
        finally:
            here.shutdown(socket.SHUT_WR)
            reader.join()


@functools.cache
def _programs() -> dict[int, Any]:
    """Return a compiled program, as a session keeps it."""
    spec = jax.ShapeDtypeStruct((4,), "float32")
    manifest, code = encode(Program("probe", lambda state, x: (state + x, x), spec, spec, ROWS), ("cpu",))
    described = describe(np.frombuffer(code, np.uint8))
    session = ChildSession(TPUClusterResolver("virtual", cores=1), MEMORY_BYTES, deadline_s=60.0)
    compile_it = messages().Compile(program=1, manifest=manifest, code=described, cores=1)
    with _drained([]) as control, _drained([]) as buffers:
        session.execute(messages().Request(operation=1, compile=compile_it), control, buffers)
    return session._programs


class _drained:
    """A frame socket whose other end is read by a thread into a list."""

    def __init__(self, received: list[bytes]) -> None:
        here, there = socket.socketpair()
        self._here, self._there = FrameSocket(here), FrameSocket(there)
        self._sockets = here, there
        self._reader = threading.Thread(target=lambda: received.extend(self._there.received()))

    def __enter__(self) -> FrameSocket:
        self._reader.start()
        return self._here

    def __exit__(self, *_: object) -> None:
        self._here.close()
        self._reader.join()
        for end in self._sockets:
            end.close()


def _joined(parts: Iterator[bytes] | list[bytes]) -> bytes:
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def _parts(content: bytes) -> list[bytes]:
    """Return the parts of a file; the last one may be cut off."""
    parts = []
    while len(content) >= _LENGTH.size:
        size = min(_LENGTH.unpack_from(content)[0], len(content))
        parts.append(content[_LENGTH.size : _LENGTH.size + size])
        content = content[_LENGTH.size + size :]
    return parts


def _battery(name: str, samples: Any, parse: Any, share: float = 1.0) -> Battery:
    return Battery(
        name,
        samples,
        read=lambda path: parse(path.read_bytes()),
        names_file=False,
        refusals=(AnyTPUError, DecodeError),
        share=share,
        parse=parse,
    )


BATTERIES = (
    _battery("worker_frames", frames, parse_frames),
    _battery("worker_chunks", chunks, parse_chunks),
    _battery("worker_replies", replies, parse_replies),
    _battery("worker_status", statuses, parse_status),
    _battery("worker_requests", requests, parse_requests, share=0.1),
)
