"""A client's session with a worker: numbered operations, sent ahead, and their replies.

Idea: the client names every array and every program, so no request waits for an answer. A thread reads the replies, and
completes the operations. Only `get`, `wait` and a compilation wait. A lost connection is opened again, and the session
continues (`link.py`).

Rule: when the session ends, every open operation fails with the same error, and so does every later one.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import itertools
import logging
import math
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, final

import numpy as np
from google.protobuf.message import DecodeError

from anytpu.errors import BackendError, DataError, HandleError, ProgramError, SettingError, WorkerError, WorkerLostError
from anytpu.system.workers import WorkerAddress
from anytpu.worker.arrays import ArrayStore, ChunkStore, bytes_apart
from anytpu.worker.chunk import ChunkWriter
from anytpu.worker.connection import explained, metadata_of, open_channel
from anytpu.worker.link import Link
from anytpu.worker.wire import SERVICE, messages, read_message

_LOG = logging.getLogger("anytpu")
_CALLS_AHEAD = 32
_ANSWER_S = 120.0
_CLOSE_S = 3.0
_RETRY_S = 0.5
_REFUSED_S = 10.0
"""Time in which a worker that refuses connections may come back, in seconds."""
_KINDS = {kind.__name__: kind for kind in (BackendError, DataError, HandleError, ProgramError, SettingError)}


def describe_worker(address: WorkerAddress) -> Any:
    """Return the `Description` of a worker, which also answers while it serves other sessions.

    Raises:
        WorkerError: it cannot be reached, or refuses this client.
    """
    return _parsed("Description", _asked(address, "Describe"))


def worker_status(address: WorkerAddress) -> Any:
    """Return the `Status` of a worker: its sessions, and counts of the past.

    Raises:
        WorkerError: it cannot be reached, or refuses this client.
    """
    return read_status(_asked(address, "Status"))


def read_status(content: bytes) -> Any:
    """Return the `Status` in an answer.

    Raises:
        WorkerError: it is none.
    """
    status = _parsed("Status", content)
    if not all(math.isfinite(session.began_s + session.away_s) for session in status.sessions):
        raise WorkerError("the worker's status has a time that is no number")
    return status


def _parsed(kind: str, content: bytes) -> Any:
    try:
        return read_message(kind, content)
    except DecodeError as error:
        raise WorkerError(
            f"the worker's answer is no {kind}: {error}. Install the same release on both machines: pip install "
            "--upgrade anytpu"
        ) from error


def _asked(address: WorkerAddress, question: str) -> bytes:
    with open_channel(address) as channel:
        import grpc

        call = channel.unary_unary(f"/{SERVICE}/{question}")
        try:
            return call(b"", metadata=metadata_of(address, ""), timeout=_ANSWER_S)
        except grpc.RpcError as error:
            raise explained(address, error) from error


@final
class RemoteOperation:
    """One request, until its reply is here.

    Attributes:
        number: number of the request in the session.
        reply: the reply, or None.
        error: the error of the request, or None.
    """

    __slots__ = ("_done", "error", "number", "reply")

    def __init__(self, number: int) -> None:
        self.number, self.reply = number, None
        self.error: Exception | None = None
        self._done = threading.Event()

    @property
    def is_done(self) -> bool:
        """Whether the reply is here."""
        return self._done.is_set()

    def complete(self, reply: Any, error: Exception | None = None) -> None:
        """Store the reply or the error, and wake those who wait."""
        self.reply, self.error = reply, error
        self._done.set()

    def result(self) -> Any:
        """Wait for the reply, and return it.

        Raises:
            AnyTPUError: the request failed, or the session ended.
        """
        self._done.wait()
        if self.error is not None:
            raise self.error
        return self.reply


@final
class Session:
    """One session with a worker.

    Args:
        address: the worker.

    Raises:
        WorkerError: the worker cannot be reached, or refuses this client.
    """

    def __init__(self, address: WorkerAddress) -> None:
        """Connect, and open the two streams."""
        self.address, self._name = address, secrets.token_hex(16)
        self.description = describe_worker(address)
        self._channel = open_channel(address)
        self.store = ArrayStore(2**62)
        self._numbers, self._names = itertools.count(1), itertools.count(1)
        self._open: dict[int, RemoteOperation] = {}
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self.order = threading.Lock()
        """Held from the choice of a request's arrays until it is sent: no other request consumes them in between."""
        self._error: Exception | None = None
        self._requests, self._chunks = Link(), Link()
        self._writer = ChunkWriter(lambda: self._chunks.bytes_per_s)
        self._calls = threading.Semaphore(_CALLS_AHEAD)
        self._unused: collections.deque[tuple[str, int]] = collections.deque()
        self._lost_s: float | None = None
        self._start("Control", self._requests, self._read)
        try:
            self.send().result()  # Its reply comes when the worker has begun the session.
        except WorkerError:
            self._channel.close()
            raise
        self._start("Buffers", self._chunks, ChunkStore(self.store, self.description.memory_bytes).add)
        atexit.register(self.close)

    @property
    def has_ended(self) -> bool:
        """Whether the session has ended."""
        return self._error is not None

    def new_name(self) -> int:
        """Return the name of a new array or program."""
        return next(self._names)

    def unused(self, kind: str, name: int) -> None:
        """Note that an array ("handles") or a program ("programs") is not needed any more. Safe in a finalizer."""
        self._unused.append((kind, name))

    def send(self, arrays: Any = (), is_call: bool = False, **request: Any) -> RemoteOperation:
        """Send one request.

        Args:
            arrays: host arrays whose bytes belong to the request; large ones are sent as chunks.
            is_call: True for the call of a program, of which a limited number may be open.
            request: the kind of the request, and its message; none for an empty request.

        Raises:
            WorkerLostError: the session has ended.
        """
        if is_call:
            while not self._calls.acquire(timeout=1.0):
                self._check()
        return self._send(arrays, is_call, request)

    def close(self) -> None:
        """End the session; a second call does nothing."""
        atexit.unregister(self.close)
        if not self.has_ended:
            self._fail(WorkerLostError(f"the session with the worker at {self.address.target} was closed"))
            with contextlib.suppress(Exception):  # The worker ends the session anyway, after its lease.
                call = self._channel.unary_unary(f"/{SERVICE}/Close")
                call(b"", metadata=metadata_of(self.address, self._name), timeout=_CLOSE_S)
        self._channel.close()

    def _send(self, arrays: Any, is_call: bool, request: dict[str, Any]) -> RemoteOperation:
        try:
            # Under one lock, so that the requests are sent in the order of their numbers. The worker relies on it.
            with self._lock:
                self._check()
                operation = RemoteOperation(next(self._numbers))
                self._open[operation.number] = operation
                # This marks a call: `_read` then lets another one follow.
                if is_call:
                    operation.reply = self._calls
                message = messages().Request(operation=operation.number, free=self._freed(), **request)
                self._requests.send(message.SerializeToString())
            # The chunks of one array must follow one another on the stream.
            with self._sending:
                for index, array in enumerate(arrays):
                    for chunk in self._writer.chunks(operation.number, index, bytes_apart(array)):
                        self._chunks.send(*chunk)
        except OSError:  # The link was closed meanwhile, because the session has ended.
            self._check()
            raise
        return operation

    def _freed(self) -> Any:
        """Return a `Free` message of the unused arrays and programs; None if there are none."""
        names: dict[str, list[int]] = {"handles": [], "programs": []}
        while self._unused:
            kind, name = self._unused.popleft()
            names[kind].append(name)
        return messages().Free(**names) if any(names.values()) else None

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _start(self, name: str, link: Link, receive: Callable[[bytes | memoryview], None]) -> None:
        """Serve a stream in a thread of its own, over one connection after another."""

        def serve() -> None:
            import grpc

            while not self.has_ended:
                try:
                    self._connect(name, link, receive)
                except grpc.RpcError as error:
                    if not self._may_return(error):
                        self._lose(explained(self.address, error))
                except Exception as error:
                    self._lose(BackendError(f"the replies of the worker cannot be read: {error}"))
                if not self.has_ended:
                    time.sleep(_RETRY_S)

        threading.Thread(target=serve, name=f"anytpu worker {name.lower()}", daemon=True).start()

    def _may_return(self, error: Any) -> bool:
        """Return whether a stream that failed is worth another try."""
        if self.has_ended or error.code().name not in ("UNAVAILABLE", "CANCELLED", "INTERNAL", "UNKNOWN"):
            return False
        now_s, kept_s = time.monotonic(), self.description.lease_s
        if self._lost_s is None:
            self._lost_s = now_s
            text = "the connection to the worker at %s was lost; trying again for %.0f s"
            _LOG.warning(text, self.address.target, kept_s)
        # Where nothing listens any more, the session is gone, unless a tunnel between the machines is made anew.
        if "refused" in (error.details() or ""):
            kept_s = min(_REFUSED_S, kept_s)
        return now_s - self._lost_s < kept_s

    def _connect(self, name: str, link: Link, receive: Callable[[bytes | memoryview], None]) -> None:
        """Serve one connection of a stream until it ends."""
        # gRPC reads these frames in a thread of its own. They start when the other side has told what it has
        # received.
        number: Future[int] = Future()

        def frames() -> Iterator[bytes]:
            if (connection := number.result()) >= 0:
                yield from link.frames(connection)

        metadata = (*metadata_of(self.address, self._name), ("anytpu-received", str(link.received)))
        call: Any = self._channel.stream_stream(f"/{SERVICE}/{name}")(frames(), metadata=metadata)
        connection = -1
        try:
            received_there = dict(call.initial_metadata() or ()).get("anytpu-received")
            if received_there is not None:
                connection, _ = link.attach(int(received_there))
                self._reconnected()
            number.set_result(connection)
            for frame in call:
                if message := link.accept(connection, frame):
                    receive(message)
        finally:
            if not number.done():
                number.set_result(-1)
            link.detach(connection)
            call.cancel()

    def _reconnected(self) -> None:
        if self._lost_s is not None:
            _LOG.warning("the connection to the worker at %s is back", self.address.target)
        self._lost_s = None

    def _read(self, message: bytes | memoryview) -> None:
        reply = read_message("Reply", message)
        operation = self._open.pop(reply.operation, None)
        if operation is None:
            return
        if operation.reply is self._calls:
            self._calls.release()
        failed = reply.failed if reply.WhichOneof("kind") == "failed" else None
        operation.complete(reply, None if failed is None else _error(failed))

    def _lose(self, error: Exception) -> None:
        """End the session by an error, and close its connection: gRPC logs when the worker closes an idle one."""
        if not self.has_ended:
            self._fail(error)
            self._channel.close()

    def _fail(self, error: Exception) -> None:
        # The error first, so that no request is added any more. A sender that waits for a link has the lock, so links
        # end next.
        self._error = self._error or error
        self._requests.close()
        self._chunks.close()
        with self._lock:
            operations, self._open = list(self._open.values()), {}
        for operation in operations:
            operation.complete(None, self._error)
        self.store.close()


def _error(failed: Any) -> Exception:
    """Return the error that a worker reports, in its class of `anytpu.errors`."""
    return _KINDS.get(failed.kind, BackendError)(failed.text)


def content_of(store: ArrayStore, operation: RemoteOperation) -> list[Any]:
    """Return the arrays in the reply to a `Get`, as NumPy arrays, or JAX arrays of random keys."""
    arrays = operation.result().arrays.arrays
    values = [store.take(operation.number, index, array) for index, array in enumerate(arrays)]
    return [value if not isinstance(value, np.ndarray) else _readable(value) for value in values]


def _readable(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
