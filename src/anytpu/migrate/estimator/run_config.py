"""`RunConfig`, `TPUConfig` and `InputPipelineConfig`: the settings of a `TPUEstimator`.

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

from anytpu._calls import explain_methods
from anytpu.errors import SettingError, SettingTypeError
from anytpu.system.resolver import TPUClusterResolver

UNSET: Any = object()
"""The default of a setting that was not passed."""

DEFAULT_SAVE_S = 600
"""Default time between two checkpoints, in seconds."""


@explain_methods
@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The system of a `TPUEstimator` and its save and log intervals.

    Attributes:
        tpu_config: the use of the cores; None is `TPUConfig()`.
        evaluation_master: name of the TPU to evaluate on; None is `master`. It must name the same system in this
            release.
        master: name of the TPU, as `tpu.connect` takes it: "" searches for a TPU. None with no cluster is "".
        cluster: a `TPUClusterResolver`, instead of `master`.
        model_dir: the folder of the checkpoints; None lets the estimator choose it.
        tf_random_seed: seed for `keras.utils.set_random_seed`, set before the first variable is made; None sets none.
        save_checkpoints_steps: number of steps between saves; the save is at the end of a loop.
        save_checkpoints_secs: time between saves, in seconds; 600 if neither interval is passed. None for both saves
            only at the beginning and at the end.
        keep_checkpoint_max: number of newest checkpoints to keep; None or 0 keeps all.
        log_step_count_steps: number of steps between log lines; the line comes at the end of a loop. None logs none.
        save_summary_steps: has no effect: write summaries in a host_call.
        session_config: has no effect.

    Raises:
        SettingError: both `master` and `cluster` are passed, or both intervals, or a value is invalid.
    """

    tpu_config: TPUConfig | None = None
    evaluation_master: str | None = None
    master: str | None = None
    cluster: TPUClusterResolver | None = None
    model_dir: str | None = None
    tf_random_seed: int | None = None
    save_checkpoints_steps: int | None = UNSET
    save_checkpoints_secs: int | None = UNSET
    keep_checkpoint_max: int | None = 5
    log_step_count_steps: int | None = 100
    save_summary_steps: int | None = 100
    session_config: Any = None

    def __post_init__(self) -> None:
        if self.master is not None and self.cluster is not None:
            raise SettingError("Both master and cluster are set. Leave master out: the cluster names the TPU")
        if self.cluster is not None and not isinstance(self.cluster, TPUClusterResolver):
            raise SettingError(f"cluster must be a tpu.TPUClusterResolver, not {self.cluster!r}")
        if self.tpu_config is not None and not isinstance(self.tpu_config, TPUConfig):
            raise SettingError(f"tpu_config must be a tpu.TPUConfig, not {self.tpu_config!r}")
        self._set("tpu_config", self.tpu_config or TPUConfig())
        if self.evaluation_master is None:
            self._set("evaluation_master", self.master)
        elif self.evaluation_master != self.master:
            raise SettingError(
                f"evaluation_master is {self.evaluation_master!r} and master {self.master!r}: an estimator evaluates "
                "where it trains, or, with eval_on_tpu=False, on this machine. Leave evaluation_master out"
            )
        self._settle_intervals()
        for name in ("save_checkpoints_steps", "save_checkpoints_secs", "log_step_count_steps"):
            if getattr(self, name) is not None:
                check_positive(f"RunConfig {name}", getattr(self, name))

    def replace(self, **changes: Any) -> RunConfig:
        """Return a copy with other values.

        Example:
            >>> RunConfig(save_checkpoints_steps=100).replace(model_dir="out").save_checkpoints_steps
            100
        """
        return dataclasses.replace(self, **changes)

    def _settle_intervals(self) -> None:
        steps, seconds = self.save_checkpoints_steps, self.save_checkpoints_secs
        intervals = [interval for interval in (steps, seconds) if interval is not UNSET and interval is not None]
        if len(intervals) == 2:
            raise SettingError(
                f"save_checkpoints_steps is {steps!r} and save_checkpoints_secs {seconds!r}: pass one of the two"
            )
        self._set("save_checkpoints_steps", None if steps is UNSET else steps)
        is_default = steps is UNSET and seconds is UNSET
        self._set("save_checkpoints_secs", DEFAULT_SAVE_S if is_default else None if seconds is UNSET else seconds)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


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


@dataclasses.dataclass
class LoopLength:
    """The length of a call of the compiled loop: a number of steps or a time; one of `steps` and `seconds_s` is set.

    Attributes:
        steps: number of steps, at least 1.
        seconds_s: time in seconds, at least 1.
        step_s: time of a step in the previous loop, in seconds; 0 if unknown.
    """

    steps: int | None = None
    seconds_s: int = 0
    step_s: float = 0.0

    @classmethod
    def of(cls, value: Any) -> LoopLength:
        """Read `100`, `"30s"`, `"5m"` or `"1h"`.

        Raises:
            SettingError: the value has none of these forms.

        Example:
            >>> LoopLength.of("5m")
            LoopLength(steps=None, seconds_s=300, step_s=0.0)
        """
        match = None if isinstance(value, bool) else re.fullmatch(r"([1-9]\d*)([smh]?)", str(value), re.ASCII)
        if match is None:
            raise SettingError(
                "Invalid TPUConfig `iterations_per_loop` value. Value must be positive integer value or time-based "
                f'value `<N><s|m|h>` but received {value!r}: type iterations_per_loop=100, or "30s", "5m", "1h"'
            )
        number, unit = int(match[1]), match[2]
        return cls(seconds_s=number * _SECONDS[unit]) if unit else cls(steps=number)

    def next_steps(self) -> int:
        """Return the number of steps of the next loop; 1 while the time of a step is unknown."""
        return self.steps or (max(1, int(self.seconds_s / self.step_s)) if self.step_s else 1)

    def ran(self, steps: int, duration_s: float, is_first: bool) -> None:
        """Record the time of a loop; that of the first loop is ignored, since it may include compiling."""
        self.step_s = 0.0 if is_first else duration_s / steps


@explain_methods
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
        LoopLength.of(self.iterations_per_loop)
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
