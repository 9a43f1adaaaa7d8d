"""`interval_of`: the interval of a predicted step time.

Idea: the model's errors on published measurements, as factors, spread about evenly on both sides of 1. So the interval
is the prediction divided and multiplied by one factor. The factor of all chips holds where little was measured on this
one; with more measurements it moves towards the chip's own. It grows with the share of the step that is hard to price:
exchange between chips, kernels that only their author prices. It grows where few measurements determine it, by
Student's distribution in place of the normal one. It also grows for a step of a kind that was not fitted. Nearly all
fitted steps train, and spend most of their time in matrix products. A decode step reads its weights and its cache once
for each token. It has no backward pass, and almost no products.

Rule: of the predictions that the fit could check out of sample, nine of ten are inside. A part counted at its minimum
(by its bytes alone) can only take longer, so it widens the upper side. So does time that may come on top. Time that may
not occur, as in the longest of several branches, widens the lower side. No interval starts below the time of products
at peak, and of all else at the peak of the memory.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from anytpu.planning.records import Kind, OpTime
from anytpu.planning.records.target import Target
from anytpu.planning.timing.rates import calibration

NINE_OF_TEN = 1.645
"""Standard deviations on either side of the mean that hold 90 % of a normal distribution."""

# Weight of all other chips, in measurements of this one: no chip is off by much more than another.
_TRUST = 8
# Part of the variance that is a chip's own: its systematic error, until measurements of it show it.
_OWN = 0.25
# Error of a part of a step, on top of the common one, as a logarithm.
_PARTS = {"collective": 0.25, "kernel": 0.2, "host": 0.3}
# The same for parts priced by instructions that were never timed: guesses.
_COUNTED = {"stages": 0.5, "rows": 0.6, "updates": 0.8, "windows": 0.4, "its code": 0.3, "the scalar unit": 1.0}
_COUNTED["products"] = 0.1  # the spread of 23 published steps that were priced by their schedules
# The same for operations shorter than this, seconds. Little of the compiler's wait for the main memory is left in them,
# and the shortest published time is that of a product of 512 x 512 on v7x, 2.6 us.
_SHORT_S, _SHORT = 2e-6, 0.4
# The same for the exchange between slices, and for any step on several slices: no such step was fitted.
_BETWEEN_SLICES, _SEVERAL_SLICES = 0.7, 0.08
# Maximum ratio of an operation's time to the time of its bytes, if nothing else is known: a guess.
_FLOOR = 4.0
# Error of a step without a backward pass if none was fitted, as a logarithm; less, the more were. A guess.
_KIND = 0.15
# Error of the time on the vector units, or waiting for the memory, beyond the largest fitted share. A guess.
_BEYOND = 0.5
# A share beyond the largest one that is smaller than this is not told.
_WORTH_SHARE = 0.05
_SHARES: dict[str, tuple[Kind, ...]] = {"vector": ("vector",), "memory": ("memory", "copy")}
_SPENT = {"vector": "on the vector units", "memory": "waiting for the memory"}


def interval_of(
    ops: Sequence[OpTime], target: Target, fitted: dict[str, Any] | None = None, *, is_endless: bool = False
) -> tuple[float, float]:
    """Return the bounds of the step time that hold with a probability of 90 %, seconds.

    Args:
        ops: the operations of the step.
        target: the system.
        fitted: the calibration; None: the one in the package.
        is_endless: whether it contains a loop of unknown length: then the upper bound is infinite.
    """
    step_s = sum(op.time_s for op in ops)
    low, high = logarithms_of(ops, target, fitted or calibration())
    return step_s * math.exp(low), math.inf if is_endless else step_s * math.exp(high)


def logarithms_of(ops: Sequence[OpTime], target: Target, fitted: dict[str, Any]) -> tuple[float, float]:
    """Return the bounds as logarithms of the step time over the predicted one: (-0.15, 0.15)."""
    spread = spread_of(ops, target, fitted)
    step_s = sum(op.time_s for op in ops) or 1.0
    floor_s = sum(op.time_s for op in ops if op.priced_by == "floor")
    further_s = (_FLOOR - 1) * floor_s + sum(op.further_s for op in ops)
    least_s = min(sum(op.least_s for op in ops), step_s)
    # The spread is subtracted below. The factor cancels it, so the interval never starts below the minimum.
    certain_s = max(step_s - sum(op.optional_s for op in ops), math.exp(spread) * least_s)
    low = math.log(certain_s / step_s) - spread if certain_s > 0 else -math.inf
    return low, spread + math.log1p(further_s / step_s)


def spread_of(ops: Sequence[OpTime], target: Target, fitted: dict[str, Any]) -> float:
    """Return the half-width of the interval that a step's parts and the calibration give, as a logarithm."""
    spread = fitted["spread"]
    count, _ = spread["chips"].get(target.chip.name, (0, 0.0))
    added = variance_of_parts(ops, target) + variance_of_kind(ops, fitted.get("steps"))
    return student(_TRUST + count) * math.sqrt(variance_of_chip(target.chip.name, spread) + added)


