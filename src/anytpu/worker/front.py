"""The front server of a worker: it authenticates clients, and passes their messages to children.

Idea: this process never imports JAX and parses no message of a session. A child parses, checks, compiles and runs
Programs; it can crash. Then the front tells the client how the child ended, and starts another child.
"""

from __future__ import annotations

import contextlib
import ctypes
import hmac
import logging
import resource
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, final

import grpc

from anytpu.errors import DataError, SettingError, WorkerError
from anytpu.units import format_bytes
from anytpu.worker.children import ChildOptions
from anytpu.worker.sessions import SessionLimits, Sessions, WorkerSession
from anytpu.worker.wire import MAX_FRAME_BYTES, MAX_MESSAGE_BYTES, PROTOCOL, SERVICE, messages

_LOG = logging.getLogger("anytpu")
_THREADS = 64
"""Number of threads beside the two of each session: for answers, for clients that wait, and for new connections."""
_MAX_FILES = 2**14
"""Maximum number of open files; a connection in its handshake takes about 45 KiB of memory."""
_OPTIONS = [
    ("grpc.so_reuseport", 0),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.http2.max_frame_size", MAX_FRAME_BYTES),
    ("grpc.max_concurrent_streams", 16),
    # A client that vanished is noticed within a minute; the client's pings, one in 30 seconds, are allowed.
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
    ("grpc.keepalive_permit_without_calls", 1),
    # A stranger's connection: 20 seconds for its handshake, and a minute without a call.
    ("grpc.server_handshake_timeout_ms", 20_000),
    ("grpc.max_connection_idle_ms", 60_000),
]
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _ARENA_MAX = -1, -3, -8  # glibc's malloc.h
_SERVING = b"\x08\x01"
"""`HealthCheckResponse(status=SERVING)` of grpc.health.v1."""


def _keep_freed_memory() -> None:
    """Let glibc keep freed memory for the next message; else each of 1 MiB costs 256 page faults, half of its time.

    All threads share one arena. Otherwise each new thread of gRPC has its own, and the front grows with each wave of
    connections.
    """
    with contextlib.suppress(AttributeError):  # Another C library.
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_MMAP_THRESHOLD, MAX_MESSAGE_BYTES // 2)
        mallopt(_TRIM_THRESHOLD, MAX_MESSAGE_BYTES)
        mallopt(_ARENA_MAX, 1)


