"""`Finding`: something to change, before it is tried."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something to change.

    Attributes:
        topic: as `Advice` has it.
        text: the change.
        evidence: the numbers that ask for it.
        batch_size: the batch to try, or None.
        precision: the precision to try, or None.
        tpu: the system to try, or None.
        steps_per_execution: the steps a call to reckon with, or None.
    """

    topic: str
    text: str
    evidence: str
    batch_size: int | None = None
    precision: str | None = None
    tpu: str | None = None
    steps_per_execution: int | None = None
