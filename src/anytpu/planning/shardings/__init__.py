"""Shardings of one model over a slice: candidates are estimated, the best are compiled, and ranked by prediction."""

from anytpu.planning.shardings.search import find_layouts

__all__ = ["find_layouts"]
