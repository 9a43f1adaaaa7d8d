"""`ModelState`: the variables of an estimator, and the checkpoints that they are loaded from and saved to.

Rule: the newest whole checkpoint in the folder decides, also if another process wrote it. It is not read again if the
variables already hold it. While a training runs, its variables decide, and nothing is loaded. A training never starts
from a checkpoint that was loaded only for evaluation.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from anytpu.errors import EstimatorError, StrategyError
from anytpu.train.checkpoint import Checkpoints, checkpoint_at
from anytpu.train.estimator.run_config import RunConfig
from anytpu.train.estimator.saving import POSITION, Saver
from anytpu.train.estimator.variable_store import VariableStore

LOG = logging.getLogger("anytpu")


class ModelState:
    """The variables of an estimator and their checkpoints.

    Args:
        folder: the folder of the checkpoints.
        keep: number of newest checkpoints to keep; None keeps all.
        warm_start_from: a checkpoint, or a folder of checkpoints. The variables start with its values if `folder` has
            no checkpoint. None starts with new values.
        seed: seed for all random generators, set before the first variable is made; None sets none.

    Attributes:
        store: the variables.
        checkpoints: the checkpoints.
        position: the position in the data saved with the loaded checkpoint, plain JSON, or None.
    """

    def __init__(self, folder: str, keep: int | None, warm_start_from: str | None, seed: int | None) -> None:
        self.store = VariableStore()
        self.checkpoints = Checkpoints(folder, keep)
        self.position: Any = None
        self._warm_start_from = warm_start_from
        self._seed = seed
        self._is_training = False

    @property
    def step(self) -> int:
        """The global step: number of trained steps."""
        return self.store.step

    def refresh(self, path: str | None) -> bool:
        """Load the newest checkpoint, or the one at a path, unless the variables hold it; return whether it exists.

        While a training runs, nothing is loaded: the variables are newer than any checkpoint.

        Raises:
            DamageError: there are checkpoints, and none is whole.
            EstimatorError: the checkpoint belongs to another model.
            FileError: there is no checkpoint at the path.
            StrategyError: a training runs, and the checkpoint at the path holds other values.
        """
        own = self.checkpoints
        if self._is_training:
            self._check_live(path)
            return True
        if path is None and self.store.source == (own.folder, own.latest()):
            return True
        checkpoint = own.load_newest() if path is None else checkpoint_at(path)
        if checkpoint is None:
            self.store.give_back()
            self.position = None
            self._warm_start()
            return False
        if self.store.source != (checkpoint.folder, checkpoint.step):
            self.store.load(checkpoint, is_borrowed=path is not None and own.latest() is None)
            self.position = (checkpoint.host or {}).get(POSITION)
            LOG.info("Restoring parameters from %s", checkpoint.folder / str(checkpoint.step))
        return True

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Lock the folder against other jobs, and load the newest checkpoint to continue training.

        Raises:
            FileError: another job writes to the folder, or the folder cannot be written.
        """
        with self.checkpoints.writing():
            if self.refresh(None):
                self.checkpoints.set_aside(after=self.step)
            self._is_training = True
            try:
                yield
            finally:
                self._is_training = False

    def need(self, path: str | None) -> None:
        """Load a checkpoint as `refresh` does.

        Raises:
            EstimatorError: there is no checkpoint.
        """
        if not self.refresh(path):
            folder = str(self.checkpoints.folder)
            raise EstimatorError(f"there is no checkpoint to export in {folder!r}: call estimator.train first")

    def saver(self, config: RunConfig, listeners: Any) -> Saver:
        """Return the `Saver` of the variables for one training."""
        return Saver(self.checkpoints, self.store, config, listeners)

    @contextlib.contextmanager
    def as_saved(self) -> Iterator[None]:
        """Return a context; after an error in it, the next use of the variables reloads the newest checkpoint."""
        try:
            yield
        except BaseException:
            self.store.source = None
            raise

    def saved(self, position: Any) -> None:
        """Record that the newest checkpoint holds the current values of the variables."""
        self.position = position
        latest = self.checkpoints.latest()
        self.store.source = None if latest is None else (self.checkpoints.folder, latest)

    def seed(self) -> None:
        """Set the seed of all random generators, if a seed was passed and no variable is made yet."""
        if self._seed is not None and not self.store.is_made:
            keras.utils.set_random_seed(self._seed)

    def values(self) -> dict[str, np.ndarray]:
        """Return the values in the newest checkpoint by name.

        Raises:
            FileError: there is no checkpoint.
        """
        return checkpoint_at(self.checkpoints.folder).values

    def value(self, name: str) -> np.ndarray:
        """Return one value in the newest checkpoint.

        Raises:
            EstimatorError: the checkpoint has no variable of this name.
        """
        values = self.values()
        if name not in values:
            raise EstimatorError(f"there is no variable {name!r} in the checkpoint. There are {sorted(values)}")
        return values[name]

    def _check_live(self, path: str | None) -> None:
        """Reject a checkpoint whose values differ from the variables of the running training."""
        if path is None:
            return
        checkpoint = checkpoint_at(path)
        if (checkpoint.folder, checkpoint.step) != (self.checkpoints.folder, self.step):
            raise StrategyError(
                f"checkpoint_path={str(path)!r} was passed while train of the same estimator runs: to load it would "
                "overwrite the weights that are being trained. Leave checkpoint_path out to use the current weights, "
                "or use another TPUEstimator for this checkpoint"
            )

    def _warm_start(self) -> None:
        if self._warm_start_from is not None and self.store.source is None:
            self.store.load(checkpoint_at(self._warm_start_from), is_warm_start=True)