def variance_of_chip(name: str, spread: Mapping[str, Any]) -> float:
    """Return the variance of the logarithm of a training step's time on a chip, without its hard-to-price parts.

    Args:
        name: the chip.
        spread: "all", the spread over all chips, and "chips", the count and the sum of squares of each.
    """
    count, squares = spread["chips"].get(name, (0, 0.0))
    return (_TRUST * spread["all"] ** 2 + squares) / (_TRUST + count) * (1 + _OWN / (1 + count))


def variance_of_parts(ops: Sequence[OpTime], target: Target) -> float:
    """Return the variance that the hard-to-price parts of a step add to the logarithm of its time."""
    step_s = sum(op.time_s for op in ops) or 1.0
    variance = 0.0
    for kind, off in _PARTS.items():
        share = sum(op.time_s for op in ops if op.kind == kind) / step_s
        variance += (off * share) ** 2
    for source, off in _COUNTED.items():
        share = sum(op.time_s for op in ops if op.priced_by == source) / step_s
        variance += (off * share) ** 2
    variance += (_SHORT * sum(op.time_s for op in ops if _is_short(op)) / step_s) ** 2
    if target.slices > 1:
        share = sum(op.time_s for op in ops if op.opcode in ("send-done", "recv-done")) / step_s
        variance += _SEVERAL_SLICES**2 + (_BETWEEN_SLICES * share) ** 2
    return variance


def _is_short(op: OpTime) -> bool:
    return op.kind in ("matmul", "vector", "memory") and op.time_s < _SHORT_S * op.count


def student(freedom: float) -> float:
    """Return the value of `NINE_OF_TEN` if the deviation itself is estimated with so many degrees of freedom.

    By the expansion of Cornish and Fisher, accurate to a percent from four on.

    Example:
        >>> round(student(4), 2), round(student(8), 2), round(student(1e9), 3)
        (2.11, 1.86, 1.645)
    """
    z = NINE_OF_TEN
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    return z + first / freedom + second / freedom**2


class StepKind(NamedTuple):
    """Properties by which steps are compared.

    Attributes:
        has_backward: whether it has a backward pass; True if its operations have no source lines to tell.
        shares: share of its time on the vector units, "vector", and waiting for the memory, "memory", 0 to 1.
    """

    has_backward: bool
    shares: dict[str, float]


def step_kind(ops: Sequence[OpTime]) -> StepKind:
    """Return the kind of a step.

    Example:
        >>> step_kind([OpTime("a", "fusion", "matmul", 1.0), OpTime("b", "fusion", "vector", 3.0)])
        StepKind(has_backward=True, shares={'vector': 0.75, 'memory': 0.0})
    """
    step_s = sum(op.time_s for op in ops) or 1.0
    shares = {name: sum(op.time_s for op in ops if op.kind in kinds) / step_s for name, kinds in _SHARES.items()}
    is_told = any(op.source for op in ops)
    return StepKind(not is_told or any(op.is_backward for op in ops), shares)


