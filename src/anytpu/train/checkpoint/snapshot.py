"""`Snapshot`: the whole state of a training run at one step, as every front door makes it and one writer takes it.

Idea: a run's state is the values of its variables and the state of its host: the position in the data, the random
generators, callbacks. `fit` and `Checkpointer` each make a `Snapshot`. The writer, the digests and the reader are the
same for both.

Rule: a snapshot is taken between two steps. Restoring it and repeating the rest gives the numbers of the whole run.
"""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np

from anytpu.errors import FileError
from anytpu.train.checkpoint.folder import Checkpoint
from anytpu.train.checkpoint.host_state import copied, pack, unpack
from anytpu.train.checkpoint.manifest import Json

LOG = logging.getLogger("anytpu")

HOST = "host/"
"""Prefix of the names of arrays that belong to the state of the host."""

_PIECE = 2**18
"""Number of values that are checked at once: one pass over a large array would wait for new memory."""

_PACKAGES = ("anytpu", "jax", "jaxlib", "keras")


@dataclasses.dataclass(frozen=True)
class Snapshot:
    """The state of a run after a step.

    Attributes:
        step: number of steps trained since the beginning of the run.
        maker: kind of the run: "fit" or "Checkpointer".
        values: values of the variables by name, copies on the host.
        trained: names of the trainable weights.
        optimizer_state: names of the optimizer's variables.
        finite: names of other values that must be finite too, such as the moving averages of BatchNormalization.
        host: state of the host by name; see `host_state.pack`. It is copied.
        metrics: values to choose the best checkpoint by, by name.
        about: facts to show in a list of checkpoints, such as the epoch and the number of cores.
    """

    step: int
    maker: str
    values: Mapping[str, np.ndarray]
    trained: frozenset[str] = frozenset()
    optimizer_state: frozenset[str] = frozenset()
    finite: frozenset[str] = frozenset()
    host: dict[str, Any] = dataclasses.field(default_factory=dict)
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    about: dict[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        # A thread writes the snapshot while the training goes on and changes lists and arrays.
        object.__setattr__(self, "host", copied(self.host))

    def first_bad(self) -> str | None:
        """Return the name of the first weight, slot or other value of `finite` with a NaN or an infinity, or None."""
        checked = self.trained | self.optimizer_state | self.finite
        return next((name for name in self.values if name in checked and not is_finite(self.values[name])), None)

    def packed(self) -> tuple[dict[str, np.ndarray], Json]:
        """Return all arrays by name, and the rest as plain JSON."""
        arrays = dict(self.values)
        state = pack(self.host, HOST.rstrip("/"), arrays)
        made = {
            "by": self.maker,
            "at": datetime.datetime.now().astimezone().isoformat(" ", "seconds"),
            **self.about,
            "versions": _versions(),
        }
        return arrays, {"made": made, "metrics": self.metrics, "state": state}


@dataclasses.dataclass(frozen=True)
class Restored:
    """A snapshot that was read from a checkpoint.

    Attributes:
        step: number of steps trained since the beginning of the run.
        values: values of the variables by name.
        host: state of the host by name.
        where: the checkpoint's folder, for messages.
    """

    step: int
    values: dict[str, np.ndarray]
    host: dict[str, Any]
    where: str

    @classmethod
    def of(cls, checkpoint: Checkpoint, maker: str, facts: Mapping[str, Any] | None = None) -> Restored:
        """Return the snapshot in a checkpoint, and warn if other packages or another system wrote it.

        Args:
            checkpoint: the checkpoint.
            maker: kind of the run that continues.
            facts: the entries of `Snapshot.about` that the rounding depends on, as they are now.

        Raises:
            FileError: another kind of run made the checkpoint.
        """
        where = checkpoint.where
        found_maker = maker_of(checkpoint.host)
        if found_maker != maker:
            raise FileError(
                f"the checkpoint {where!r} was made by {found_maker}, and {maker} cannot continue it. Choose another "
                "folder"
            )
        made = checkpoint.host["made"]
        _warn_of_changes(where, {**made, **made["versions"]}, {**_versions(), **(facts or {})})
        values = {name: value for name, value in checkpoint.values.items() if not name.startswith(HOST)}
        host = unpack(checkpoint.host["state"], checkpoint.values)
        return cls(checkpoint.step, values, host, where)


def maker_of(host: Json) -> str:
    """Return the kind of run that made a checkpoint, from the state of its host."""
    made = host.get("made") if isinstance(host, dict) else None
    return _shown(made.get("by", "unknown")) if isinstance(made, dict) else "TPUEstimator"


def _warn_of_changes(where: str, saved: dict[str, Any], now: dict[str, Any]) -> None:
    changed = [
        f"{name} {_shown(saved[name])} then, {now[name]} now" for name in now if saved.get(name, now[name]) != now[name]
    ]
    if changed:
        LOG.warning(
            "The checkpoint %s was written by another system: %s. The run continues, perhaps with other rounding",
            where,
            "; ".join(changed),
        )


def _shown(value: Any) -> str:
    """Return a value of a checkpoint as text without control characters: a terminal would obey them."""
    return "".join(char if char.isprintable() else "?" for char in str(value))


def _versions() -> dict[str, str]:
    return {name: importlib.metadata.version(name) for name in _PACKAGES}


def is_finite(value: np.ndarray) -> bool:
    """Return whether an array has neither a NaN nor an infinity."""
    if value.dtype.kind not in "fcV":
        return True
    flat = value.reshape(-1)
    return all(np.isfinite(flat[i : i + _PIECE]).all() for i in range(0, flat.size, _PIECE))
