"""`PlanLock`: the predictions of a plan in a file, to be committed and compared with later plans.

Idea: CI has no TPU, but the TPU's compiler runs there. So a file beside the program holds the predicted memory, time,
collectives and layers, and a later plan is compared with it.

Rule: the same plan writes the same file: its keys are sorted, its numbers rounded.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from anytpu.errors import SettingError
from anytpu.files.json_text import read_json
from anytpu.files.opening import read_text
from anytpu.planning.records.prediction import Prediction
from anytpu.planning.records.quoting import quoted
from anytpu.planning.records.step import NO_LAYER, Buffer, OpTime
from anytpu.planning.records.stored import MAX_TEXT, record_of
from anytpu.units import MIB

LOCK_FORMAT = 1
"""Version of the file; a higher number means that names in it have changed."""

_Part = TypeVar("_Part", OpTime, Buffer)
_FORMAT_KEY = "lock_format"
_LAYERS = {"host": "(host)", "input": "(input pipeline)"}
"""Layer names for the time of the host and of the input pipeline."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LockedStep:
    """The prediction of a step on one system, rounded.

    Attributes:
        tpu: name of the system: "v5e-8".
        mode: "train" or "infer".
        batch: examples of a step over all devices, or None.
        basis: basis of the prediction, as `Basis` lists them.
        predicted_by: the method, with the compiler's version.
        memory_mib: peak memory of one device, MiB; None if it is not known.
        limit_mib: memory that the compiler lets a program use, MiB, or None.
        step_ms: time of a step, milliseconds; None for a step that does not fit.
        from_ms: lower bound of the time, milliseconds, or None.
        to_ms: upper bound, milliseconds; None also if there is none.
        collective_calls: executions in a step for each kind of collective.
        collectives_mib: their bytes over the network in a step, for one device, MiB.
        layers_ms: time in a step for each layer, milliseconds.
        buffers_mib: the largest buffers of a device, MiB: temporaries by layer, the others by name.
        layout: mesh and partitions, as in `Prediction`.
    """

    tpu: str
    mode: str
    batch: int | None
    basis: str
    predicted_by: str
    memory_mib: float | None
    limit_mib: float | None
    step_ms: float | None
    from_ms: float | None
    to_ms: float | None
    collective_calls: dict[str, float] = dataclasses.field(default_factory=dict)
    collectives_mib: dict[str, float] = dataclasses.field(default_factory=dict)
    layers_ms: dict[str, float] = dataclasses.field(default_factory=dict)
    buffers_mib: dict[str, float] = dataclasses.field(default_factory=dict)
    layout: str = ""

    @property
    def name(self) -> str:
        """Name of the step, unique in a plan: "v5e-8, 1,024 examples a step"."""
        batch = f", {self.batch:,} examples a step" if self.batch else ""
        return f"{self.tpu}{batch}{'' if self.mode == 'train' else f', mode {self.mode!r}'}"

    @property
    def certainty(self) -> str:
        """Kind of the time: "a forecast", "a floor", or "a time without upper bound"."""
        if self.basis == "floor":
            return "a floor"
        return "a time without upper bound" if self.step_ms is not None and self.to_ms is None else "a forecast"


@dataclasses.dataclass(frozen=True)
class PlanLock:
    """The predictions of a plan that a file holds.

    Attributes:
        job: name of the job.
        anytpu: version of anytpu.
        steps: a step for each system and batch.
    """

    job: str
    anytpu: str
    steps: tuple[LockedStep, ...]

    def to_text(self) -> str:
        """Return the content of the file: JSON with sorted keys, without fields that are empty."""
        steps = [{name: value for name, value in vars(step).items() if value not in ("", {})} for step in self.steps]
        record = {_FORMAT_KEY: LOCK_FORMAT, "anytpu": self.anytpu, "job": self.job, "steps": steps}
        return json.dumps(record, indent=1, sort_keys=True) + "\n"


def lock_of(job: str, predictions: Iterable[Prediction]) -> PlanLock:
    """Return the lock of a job's predictions."""
    return PlanLock(_text(job), importlib.metadata.version("anytpu"), tuple(map(locked, predictions)))


