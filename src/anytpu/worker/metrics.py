"""Metrics of a worker for Prometheus: its sessions, their bytes and memory, and counts of the past.

Idea: strangers may connect to this port too. One thread serves all connections. Each has five seconds for its request,
and of too many that wait the oldest is closed, because Prometheus asks at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, final

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from anytpu.errors import WorkerError

_REQUEST_S = 5.0
_MAX_WAITING = 64


@final
class _StatusCollector(Collector):
    def __init__(self, status: Callable[[], Any]) -> None:
        self._status = status

    def collect(self) -> Iterator[Metric]:
        status = self._status()
        yield GaugeMetricFamily("anytpu_worker_sessions", "Present sessions.", len(status.sessions))
        yield GaugeMetricFamily("anytpu_worker_max_sessions", "Maximum number of sessions.", status.max_sessions)
        away = sum(session.away_s > 0 for session in status.sessions)
        yield GaugeMetricFamily("anytpu_worker_sessions_away", "Sessions without a connection.", away)
        memory = sum(session.memory_bytes for session in status.sessions)
        yield GaugeMetricFamily("anytpu_worker_memory_bytes", "Host memory of the sessions' processes.", memory)
        received, sent = status.received_bytes, status.sent_bytes
        yield CounterMetricFamily("anytpu_worker_received_bytes", "Bytes from clients.", value=received)
        yield CounterMetricFamily("anytpu_worker_sent_bytes", "Bytes to clients.", value=sent)
        ended = CounterMetricFamily("anytpu_worker_sessions_ended", "Sessions that ended.", labels=["reason"])
        for reason in ("closed", "lost", "died"):
            ended.add_metric([reason], getattr(status, reason))
        yield ended
        yield CounterMetricFamily("anytpu_worker_refused", "Calls with a wrong token, or none.", value=status.refused)


@final
class _Page:
    """The page with the metrics, and the connections that ask for it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._waiting: dict[asyncio.StreamWriter, None] = {}

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer one request, and close its connection."""
        self._waiting[writer] = None
        if len(self._waiting) > _MAX_WAITING:
            oldest = next(iter(self._waiting))
            del self._waiting[oldest]
            oldest.transport.abort()
        try:
            async with asyncio.timeout(_REQUEST_S):
                with contextlib.suppress(OSError, EOFError, asyncio.LimitOverrunError):
                    await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._response())
                    await writer.drain()
                writer.close()
        except TimeoutError:
            writer.transport.abort()
        finally:
            self._waiting.pop(writer, None)

    def _response(self) -> bytes:
        body = generate_latest(self._registry)
        lines = ("HTTP/1.1 200 OK", f"Content-Type: {CONTENT_TYPE_LATEST}", f"Content-Length: {len(body)}")
        return "\r\n".join([*lines, "Connection: close", "", ""]).encode() + body


def serve_metrics(status: Callable[[], Any], host: str, port: int) -> int:
    """Serve the metrics at http://host:port/metrics in a thread, and return the port.

    Args:
        status: returns the `Status` message of the worker.
        host: address to listen on.
        port: port to listen on; 0 chooses a free one.

    Raises:
        WorkerError: the port is taken.
    """
    registry = CollectorRegistry()
    registry.register(_StatusCollector(status))
    try:
        listener = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise WorkerError(
            f"the metrics cannot be served on {host}:{port}: {error.strerror}. Choose another --metrics-port"
        ) from error

    async def serve() -> None:
        server = await asyncio.start_server(_Page(registry).answer, sock=listener, limit=2**13)
        await server.serve_forever()

    threading.Thread(target=lambda: asyncio.run(serve()), name="anytpu worker metrics", daemon=True).start()
    return listener.getsockname()[1]
