"""`Checkpoints`: numbered states of a training run in a folder, by Orbax.

Idea: a checkpoint is the value of each variable by name (weights, optimizer slots, random seeds, the step) and the
position in the data, so a run that is resumed from it computes what it would have computed.

Rule: a checkpoint is written under another name and renamed when it is whole, so what stands under its number is whole,
whenever the process ended. The oldest are deleted. Orbax is imported when the first checkpoint is written or read.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from anytpu.errors import FileError

STATE, POSITION = "state", "position"
"""The parts of a checkpoint."""


class Checkpoints:
    """The checkpoints in one folder.

    Args:
        folder: where; made when the first is saved.
        keep: how many to keep, the newest ones; None keeps all.

    Raises:
        FileError: the folder is not one of this machine.
    """

    def __init__(self, folder: str | Path, keep: int | None = None) -> None:
        if "://" in str(folder):
            raise FileError(
                f"checkpoints are kept in a folder of this machine, not at {str(folder)!r}. Pass a local folder, or "
                "mount the bucket as one"
            )
        self.folder = Path(folder).expanduser().absolute()
        self._keep = keep

    def steps(self) -> list[int]:
        """Return the steps of the checkpoints that are whole, the oldest first."""
        if not self.folder.is_dir():
            return []
        with self._opened() as orbax:
            return sorted(orbax.all_steps())

    def latest(self) -> int | None:
        """Return the step of the newest checkpoint, or None."""
        return next(reversed(self.steps()), None)

    def path(self, step: int) -> str:
        """Return the folder of a checkpoint."""
        return str(self.folder / str(step))

    def save(self, step: int, values: Mapping[str, np.ndarray], position: Any = None) -> None:
        """Save a checkpoint; when this returns it is on the disk. One of the same step is left as it is.

        Args:
            step: its number.
            values: arrays by name.
            position: plain JSON, or None.
        """
        import orbax.checkpoint as ocp

        parts = ocp.args.Composite(
            **{STATE: ocp.args.StandardSave(dict(values)), POSITION: ocp.args.JsonSave({POSITION: position})}
        )
        with self._opened(writes=True) as orbax:
            if step not in orbax.all_steps():
                orbax.save(step, args=parts, force=True)

    def load(self, step: int) -> tuple[dict[str, np.ndarray], Any]:
        """Return the values and the position of a checkpoint.

        Raises:
            FileError: there is none of this step, or it cannot be read.
        """
        import orbax.checkpoint as ocp

        parts = ocp.args.Composite(**{STATE: ocp.args.StandardRestore(), POSITION: ocp.args.JsonRestore()})
        try:
            with self._opened() as orbax:
                restored = orbax.restore(step, args=parts)
        except (FileNotFoundError, ValueError, KeyError) as error:
            there = ", ".join(map(str, self.steps())) or "none"
            raise FileError(
                f"the checkpoint of step {step} in {str(self.folder)!r} cannot be read. Those that are there: {there}"
            ) from error
        return {name: np.asarray(value) for name, value in restored[STATE].items()}, restored[POSITION][POSITION]

    @contextlib.contextmanager
    def _opened(self, *, writes: bool = False) -> Iterator[Any]:
        import orbax.checkpoint as ocp

        with _quiet():
            # Who only reads leaves alone what another process is writing. What a killed one left is removed by the next
            # that writes.
            options = ocp.CheckpointManagerOptions(
                max_to_keep=self._keep if writes else None,
                create=writes,
                read_only=not writes,
                enable_async_checkpointing=False,
                cleanup_tmp_directories=writes,
            )
            with ocp.CheckpointManager(self.folder, options=options) as orbax:
                yield orbax


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep to itself what Orbax tells: some forty lines a save at level INFO, and a warning at each reading."""
    logger = logging.getLogger("absl")
    level = logger.level
    logger.setLevel(max(level, logging.ERROR))
    try:
        yield
    finally:
        logger.setLevel(level)


def checkpoint_at(path: str | Path) -> tuple[Checkpoints, int]:
    """Return the folder and the step that a path names: of one checkpoint, or of a folder of them and its newest.

    Raises:
        FileError: there is no checkpoint.
    """
    given = Path(path).expanduser().absolute()
    if given.name.isdigit() and int(given.name) in Checkpoints(given.parent).steps():
        return Checkpoints(given.parent), int(given.name)
    latest = Checkpoints(given).latest()
    if latest is None:
        raise FileError(
            f"there is no checkpoint in {str(given)!r}: pass the model_dir of an estimator that was trained"
        )
    return Checkpoints(given), latest
