"""What to change, what says so, and what was gained where the change was tried."""

from anytpu.planning.advice.facts import Facts, facts_of
from anytpu.planning.advice.line import MemoryLine, is_relaxed, line_of
from anytpu.planning.advice.trials import advice_for

__all__ = ["Facts", "MemoryLine", "advice_for", "facts_of", "is_relaxed", "line_of"]
