"""The front server of a worker: it authenticates clients, and passes their messages to a child.

Idea: this process never imports JAX and parses no message of a client. A child parses, checks, compiles and runs
Programs; it can crash. Then the front tells the client how the child ended, and starts another child.

Rule: one session at a time. The child ends with its session, so the next session finds nothing of the last one.
"""

from __future__ import annotations

import hmac
import logging
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, final

import grpc

from anytpu.errors import WorkerError
from anytpu.units import format_bytes
from anytpu.worker.children import ChildOptions, WorkerChild
from anytpu.worker.wire import MAX_MESSAGE_BYTES, PROTOCOL, SERVICE

_LOG = logging.getLogger("anytpu")
_THREADS = 32
_BUSY_S = 5.0
"""Time that a client waits for the end of the previous session, in seconds: the server may not know of it yet."""
_OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_concurrent_streams", 16),
    # A client that vanished is noticed within a minute; the client's pings, one in 30 seconds, are allowed.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
]


@final
class Front:
    """A running server.

    Args:
        host: address to listen on.
        port: port to listen on; 0 chooses a free one.
        options: how children run.
        token: the secret that clients send, or None for any client.
        certificate: (key, certificate chain) in PEM, or None without TLS.

    Attributes:
        port: the port that the server listens on.

    Raises:
        WorkerError: the port is taken, or the first child cannot start.
    """

    def __init__(
        self,
        host: str,
        port: int,
        options: ChildOptions,
        token: str | None = None,
        certificate: tuple[bytes, bytes] | None = None,
    ) -> None:
        """Listen on the port, and start the first child."""
        self._token, self._sessions = token, _Sessions(options)
        self._server = grpc.server(ThreadPoolExecutor(_THREADS), options=_OPTIONS)
        rpcs = {
            "Describe": grpc.unary_unary_rpc_method_handler(self._describe),
            "Control": grpc.stream_stream_rpc_method_handler(self._control),
            "Buffers": grpc.stream_stream_rpc_method_handler(self._buffers),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, rpcs),))
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if certificate is None:
                self.port = self._server.add_insecure_port(place)
            else:
                self.port = self._server.add_secure_port(place, grpc.ssl_server_credentials([certificate]))
        except RuntimeError as error:
            raise WorkerError(
                f"a worker cannot listen on {place}: the port is taken, or the address is not this machine's. Choose "
                "another one: anytpu worker --port 0 takes a free port"
            ) from error
        self._sessions.prepare()
        self._server.start()

    @property
    def description(self) -> bytes:
        """The serialised `Description` of the system."""
        return self._sessions.description

    def wait(self) -> None:
        """Serve until `close`."""
        self._server.wait_for_termination()

    def close(self) -> None:
        """Stop serving, and end the child."""
        self._server.stop(grace=None)
        self._sessions.close()

    def _admit(self, context: Any) -> str:
        """Check protocol and token, and return the session's name; end the call of a stranger."""
        metadata = dict(context.invocation_metadata())
        sent = str(metadata.get("authorization", ""))
        if self._token is not None and not hmac.compare_digest(sent.encode(), f"Bearer {self._token}".encode()):
            _LOG.warning("refused %s: %s token", context.peer(), "wrong" if sent else "no")
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token" if sent else "no token")
        if metadata.get("anytpu-protocol") != PROTOCOL:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"protocol {PROTOCOL}")
        return str(metadata.get("anytpu-session", ""))

    def _describe(self, _: bytes, context: Any) -> bytes:
        self._admit(context)
        return self._sessions.description

    def _control(self, requests: Iterator[bytes], context: Any) -> Iterator[bytes]:
        name = self._admit(context)
        child = self._sessions.begin(name)
        if child is None:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "busy")
            return
        _LOG.info("session of %s begins", context.peer())
        try:
            context.add_callback(child.kill)  # The client went: that ends the loop below.
            _forward(requests, child.control.send, child.control.close)
            yield from child.control.received()
            if context.is_active():
                context.abort(grpc.StatusCode.ABORTED, child.obituary())
        finally:
            self._sessions.end(child)
            received, sent = child.transferred_bytes
            text = "session of %s ends: %s received, %s sent"
            _LOG.info(text, context.peer(), format_bytes(received), format_bytes(sent))

    def _buffers(self, chunks: Iterator[bytes], context: Any) -> Iterator[bytes]:
        child = self._sessions.child_of(self._admit(context))
        if child is None:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such session")
            return
        _forward(chunks, child.buffers.send, lambda: None)
        yield from child.buffers.received()


@final
class _Sessions:
    """The child, and the session that uses it."""

    def __init__(self, options: ChildOptions) -> None:
        self._options = options
        self._changed = threading.Condition()
        self._child: WorkerChild | None = None
        self._name: str | None = None
        self._is_closed = False
        self.description = b""

    def prepare(self) -> None:
        """Start a child, and wait until it describes its system."""
        child = WorkerChild(self._options)
        with self._changed:
            if self._is_closed:
                child.kill()
                return
            self.description, self._child = child.description, child
            self._changed.notify_all()

    def begin(self, name: str) -> WorkerChild | None:
        """Give the child to a session; None if another session has it, and keeps it for a while."""
        with self._changed:
            if not name or not self._changed.wait_for(lambda: self._name is None, _BUSY_S):
                return None
            self._name = name
            self._changed.wait_for(lambda: self._child is not None or self._is_closed)
            self._changed.notify_all()
            return self._child

    def child_of(self, name: str) -> WorkerChild | None:
        """Return the child of a session; None if there is no such session."""
        with self._changed:
            return self._child if self._name == name else None

    def end(self, child: WorkerChild) -> None:
        """End a session: its child is killed, and another one starts."""
        child.kill()
        child.obituary()
        with self._changed:
            self._child = self._name = None
            self._changed.notify_all()
            if self._is_closed:
                return
        threading.Thread(target=self._replace, name="anytpu worker child", daemon=True).start()

    def _replace(self) -> None:
        try:
            self.prepare()
        except WorkerError as error:
            _LOG.error("%s", error)

    def close(self) -> None:
        """End the child."""
        with self._changed:
            self._is_closed = True
            child, self._child = self._child, None
            self._changed.notify_all()
        if child is not None:
            child.kill()


def _forward(messages: Iterator[bytes], send: Any, stop: Any) -> None:
    """Send a client's messages to the child in a thread of their own."""

    def forward() -> None:
        try:
            for message in messages:
                send(message)
        except (grpc.RpcError, OSError):
            pass
        except Exception:  # grpcio ends the iterator of a cancelled call with a bare Exception.
            _LOG.debug("the stream of a client ended", exc_info=True)
        stop()

    threading.Thread(target=forward, name="anytpu worker stream", daemon=True).start()
