"""`Deployment`: where one mode runs, and how many rows its input_fn and its model_fn are told.

Rule: a model_fn sees the rows of one replica, global // replicas. An input_fn is asked for the rows of a host, of which
there is one here, unless the input pipeline is configured by replica. Off the TPU both see the global batch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from anytpu.errors import EstimatorError, SettingError
from anytpu.train.estimator.tpu_config import InputPipelineConfig

_BY_REPLICA = (InputPipelineConfig.PER_SHARD_V1, InputPipelineConfig.PER_HOST_V2, InputPipelineConfig.SLICED)


@dataclasses.dataclass(frozen=True)
class InputFnContext:
    """What `params["context"]` tells an input_fn of the system.

    Attributes:
        num_replicas: the replicas that train together.
        num_hosts: how many hosts feed them.
        current_host: the number of this one.
        invocation: the number of this call of the input_fn.
        invocations: how often it is called.
    """

    num_replicas: int
    num_hosts: int = 1
    current_host: int = 0
    invocation: int = 0
    invocations: int = 1

    def current_input_fn_deployment(self) -> tuple[str, int, int, int]:
        """Return the host's device, the number of this call, the number of calls, and the replicas that it feeds."""
        device = f"/job:worker/replica:0/task:{self.current_host}/device:CPU:0"
        return device, self.invocation, self.invocations, self.num_replicas // self.invocations


@dataclasses.dataclass(frozen=True, eq=False)
class Deployment:
    """Where one mode runs.

    Attributes:
        mode: one of `ModeKeys`.
        strategy: its cores.
        on_tpu: False for use_tpu=False, or eval_on_tpu=False in mode EVAL.
        rows: the rows of the global batch; None off the TPU where none was given.
        pipeline: how the input_fn is called.
        batch_axis: for `features` and `labels` the axis of rows, or None for the first of all.
    """

    mode: str
    strategy: Any
    on_tpu: bool
    rows: int | None
    pipeline: InputPipelineConfig
    batch_axis: Any = None

    @property
    def replicas(self) -> int:
        """How many replicas."""
        return self.strategy.num_replicas_in_sync

    @property
    def is_by_replica(self) -> bool:
        """True when each batch of the input_fn is one replica's."""
        is_of_training = self.pipeline is InputPipelineConfig.PER_SHARD_V1
        return self.on_tpu and self.pipeline in _BY_REPLICA and not (is_of_training and self.mode != "train")

    @property
    def invocations(self) -> int:
        """How often the input_fn is called."""
        is_by_shard = self.is_by_replica and self.pipeline is InputPipelineConfig.PER_SHARD_V1
        return self.replicas if is_by_shard else 1

    def input_params(self, params: dict[str, Any], invocation: int) -> dict[str, Any]:
        """Return what one call of the input_fn gets as `params`."""
        given = {**params, **self._rows(self.replicas if self.is_by_replica else 1)}
        if self.on_tpu:
            given["context"] = InputFnContext(self.replicas, invocation=invocation, invocations=self.invocations)
        return given

    def model_params(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return what the model_fn gets as `params`."""
        return {**params, **self._rows(self.replicas), "use_tpu": self.on_tpu}

    def check(self, num_shards: int | None) -> None:
        """Refuse rows that the replicas do not divide, and a wrong number of shards.

        Args:
            num_shards: the number that the user believes to be right, or None.

        Raises:
            EstimatorError: the mode has no batch size on the TPU, or one that the replicas do not divide.
            SettingError: there are not as many shards.
        """
        if not self.on_tpu:
            return
        if num_shards is not None and num_shards != self.replicas:
            raise SettingError(
                "TPUConfig.num_shards is not set correctly. According to TPU system metadata there are "
                f"{self.replicas} replicas, and num_shards is {num_shards}: leave num_shards away"
            )
        if self.rows is None:
            name, verb = _NAMES[self.mode]
            raise EstimatorError(
                f"{name}_batch_size in TPUEstimator constructor cannot be `None` if .{verb} is running on TPU. Pass "
                f"{name}_batch_size={8 * self.replicas}"
            )
        if self.rows % self.replicas:
            near = max(self.rows // self.replicas, 1) * self.replicas
            name = _NAMES[self.mode][0]
            raise EstimatorError(
                f"{name} batch size {self.rows} must be divisible by number of replicas {self.replicas}: pass "
                f"{name}_batch_size={near} or {near + self.replicas}"
            )

    def _rows(self, parts: int) -> dict[str, int]:
        return {} if self.rows is None else {"batch_size": self.rows // parts}


_NAMES = {"train": ("train", "train"), "eval": ("eval", "evaluate"), "infer": ("predict", "predict")}