def _allow_connections() -> None:
    """Raise the number of files that this process may open: each connection is one, and 1024 are soon used up."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = _MAX_FILES if most == resource.RLIM_INFINITY else min(most, _MAX_FILES)
    with contextlib.suppress(ValueError, OSError):  # macOS has a lower limit than it tells.
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, most))


@final
class Front:
    """A running server.

    Args:
        host: address to listen on.
        port: port to listen on; 0 chooses a free one.
        options: how children run.
        token: the secret that clients send, or None for any client.
        certificate: (key, certificate chain) in PEM, or None without TLS.
        limits: number of sessions, and their lease.

    Attributes:
        port: the port that the server listens on.

    Raises:
        WorkerError: the port is taken, or the first child cannot start.
        SettingError: the system cannot serve as many sessions.
    """

    def __init__(
        self,
        host: str,
        port: int,
        options: ChildOptions,
        token: str | None = None,
        certificate: tuple[bytes, bytes] | None = None,
        limits: SessionLimits = SessionLimits(),  # noqa: B008
    ) -> None:
        """Listen on the port, and start the first child."""
        _keep_freed_memory()
        _allow_connections()
        self._token, self.sessions = token, Sessions(options, limits)
        self.refused = 0
        self._server = grpc.server(ThreadPoolExecutor(_THREADS + 2 * limits.count), options=_OPTIONS)
        # The request of an answer is empty, and is not read: who never sends it would hold a thread. To send an answer
        # that is no stream holds none, either.
        answer, streams = grpc.stream_unary_rpc_method_handler, grpc.stream_stream_rpc_method_handler
        rpcs = {
            "Describe": answer(self._describe),
            "Status": answer(self._status),
            "Close": answer(self._close),
            "Control": streams(lambda frames, context: self._stream("control", frames, context)),
            "Buffers": streams(lambda frames, context: self._stream("buffers", frames, context)),
        }
        health = {"Check": answer(lambda _, context: _SERVING)}
        self._server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, rpcs),
                grpc.method_handlers_generic_handler("grpc.health.v1.Health", health),
            )
        )
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
        # Start the first child. The server accepts no call before it knows the system.
        self.sessions.prepare()
        cores = messages().Description.FromString(self.sessions.description).cores
        if limits.count > 1 and any(core.platform == "tpu" and not core.virtual for core in cores):
            self.sessions.close()
            raise SettingError(
                f"--max-sessions {limits.count}: each session has a process of its own, and only one process can use "
                "this machine's TPU. Leave the option out; --sessions queue lets further programs wait"
            )
        self._server.start()

    def status(self) -> Any:
        """Return the `Status` message: the sessions, and counts of the past."""
        present = self.sessions.all()
        received, sent = self.sessions.past_bytes
        return messages().Status(
            sessions=[
                messages().SessionStatus(
                    client=session.peer,
                    began_s=session.began_s,
                    away_s=session.away_s,
                    received_bytes=session.transferred_bytes[0],
                    sent_bytes=session.transferred_bytes[1],
                    memory_bytes=session.child.memory_bytes(),
                )
                for session in present
            ],
            max_sessions=self.sessions.limits.count,
            refused=self.refused,
            received_bytes=received + sum(session.transferred_bytes[0] for session in present),
            sent_bytes=sent + sum(session.transferred_bytes[1] for session in present),
            **self.sessions.ended,
        )

    def wait(self) -> None:
        """Serve until `close`."""
        self._server.wait_for_termination()

    def close(self) -> None:
        """Stop serving, and end the children."""
        self._server.stop(grace=None)
        self.sessions.close()

    def _admit(self, context: Any) -> dict[str, str]:
        """Check token and protocol, and return the metadata of a call; end the call of a stranger."""
        metadata = {key: str(value) for key, value in context.invocation_metadata()}
        sent = metadata.get("authorization", "")
        if self._token is not None and not hmac.compare_digest(sent.encode(), f"Bearer {self._token}".encode()):
            self.refused += 1
            _LOG.warning("refused %s: %s token", context.peer(), "wrong" if sent else "no")
            context.abort(grpc.StatusCode.UNAUTHENTICATED, "wrong token" if sent else "no token")
        if metadata.get("anytpu-protocol") != PROTOCOL:
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"protocol {PROTOCOL}")
        return metadata

    def _describe(self, _: Iterator[bytes], context: Any) -> bytes:
        self._admit(context)
        described = messages().Description.FromString(self.sessions.description)
        described.lease_s = self.sessions.limits.lease_s
        return described.SerializeToString()

    def _status(self, _: Iterator[bytes], context: Any) -> bytes:
        self._admit(context)
        return self.status().SerializeToString()

    def _close(self, _: Iterator[bytes], context: Any) -> bytes:
        session = self.sessions.find(self._admit(context).get("anytpu-session", ""))
        if session is not None:
            self._end(session, "closed")
        return b""

    def _stream(self, stream: str, frames: Iterator[bytes], context: Any) -> Iterator[bytes]:
        """Serve one connection of a session's stream."""
        metadata = self._admit(context)
        name, received = metadata.get("anytpu-session", ""), metadata.get("anytpu-received", "")
        session = self.sessions.find(name)
        # 1. Find the session. The first connection of its control stream begins it.
        if session is None and stream == "control" and received == "0":
            session = self._begin(name, context)
        if session is None or not received.isascii() or not received.isdigit():
            context.abort(grpc.StatusCode.NOT_FOUND, "no such session")
            return
        # 2. Attach this connection, and tell the client from where to continue.
        try:
            connection, received_here = session.attach(stream, int(received))
        except DataError as error:
            self._refuse(session, error)
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        context.add_callback(lambda: session.detach(stream, connection))
        context.send_initial_metadata((("anytpu-received", str(received_here)),))
        # 3. Messages of the client are taken in another thread; this one yields those of the child.
        threading.Thread(
            target=self._take, args=(session, stream, connection, frames), name="anytpu worker stream", daemon=True
        ).start()
        yield from session.links[stream].frames(connection)
        # The link has ended before the connection, so the child has ended.
        if session.links[stream].is_closed and context.is_active():
            end = session.child.wait_for_end()
            self._end(session, "died")
            context.abort(grpc.StatusCode.ABORTED, end)

    def _begin(self, name: str, context: Any) -> WorkerSession | None:
        session = self.sessions.begin(name, context.peer(), context.is_active)
        if isinstance(session, str):
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, session)
            return None
        _LOG.info("session of %s begins", context.peer())
        return session

    def _take(self, session: WorkerSession, stream: str, connection: int, frames: Iterator[bytes]) -> None:
        try:
            session.take(stream, connection, frames)
        except DataError as error:
            self._refuse(session, error)
        except (grpc.RpcError, OSError):
            pass
        except Exception:  # grpcio ends the iterator of a cancelled call with a bare Exception.
            _LOG.debug("the stream of a client ended", exc_info=True)

    def _refuse(self, session: WorkerSession, error: DataError) -> None:
        _LOG.warning("session of %s: %s", session.peer, error)
        self._end(session, "died")

    def _end(self, session: WorkerSession, reason: str) -> None:
        if self.sessions.end(session, reason):
            received, sent = session.transferred_bytes
            text = "session of %s ends: %s received, %s sent"
            _LOG.info(text, session.peer, format_bytes(received), format_bytes(sent))
