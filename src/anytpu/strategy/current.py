"""The state of a thread: the strategy in whose scope it is, and whether it makes an embedding table."""

from __future__ import annotations

import contextvars
from typing import Any

CURRENT: contextvars.ContextVar[Any] = contextvars.ContextVar("strategy", default=None)
"""The `TPUStrategy` in scope, or None."""

MAKES_TABLE: contextvars.ContextVar[bool] = contextvars.ContextVar("makes_table", default=False)
"""Whether new variables are an embedding table and its slots, whose rows a strategy splits."""
