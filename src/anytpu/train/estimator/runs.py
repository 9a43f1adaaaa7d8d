"""`Runs`: the `ModeRun` of each mode of an estimator, each compiled once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from anytpu.errors import DataExhaustedError
from anytpu.strategy.identity import Identity
from anytpu.train.estimator.hooks import Hooks
from anytpu.train.estimator.inputs import Batch, HostBatches
from anytpu.train.estimator.mode_run import ModeRun
from anytpu.train.estimator.model import Model
from anytpu.train.estimator.places import Places
from anytpu.train.estimator.run_config import RunConfig
from anytpu.train.estimator.steps import PredictStep
from anytpu.train.estimator.variable_store import VariableStore


class Runs:
    """The runs of an estimator's modes.

    Args:
        model_fn: the model function.
        params: the user's params.
        config: the `RunConfig`.
        places: the deployment of each mode.
        store: the variables of the model.
    """

    def __init__(
        self, model_fn: Callable, params: dict[str, Any], config: RunConfig, places: Places, store: VariableStore
    ) -> None:
        self.places = places
        self._model_fn, self._params, self._config, self._store = model_fn, params, config, store
        self._runs: dict[str, tuple[tuple, ModeRun]] = {}

    def of(self, mode: str) -> ModeRun:
        """Return the run of a mode; it is made again if model_fn or the system has changed."""
        deployment = self.places.of(mode)
        key = (deployment, Identity(self._model_fn))
        if mode not in self._runs or self._runs[mode][0] != key:
            run = ModeRun.of(self._model_fn, deployment, self._params, self._config, self._store)
            self._runs[mode] = (key, run)
        return self._runs[mode][1]

    def batches(self, run: ModeRun, input_fn: Callable) -> HostBatches:
        """Return the batches of an input_fn for a run."""
        return HostBatches(input_fn, run.deployment, self._params, self._config)

    def hooks(self, run: ModeRun, caller_hooks: Any) -> Hooks:
        """Return the hooks of the caller and of the model_fn."""
        return Hooks([*(caller_hooks or ()), *run.hooks()])

    def serving_step(self, rows: int) -> PredictStep:
        """Return a prediction step for a number of rows, which runs on any system."""
        params = {**self._params, "batch_size": rows, "use_tpu": False}
        return PredictStep(Model(self._model_fn, "infer", params, self._config), self._store)


def first_of(batches: HostBatches) -> Batch:
    """Return the first batch.

    Raises:
        DataExhaustedError: there is no batch.
    """
    first = next(batches, None)
    if first is None:
        raise DataExhaustedError(
            "input_fn yielded no batch: return a data set with at least one batch that has rows for all replicas"
        )
    return first
