"""Advice: changes to a program, the evidence for each, and the gain of those that were tried."""

from anytpu.planning.advice.facts import Facts, facts_of
from anytpu.planning.advice.slices import slices_that_hold
from anytpu.planning.advice.trials import advice_for

__all__ = ["Facts", "advice_for", "facts_of", "slices_that_hold"]
