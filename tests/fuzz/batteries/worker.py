"""The wire of a worker: the frames of a link, and the messages of a session.

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
from pathlib import Path

import jax
import numpy as np
from google.protobuf.message import DecodeError

from anytpu.errors import AnyTPUError
from anytpu.program import ROWS, Program
from anytpu.program.file import encode
from anytpu.system import TPUClusterResolver
from anytpu.worker.arrays import ArrayStore, bytes_apart, describe
from anytpu.worker.child import ChildSession, collect_arrays
from anytpu.worker.chunk import ChunkWriter
from anytpu.worker.frames import FrameSocket
from anytpu.worker.link import HEAD, Link
from anytpu.worker.shared import SharedArrays
from anytpu.worker.wire import messages
from fuzz.battery import Battery

REFUSALS = (AnyTPUError, DecodeError)
MEMORY_BYTES = 64 * 2**20
_LENGTH = struct.Struct("<I")


def frames() -> list[bytes]:
    """Return what a client sends over a link: three messages, with what it has received."""
    return [_joined(struct.pack("<Q", count) + b"x" * 20 * count for count in range(3))]


def read_frames(path: Path) -> list[bytes]:
    link = Link()
    for _ in range(3):
        link.send(b"reply")
    connection, _ = link.attach(0)
    return [bytes(link.accept(connection, frame)) for frame in _parts(path.read_bytes())]


def requests() -> list[bytes]:
    """Return a session: arrays are put, one of them as chunks; a program runs; results are fetched and freed."""
    made, small, large = messages(), np.ones(4, "float32"), np.zeros(2**15, "float32")
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


def read_requests(path: Path) -> list[str]:
    """Execute the requests in a new session, and return the kinds of the replies."""
    session = ChildSession(TPUClusterResolver("virtual", cores=1), MEMORY_BYTES, deadline_s=60.0)
    replies: list[bytes] = []
    with _drained(replies) as control, _drained([]) as buffers:
        code, manifest = _program()
        compile_it = messages().Compile(program=1, manifest=manifest, code=describe(code), cores=1)
        session.execute(messages().Request(operation=1, compile=compile_it), control, buffers)
        parts = _parts(path.read_bytes())
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
def _program() -> tuple[np.ndarray, bytes]:
    spec = jax.ShapeDtypeStruct((4,), "float32")
    manifest, code = encode(Program("probe", lambda state, x: (state + x, x), spec, spec, ROWS), ("cpu",))
    return np.frombuffer(code, np.uint8), manifest


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


BATTERIES = (
    Battery("worker_frames", frames, read_frames, names_file=False, refusals=REFUSALS),
    Battery("worker_requests", requests, read_requests, names_file=False, refusals=REFUSALS, share=0.1),
)
