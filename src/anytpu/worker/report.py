"""The report of a worker's sessions: a table, and counts of the past."""

from __future__ import annotations

import time
from typing import Any

from anytpu.report.wording import aligned, plural
from anytpu.units import format_bytes, format_seconds

_HEADINGS = ("client", "for", "connection", "received", "sent", "memory")


def status_lines(status: Any) -> list[str]:
    """Return the lines of a worker's `Status` message."""
    rows = [_HEADINGS, *map(_row, status.sessions)]
    past = f"{status.closed} closed, {status.lost} lost, {status.died} died; {plural(status.refused, 'refused call')}"
    head = f"{len(status.sessions)} of {plural(status.max_sessions, 'session')} in use"
    return [head, *(aligned(rows) if status.sessions else []), f"before: {past}"]


def _row(session: Any) -> tuple[str, ...]:
    lost = f"lost for {format_seconds(session.away_s)}" if session.away_s else "connected"
    sizes = (session.received_bytes, session.sent_bytes, session.memory_bytes)
    return session.client, format_seconds(time.time() - session.began_s), lost, *map(format_bytes, sizes)
