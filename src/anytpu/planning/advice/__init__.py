"""What to change, what says so, and what was gained where the change was tried."""

from anytpu.planning.advice.rematerialisation import rematerialisation
from anytpu.planning.advice.trials import advice_for

__all__ = ["advice_for", "rematerialisation"]
