"""`variance_of_kind`: the extra uncertainty of a step that is unlike the fitted ones.

Idea: the model's errors on published steps apply to steps like them. Nearly all of these train, and spend most of their
time in matrix products. A decode step reads its weights and its cache once for each token. It has no backward pass, and
almost no products.

Rule: two things are counted, each with a parameter of the calibration. Steps without a backward pass may be off by
`_KIND` if none was fitted, and by less the more were. Consider the time on the vector units, or waiting for the memory,
beyond the largest share of any fitted step. It may be off by `_BEYOND` of itself. Both parameters are guesses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from anytpu.planning.records import Kind, OpTime

_KIND = 0.15
_BEYOND = 0.5
_WORTH_SHARE = 0.05
"""A share beyond the largest one that is smaller than this is not told."""

_SHARES: dict[str, tuple[Kind, ...]] = {"vector": ("vector",), "memory": ("memory", "copy")}
_SPENT = {"vector": "on the vector units", "memory": "waiting for the memory"}


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


def steps_record(steps: Sequence[StepKind]) -> dict[str, Any]:
    """Return the record of the fitted steps for a calibration.

    Example:
        >>> train, infer = StepKind(True, {"vector": 0.1, "memory": 0.5}), StepKind(False, {"vector": 0.2, "memory": 0})
        >>> steps_record([train, infer])
        {'all': 2, 'without_backward': 1, 'most': {'vector': 0.2, 'memory': 0.5}}
    """
    most = {name: max((step.shares[name] for step in steps), default=0.0) for name in _SHARES}
    return {"all": len(steps), "without_backward": sum(not step.has_backward for step in steps), "most": most}


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
    return variance if kind.has_backward else variance + _KIND**2 / (1 + steps["without_backward"])


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
            most = steps["most"][name]
            said.append(f"it spends {kind.shares[name]:.0%} of its time {_SPENT[name]}, none of those over {most:.0%}")
    if not said:
        return ()
    return (f"Few published steps are like this one, so the interval is wider: {'; '.join(said)}.",)


def _beyond(kind: StepKind, steps: Mapping[str, Any]) -> dict[str, float]:
    """Return the shares of a step beyond the largest of the fitted steps."""
    return {name: max(share - steps["most"][name], 0.0) for name, share in kind.shares.items()}
