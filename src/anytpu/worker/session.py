"""A client's session with a worker: numbered operations, sent ahead, and their replies.

Idea: the client names every array and every program, so no request waits for an answer. A thread reads the replies, and
completes the operations. Only `get`, `wait` and a compilation wait.

Rule: when the session ends, every open operation fails with the same error, and so does every later one.
"""

from __future__ import annotations

import collections
import itertools
import queue
import secrets
import threading
from collections.abc import Callable, Iterator
from typing import Any, final

import numpy as np

from anytpu.errors import BackendError, DataError, HandleError, ProgramError, SettingError, WorkerError, WorkerLostError
from anytpu.system.workers import WorkerAddress
from anytpu.worker.arrays import ChunkStore, chunks
from anytpu.worker.connection import explained, metadata_of, open_channel
from anytpu.worker.wire import SERVICE, messages

_CHUNKS_AHEAD = 8
_CALLS_AHEAD = 32
_ANSWER_S = 120.0
_KINDS = {kind.__name__: kind for kind in (BackendError, DataError, HandleError, ProgramError, SettingError)}


def describe_worker(address: WorkerAddress) -> Any:
    """Return the `Description` of a worker, which also answers while it serves another session.

    Raises:
        WorkerError: it cannot be reached, or refuses this client.
    """
    with open_channel(address) as channel:
        import grpc

        call = channel.unary_unary(f"/{SERVICE}/Describe")
        try:
            answer = call(b"", metadata=metadata_of(address, ""), timeout=_ANSWER_S)
        except grpc.RpcError as error:
            raise explained(address, error) from error
    return messages().Description.FromString(answer)


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
        self.store = ChunkStore(2**62)
        self._numbers, self._names = itertools.count(1), itertools.count(1)
        self._open: dict[int, RemoteOperation] = {}
        self._lock = threading.Lock()
        self._error: Exception | None = None
        self._requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._chunks: queue.Queue[bytes | None] = queue.Queue(_CHUNKS_AHEAD)
        self._calls = threading.Semaphore(_CALLS_AHEAD)
        self._unused: collections.deque[tuple[str, int]] = collections.deque()
        replies = self._stream("Control", iter(self._requests.get, None))
        self._start(lambda: self._read(replies))
        try:
            self.send(free=messages().Free()).result()  # Its reply comes when the worker has begun the session.
        except WorkerError:
            self._channel.close()
            raise
        received = self._stream("Buffers", iter(self._chunks.get, None))
        self._start(lambda: self._collect(received))

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
            request: the kind of the request, and its message.

        Raises:
            WorkerLostError: the session has ended.
        """
        self._free_unused()
        if is_call:
            while not self._calls.acquire(timeout=1.0):
                self._check()
        return self._send(arrays, is_call, request)

    def close(self) -> None:
        """End the session; a second call does nothing."""
        self._fail(WorkerLostError(f"the session with the worker at {self.address.target} was closed"))
        self._channel.close()

    def _send(self, arrays: Any, is_call: bool, request: dict[str, Any]) -> RemoteOperation:
        with self._lock:
            self._check()
            operation = RemoteOperation(next(self._numbers))
            self._open[operation.number] = operation
            if is_call:
                operation.reply = self._calls
            message = messages().Request(operation=operation.number, **request)
            self._requests.put(message.SerializeToString())
        for index, array in enumerate(arrays):
            for chunk in chunks(operation.number, index, array):
                self._send_chunk(chunk)
        return operation

    def _send_chunk(self, chunk: bytes) -> None:
        while True:
            try:
                return self._chunks.put(chunk, timeout=1.0)
            except queue.Full:
                self._check()

    def _free_unused(self) -> None:
        names: dict[str, list[int]] = {"handles": [], "programs": []}
        while self._unused:
            kind, name = self._unused.popleft()
            names[kind].append(name)
        if any(names.values()):
            self._send((), False, {"free": messages().Free(**names)})

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def _stream(self, name: str, sent: Iterator[bytes]) -> Any:
        call = self._channel.stream_stream(f"/{SERVICE}/{name}")
        return call(sent, metadata=metadata_of(self.address, self._name), wait_for_ready=False)

    def _start(self, serve: Callable[[], None]) -> None:
        def guarded() -> None:
            import grpc

            try:
                serve()
            except grpc.RpcError as error:
                self._fail(explained(self.address, error))
            except Exception as error:
                self._fail(BackendError(f"the replies of the worker cannot be read: {error}"))

        threading.Thread(target=guarded, name="anytpu worker replies", daemon=True).start()

    def _read(self, replies: Any) -> None:
        for frame in replies:
            reply = messages().Reply.FromString(frame)
            operation = self._open.pop(reply.operation, None)
            if operation is None:
                continue
            if operation.reply is self._calls:
                self._calls.release()
            failed = reply.failed if reply.WhichOneof("kind") == "failed" else None
            operation.complete(reply, None if failed is None else _error(failed))
        self._fail(WorkerLostError(f"the worker at {self.address.target} ended the session"))

    def _collect(self, received: Any) -> None:
        for chunk in received:
            self.store.add(chunk)

    def _fail(self, error: Exception) -> None:
        with self._lock:
            self._error = self._error or error
            operations, self._open = list(self._open.values()), {}
        for operation in operations:
            operation.complete(None, self._error)
        self.store.close()
        self._requests.put(None)


def _error(failed: Any) -> Exception:
    """Return the error that a worker reports, in its class of `anytpu.errors`."""
    return _KINDS.get(failed.kind, BackendError)(failed.text)


def content_of(store: ChunkStore, operation: RemoteOperation) -> list[Any]:
    """Return the arrays in the reply to a `Get`, as NumPy arrays, or JAX arrays of random keys."""
    arrays = operation.result().arrays.arrays
    values = [store.take(operation.number, index, array) for index, array in enumerate(arrays)]
    return [value if not isinstance(value, np.ndarray) else _readable(value) for value in values]


def _readable(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array
