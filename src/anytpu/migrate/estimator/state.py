"""`ModelState`: the variables of an estimator, and the checkpoints that they are loaded from and saved to.

Rule: the newest whole checkpoint in the folder decides, also if another process wrote it. It is not read again if the
variables already hold it. While a training runs, its variables decide, and nothing is loaded. A training never starts
from a checkpoint that was loaded only for evaluation. `EstimatorSaver` saves a training at intervals.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import keras

from anytpu.errors import EstimatorError, StrategyError
from anytpu.migrate.estimator.run_config import RunConfig
from anytpu.migrate.estimator.variable_store import VariableStore
from anytpu.train.checkpoint import (
    Checkpoint,
    Checkpoints,
    Restored,
    SavePolicy,
    Saver,
    Snapshot,
    checkpoint_at,
    is_finite,
)

LOG = logging.getLogger("anytpu")

MAKER = "TPUEstimator"

POSITION = "position"
"""The key of the position in the data, in the host state of a checkpoint."""


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
            position = _position_in(checkpoint)
            self.store.load(checkpoint, is_borrowed=path is not None and own.latest() is None)
            self.position = position
            LOG.info("Restoring parameters from %s", checkpoint.where)
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

    def saved(self, position: Any) -> None:
        """Record that the newest checkpoint holds the current values of the variables."""
        self.position = position
        latest = self.checkpoints.latest()
        self.store.source = None if latest is None else (self.checkpoints.folder, latest)

    def seed(self) -> None:
        """Set the seed of all random generators, if a seed was passed and no variable is made yet."""
        if self._seed is not None and not self.store.is_made:
            keras.utils.set_random_seed(self._seed)

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


class EstimatorSaver:
    """Saves the variables of a store between loops.

    Args:
        checkpoints: the checkpoints to save to.
        store: the variables.
        config: sets the interval between saves.
        listeners: objects with `begin`, `before_save`, `after_save` and `end`, called with None as the session.
    """

    def __init__(
        self, checkpoints: Checkpoints, store: VariableStore, config: RunConfig, listeners: Iterable[Any]
    ) -> None:
        self._checkpoints, self._store = checkpoints, store
        self._listeners = list(listeners or ())
        newest = checkpoints.latest()
        self._is_new = newest is None
        self._finite: frozenset[str] = frozenset()
        self._saver = Saver(
            checkpoints, SavePolicy(config.save_checkpoints_secs, config.save_checkpoints_steps), newest or 0
        )

    def begin(self, step: int) -> None:
        """Begin a run. Errors of saving appear before the first step: save now, or for a resumed run check the room.

        Raises:
            FileError: the checkpoint cannot be saved, or the disk has no room for the next.
        """
        for listener in self._listeners:
            listener.begin()
        values = self._store.values("train")
        self._finite = frozenset(name for name, value in values.items() if is_finite(value))
        if self._is_new:
            self.save(step, None, self._saver.save_first)
        else:
            self._checkpoints.check_room(sum(value.nbytes for value in values.values()))

    def is_due(self, step: int) -> bool:
        """Return whether a save is due at a step."""
        return self._saver.is_due(step)

    def save(self, step: int, position: Any, save: Callable[[Callable[[], Snapshot]], None] | None = None) -> None:
        """Save in the background, or before the listeners are called, if there are any.

        Args:
            step: the global step.
            position: the position in the data, plain JSON, or None.
            save: the method of the saver; None is `Saver.save`.

        Raises:
            EstimatorError: the variables belong to another step.
        """
        if self._store.step != step:
            raise EstimatorError(
                f"the checkpoint of step {step} is not saved, since the variables are those of step "
                f"{self._store.step}: code other than the training has assigned to the global step. Let only "
                "train change it; the next train continues from the newest checkpoint"
            )
        for listener in self._listeners:
            listener.before_save(None, step)
        (save or self._saver.save)(lambda: self._snapshot(step, position))
        LOG.info("Saving the checkpoint of step %d in %s", step, self._checkpoints.path(step))
        if self._listeners:
            self._saver.wait()
            self._checkpoints.job.exchange()  # The file is there on every host.
        for listener in self._listeners:
            listener.after_save(None, step)

    def end(self, step: int, position: Any) -> None:
        """Save the last step if it is not saved yet, and call the listeners' `end`.

        Raises:
            FileError: the last checkpoint cannot be saved.
        """
        if step != self._saver.step:
            self.save(step, position)
        self._saver.finish()
        for listener in self._listeners:
            listener.end(None, step)

    def close(self) -> None:
        """Wait until the last checkpoint is written, also after an error of the training."""
        self._saver.wait()

    def _snapshot(self, step: int, position: Any) -> Snapshot:
        forms = self._store.forms("train").items()
        return Snapshot(
            step,
            MAKER,
            self._store.values("train"),
            trained=frozenset(name for name, form in forms if form.is_trained),
            optimizer_state=frozenset(name for name, form in forms if form.is_optimizer_state),
            finite=self._finite,
            host={POSITION: position},
        )


def _position_in(checkpoint: Checkpoint) -> Any:
    """Return the position in the data; earlier releases saved it alone."""
    host = checkpoint.host or {}
    return Restored.of(checkpoint, MAKER).host[POSITION] if "made" in host else host.get(POSITION)
