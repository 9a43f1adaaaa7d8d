"""Channels and positions in other places: views where planes allow it, else copies."""

from __future__ import annotations

from anytpu.chip.compiler.lowering import Lowering
from anytpu.chip.compiler.planes import Layout
from anytpu.chip.image import Tag


def compacted(tensor: str, tag: Tag, lowering: Lowering) -> Layout:
    """Return a copy of a tensor in one storage, of planes as the host wants them."""
    raise NotImplementedError
