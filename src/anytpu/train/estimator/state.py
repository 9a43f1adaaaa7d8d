"""`ModelState`: the variables of an estimator, and the checkpoints that they come from and go to.

Rule: the newest whole checkpoint in the folder is what counts, whoever wrote it. What is in the variables already is
not read again.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from anytpu.errors import EstimatorError
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
        self._held: tuple[Path, int] | None = None

    @property
    def step(self) -> int:
        """The steps that were trained."""
        return int(self.store.global_step.value)

    def refresh(self, path: str | None) -> bool:
        """Load the newest checkpoint, or the one at a path, unless the variables hold it. Say whether there is one.

        Raises:
            DamageError: there are checkpoints, and none is whole.
            EstimatorError: the checkpoint is of another model.
            FileError: there is no checkpoint at the path.
        """
        if path is None and self._held == (self.checkpoints.folder, self.checkpoints.latest()):
            return True
        checkpoint = self.checkpoints.load_newest() if path is None else checkpoint_at(path)
        if checkpoint is None:
            self._warm_start()
            return False
        wanted = (checkpoint.folder, checkpoint.step)
        if wanted != self._held:
            self.store.load(checkpoint)
            self.position = (checkpoint.host or {}).get(POSITION)
            self._held = wanted
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
            yield

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
            self._held = None
            raise

    def saved(self, position: Any) -> None:
        """Take note that what the variables hold now is in the newest checkpoint."""
        self.position = position
        latest = self.checkpoints.latest()
        self._held = None if latest is None else (self.checkpoints.folder, latest)

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

    def _warm_start(self) -> None:
        if self._warm_start_from is None:
            return
        checkpoint = checkpoint_at(self._warm_start_from)
        self.store.load(checkpoint, is_warm_start=True)
        self._warm_start_from = None
