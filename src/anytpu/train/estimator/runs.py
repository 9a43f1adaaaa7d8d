"""`Runs`: the modes of an estimator on their cores, each compiled once."""

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
    """The modes of an estimator.

    Args:
        model_fn: the model function.
        params: the user's params.
        config: the `RunConfig`.
        places: where each mode runs.
        store: the variables of the model.
    """

    def __init__(
        self, model_fn: Callable, params: dict[str, Any], config: RunConfig, places: Places, store: VariableStore
    ) -> None:
        self.places = places
        self._model_fn, self._params, self._config, self._store = model_fn, params, config, store
        self._made: dict[str, tuple[tuple, ModeRun]] = {}

    def of(self, mode: str) -> ModeRun:
        """Return the run of a mode: the one that there is, unless model_fn or the system has changed since."""
        deployment = self.places.of(mode)
        key = (deployment, Identity(self._model_fn))
        if mode not in self._made or self._made[mode][0] != key:
            run = ModeRun.of(self._model_fn, deployment, self._params, self._config, self._store)
            self._made[mode] = (key, run)
        return self._made[mode][1]

    def batches(self, run: ModeRun, input_fn: Callable) -> HostBatches:
        """Return the batches of an input_fn for a run."""
        return HostBatches(input_fn, run.deployment, self._params, self._config)

    def hooks(self, run: ModeRun, given: Any) -> Hooks:
        """Return the hooks of the caller and of the model_fn."""
        return Hooks([*(given or ()), *run.hooks()])

    def serving_step(self, rows: int) -> PredictStep:
        """Return the step of a prediction that runs anywhere, for so many rows."""
        params = {**self._params, "batch_size": rows, "use_tpu": False}
        return PredictStep(Model(self._model_fn, "infer", params, self._config), self._store)


def first_of(batches: HostBatches) -> Batch:
    """Return the first batch.

    Raises:
        DataExhaustedError: there is none.
    """
    first = next(batches, None)
    if first is None:
        raise DataExhaustedError(
            "input_fn gave no batch: return a data set with at least one, which has rows for all replicas"
        )
    return first
