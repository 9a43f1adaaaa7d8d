"""The current strategy: the one whose scope this thread is in."""

from __future__ import annotations

import contextvars
from typing import Any

CURRENT: contextvars.ContextVar[Any] = contextvars.ContextVar("strategy", default=None)
"""The `TPUStrategy` in scope, or None."""
