"""`SavePolicy`: when a run saves a checkpoint, and which it keeps."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from typing import Any

from anytpu.errors import SettingError
from anytpu.train.checkpoint.folder import Checkpoints
from anytpu.train.checkpoint.manifest import Json

_LARGER_IS_BETTER = ("acc", "auc", "precision", "recall", "f1", "r2", "iou")


@dataclasses.dataclass(frozen=True)
class SavePolicy:
    """When a run saves, and which checkpoints it keeps.

    Attributes:
        every_s: seconds between two saves; None: time does not decide.
        every_steps: steps between two saves; None: steps do not decide.
        keep: number of newest checkpoints to keep.
        keep_every: the first checkpoint at or after each multiple of so many steps is kept for good; None keeps none.
        best: name of the metric whose best checkpoint is kept too, or None.
        mode: "min" or "max": whether a smaller or a larger metric is better.

    Example:
        >>> SavePolicy(every_steps=10, best="val_accuracy").mode
        'max'
    """

    every_s: float | None = None
    every_steps: int | None = None
    keep: int = 3
    keep_every: int | None = None
    best: str | None = None
    mode: str = ""

    def __post_init__(self) -> None:
        _check("every_s", self.every_s, float | int)
        _check("every_steps", self.every_steps, int)
        _check("keep", self.keep, int)
        _check("keep_every", self.keep_every, int)
        if self.mode not in ("", "min", "max"):
            raise SettingError(f'mode must be "min", "max", or "" to choose by the metric\'s name, not {self.mode!r}')
        if not self.mode:
            is_max = self.best is not None and any(part in self.best.lower() for part in _LARGER_IS_BETTER)
            object.__setattr__(self, "mode", "max" if is_max else "min")

    def is_due(self, steps: int, elapsed_s: float) -> bool:
        """Return whether to save after so many steps and seconds since the last save."""
        if steps <= 0:
            return False
        by_steps = self.every_steps is not None and steps >= self.every_steps
        return by_steps or (self.every_s is not None and elapsed_s >= self.every_s)

    def for_good(self, steps: Iterable[int]) -> set[int]:
        """Return the steps whose checkpoints are kept for good.

        Example:
            >>> sorted(SavePolicy(keep_every=100).for_good([95, 105, 150, 200, 290]))
            [105, 200]
        """
        kept: set[int] = set()
        if self.keep_every is not None:
            multiples = 0
            for step in sorted(steps):
                if step // self.keep_every > multiples:
                    kept.add(step)
                    multiples = step // self.keep_every
        return kept

    def is_better(self, value: float | None, than: float | None) -> bool:
        """Return whether a metric is better than another; None and NaN are worse than any value."""
        if value is None or math.isnan(value):
            return False
        if than is None or math.isnan(than):
            return True
        return value > than if self.mode == "max" else value < than

    def best_of(self, metrics: Iterable[tuple[int, Mapping[str, float]]]) -> tuple[int, float] | None:
        """Return the step and the metric of the best checkpoint, from pairs of step and metrics; None without one."""
        best: tuple[int, float] | None = None
        for step, values in metrics if self.best is not None else ():
            value = values.get(self.best or "")
            if value is not None and self.is_better(value, None if best is None else best[1]):
                best = (step, value)
        return best


def metrics_in(checkpoints: Checkpoints) -> list[tuple[int, dict[str, float]]]:
    """Return the step and the metrics of each checkpoint whose manifest is whole."""
    return [(step, _metrics(host)) for step, host in checkpoints.hosts()]


def _metrics(host: Json) -> dict[str, float]:
    metrics = host.get("metrics") if isinstance(host, dict) else None
    return metrics if isinstance(metrics, dict) else {}


def _check(name: str, value: object, kind: Any) -> None:
    is_valid = isinstance(value, kind) and not isinstance(value, bool) and value > 0  # pyright: ignore[reportOperatorIssue]
    if value is not None and not is_valid:
        unit = "a positive integer" if kind is int else "a positive number of seconds"
        raise SettingError(f"{name} must be {unit}, not {value!r}")
