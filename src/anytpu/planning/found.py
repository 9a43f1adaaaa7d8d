"""`Found`: what one way of predicting found of a program, before anything is reckoned from it."""

from __future__ import annotations

import dataclasses

from anytpu.planning.records import Basis, BatchPadding, Memory, StepTime


@dataclasses.dataclass(frozen=True)
class Found:
    """What one way of predicting found.

    Attributes:
        time: of one step; None when it does not fit.
        memory: of one device.
        predicted_by: who predicted.
        peak_flops_per_s: peak rate of one device.
        compile_s: how long the compiler took, or None when the answer was on the disk, or there was none.
        notes: what has to be said of this way, a sentence each.
        basis: what the prediction rests on.
        batch_padding: what rows that do not fill the tiles of the memory take; None where nothing, or not known.
    """

    time: StepTime | None
    memory: Memory
    predicted_by: str
    peak_flops_per_s: float
    compile_s: float | None = None
    notes: tuple[str, ...] = ()
    basis: Basis = "compiled"
    batch_padding: BatchPadding | None = None
