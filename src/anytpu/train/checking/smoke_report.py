"""`SmokeReport`: the result of a smoke test."""

from __future__ import annotations

import dataclasses

from anytpu.planning.records import Plan


@dataclasses.dataclass(frozen=True)
class SmokeReport:
    """The losses of a smaller model, and the plan of the real one.

    Attributes:
        model: name of the model.
        cores: number of virtual cores that the smaller model was trained on.
        rows: number of rows of the batch that it was trained on.
        layout: name and mesh of its layout over the cores; "" without a layout.
        losses: its loss at each step.
        change: a sentence on the changes of the smaller model.
        plan: the plan of the real model.
    """

    model: str
    cores: int
    rows: int
    layout: str
    losses: tuple[float, ...]
    change: str
    plan: Plan

    def __repr__(self) -> str:
        """Return a line: the losses, the prediction of the real model, and the method that prints the rest."""
        return f"<SmokeReport: {self._headline()} show() prints the plan.>"

    def __str__(self) -> str:
        layout = f", layout {self.layout}" if self.layout else ""
        cores = "1 virtual core" if self.cores == 1 else f"{self.cores} virtual cores"
        return "\n".join(
            [
                self._headline(),
                f"{len(self.losses)} steps on {cores}{layout}, {self.rows} rows generated from a fixed seed.",
                f"note: {self.change}",
            ]
        )

    def show(self) -> None:
        """Print the report, and the plan of the real model."""
        print(self)
        self.plan.show()

    def _headline(self) -> str:
        losses = f"loss {self.losses[0]:.4g} to {self.losses[-1]:.4g} in {len(self.losses)} steps"
        return f"{self.model!r} trains, {losses}; the real one: {self.plan.predictions[0]!r}."
