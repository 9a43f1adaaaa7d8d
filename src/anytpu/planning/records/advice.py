"""`Advice`: a change, the evidence for it, and its gain if it was tried."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice.

    Attributes:
        topic: "batch", "features", "precision", "steps_per_execution", "padding", "collectives", "input", "memory".
        text: the change, one sentence.
        evidence: the findings that ask for it, with their numbers, one sentence.
        tried: the changed setting that was compiled: "batch_size=1024"; "" if none was, because the user has to make
            the change.
        step_s: step time with the change, seconds: compiled if `tried` says so, else computed; None: not known.
        gain: examples a second with the change over without it (1.2: a fifth faster), from `step_s`; None: not known.
    """

    topic: str
    text: str
    evidence: str
    tried: str = ""
    step_s: float | None = None
    gain: float | None = None
