"""`CheckReport`: the result of a check, layer by layer."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Literal

Kind = Literal["output", "loss", "gradient", "variable"]
"""The kind of a value: a layer's output, a loss, the gradient of a weight, a variable after the step."""

_KINDS: dict[Kind, str] = {
    "output": "outputs of layers",
    "loss": "losses",
    "gradient": "gradients",
    "variable": "variables after the step",
}


@dataclasses.dataclass(frozen=True)
class CheckedValue:
    """One value of a step, compared between the runs.

    Attributes:
        name: path of the layer or of the variable.
        kind: kind of the value.
        scale: largest absolute value on one core; for a variable, the largest absolute change.
        tolerance: maximum absolute difference that agrees.
        differences: largest absolute difference from one core, by run; inf if the run's value has another shape, is not
            finite, or is missing.
        not_finite: number of elements that are NaN or infinite on one core and cannot be compared. Infinities beside
            finite elements in a layer's output, as a mask causes, do not count.
    """

    name: str
    kind: Kind
    scale: float
    tolerance: float
    differences: dict[str, float]
    not_finite: int = 0

    @property
    def agrees(self) -> bool:
        """Whether the value is finite on one core, and within its tolerance in every run."""
        return self.differs_in is None and not self.not_finite

    @property
    def differs_in(self) -> str | None:
        """The first run in which the difference exceeds the tolerance, or None."""
        # Not "difference > tolerance", which is False for NaN.
        return next((run for run, difference in self.differences.items() if not difference <= self.tolerance), None)


@dataclasses.dataclass(frozen=True)
class CheckReport:
    """A training step, run on one core, again, on virtual cores and on partitioned devices.

    Attributes:
        model: name of the model.
        cores: number of virtual cores, and number of devices.
        rows: number of rows of the batch.
        data: short description of the batch.
        values: all compared values, in the order of computation: outputs, losses, gradients, variables. None for a
            layout with faults, which cannot run.
        layout: name and mesh of the layout over the cores, "fsdp over data=8"; "" without a layout.
        faults: a sentence on each rule of the layout that does not fit the model.
        remarks: a sentence on each thing that the layout's author may not have meant. Examples are large weights left
            whole, and data that moves between devices inside the step. Also the changes of a smaller model.
    """

    model: str
    cores: int
    rows: int
    data: str
    values: tuple[CheckedValue, ...]
    layout: str = ""
    faults: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def layers(self) -> tuple[CheckedValue, ...]:
        """The outputs of the layers, in the order in which they are called."""
        return tuple(value for value in self.values if value.kind == "output")

    @property
    def first_difference(self) -> CheckedValue | None:
        """The first value that differs beyond its tolerance, or None."""
        return next((value for value in self.values if value.differs_in is not None), None)

    @property
    def first_not_finite(self) -> CheckedValue | None:
        """The first value with NaN or infinite elements on one core, or None."""
        return next((value for value in self.values if value.not_finite), None)

    @property
    def agrees(self) -> bool:
        """Whether every value is finite and within its tolerance in every run, and the layout has no fault."""
        return not self.faults and all(value.agrees for value in self.values)

    def __repr__(self) -> str:
        """Return a line: the result, and how to see the values."""
        return f"<CheckReport: {self._headline()} print() shows each value.>"

    def __str__(self) -> str:
        lines = [self._headline(), "", *[f"fault: {fault}" for fault in self.faults]]
        if self.values:
            lines += [*_table(self._shown()), "", *self._others(), *self._notes()]
        return "\n".join([*lines, *[f"note: {remark}" for remark in self.remarks]])

    def _headline(self) -> str:
        if self.faults:
            count = "1 fault" if len(self.faults) == 1 else f"{len(self.faults)} faults"
            return f"the layout {self.layout} does not fit {self.model!r}: {count}."
        wrong = self.first_not_finite
        first = next((value for value in self.values if not value.agrees), None)
        if wrong is not None and first is wrong:
            return (
                f"{self.model!r} cannot be compared: {_whose(wrong)} is not finite on 1 core already. "
                f"NaN or infinite: {wrong.not_finite:,} of its elements, and none of any earlier value."
            )
        if first is None:
            runs = list(next(iter(self.values)).differences)[1:] if self.values else []
            layout = f", in the layout {self.layout}" if self.layout else ""
            return f"{self.model!r} computes the same on 1 core, {' and '.join(runs)}{layout}."
        return (
            f"{self.model!r} does not compute the same everywhere: {_whose(first)} differs first, {first.differs_in}."
        )

    def _shown(self) -> list[CheckedValue]:
        """Return all outputs and losses, and the gradients and variables that differ."""
        return [value for value in self.values if value.kind in ("output", "loss") or not value.agrees]

    def _others(self) -> list[str]:
        hidden = [value for value in self.values if value not in self._shown()]
        counts = {name: sum(value.kind == kind for value in hidden) for kind, name in _KINDS.items()}
        listed = " and ".join(f"{count} {name}" for name, count in counts.items() if count)
        return [f"Not shown, since they agree: {listed}."] if listed else []

    def _notes(self) -> list[str]:
        return [
            f"One training step on {self.rows} rows ({self.data}); all rows at once, as fit does.",
            "The tolerance: a multiple of the change by a last bit of every input and weight, or a share of the scale.",
        ]


def _whose(value: CheckedValue) -> str:
    start = {"output": "the layer ", "loss": "the log ", "gradient": "the gradient of ", "variable": "the variable "}
    return f"{start[value.kind]}{value.name!r}"


def _table(values: Iterable[CheckedValue]) -> list[str]:
    rows = [_row(value) for value in values]
    runs = list(dict.fromkeys(run for value in values for run in value.differences))
    head = ["", "scale", "tolerance", *(f"off {run}" for run in runs), ""]
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return [
        "  ".join(
            c.ljust(w) if i == 0 else c.rjust(w) for i, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    ]


def _verdict(value: CheckedValue) -> str:
    if value.not_finite:
        return "not finite"
    return "" if value.agrees else "differs"


def _row(value: CheckedValue) -> list[str]:
    numbers = (value.scale, value.tolerance, *value.differences.values())
    return [value.name, *(f"{number:.2g}" for number in numbers), _verdict(value)]
