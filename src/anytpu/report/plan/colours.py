"""Colours of operation kinds and buffer uses, the same in every plot and table."""

from __future__ import annotations

from anytpu.planning.records import KINDS
from anytpu.report.drawing.shapes import SERIES

KIND_COLOURS = dict(zip(KINDS, SERIES, strict=True))
"""The colour of each kind of operation."""

USE_COLOURS = {"temporary": "c0", "batch": "c1", "state": "c2", "output": "c4", "code": "c7", "peak": "c0"}
"""The colour of each use of a buffer."""
