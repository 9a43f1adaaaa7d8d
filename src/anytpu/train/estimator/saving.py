"""`Saver`: save a training run at intervals, and call its listeners."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from typing import Any

from anytpu.errors import EstimatorError
from anytpu.train.checkpoint import Checkpoints
from anytpu.train.estimator.run_config import RunConfig
from anytpu.train.estimator.variable_store import VariableStore

LOG = logging.getLogger("anytpu")

POSITION = "position"
"""The key of the position in the data, in the host state of a checkpoint."""


class Saver:
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
        self._every_steps, self._every_s = config.save_checkpoints_steps, config.save_checkpoints_secs
        self._listeners = list(listeners or ())
        self._saved_step: int | None = checkpoints.latest()
        self._saved_s = time.monotonic()

    def begin(self, step: int) -> None:
        """Begin a run. Save now if nothing was saved yet, so that errors of saving appear before the first step.

        Raises:
            FileError: the checkpoint cannot be saved, or the disk has no room for another checkpoint.
        """
        for listener in self._listeners:
            listener.begin()
        if self._saved_step is None:
            self.save(step, None)
        else:
            self._checkpoints.check_room(self._store.size_bytes())

    def is_due(self, step: int) -> bool:
        """Return whether a save is due at a step."""
        if self._every_steps is not None and step - (self._saved_step or 0) >= self._every_steps:
            return True
        return self._every_s is not None and time.monotonic() - self._saved_s >= self._every_s

    def save(self, step: int, position: Any) -> None:
        """Save, unless this step is saved already.

        Args:
            step: the global step.
            position: the position in the data, plain JSON, or None.

        Raises:
            EstimatorError: the variables belong to another step.
            FileError: the checkpoint cannot be saved.
        """
        if step == self._saved_step:
            return
        if self._store.step != step:
            raise EstimatorError(
                f"the checkpoint of step {step} is not saved, since the variables are those of step "
                f"{self._store.step}: code other than the training has assigned to the global step. Let only "
                "train change it; the next train continues from the newest checkpoint"
            )
        for listener in self._listeners:
            listener.before_save(None, step)
        values = self._store.values("train")
        forms = self._store.forms("train").items()
        trained = {name for name, form in forms if form.is_trained}
        optimizer_state = {name for name, form in forms if form.is_optimizer_state}
        host = {POSITION: position}
        self._checkpoints.save(step, values, trained=trained, optimizer_state=optimizer_state, host=host)
        LOG.info("Saved the checkpoint of step %d in %s", step, self._checkpoints.path(step))
        self._saved_step, self._saved_s = step, time.monotonic()
        for listener in self._listeners:
            listener.after_save(None, step)

    def end(self, step: int, position: Any) -> None:
        """Save the last step if it is not saved yet, and call the listeners' `end`."""
        self.save(step, position)
        for listener in self._listeners:
            listener.end(None, step)
