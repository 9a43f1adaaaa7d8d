"""`Deployment`: the cores of one mode, and the batch sizes passed to its input_fn and its model_fn.

Rule: a model_fn gets the rows of one replica, global // replicas. An input_fn makes the rows of a host, which is the
global batch here, unless the input pipeline is configured by replica. Off the TPU both get the global batch.
"""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from typing import Any

import jax

from anytpu.engine.hosts import current_hosts
from anytpu.errors import EstimatorError, SettingError
from anytpu.migrate.estimator.run_config import InputPipelineConfig, RunConfig
from anytpu.strategy.current import CURRENT
from anytpu.strategy.strategy import TPUStrategy
from anytpu.system.job import current_job
from anytpu.system.launchers import find_job
from anytpu.system.resolver import TPUClusterResolver

LOG = logging.getLogger("anytpu")

_BY_REPLICA = (InputPipelineConfig.PER_SHARD_V1, InputPipelineConfig.PER_HOST_V2, InputPipelineConfig.SLICED)


@dataclasses.dataclass(frozen=True)
class InputFnContext:
    """The system of an input_fn, passed as `params["context"]`.

    Attributes:
        num_replicas: number of replicas that train together.
        num_hosts: number of hosts that feed them.
        current_host: index of this host.
        invocation: index of this call of the input_fn.
        invocations: number of calls of the input_fn.
    """

    num_replicas: int
    num_hosts: int = 1
    current_host: int = 0
    invocation: int = 0
    invocations: int = 1

    def current_input_fn_deployment(self) -> tuple[str, int, int, int]:
        """Return the host's device, the index of this call, the number of calls, and the number of replicas fed."""
        device = f"/job:worker/replica:0/task:{self.current_host}/device:CPU:0"
        return device, self.invocation, self.invocations, self.num_replicas // self.invocations


@dataclasses.dataclass(frozen=True, eq=False)
class Deployment:
    """The cores and batch size of one mode.

    Attributes:
        mode: one of `ModeKeys`.
        strategy: the strategy of the mode's cores.
        on_tpu: whether the mode runs on the TPU; False for use_tpu=False, or eval_on_tpu=False in mode EVAL.
        rows: number of rows of the global batch; None off the TPU if no batch size was passed.
        pipeline: the way the input_fn is called.
        batch_axis: the axes of the rows of `features` and `labels`, or None for axis 0 of all.
    """

    mode: str
    strategy: Any
    on_tpu: bool
    rows: int | None
    pipeline: InputPipelineConfig
    batch_axis: Any = None

    @property
    def replicas(self) -> int:
        """Number of replicas."""
        return self.strategy.num_replicas_in_sync

    @property
    def is_by_replica(self) -> bool:
        """Whether each batch of the input_fn is one replica's."""
        is_for_training = self.pipeline is InputPipelineConfig.PER_SHARD_V1
        return self.on_tpu and self.pipeline in _BY_REPLICA and not (is_for_training and self.mode != "train")

    @property
    def invocations(self) -> int:
        """Number of calls of the input_fn."""
        is_by_shard = self.is_by_replica and self.pipeline is InputPipelineConfig.PER_SHARD_V1
        return self.replicas if is_by_shard else 1

    def input_params(self, params: dict[str, Any], invocation: int) -> dict[str, Any]:
        """Return the `params` of one call of the input_fn."""
        extended = {**params, **self._rows(self.replicas if self.is_by_replica else 1)}
        if self.on_tpu:
            extended["context"] = InputFnContext(self.replicas, invocation=invocation, invocations=self.invocations)
        return extended

    def model_params(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return the `params` of the model_fn."""
        return {**params, **self._rows(self.replicas), "use_tpu": self.on_tpu}

    def check(self, num_shards: int | None) -> None:
        """Check that the batch size is divisible by the number of replicas, and check the number of shards.

        Args:
            num_shards: the number of shards that the user expects, or None.

        Raises:
            EstimatorError: on the TPU, the batch size is missing or not divisible by the number of replicas.
            SettingError: `num_shards` is not the number of replicas.
        """
        if not self.on_tpu:
            return
        if num_shards is not None and num_shards != self.replicas:
            raise SettingError(
                "TPUConfig.num_shards is not set correctly. According to TPU system metadata there are "
                f"{self.replicas} replicas, and num_shards is {num_shards}: leave num_shards out"
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


def strategy_of(config: RunConfig, on_tpu: bool) -> TPUStrategy:
    """Return a strategy on the TPU of a config, or off the TPU on one core: the machine's first GPU, or its CPU.

    If the config names no TPU, the strategy in scope is returned, or else one on the system that `tpu.connect()` finds.
    """
    if not on_tpu:
        return TPUStrategy(TPUClusterResolver("local" if jax.default_backend() == "gpu" else "virtual", cores=1))
    if config.cluster is not None:
        return TPUStrategy(config.cluster)
    in_scope = CURRENT.get()
    if config.master is None and in_scope is not None:
        return in_scope
    return TPUStrategy(TPUClusterResolver(config.master or ""))


def folder_of(model_dir: str | None, config: RunConfig, on_tpu: bool) -> str:
    """Return the folder of the checkpoints: a model_dir, that of the config, or a temporary folder.

    In a job of several hosts all of them get that of the first one.
    """
    if current_job() is not None or find_job() is not None:
        # The hosts of the job must be known before the folder of the checkpoints is.
        strategy_of(config, on_tpu)
    if model_dir or config.model_dir:
        return str(model_dir or config.model_dir)
    hosts = current_hosts()
    folder = hosts.share((tempfile.mkdtemp(prefix="anytpu-estimator-") if hosts.is_first else "").encode()).decode()
    LOG.warning("Using temporary folder as model directory: %s", folder)
    return folder
