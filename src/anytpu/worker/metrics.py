"""Metrics of a worker for Prometheus: its sessions, their bytes and memory, and counts of the past."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, final

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from anytpu.errors import WorkerError


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
        server, _ = start_http_server(port, host, registry)
    except OSError as error:
        raise WorkerError(
            f"the metrics cannot be served on {host}:{port}: {error.strerror}. Choose another --metrics-port"
        ) from error
    return server.server_port
