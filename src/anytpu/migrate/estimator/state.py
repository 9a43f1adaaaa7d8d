"""`ModelState`: the variables of an estimator, and the checkpoints that they are loaded from.

Rule: the newest whole checkpoint in the folder decides, also if another process wrote it. It is not read again if the
variables already hold it. While a training runs, its variables decide, and nothing is loaded. A training never starts
from a checkpoint that was loaded only for evaluation. The variables of a mode get their values from a checkpoint
together, after all of them are made and checked, or not at all.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import keras
import numpy as np

from anytpu.errors import EstimatorError, StrategyError
from anytpu.migrate.estimator.model_call import GLOBAL_STEP, Variables
from anytpu.strategy.occupancy import Occupancy
from anytpu.train.checkpoint import (
    ArrayForm,
    Checkpoint,
    Checkpoints,
    Purpose,
    Restored,
    checkpoint_at,
    difference,
)

LOG = logging.getLogger("anytpu")

MAKER = "TPUEstimator"

POSITION = "position"
"""The key of the position in the data, in the host state of a checkpoint."""

TABLES = "embedding_tables"
"""The first part of the names of embedding tables and their slots."""


@dataclasses.dataclass
class _Source:
    """The origin of the variables' values.

    Attributes:
        place: folder and step of a checkpoint; None for new values, and for those of a training that has not ended.
        checkpoint: the checkpoint whose forms each mode must have, or None.
        is_warm_start: whether the checkpoint is from another training.
        waiting: the values that wait for their variables, by name.
    """

    place: tuple[str, int] | None = None
    checkpoint: Checkpoint | None = None
    is_warm_start: bool = False
    waiting: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)


class ModelState:
    """The variables of an estimator and their checkpoints.

    Args:
        folder: the folder of the checkpoints.
        keep: number of newest checkpoints to keep; None keeps all.
        warm_start_from: a checkpoint, or a folder of checkpoints. The variables start with its values if `folder` has
            no checkpoint. None starts with new values.
        seed: seed for all random generators, set before the first variable is made; None sets none.

    Attributes:
        variables: the variables, and those of embedding tables.
        checkpoints: the checkpoints.
        position: the position in the data saved with the loaded checkpoint, plain JSON, or None.
        occupancy: records the thread that uses the variables.
    """

    def __init__(self, folder: str, keep: int | None, warm_start_from: str | None, seed: int | None) -> None:
        self.variables = Variables()
        self.checkpoints = Checkpoints(folder, keep)
        self.position: Any = None
        self.occupancy = Occupancy()
        self._warm_start_from = warm_start_from
        self._seed = seed
        self._is_training = False
        self._tables: dict[str, Any] = {}
        self._modes: dict[str, frozenset[str]] = {}
        self._optimizer_state: set[str] = set()
        self._source = _Source()
        self._own: _Source | None = None
        """The source before a checkpoint was borrowed for an evaluation, with the values overwritten since."""

    @property
    def step(self) -> int:
        """Number of trained steps; that of the loaded checkpoint if its values still wait for their variables."""
        return int(np.asarray(self._source.waiting.get(GLOBAL_STEP, self.variables.global_step.value)))

    def seed(self) -> None:
        """Set the seed of all random generators, if a seed was passed and no variable is made yet."""
        if self._seed is not None and len(self.variables.by_name) == 1:
            keras.utils.set_random_seed(self._seed)

    # The variables of the modes.

    def trainable(self) -> list[Any]:
        """Return the trainable variables, in the order of their creation."""
        return [v for name, v in self.variables.by_name.items() if v.trainable and name not in self._tables]

    def add_tables(self, variables: Iterable[Any], embeddings: Collection[Any]) -> None:
        """Add the variables of embedding tables: they belong to all modes, and no step trains them.

        Args:
            variables: all their variables.
            embeddings: those that are no state of an optimizer.
        """
        if self._tables:
            return
        weights = {id(variable) for variable in embeddings}
        self._tables = {f"{TABLES}/{variable.path}": variable for variable in variables}
        self.variables.by_name.update(self._tables)
        self._optimizer_state.update(name for name, v in self._tables.items() if id(v) not in weights)

    def settle(self, mode: str, made: Iterable[str], seen: Iterable[Any], optimizer_state: Iterable[Any] = ()) -> None:
        """Record the variables of a mode, and assign loaded values to new variables.

        Args:
            mode: the mode, all of whose variables are made now.
            made: names of the variables that its call has made or reused.
            seen: the variables that it has read or written.
            optimizer_state: the variables, in `seen` or not, that belong to an optimizer.

        Raises:
            EstimatorError: the loaded checkpoint does not fit; the mode gets no value of it.
        """
        # 1. Add the variables that the mode uses without having made them, such as metrics of the user.
        names = self.variables.names_of(seen)
        self._optimizer_state.update(names[id(variable)] for variable in optimizer_state if id(variable) in names)
        # 2. A mode's variables are those that it uses; for training, which is saved, also those that it only makes. (An
        # optimizer may be made in a mode that does not use it.)
        used = {GLOBAL_STEP, *self._tables, *(names[id(variable)] for variable in seen)}
        wanted = frozenset(used.union(made) if mode == "train" else used)
        # 3. Check them against the loaded checkpoint before any value is assigned.
        try:
            self._check(self._source.checkpoint, self._source.is_warm_start, mode, wanted)
        except EstimatorError:
            if not self._modes:  # No mode has a value of the rejected checkpoint.
                self._give_back()
                self._source = _Source()
            raise
        self._modes[mode] = wanted
        self._assign_waiting()

    def trained_values(self) -> dict[str, np.ndarray]:
        """Return a copy of the value of each variable of training."""
        names = self._modes["train"]
        return {name: np.array(v.value) for name, v in self.variables.by_name.items() if name in names}

    def trained_forms(self) -> dict[str, ArrayForm]:
        """Return the form of each variable of training."""
        return self._forms(self._modes["train"])

    def _forms(self, names: Collection[str]) -> dict[str, ArrayForm]:
        return {
            name: ArrayForm(
                tuple(v.shape),
                keras.backend.standardize_dtype(v.dtype),
                is_trained=bool(v.trainable) and not (name in self._tables and name in self._optimizer_state),
                is_optimizer_state=name in self._optimizer_state,
            )
            for name, v in self.variables.by_name.items()
            if name in names
        }

    # Checkpoints.

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
        if path is None and self._source.place == (own.folder, own.latest()):
            return True
        checkpoint = own.load_newest() if path is None else checkpoint_at(path)
        if checkpoint is None:
            self._give_back()
            self.position = None
            if self._warm_start_from is not None and self._source.place is None:
                self._load(checkpoint_at(self._warm_start_from), is_warm_start=True)
            return False
        if self._source.place != (checkpoint.folder, checkpoint.step):
            position = _position_in(checkpoint)
            self._load(checkpoint, is_borrowed=path is not None and own.latest() is None)
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

    def changes(self) -> None:
        """Record that a training changes the values: after an error, the next use reads the newest checkpoint again."""
        self._source.place = None

    def saved(self, position: Any) -> None:
        """Record that the newest checkpoint holds the current values of the variables."""
        self.position = position
        latest = self.checkpoints.latest()
        self._source.place = None if latest is None else (self.checkpoints.folder, latest)

    def _load(self, checkpoint: Checkpoint, *, is_warm_start: bool = False, is_borrowed: bool = False) -> None:
        """Assign the values of a checkpoint to the variables of existing modes now, and to others once they are made.

        Args:
            checkpoint: the values.
            is_warm_start: whether the checkpoint is from another training. Its step is then ignored, and it may lack
                arrays that are not trainable weights.
            is_borrowed: whether the values are given back before a training.

        Raises:
            EstimatorError: the checkpoint does not fit an existing mode.
        """
        for mode, names in self._modes.items():
            self._check(checkpoint, is_warm_start, mode, names)
        self._own = (self._own or self._source) if is_borrowed else None
        ignored = {GLOBAL_STEP} if is_warm_start else set()
        waiting = {name: value for name, value in checkpoint.values.items() if name not in ignored}
        self._source = _Source((checkpoint.folder, checkpoint.step), checkpoint, is_warm_start, waiting)
        self._assign_waiting()

    def _give_back(self) -> None:
        """Restore the values from before a checkpoint was borrowed, if one was."""
        if self._own is not None:
            self._source, self._own = self._own, None
            self._assign_waiting()

    def _assign_waiting(self) -> None:
        """Assign the waiting values to the variables of existing modes, whose forms were checked."""
        checked = frozenset().union(*self._modes.values())
        for name in [name for name in self._source.waiting if name in checked]:
            variable = self.variables.by_name[name]
            if self._own is not None:
                self._own.waiting.setdefault(name, np.array(variable.value))
            variable.assign(self._source.waiting.pop(name))

    def _check(self, checkpoint: Checkpoint | None, is_warm_start: bool, mode: str, names: Collection[str]) -> None:
        if checkpoint is None:
            return
        purpose = Purpose.WARM_START if is_warm_start else Purpose.RESUME if mode == "train" else Purpose.INFER
        stored, wanted = checkpoint.forms, self._forms(names)
        if purpose is Purpose.INFER:
            # Variables that only training has made in this process belong to the same model.
            made = self.variables.by_name
            stored = {name: form for name, form in stored.items() if name in wanted or name not in made}
        if (text := difference(stored, wanted, purpose)) is not None:
            raise EstimatorError(
                f"the checkpoint of step {checkpoint.step} in {checkpoint.folder!r} is of another model than "
                f"model_fn makes {purpose.value}, and none of it is loaded. {text}. Use the model_fn that it was "
                "trained with, or train the changed one in another model_dir"
            )

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


def _position_in(checkpoint: Checkpoint) -> Any:
    """Return the position in the data; earlier releases saved it alone."""
    host = checkpoint.host or {}
    return Restored.of(checkpoint, MAKER).host[POSITION] if "made" in host else host.get(POSITION)
