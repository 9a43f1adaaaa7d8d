"""`ModelState`: the variables of an estimator, and the checkpoints that they come from and go to.

Rule: the newest whole checkpoint in the folder is what counts, whoever wrote it. What is in the variables already is
not read again. While a training runs, its variables are what counts, and nothing is loaded. A training never begins
with a checkpoint that was only evaluated.
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
        folder: of the checkpoints.
        keep: how many to keep; None keeps all.
        warm_start_from: a checkpoint, or a folder of them, whose values the variables start with where `folder` has
            none; or None.
        seed: seeds everything before the first variable is made; None does not.

    Attributes:
        store: the variables.
        checkpoints: the checkpoints.
        position: of the data, where the checkpoint in the variables was saved.
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
        """The steps that were trained."""
        return self.store.step

    def refresh(self, path: str | None) -> bool:
        """Load the newest checkpoint, or the one at a path, unless the variables hold it. Say whether there is one.

        While a training runs, nothing is loaded: the variables are newer than any checkpoint.

        Raises:
            DamageError: there are checkpoints, and none is whole.
            EstimatorError: the checkpoint is of another model.
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
        """Load the newest checkpoint to train on from it, and let no other job write to the folder meanwhile.

        Raises:
            FileError: another job writes there, or the folder cannot be written.
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
            EstimatorError: there is none.
        """
        if not self.refresh(path):
            folder = str(self.checkpoints.folder)
            raise EstimatorError(f"there is no checkpoint to export in {folder!r}: call estimator.train first")

    def saver(self, config: RunConfig, listeners: Any) -> Saver:
        """Return what saves the variables during a training."""
        return Saver(self.checkpoints, self.store, config, listeners)

    @contextlib.contextmanager
    def as_saved(self) -> Iterator[None]:
        """After an error inside, go back to the newest checkpoint when the variables are used again."""
        try:
            yield
        except BaseException:
            self.store.source = None
            raise

    def saved(self, position: Any) -> None:
        """Take note that what the variables hold now is in the newest checkpoint."""
        self.position = position
        latest = self.checkpoints.latest()
        self.store.source = None if latest is None else (self.checkpoints.folder, latest)

    def seed(self) -> None:
        """Seed everything, where a seed was asked for and no variable is made yet."""
        if self._seed is not None and not self.store.is_made:
            keras.utils.set_random_seed(self._seed)

    def values(self) -> dict[str, np.ndarray]:
        """Return what is in the newest checkpoint.

        Raises:
            FileError: there is none.
        """
        return checkpoint_at(self.checkpoints.folder).values

    def value(self, name: str) -> np.ndarray:
        """Return one value in the newest checkpoint.

        Raises:
            EstimatorError: there is none of this name.
        """
        values = self.values()
        if name not in values:
            raise EstimatorError(f"there is no variable {name!r} in the checkpoint. There are {sorted(values)}")
        return values[name]

    def _check_live(self, path: str | None) -> None:
        """Refuse a checkpoint that holds other values than the variables of the training that runs."""
        if path is None:
            return
        checkpoint = checkpoint_at(path)
        if (checkpoint.folder, checkpoint.step) != (self.checkpoints.folder, self.step):
            raise StrategyError(
                f"checkpoint_path={str(path)!r} was given while train of the same estimator runs: to load it would "
                "overwrite the weights that are being trained. Leave checkpoint_path out to use these weights as they "
                "are now, or use another TPUEstimator for this checkpoint"
            )

    def _warm_start(self) -> None:
        if self._warm_start_from is not None and self.store.source is None:
            self.store.load(checkpoint_at(self._warm_start_from), is_warm_start=True)
