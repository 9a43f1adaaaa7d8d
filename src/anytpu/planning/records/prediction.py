"""`Prediction`: one program on one system: its speed, its memory, its cost, and `Advice` on changes worth making.

Rule: nothing here was measured. `predicted_by` names the method, and every uncertain number has its interval.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any, Literal

from anytpu import units
from anytpu.planning.records.cost import Cost, Holding
from anytpu.planning.records.host import HostLoad
from anytpu.planning.records.step import BatchPadding, MemoryUse, OpTime, StepTime
from anytpu.planning.records.target import Target

Basis = Literal["compiled", "extrapolated", "floor"]
"""The basis of a prediction.

"compiled": the program that the TPU compiler made. "extrapolated": two compilations of the program with fewer repeated
layers. "floor": FLOPs and bytes alone, which give a minimum and no forecast.
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Advice:
    """One piece of advice.

    Attributes:
        topic: "batch", "precision", "steps_per_execution", "padding", "collectives", "input", "memory".
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Prediction:
    """The prediction of one step of a program on one system.

    Attributes:
        program: the program's name: "sequential/train".
        mode: "train" or "infer".
        target: the system.
        batch_size: examples of one step over all devices, or None for a program without rows.
        predicted_by: the method: "the TPU compiler (libtpu 0.0.51)".
        basis: basis of the prediction. For a "floor" each number is a bound: a minimum of time, memory and cost.
        memory: memory of one device; None if it is not known.
        time: time of one step; None if it does not fit.
        flops: floating-point operations of the matrix products and convolutions in one step of one device, without
            those that rematerialisation repeats. None if it does not fit.
        peak_flops_per_s: peak rate of one device for the type that most of those products are computed in.
        steps_per_execution: steps that one call of the host starts.
        largest_batch: the largest global batch that fits, if it was searched for, else None.
        holding: for a step that does not fit, the smallest slice of each chip that would hold it, fewest chips first.
        cost: cost of the step; None without a price. For a floor, the minimum; for a step that does not fit, that of an
            hour alone.
        advice: changes worth making, the largest gain first.
        notes: further notes, a sentence each, such as the split of a batch that the devices do not divide.
        compile_s: time of the compilation, seconds; None if the answer was on the disk.
        batch_padding: padding of rows that do not fill the tiles of the memory; None if there is none, or it is not
            known.
        layout: mesh of a program with shardings, and its arrays by their partition; "" for one without.
        host: the load of one host, for a slice of several hosts; else None.
        layout_name: name of the layout that the plan was made for, such as "fsdp"; "" for the program's own shardings.
    """

    program: str
    mode: str
    target: Target
    batch_size: int | None
    predicted_by: str
    memory: MemoryUse | None
    time: StepTime | None
    flops: float | None = None
    peak_flops_per_s: float | None = None
    steps_per_execution: int = 1
    largest_batch: int | None = None
    holding: tuple[Holding, ...] = ()
    cost: Cost | None = None
    advice: tuple[Advice, ...] = ()
    notes: tuple[str, ...] = ()
    compile_s: float | None = None
    basis: Basis = "compiled"
    batch_padding: BatchPadding | None = None
    layout: str = ""
    layout_name: str = ""
    host: HostLoad | None = None

    @property
    def is_floor(self) -> bool:
        """Whether this is the minimum of a step, and no forecast."""
        return self.basis == "floor"

    @property
    def has_backward(self) -> bool | None:
        """Whether the step has a backward pass; None if its operations or their source lines are not known."""
        ops = self.time.ops if self.time is not None else ()
        if not any(op.source for op in ops):
            return None
        return any(op.is_backward for op in ops)

    @property
    def is_bounded(self) -> bool:
        """Whether the step time has an upper bound: neither a floor, nor a step with a loop of unknown length."""
        return self.time is not None and math.isfinite(self.time.interval_s[1])

    def __repr__(self) -> str:
        """Return a line: the program, the system, the step with its interval, the memory."""
        batch = f", batch {self.batch_size:,}" if self.batch_size else ""
        at_least = "at least " if self.is_floor else ""
        memory = f"; {at_least}{memory_text(self.memory)}" if self.memory else ""
        return f"<Prediction of {self.program} on {self.target.name}{batch}: {step_text(self)}{memory}>"

    @property
    def fits(self) -> bool:
        """Whether it fits into the memory; for a floor, whether its minimum does."""
        return self.memory is None or self.memory.fits

    @property
    def hbm_bytes(self) -> int | None:
        """Peak memory of one device, bytes."""
        return self.memory.peak_bytes if self.memory else None

    @property
    def step_s(self) -> float | None:
        """Predicted time of one step, seconds; None if it does not fit."""
        return self.time.step_s if self.time else None

    @property
    def interval_s(self) -> tuple[float, float] | None:
        """Bounds of the step time, seconds; None if it does not fit.

        The upper bound is `math.inf` for a floor, and for a step with a loop of unknown length.
        """
        return self.time.interval_s if self.time else None

    @property
    def examples_per_s(self) -> float | None:
        """Predicted examples a second, over all devices; for a floor, the maximum."""
        return self.batch_size / self.step_s if self.batch_size and self.step_s else None

    @property
    def mfu(self) -> float | None:
        """Model FLOPs utilisation: `flops / (step_s * peak_flops_per_s)`, between 0 and 1; None for a floor."""
        if self.is_floor or not (self.flops and self.step_s and self.peak_flops_per_s):
            return None
        return self.flops / (self.step_s * self.peak_flops_per_s)

    @property
    def time_by_op(self) -> tuple[OpTime, ...]:
        """The operations, the longest first."""
        return tuple(sorted(self.time.ops, key=lambda op: -op.time_s)) if self.time else ()

    def to_record(self) -> dict[str, Any]:
        """Return every field as JSON values: numbers, strings, lists and dictionaries; null for no upper bound."""
        record = dataclasses.asdict(dataclasses.replace(self, target=None, holding=()))  # type: ignore[arg-type]
        derived = {
            name: getattr(self, name)
            for name in ("is_floor", "fits", "hbm_bytes", "step_s", "interval_s", "examples_per_s", "mfu")
        }
        if self.time is not None:
            bounds_s = [bound_s if math.isfinite(bound_s) else None for bound_s in self.time.interval_s]
            derived["interval_s"] = record["time"]["interval_s"] = bounds_s
        holding = [slice_.to_record() for slice_ in self.holding]
        return {"tpu": self.target.name, **derived, **record, "holding": holding, "target": self.target.to_record()}


def step_text(prediction: Prediction) -> str:
    """Return the time of a step with its interval as text, or that it does not fit."""
    if prediction.time is None:
        return "does not fit" if not prediction.fits else "no time predicted"
    if prediction.is_floor:
        return f"at least {units.format_seconds(prediction.time.step_s)} a step"
    low_s, high_s = prediction.time.interval_s
    high = units.format_seconds(high_s) if math.isfinite(high_s) else "no upper bound"
    return f"{units.format_seconds(prediction.time.step_s)} a step ({units.format_seconds(low_s)} to {high})"


def memory_text(memory: MemoryUse) -> str:
    """Return the needed memory and the limit as text."""
    return f"{units.format_bytes(memory.peak_bytes)} of {units.format_bytes(memory.limit_bytes)}"
