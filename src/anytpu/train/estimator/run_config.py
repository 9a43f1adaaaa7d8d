"""`RunConfig`: the system of a `TPUEstimator`, its checkpoint folder, and its save and log intervals."""

from __future__ import annotations

import dataclasses
from typing import Any

from anytpu.errors import SettingError
from anytpu.system.resolver import TPUClusterResolver
from anytpu.train.estimator.tpu_config import TPUConfig, check_positive

UNSET: Any = object()
"""The default of a setting that was not passed."""

DEFAULT_SAVE_S = 600
"""Default time between two checkpoints, in seconds."""


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
