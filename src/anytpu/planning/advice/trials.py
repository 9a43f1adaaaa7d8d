"""Findings made into advice, each tried where it can be without touching the user's code.

Idea: "use bfloat16" is worth what it gains on this program and this chip; so the changed program is compiled too.

Rule: what was compiled says so (`Advice.tried`), and its gain is in examples a second. A change that gains nothing is
not advised once it was tried.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from anytpu.planning.advice.facts import Facts
from anytpu.planning.advice.finding import Finding
from anytpu.planning.advice.findings import call_of, findings
from anytpu.planning.advice.line import MemoryLine
from anytpu.planning.host_wait import OP
from anytpu.planning.records import Advice, Prediction

WORTH_GAIN = 1.02
"""What was tried and gains less than this is left out."""

Predict = Callable[[int | None, str | None, str | None], Prediction]
"""Predicts the same job with another batch, another precision, on another system, or several of these."""


def advice_for(
    prediction: Prediction,
    facts: Facts,
    predict: Predict | None = None,
    can_batch: bool = True,
    line: MemoryLine | None = None,
    most_steps: int | None = None,
) -> tuple[Advice, ...]:
    """Return what to change, the greatest gain first.

    Args:
        prediction: what was predicted.
        facts: of its program.
        predict: compiles a changed job; None: nothing is tried.
        can_batch: the job's batch can be changed here.
        line: the memory as a function of the batch, of what does not fit; None where it is not known.
        most_steps: the steps of an epoch, over whose end no call runs; None where that is not known.
    """
    advice = []
    for found in findings(prediction, facts, line):
        finding = _within(found, most_steps)
        if finding.steps_per_execution and finding.steps_per_execution <= prediction.steps_per_execution:
            continue
        given = _said(finding) if predict is None else _tried(finding, prediction, predict, can_batch, facts.is_model)
        if finding.steps_per_execution:
            given = _reckoned(finding, prediction)
        if given is not None:
            advice.append(given)
    return tuple(sorted(advice, key=lambda one: -(one.gain or 0.0)))


def _within(finding: Finding, most_steps: int | None) -> Finding:
    """Return a finding that starts no more steps with a call than an epoch has."""
    steps = finding.steps_per_execution
    if steps is None or most_steps is None or steps <= most_steps:
        return finding
    text = finding.text.replace(str(steps), str(most_steps))
    return dataclasses.replace(finding, text=text, steps_per_execution=most_steps)


def _said(finding: Finding) -> Advice:
    return Advice(finding.topic, finding.text, finding.evidence)


def _tried(
    finding: Finding, before: Prediction, predict: Predict, can_batch: bool, can_precision: bool
) -> Advice | None:
    batch = finding.batch_size if can_batch else None
    precision = finding.precision if can_precision else None
    if batch is None and precision is None and finding.tpu is None:
        return _said(finding)
    try:
        after = predict(batch or before.batch_size if can_batch else None, precision, finding.tpu)
    except Exception:  # A step that is written for one batch fails in its own way for another.
        return _said(finding)
    changes = {"batch_size": batch, "precision": precision, "tpu": finding.tpu}
    tried = ", ".join(f"{name}={value!r}" for name, value in changes.items() if value is not None)
    if not before.fits:
        return dataclasses.replace(_said(finding), tried=tried, step_s=after.step_s) if after.fits else None
    gain = _gain(before, after)
    if gain is None or gain < WORTH_GAIN:
        return None
    return dataclasses.replace(_said(finding), tried=tried, step_s=after.step_s, gain=gain)


def _reckoned(finding: Finding, before: Prediction) -> Advice:
    """Return what more steps a call gain: the host's share falls, all else stays."""
    ops = before.time.ops if before.time else ()
    steps, step_s = finding.steps_per_execution or 1, before.step_s or 0.0
    adds_s = sum(op.time_s for op in ops if op.kind == "host" and op.name != OP) * before.steps_per_execution
    rest_s = step_s - sum(op.time_s for op in ops if op.kind == "host")
    after_s = max(rest_s + adds_s / steps, call_of(before) / steps)
    return dataclasses.replace(_said(finding), step_s=after_s, gain=step_s / after_s)


def _gain(before: Prediction, after: Prediction) -> float | None:
    if before.examples_per_s and after.examples_per_s:
        return after.examples_per_s / before.examples_per_s
    return before.step_s / after.step_s if before.step_s and after.step_s else None
