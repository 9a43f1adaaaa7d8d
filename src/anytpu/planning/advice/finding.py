"""`ProposedChange`: a change to a program, before it is tried."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class ProposedChange:
    """A change to a program, before it is tried.

    Attributes:
        topic: one of the topics of `Advice`.
        text: the change, one sentence.
        evidence: the numbers that ask for it, one sentence.
        batch_size: the batch to try, or None.
        precision: the precision to try, or None.
        tpu: the system to try, or None.
        steps_per_execution: the number of steps a call to compute the gain for, or None.
    """

    topic: str
    text: str
    evidence: str
    batch_size: int | None = None
    precision: str | None = None
    tpu: str | None = None
    steps_per_execution: int | None = None
