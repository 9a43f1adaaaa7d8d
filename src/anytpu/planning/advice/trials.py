"""Findings turned into advice; a change that needs no edit of the user's code is tried.

Idea: the gain of "use bfloat16" depends on the program and the chip, so the changed program is compiled too.

Rule: advice that was compiled says so (`Advice.tried`), and its gain is in examples a second. A tried change without a
gain is dropped.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from anytpu.planning.advice.facts import Facts, ProposedChange
from anytpu.planning.advice.findings import call_of, findings
from anytpu.planning.costs.waits import HOST_WAIT
from anytpu.planning.memory.batches import MemoryLine
from anytpu.planning.records import Advice, Prediction

WORTH_GAIN = 1.02
"""A tried change with a smaller gain is left out."""

Predict = Callable[[int | None, str | None, str | None], Prediction]
"""Predicts the same job with another batch, another precision, on another system, or several of these."""


def advice_for(
    prediction: Prediction,
    facts: Facts,
    predict: Predict | None = None,
    can_batch: bool = True,
    line: MemoryLine | None = None,
    epoch_steps: int | None = None,
) -> tuple[Advice, ...]:
    """Return advice, the largest gain first.

    Args:
        prediction: the prediction.
        facts: properties of its program.
        predict: compiles a changed job; None: nothing is tried.
        can_batch: whether the job's batch can be changed here.
        line: memory as a function of the batch, for a program that does not fit; None if it is not known.
        epoch_steps: number of steps in an epoch; no call runs past its end. None if it is not known.
    """
    advice = []
    for candidate in findings(prediction, facts, line):
        finding = _within(candidate, epoch_steps)
        if finding.steps_per_execution and finding.steps_per_execution <= prediction.steps_per_execution:
            continue
        piece = (
            _as_advice(finding) if predict is None else _try(finding, prediction, predict, can_batch, facts.is_model)
        )
        if finding.steps_per_execution:
            piece = _with_computed_gain(finding, prediction)
        if piece is not None:
            advice.append(piece)
    return tuple(sorted(advice, key=lambda piece_: -(piece_.gain or 0.0)))


def _within(finding: ProposedChange, epoch_steps: int | None) -> ProposedChange:
    """Limit the steps a call of a finding to the steps of an epoch."""
    steps = finding.steps_per_execution
    if steps is None or epoch_steps is None or steps <= epoch_steps:
        return finding
    text = finding.text.replace(str(steps), str(epoch_steps))
    return dataclasses.replace(finding, text=text, steps_per_execution=epoch_steps)


def _as_advice(finding: ProposedChange) -> Advice:
    """Return a finding as advice that was not tried."""
    return Advice(finding.topic, finding.text, finding.evidence)


def _try(
    finding: ProposedChange, before: Prediction, predict: Predict, can_batch: bool, can_precision: bool
) -> Advice | None:
    """Compile the change of a finding and return it as advice, or None if it gains too little."""
    batch = finding.batch_size if can_batch else None
    precision = finding.precision if can_precision else None
    if batch is None and precision is None and finding.tpu is None:
        return _as_advice(finding)
    try:
        after = predict(batch or before.batch_size if can_batch else None, precision, finding.tpu)
    except Exception:  # A step written for one batch may fail in any way for another.
        return _as_advice(finding)
    changes = {"batch_size": batch, "precision": precision, "tpu": finding.tpu}
    tried = ", ".join(f"{name}={value!r}" for name, value in changes.items() if value is not None)
    # A step that does not fit has no time, so there is no gain to compare.
    if not before.fits:
        return dataclasses.replace(_as_advice(finding), tried=tried, step_s=after.step_s) if after.fits else None
    gain = _gain(before, after)
    if gain is None or gain < WORTH_GAIN:
        return None
    return dataclasses.replace(_as_advice(finding), tried=tried, step_s=after.step_s, gain=gain)


def _with_computed_gain(finding: ProposedChange, before: Prediction) -> Advice:
    """Return the advice to start more steps a call, with its gain: the host's share falls, all else is unchanged."""
    ops = before.time.ops if before.time else ()
    steps, step_s = finding.steps_per_execution or 1, before.step_s or 0.0
    # The steps of a call share its own time. Where the call is longer than its steps, they wait for the host.
    adds_s = sum(op.time_s for op in ops if op.kind == "host" and op.name != HOST_WAIT) * before.steps_per_execution
    rest_s = step_s - sum(op.time_s for op in ops if op.kind == "host")
    after_s = max(rest_s + adds_s / steps, call_of(before) / steps)
    return dataclasses.replace(_as_advice(finding), step_s=after_s, gain=step_s / after_s)


def _gain(before: Prediction, after: Prediction) -> float | None:
    if before.examples_per_s and after.examples_per_s:
        return after.examples_per_s / before.examples_per_s
    return before.step_s / after.step_s if before.step_s and after.step_s else None
