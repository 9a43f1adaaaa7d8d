"""`TRACING`: the lock of the thread that traces a step.

Rule: one thread traces at a time, because Keras keeps its tracing state in globals that all threads see.
"""

from __future__ import annotations

import threading

TRACING = threading.RLock()
"""Held while a step is traced."""
