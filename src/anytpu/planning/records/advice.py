"""`Advice`: something to change, what says so, and what was gained where the change was tried."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice.

    Attributes:
        topic: "batch", "features", "precision", "steps_per_execution", "padding", "collectives", "input", "memory".
        text: what to do, one sentence.
        evidence: what was found that says so, with its numbers, one sentence.
        tried: what was compiled again: "batch_size=1024", or "" where nothing was: the change is the user's to make.
        step_s: step time with the change, seconds: compiled where `tried` says so, else reckoned; None: not known.
        gain: examples a second with the change over without it (1.2: a fifth faster), as `step_s`; None: not known.
    """

    topic: str
    text: str
    evidence: str
    tried: str = ""
    step_s: float | None = None
    gain: float | None = None
