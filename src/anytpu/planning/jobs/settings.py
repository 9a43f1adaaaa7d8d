"""`PlanSettings`: settings that hold for every prediction of a plan, beside the job itself."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

from anytpu.errors import SettingError
from anytpu.planning.records import Price
from anytpu.planning.records.target import Stage


def _silent(line: str) -> None:
    """Ignore a progress line."""


@dataclasses.dataclass(frozen=True)
class PlanSettings:
    """Settings of every prediction of a plan.

    Attributes:
        steps_per_execution: steps that one call of the host starts.
        input_examples_per_s: rate of the input pipeline, examples per second, or None: never waited for.
        examples: examples of an epoch, or None.
        epochs: epochs of the run, or None.
        prices: price of an hour of each chip, by the chip's name.
        options: options of the compiler, such as {"xla_tpu_scoped_vmem_limit_kib": "65536"}.
        timeout_s: time limit of one compilation, seconds.
        use_cache: whether to reuse compilations from the disk.
        progress: called with one line before each step of the work.
        name: name of the job in progress lines, or None: the program's name.
        host_call_s: time that one call keeps the host busy, seconds; 0 if it is not known.
        is_trial: whether the program is a changed one that is only tried.
        stage: the last stage of a compilation.
    """

    steps_per_execution: int = 1
    input_examples_per_s: float | None = None
    examples: int | None = None
    epochs: int | None = None
    prices: Mapping[str, Price] = dataclasses.field(default_factory=dict)
    options: Mapping[str, str] = dataclasses.field(default_factory=dict)
    timeout_s: float = 600.0
    use_cache: bool = True
    progress: Callable[[str], None] = _silent
    name: str | None = None
    host_call_s: float = 0.0
    is_trial: bool = False
    stage: Stage = "code"

    def epoch_steps(self, rows: int | None) -> int | None:
        """Return the steps of an epoch with batches of so many examples; None if the epoch is not known.

        Example:
            >>> PlanSettings(examples=1438).epoch_steps(512)
            3
        """
        return -(-self.examples // rows) if self.examples and rows else None

    def of_fit(self, rows: int | None) -> PlanSettings:
        """Return the settings with the steps that a call of `fit` starts: a call never runs past the end of an
        epoch."""
        steps = self.epoch_steps(rows)
        if not self.host_call_s or steps is None or steps >= self.steps_per_execution:
            return self
        return dataclasses.replace(self, steps_per_execution=steps)

    def __post_init__(self) -> None:
        """Check the numbers."""
        for name in ("steps_per_execution", "examples", "epochs"):
            check_positive_integer(name, getattr(self, name))
        if self.input_examples_per_s is not None:
            _check_positive_number("input_examples_per_s", self.input_examples_per_s)
        _check_positive_number("timeout_s", self.timeout_s)
        if not callable(self.progress):
            raise SettingError(f"progress must be a function of one line of text, such as print, not {self.progress!r}")
        pairs = self.options.items() if isinstance(self.options, Mapping) else [(None, None)]
        if not all(isinstance(text, str) for pair in pairs for text in pair):
            raise SettingError(f"options must be names and strings, such as {{'xla_name': '1'}}, not {self.options!r}")


def _check_positive_number(name: str, value: float) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < float("inf"):
        raise SettingError(f"{name} must be a positive number, not {value!r}")


def check_positive_integer(name: str, value: int | None) -> None:
    """Check that a number is None or a positive integer.

    Raises:
        SettingError: it is not.
    """
    if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
        raise SettingError(f"{name} must be a positive integer, not {value!r}")