def steps_record(steps: Sequence[StepKind], squares: float = 0.0, squared: int = 0) -> dict[str, Any]:
    """Return the record of the fitted steps for a calibration.

    Args:
        steps: their kinds.
        squares: sum of the squared errors, as logarithms, of the steps without a backward pass that can be judged.
        squared: number of these.

    Example:
        >>> train, infer = StepKind(True, {"vector": 0.1, "memory": 0.5}), StepKind(False, {"vector": 0.2, "memory": 0})
        >>> record = steps_record([train, infer], 0.01, 1)
        >>> record["without_backward"], record["most"], record["most_forward"]
        (1, {'vector': 0.1, 'memory': 0.5}, {'vector': 0.2, 'memory': 0})
    """
    forward = [step for step in steps if not step.has_backward]
    most, most_forward = (
        {name: max((step.shares[name] for step in own), default=0.0) for name in _SHARES}
        for own in ([step for step in steps if step.has_backward], forward)
    )
    counts = {"all": len(steps), "without_backward": len(forward), "squared": squared, "squares": squares}
    return {**counts, "most": most, "most_forward": most_forward}


def variance_of_kind(ops: Sequence[OpTime], steps: Mapping[str, Any] | None) -> float:
    """Return the variance that the kind of a step adds to the logarithm of its time.

    Args:
        ops: the operations of the step.
        steps: the calibration's record of the fitted steps; None adds nothing.
    """
    if not steps:
        return 0.0
    kind = step_kind(ops)
    variance = sum((_BEYOND * share) ** 2 for share in _beyond(kind, steps).values())
    return variance if kind.has_backward else variance + (_KIND**2 + steps["squares"]) / (1 + steps["squared"])


def kind_sentences(ops: Sequence[OpTime], steps: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Return a sentence on how a step differs from the fitted ones; () if it does not."""
    if not steps:
        return ()
    kind, said = step_kind(ops), list[str]()
    if not kind.has_backward:
        fitted = steps["without_backward"] or "none"
        said.append(f"it has no backward pass, like {fitted} of the {steps['all']} published steps")
    for name, beyond in _beyond(kind, steps).items():
        if beyond >= _WORTH_SHARE:
            most = kind.shares[name] - beyond
            said.append(f"it spends {kind.shares[name]:.0%} of its time {_SPENT[name]}, none of those over {most:.0%}")
    if not said:
        return ()
    return (f"Few published steps are like this one, so the interval is wider: {'; '.join(said)}.",)


def _beyond(kind: StepKind, steps: Mapping[str, Any]) -> dict[str, float]:
    """Return the shares of a step beyond the largest of the fitted steps of its kind."""
    most = steps["most" if kind.has_backward else "most_forward"]
    return {name: max(share - most[name], 0.0) for name, share in kind.shares.items()}


def evidence_of(target: Target, ops: Sequence[OpTime] = ()) -> tuple[str, ...]:
    """Return sentences that name the published measurements of a chip and the error of the prediction of each.

    Args:
        target: the system.
        ops: the operations of a step; the first sentence says how it differs from the measured steps.
    """
    sentences = tuple(calibration()["evidence"].get(target.chip.name, ()))
    if not sentences:
        sentences = (
            f"No published measurement of {target.chip.name} was used: its numbers are those of the other chips.",
        )
    if target.slices > 1:
        sentences += (
            "No step over several slices was fitted: the network between them is reckoned from the hosts' network "
            "cards and one published sum of 606 MB over two slices of v6e-256.",
        )
    return (*kind_sentences(ops, calibration().get("steps")), *sentences) if ops else sentences


def compiler_note(compiler: str) -> tuple[str, ...]:
    """Return a sentence for a step from another compiler than the calibration's; () for the same compiler.

    Args:
        compiler: who compiled: "libtpu 0.0.51".

    Example:
        >>> compiler_note("libtpu 0.0.42.1")
        ()
    """
    fitted = calibration()["compiler"]
    if compiler == fitted["name"]:
        return ()
    return (f"Compiled by {compiler}; the calibration was fitted with {fitted['name']}: no prediction was compared.",)
