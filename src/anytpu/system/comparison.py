"""`Comparison`: what one job took on each system of a machine.

Idea: who measures and who shows are strangers; this record is all that they share.

Rule: times are what a clock said; nothing here is predicted.
"""

from __future__ import annotations

import dataclasses
import statistics
from collections.abc import Mapping
from typing import Any

from anytpu import units
from anytpu.system.probes import Reason


@dataclasses.dataclass(frozen=True)
class Measurement:
    """What a job took on one system.

    Attributes:
        name: what the system is called: "1 virtual core", "v2-8", "GPU".
        cores: its cores.
        is_virtual: True when they are simulated on this machine's CPU.
        first_epoch_s: the first epoch, which compiles.
        epoch_s: each later epoch.
        examples: examples of one epoch.
        metrics: the loss and the metrics of the last epoch.
    """

    name: str
    cores: int
    is_virtual: bool
    first_epoch_s: float
    epoch_s: tuple[float, ...]
    examples: int
    metrics: Mapping[str, float]

    @property
    def median_s(self) -> float:
        """The median of the later epochs."""
        return statistics.median(self.epoch_s)

    @property
    def example_s(self) -> float:
        """The time of one example."""
        return self.median_s / self.examples

    @property
    def examples_per_s(self) -> float:
        """How many examples a second are trained on."""
        return self.examples / self.median_s


@dataclasses.dataclass(frozen=True)
class Comparison:
    """What a job took on each system of this machine; the first is what the others are compared with.

    Attributes:
        job: what was run.
        batch_size: examples of one step, over all cores.
        measurements: one for each system, in the order in which they took turns.
        absent: why there is no other.
    """

    job: str
    batch_size: int
    measurements: tuple[Measurement, ...]
    absent: tuple[Reason, ...] = ()

    def speed_up(self, measurement: Measurement) -> float:
        """Return how many times as fast as the first system another is."""
        return self.measurements[0].median_s / measurement.median_s

    def to_record(self) -> dict[str, Any]:
        """Return everything as what JSON has: numbers, strings, lists and dictionaries."""
        measured = [
            {
                "name": one.name,
                "cores": one.cores,
                "is_virtual": one.is_virtual,
                "first_epoch_s": one.first_epoch_s,
                "epoch_s": list(one.epoch_s),
                "median_epoch_s": one.median_s,
                "example_s": one.example_s,
                "examples": one.examples,
                "speed_up": self.speed_up(one),
                "metrics": dict(one.metrics),
            }
            for one in self.measurements
        ]
        absent = [{"source": reason.source, "why": reason.why} for reason in self.absent]
        return {"job": self.job, "batch_size": self.batch_size, "measurements": measured, "absent": absent}

    def __str__(self) -> str:
        return "\n".join([f"{self.job}, {self.batch_size} examples a step", *map(self._line, self.measurements)])

    def _line(self, one: Measurement) -> str:
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in one.metrics.items())
        times = f"{units.format_seconds(one.median_s)} an epoch, {units.format_seconds(one.example_s)} an example"
        return f"  {one.name}: {times}, {self.speed_up(one):.2f} x as fast; {metrics}"
