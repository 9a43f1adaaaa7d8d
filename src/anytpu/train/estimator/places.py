"""`Places`: the deployment of each mode of an estimator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax

from anytpu.strategy.current import CURRENT
from anytpu.strategy.strategy import TPUStrategy
from anytpu.system.resolver import TPUClusterResolver
from anytpu.train.estimator.deployment import Deployment
from anytpu.train.estimator.modes import ModeKeys
from anytpu.train.estimator.run_config import RunConfig


class Places:
    """The deployments of an estimator's modes.

    On the TPU, a mode runs on the system of the config. If the config names none, it uses the strategy in scope, or
    else the system that `tpu.connect()` finds. Off the TPU, a mode runs on one core: the machine's first GPU, or its
    CPU.

    Args:
        config: the `RunConfig`.
        use_tpu: False runs no mode on the TPU.
        eval_on_tpu: False runs the evaluation off the TPU.
        rows: number of rows of the global batch, by mode, or None.
        batch_axis: the axes of the rows of features and labels in training, or None.
    """

    def __init__(
        self, config: RunConfig, use_tpu: bool, eval_on_tpu: bool, rows: Mapping[str, int | None], batch_axis: Any
    ) -> None:
        self._config, self._rows, self._batch_axis = config, rows, batch_axis
        self._use_tpu, self._eval_on_tpu = use_tpu, eval_on_tpu
        self._strategies: dict[bool, TPUStrategy] = {}
        self._deployments: dict[str, Deployment] = {}

    def is_on_tpu(self, mode: str) -> bool:
        """Return whether a mode runs on the TPU."""
        return self._use_tpu and (self._eval_on_tpu or mode != ModeKeys.EVAL)

    def of(self, mode: str) -> Deployment:
        """Return the deployment of a mode: the same object while its system runs.

        Raises:
            EstimatorError, SettingError: the batch size or the number of shards is invalid for the system.
        """
        known = self._deployments.get(mode)
        if known is not None and known.strategy.system.is_running:
            return known
        tpu_config, on_tpu = self._config.tpu_config, self.is_on_tpu(mode)
        assert tpu_config is not None
        axis = self._batch_axis if on_tpu and mode == ModeKeys.TRAIN else None
        pipeline: Any = tpu_config.per_host_input_for_training
        deployment = Deployment(mode, self._strategy(on_tpu), on_tpu, self._rows[mode], pipeline, axis)
        deployment.check(tpu_config.num_shards)
        self._deployments[mode] = deployment
        return deployment

    def _strategy(self, on_tpu: bool) -> TPUStrategy:
        known = self._strategies.get(on_tpu)
        if known is None or not known.system.is_running:
            self._strategies[on_tpu] = self._tpu() if on_tpu else _one_core()
        return self._strategies[on_tpu]

    def _tpu(self) -> TPUStrategy:
        if self._config.cluster is not None:
            return TPUStrategy(self._config.cluster)
        in_scope = CURRENT.get()
        if self._config.master is None and in_scope is not None:
            return in_scope
        return TPUStrategy(TPUClusterResolver(self._config.master or ""))


def _one_core() -> TPUStrategy:
    return TPUStrategy(TPUClusterResolver("local" if jax.default_backend() == "gpu" else "virtual", cores=1))