def locked(prediction: Prediction) -> LockedStep:
    """Return a prediction as a lock holds it."""
    memory, time = prediction.memory, prediction.time
    times_s = (time.step_s, *time.interval_s) if time else (math.inf,) * 3
    step_ms, from_ms, to_ms = (_rounded(1e3 * time_s) if math.isfinite(time_s) else None for time_s in times_s)
    collectives = [op for op in time.ops if op.kind == "collective"] if time else []
    return LockedStep(
        tpu=_text(prediction.target.name),
        mode=prediction.mode,
        batch=prediction.batch_size,
        basis=prediction.basis,
        predicted_by=_text(prediction.predicted_by),
        memory_mib=_rounded(memory.peak_bytes / MIB) if memory else None,
        limit_mib=_rounded(memory.limit_bytes / MIB) if memory else None,
        step_ms=step_ms,
        from_ms=from_ms,
        to_ms=to_ms,
        collective_calls=_sums(collectives, collective_name, lambda op: op.count),
        collectives_mib=_sums(collectives, collective_name, lambda op: op.bytes / MIB),
        layers_ms=_sums(time.ops if time else (), layer_name, lambda op: 1e3 * op.time_s),
        buffers_mib=_sums(memory.buffers if memory else (), buffer_name, lambda buffer: buffer.bytes / MIB),
        layout=_text(prediction.layout),
    )


def collective_name(op: OpTime) -> str:
    """Return the kind of a collective; for those of blocks that were not compiled, the name of the blocks."""
    return _text(op.collective or op.name)


def layer_name(op: OpTime) -> str:
    """Return the layer of an operation as a lock names it."""
    return _text(op.layer) or _LAYERS.get(op.kind, NO_LAYER)


def buffer_name(buffer: Buffer) -> str:
    """Return the name of a buffer in a lock: its layer; without one its own, unless the compiler numbered it."""
    return _text(buffer.layer or (NO_LAYER if buffer.use in ("temporary", "output") else buffer.name))


def read_lock(path: str | Path) -> PlanLock:
    """Read a lock.

    Raises:
        SettingError: there is no such file, or it is damaged, of a newer anytpu, or another kind of file.
    """
    try:
        return _parsed(read_json(read_text(Path(path))))
    except FileNotFoundError as error:
        raise SettingError(f"there is no lock {str(path)!r}; write it: anytpu plan ... --lock {path}") from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise SettingError(
            f"the lock {str(path)!r} cannot be read ({why}); write it again: anytpu plan ... --lock {path}"
        ) from error


def _parsed(content: Any) -> PlanLock:
    if not isinstance(content, dict) or _FORMAT_KEY not in content:
        raise ValueError(f"it is no lock of a plan: it has no {_FORMAT_KEY!r}")
    version = content[_FORMAT_KEY]
    if type(version) is int and version > LOCK_FORMAT:
        writer = quoted(content.get("anytpu"))
        raise ValueError(f"its format {version} is of the newer anytpu {writer}: update anytpu")
    if version != LOCK_FORMAT:
        raise ValueError(f"{_FORMAT_KEY!r} is {quoted(version)}, not {LOCK_FORMAT}")
    if not isinstance(content.get("steps"), list):
        raise ValueError("it has no list of 'steps'")
    head = record_of(_LockHead, content)
    steps = []
    for number, step in enumerate(content["steps"], 1):
        try:
            steps.append(record_of(LockedStep, step))
        except ValueError as error:
            raise ValueError(f"step {number}: {error}") from None
    return PlanLock(head.job, head.anytpu, tuple(steps))


@dataclasses.dataclass(frozen=True)
class _LockHead:
    """The fields of a file beside its steps."""

    job: str
    anytpu: str


def _sums(parts: Iterable[_Part], key: Callable[[_Part], str], amount: Callable[[_Part], float]) -> dict[str, float]:
    sums: dict[str, float] = {}
    for part in parts:
        sums[key(part)] = sums.get(key(part), 0.0) + amount(part)
    return {name: _rounded(total) for name, total in sums.items()}


def _rounded(value: float) -> float:
    """Return a number with four digits, at most four of them after the point; from 1,000 on as an integer.

    Example:
        >>> _rounded(12.3456), _rounded(0.0123456), _rounded(16128.4), _rounded(3e-6)
        (12.35, 0.0123, 16128, 0)
    """
    short = round(float(f"{value:.4g}"), 4) if value < 1000 else float(round(value))
    return int(short) if short.is_integer() else short


def _text(text: str) -> str:
    """Return a text as a file may hold it: printable, and not too long."""
    return "".join(char if char.isprintable() else "?" for char in text)[:MAX_TEXT]
