"""`TPUConfig`: a `TPUEstimator`'s use of the cores, and `InputPipelineConfig`: its calls of an input_fn.

Idea: the names and defaults are those of the first TPU estimators, so that their programs still run.

Rule: settings without a meaning here (a job's name, a pause before the first batch) are accepted and have no effect.
Settings for features that anytpu lacks (a model split over several cores) are rejected.
"""

from __future__ import annotations

import dataclasses
import enum
import numbers
import re
from typing import Any

from anytpu.errors import SettingError, SettingTypeError

_SECONDS = {"s": 1, "m": 60, "h": 3600}


class InputPipelineConfig(enum.IntEnum):
    """The calls of an input_fn, and the rows of its batches.

    With one host PER_HOST_V1 and BROADCAST are the same: one call, whose batches are split into the cores' shards. With
    PER_HOST_V2 and SLICED, one call yields batches of one core each, in turn. PER_SHARD_V1 calls the input_fn once for
    each core.
    """

    PER_SHARD_V1 = 1
    PER_HOST_V1 = 2
    PER_HOST_V2 = 3
    BROADCAST = 4
    SLICED = 5


@dataclasses.dataclass(frozen=True)
class IterationsPerLoop:
    """The length of one call of the compiled loop; exactly one attribute is set.

    Attributes:
        steps: number of steps, at least 1.
        seconds_s: time in seconds, at least 1.
    """

    steps: int | None = None
    seconds_s: int | None = None

    @classmethod
    def of(cls, value: Any) -> IterationsPerLoop:
        """Read `100`, `"30s"`, `"5m"` or `"1h"`.

        Raises:
            SettingError: the value has none of these forms.

        Example:
            >>> IterationsPerLoop.of("5m")
            IterationsPerLoop(steps=None, seconds_s=300)
        """
        match = None if isinstance(value, bool) else re.fullmatch(r"([1-9]\d*)([smh]?)", str(value), re.ASCII)
        if match is None:
            raise SettingError(
                "Invalid TPUConfig `iterations_per_loop` value. Value must be positive integer value or time-based "
                f'value `<N><s|m|h>` but received {value!r}: type iterations_per_loop=100, or "30s", "5m", "1h"'
            )
        number, unit = int(match[1]), match[2]
        return cls(seconds_s=number * _SECONDS[unit]) if unit else cls(steps=number)


@dataclasses.dataclass(frozen=True)
class TPUConfig:
    """A `TPUEstimator`'s use of the cores.

    Attributes:
        iterations_per_loop: number of steps that run on the device in one loop, or a time such as "30s", "5m" or "1h".
            Hooks, log lines and checkpoints come between loops.
        num_shards: expected number of cores, only checked; None checks nothing.
        num_cores_per_replica: None or 1, since a model runs on one core.
        per_host_input_for_training: an `InputPipelineConfig`; True means PER_HOST_V1, False PER_SHARD_V1.
        tpu_job_name: has no effect.
        initial_infeed_sleep_secs: has no effect.
        input_partition_dims: must be None, since a model runs on one core.
        eval_training_input_configuration: PER_HOST_V1 or SLICED; has no effect with one host.
        experimental_host_call_every_n_steps: interval of host calls in steps, from the first step of each loop.

    Raises:
        SettingError: a value is invalid.

    Example:
        >>> TPUConfig(iterations_per_loop=100).per_host_input_for_training.name
        'PER_HOST_V1'
    """

    iterations_per_loop: int | str = 2
    num_shards: int | None = None
    num_cores_per_replica: int | None = None
    per_host_input_for_training: InputPipelineConfig | bool | int = True
    tpu_job_name: str | None = None
    initial_infeed_sleep_secs: int | None = None
    input_partition_dims: Any = None
    eval_training_input_configuration: InputPipelineConfig | int = InputPipelineConfig.PER_HOST_V1
    experimental_host_call_every_n_steps: int = 1

    def __post_init__(self) -> None:
        IterationsPerLoop.of(self.iterations_per_loop)
        for name in ("num_shards", "initial_infeed_sleep_secs", "experimental_host_call_every_n_steps"):
            if getattr(self, name) is not None:
                check_positive(f"TPUConfig {name}", getattr(self, name))
        if self.num_cores_per_replica not in (None, 1) or self.input_partition_dims is not None:
            raise SettingError(
                f"num_cores_per_replica is {self.num_cores_per_replica!r} and input_partition_dims "
                f"{self.input_partition_dims!r}, and a model runs on one core here: leave both out. Every core then "
                "has its own replica"
            )
        object.__setattr__(self, "per_host_input_for_training", _pipeline(self.per_host_input_for_training))
        if self.eval_training_input_configuration not in (InputPipelineConfig.PER_HOST_V1, InputPipelineConfig.SLICED):
            raise SettingError(
                "eval_training_input_configuration must be PER_HOST_V1 or SLICED; got "
                f"{self.eval_training_input_configuration!r}. Leave it out"
            )


def check_positive(name: str, value: Any) -> None:
    """Check that a value is a positive integer.

    Raises:
        SettingTypeError: the value is not an integer.
        SettingError: the value is not positive.
    """
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise SettingTypeError(f"{name} must be int, got {type(value).__name__}: {value!r}")
    if value <= 0:
        raise SettingError(f"{name} must be positive, got {value}")


def _pipeline(value: Any) -> InputPipelineConfig:
    if isinstance(value, bool):
        return InputPipelineConfig.PER_HOST_V1 if value else InputPipelineConfig.PER_SHARD_V1
    try:
        return InputPipelineConfig(value)
    except ValueError as error:
        known = ", ".join(config.name for config in InputPipelineConfig)
        raise SettingError(
            f"per_host_input_for_training must be True, False or one of tpu.InputPipelineConfig ({known}), not "
            f"{value!r}"
        ) from error
