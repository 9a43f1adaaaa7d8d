"""`TRACING`: held by whoever traces a step.

Rule: one thread traces at a time, since Keras keeps what it is doing where all threads see it.
"""

from __future__ import annotations

import threading

TRACING = threading.RLock()
"""Held while a step is traced."""
