"""`Comparison`: measured times of one job on each system of a machine.

Idea: the benchmark and the reports do not import each other; this record is their only interface.

Rule: all times are measured with a clock; none is predicted.
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
    """Measured times of a job on one system.

    Attributes:
        name: name of the system: "1 virtual core", "v2-8", "GPU".
        cores: number of its cores.
        is_virtual: True when the cores are simulated on this machine's CPU.
        first_epoch_s: duration of the first epoch, including compilation.
        epoch_s: duration of each later epoch.
        examples: number of examples in one epoch.
        metrics: the loss and the metrics of the last epoch, by name.
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
        """Median duration of the later epochs."""
        return statistics.median(self.epoch_s)

    @property
    def example_s(self) -> float:
        """Duration of one example."""
        return self.median_s / self.examples

    @property
    def examples_per_s(self) -> float:
        """Training throughput in examples per second."""
        return self.examples / self.median_s


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Measured times of a job on each system of this machine; the first system is the baseline.

    Attributes:
        job: name of the job.
        batch_size: number of examples in one step, over all cores.
        measurements: one for each system, in the order of measurement.
        absent: reasons why other systems are missing.
    """

    job: str
    batch_size: int
    measurements: tuple[Measurement, ...]
    absent: tuple[Reason, ...] = ()

    def speed_up(self, measurement: Measurement) -> float:
        """Return the speed of a system relative to the first one, above 1 if it is faster."""
        return self.measurements[0].median_s / measurement.median_s

    def to_record(self) -> dict[str, Any]:
        """Return the comparison as JSON types: numbers, strings, lists and dictionaries."""
        measured = [
            {
                **dataclasses.asdict(measurement),
                "epoch_s": list(measurement.epoch_s),
                "median_epoch_s": measurement.median_s,
                "example_s": measurement.example_s,
                "speed_up": self.speed_up(measurement),
            }
            for measurement in self.measurements
        ]
        absent = [{"source": reason.source, "why": reason.why} for reason in self.absent]
        return {"job": self.job, "batch_size": self.batch_size, "measurements": measured, "absent": absent}

    def __repr__(self) -> str:
        """Return a line for each system, which a notebook shows."""
        return "\n".join([f"{self.job}, {self.batch_size} examples a step", *map(self._line, self.measurements)])

    def _line(self, measurement: Measurement) -> str:
        metrics = ", ".join(f"{name} {value:.4f}" for name, value in measurement.metrics.items())
        epoch, example = units.format_seconds(measurement.median_s), units.format_seconds(measurement.example_s)
        speed_up = self.speed_up(measurement)
        return f"  {measurement.name}: {epoch} an epoch, {example} an example, {speed_up:.2f} x as fast; {metrics}"
