"""`Estimate`: the result of one method of prediction, before costs and advice."""

from __future__ import annotations

import dataclasses

from anytpu.planning.records import Basis, BatchPadding, Memory, StepTime


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The result of one method of prediction: the compiler, an extrapolation or a floor.

    Attributes:
        time: time of one step; None if the program does not fit.
        memory: memory of one device.
        predicted_by: the method: "the TPU compiler (libtpu 0.0.51)".
        peak_flops_per_s: peak rate of one device, FLOP/s.
        compile_s: time of the compilation, seconds; None if the answer was on the disk, or there was none.
        notes: notes on this method, a sentence each.
        basis: basis of the prediction.
        batch_padding: padding of rows that do not fill the tiles of the memory; None if there is none, or it is not
            known.
    """

    time: StepTime | None
    memory: Memory
    predicted_by: str
    peak_flops_per_s: float
    compile_s: float | None = None
    notes: tuple[str, ...] = ()
    basis: Basis = "compiled"
    batch_padding: BatchPadding | None = None
