"""`LockCheck`: the comparison of a plan with a lock.

Idea: a lock holds if no step needs more memory, takes longer, or exchanges more between devices, up to a tolerance. The
layers whose time changed the most show the cause.

Rule: a floor is a minimum, so it is never compared with a forecast. Nor are steps of other systems or batches.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Sequence

from anytpu.errors import SettingError
from anytpu.planning.records.lock import (
    LockedStep,
    PlanLock,
    buffer_name,
    collective_name,
    layer_name,
    lock_of,
    read_lock,
)
from anytpu.planning.records.prediction import Prediction
from anytpu.units import MIB, format_bytes, format_seconds

STEP_PERCENT = 5.0
"""Default tolerance of the step time."""

MEMORY_PERCENT = 2.0
"""Default tolerance of the memory, and of the bytes of collectives."""

_NUMBER = re.compile(r"_(\d{1,9})(?=/|$)")
_MAX_PARTS = 8
"""Maximum number of layers, and of buffers, that a report lists for a step."""
_MAX_NAMED = 3
_MIN_SHARE = 0.005
"""Minimum change of a layer or a buffer, as a share of the locked time or memory."""

_MIN_GROWTH_MIB = 0.001
"""Minimum change of a collective: a scalar more, such as another metric, is no change."""


@dataclasses.dataclass(frozen=True)
class StepCheck:
    """The comparison of one step.

    Attributes:
        name: name of the step: "v5e-8, 1,024 examples a step".
        faults: a sentence on each number that grew beyond its tolerance.
        gains: a sentence on each number that shrank beyond its tolerance.
        layers: for a step with faults or gains, a sentence on each layer whose time changed, the largest change first.
        buffers: the same for the largest buffers.
        layout: a sentence on both layouts if the step has another than in the lock, else "".
    """

    name: str
    faults: tuple[str, ...]
    gains: tuple[str, ...]
    layers: tuple[str, ...]
    buffers: tuple[str, ...]
    layout: str = ""

    @property
    def holds(self) -> bool:
        """Whether the step has no fault, and the layout of the lock."""
        return not self.faults and not self.layout


@dataclasses.dataclass(frozen=True)
class LockCheck:
    """The comparison of a plan with a lock; its `str` is the report.

    Attributes:
        path: file of the lock.
        steps: the comparison of each step.
        notes: differences that hold for all steps, such as the compiler's version.
    """

    path: str
    steps: tuple[StepCheck, ...]
    notes: tuple[str, ...]

    @property
    def holds(self) -> bool:
        """Whether no step has a fault or another layout."""
        return all(step.holds for step in self.steps)

    def __repr__(self) -> str:
        """Return a line: the result, and how to see the report."""
        return f"<LockCheck: {self._headline()} print() shows the changes.>"

    def _headline(self) -> str:
        if self.holds:
            return f"{self.path} holds."
        count = "1 step" if len(self.steps) == 1 else f"{len(self.steps)} steps"
        worse, moved = sum(bool(step.faults) for step in self.steps), sum(bool(step.layout) for step in self.steps)
        layout = f"{moved} of {count} {'has' if moved == 1 else 'have'} another layout" if moved else ""
        causes = [layout, f"{worse} of {count} got worse" if worse else ""]
        return f"{self.path} does not hold: {' and '.join(filter(None, causes))}."

    def __str__(self) -> str:
        """Return the report: the verdict, the steps that changed, the notes, and the next command."""
        lines = [self._headline()]
        for step in self.steps:
            if step.faults or step.gains or step.layout:
                lines += ["", step.name]
            lines += [f"  changed: {step.layout}"] if step.layout else []
            lines += [f"  worse: {fault}" for fault in step.faults]
            lines += [f"  better: {gain}" for gain in step.gains]
            lines += [f"  time: {layer}" for layer in step.layers]
            lines += [f"  memory: {buffer}" for buffer in step.buffers]
        if self.notes:
            lines += ["", *self.notes]
        if not self.holds:
            lines += ["", f"If this is intended, write the lock again: anytpu plan ... --lock {self.path}"]
        elif any(step.gains for step in self.steps):
            lines += ["", f"To keep the gain, write the lock again: anytpu plan ... --lock {self.path}"]
        return "\n".join(lines)


def compare_with_lock(
    path: str, job: str, predictions: Sequence[Prediction], step_percent: float, memory_percent: float
) -> LockCheck:
    """Compare predictions with a lock.

    Args:
        path: file of the lock.
        job: name of the predicted job.
        predictions: the predictions.
        step_percent: tolerance of the step time.
        memory_percent: tolerance of the memory, and of the bytes of collectives.

    Raises:
        SettingError: a tolerance is not a number of 0 or more. The lock cannot be read, or has other steps. It has a
            floor where the plan has a forecast, or the reverse.
    """
    # 1. The tolerances.
    for name, value in (("step_percent", step_percent), ("memory_percent", memory_percent)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
            raise SettingError(f"{name} must be a number of 0 or more, not {value!r}")
    # 2. The lock has the same steps with the same certainty: a floor is never compared with a forecast.
    lock, plan = read_lock(path), lock_of(job, predictions)
    before = {step.name: step for step in lock.steps}
    _check_names(path, list(before), [step.name for step in plan.steps])
    for step, prediction in zip(plan.steps, predictions, strict=True):
        _check_certainty(path, before[step.name], step, prediction)
    # 3. The comparison.
    steps = tuple(
        _compared(before[step.name], step, prediction, step_percent, memory_percent)
        for step, prediction in zip(plan.steps, predictions, strict=True)
    )
    return LockCheck(path, steps, tuple(_notes(lock, plan)))


def _check_names(path: str, locked: list[str], planned: list[str]) -> None:
    others = {
        "lock": [name for name in locked if name not in planned],
        "plan": [name for name in planned if name not in locked],
    }
    only = ", and ".join(f"only the {where} has {'; '.join(names)}" for where, names in others.items() if names)
    if only:
        raise SettingError(
            f"{path} has other steps than this plan: {only}. Plan the steps of the lock, or write it again: "
            f"anytpu plan ... --lock {path}"
        )


def _check_certainty(path: str, before: LockedStep, now: LockedStep, prediction: Prediction) -> None:
    known = before.step_ms is not None and now.step_ms is not None
    if before.certainty == now.certainty or not (known or "a floor" in (before.certainty, now.certainty)):
        return
    is_new_floor = prediction.is_floor and prediction.notes  # its first note says why the compiler gave no answer
    then = prediction.notes[0] if is_new_floor else f"Write the lock again: anytpu plan ... --lock {path}"
    raise SettingError(
        f"{path} cannot be compared with this plan: {before.name} is {before.certainty} in the lock and "
        f"{now.certainty} in the plan. {then}"
    )


def _compared(
    before: LockedStep, now: LockedStep, prediction: Prediction, step_percent: float, memory_percent: float
) -> StepCheck:
    """Return the comparison of a step."""
    # Changes decide. Layers and buffers only explain them, so a step without a change lists none.
    changes = [*_memory_changes(before, now, memory_percent)]
    if before.step_ms is not None and now.step_ms is not None:
        at_least = "" if now.certainty == "a forecast" else "at least "
        takes = f"a step takes {at_least}{_duration(now.step_ms)}"
        changes += _change(before.step_ms, now.step_ms, step_percent, takes, _duration(before.step_ms))
        changes += _collective_changes(before, now, prediction, memory_percent)
    layers, buffers = _explained(before, now, prediction) if changes else ((), ())
    layout = f"the layout is {now.layout or 'none'}; in the lock it is {before.layout or 'none'}"
    return StepCheck(
        name=now.name,
        faults=tuple(text for is_fault, text in changes if is_fault),
        gains=tuple(text for is_fault, text in changes if not is_fault),
        layers=tuple(layers),
        buffers=tuple(buffers),
        layout=layout if before.layout != now.layout else "",
    )


def _memory_changes(before: LockedStep, now: LockedStep, percent: float) -> Iterator[tuple[bool, str]]:
    """Yield the changes of the memory, each as (whether it is a fault, a sentence)."""
    needs = f"a device needs {'at least ' if now.basis == 'floor' else ''}{_size(now.memory_mib)}"
    fitted, fits = before.step_ms is not None, now.step_ms is not None
    if fitted != fits:
        is_now = "it fits now" if fits else "it no longer fits"
        yield not fits, f"{is_now}: {needs} of {_size(now.limit_mib)}; in the lock it is {_size(before.memory_mib)}"
    elif before.memory_mib is not None and now.memory_mib is not None:
        yield from _change(before.memory_mib, now.memory_mib, percent, needs, _size(before.memory_mib))


def _collective_changes(
    before: LockedStep, now: LockedStep, prediction: Prediction, percent: float
) -> Iterator[tuple[bool, str]]:
    for kind in sorted({*before.collective_calls, *now.collective_calls}):
        had, has = before.collectives_mib.get(kind, 0.0), now.collectives_mib.get(kind, 0.0)
        sends = f"{kind} exchanges {_size(has)} in {_calls(now, kind)}{_layers_of(prediction, kind)}"
        if kind not in before.collective_calls:
            yield True, f"{sends}; in the lock there is none"
        elif kind not in now.collective_calls:
            yield False, f"{kind} is gone; in the lock it exchanges {_size(had)} in {_calls(before, kind)}"
        elif abs(has - had) > _MIN_GROWTH_MIB:
            yield from _change(had, has, percent, sends, f"{_size(had)} in {_calls(before, kind)}")


def _change(before: float, now: float, percent: float, says: str, locked: str) -> Iterator[tuple[bool, str]]:
    """Yield a change beyond the tolerance, as (whether it is a growth, a sentence)."""
    if abs(now - before) * 100 > before * percent:
        share = 100 * abs(now - before) / before if before else 0.0
        said = f"{share:,.0f} % " if share >= 1000 else f"{share:.3g} % " if share else ""
        yield now > before, f"{says}, {said}{'more' if now > before else 'less'} than {locked}"


def _explained(before: LockedStep, now: LockedStep, prediction: Prediction) -> tuple[Iterator[str], Iterator[str]]:
    """Return the changes of the layers, and those of the largest buffers."""
    ops = prediction.time.ops if prediction.time else ()
    buffers = prediction.memory.buffers if prediction.memory else ()
    named = [(layer_name(op), op.source) for op in ops if op.layer]
    named += [(buffer_name(buffer), buffer.source) for buffer in buffers if buffer.layer]
    sources = {name: source for name, source in reversed(named) if source}
    timed = before.step_ms is not None and now.step_ms is not None
    layers = (before.layers_ms, now.layers_ms) if timed else ({}, {})
    had, has = before.buffers_mib, now.buffers_mib
    if now.step_ms is None:  # Of a step that does not fit, the compiler lists only some buffers.
        had = {name: size for name, size in had.items() if name in has}
    words = "now among the largest buffers", "no longer among the largest buffers"
    return (
        _part_changes(*layers, _MIN_SHARE * (before.step_ms or 0.0), _duration, sources, ("new", "gone")),
        _part_changes(had, has, _MIN_SHARE * (before.memory_mib or 0.0), _size, sources, words),
    )


def _part_changes(
    before: dict[str, float],
    now: dict[str, float],
    least: float,
    show: Callable[[float], str],
    sources: dict[str, str],
    words: tuple[str, str],
) -> Iterator[str]:
    """Yield a sentence on each part that changed, the largest change first.

    Args:
        before: seconds or sizes of the parts in the lock.
        now: those in the plan.
        least: minimum change.
        show: formats one of them.
        sources: source lines of the parts.
        words: words for a part that only the plan has, and for one that only the lock has.
    """
    before = _renamed(before, now)
    pairs = {name: (before.get(name), now.get(name)) for name in sorted({*before, *now})}
    changes = {name: (has or 0.0) - (had or 0.0) for name, (had, has) in pairs.items()}
    changed = sorted((name for name in pairs if abs(changes[name]) > least), key=lambda name: -abs(changes[name]))
    for name in changed[:_MAX_PARTS]:
        had, has = pairs[name]
        label = f"{name} ({sources[name]})" if sources.get(name) else name
        if had is None and has is not None:
            yield f"{label} is {words[0]}, {show(has)}"
        elif had is not None and has is None:
            yield f"{label} is {words[1]}, {show(had)} in the lock"
        elif had is not None and has is not None:
            yield f"{label} {'grew' if has > had else 'shrank'} from {show(had)} to {show(has)}"
    if len(changed) > _MAX_PARTS:
        yield f"and {len(changed) - _MAX_PARTS} more"


def _renamed(before: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    """Return the parts of a lock with the plan's numbers in their names.

    Keras numbers layers without a name of their own in the order in which a process makes them.

    Example:
        >>> _renamed({"dense": 1.0, "dense_1": 2.0, "lstm": 3.0}, {"dense_7": 1.0, "dense_12": 2.0})
        {'dense_7': 1.0, 'dense_12': 2.0, 'lstm': 3.0}
    """
    names, planned = {}, _by_stem(now)
    for stem, locked in _by_stem(before).items():
        # With another count of layers nobody knows which one is new.
        if len(locked) == len(planned.get(stem, ())):
            names |= dict(zip(locked, planned[stem], strict=True))
    return {names.get(name, name): amount for name, amount in before.items()}


def _by_stem(parts: dict[str, float]) -> dict[str, list[str]]:
    """Return the names without the numbers of Keras, and the names with each, in the order of their numbers."""
    stems: dict[str, list[str]] = {}
    for name in sorted(parts, key=lambda name: [int(number) for number in _NUMBER.findall(name)]):
        stems.setdefault(_NUMBER.sub("", name), []).append(name)
    return stems


def _layers_of(prediction: Prediction, kind: str) -> str:
    """Return the layers with most bytes of a kind of collective: " (most by conv1, dense)"; "" if none has a layer."""
    ops = prediction.time.ops if prediction.time else ()
    collectives = sorted((op for op in ops if op.layer and collective_name(op) == kind), key=lambda op: -op.bytes)
    layers = list(dict.fromkeys(layer_name(op) for op in collectives))[:_MAX_NAMED]
    return f" (most by {', '.join(layers)})" if layers else ""


def _notes(lock: PlanLock, plan: PlanLock) -> Iterator[str]:
    """Yield the differences between a lock and a plan in their names and versions."""
    methods = ["; ".join(sorted({step.predicted_by for step in side.steps})) for side in (lock, plan)]
    pairs = {"job": (lock.job, plan.job), "anytpu": (lock.anytpu, plan.anytpu), "predicted by": methods}
    for name, (before, now) in pairs.items():
        if before != now:
            yield f"{name}: {before} in the lock, {now} in the plan"


def _calls(step: LockedStep, kind: str) -> str:
    calls = step.collective_calls.get(kind, 0)
    return "1 call" if calls == 1 else f"{calls:,} calls"


def _size(size_mib: float | None) -> str:
    return "an unknown size" if size_mib is None else format_bytes(size_mib * MIB)


def _duration(time_ms: float) -> str:
    return format_seconds(time_ms / 1e3)
