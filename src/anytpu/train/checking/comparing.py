"""How far values may be apart, and how far they are.

Idea: eight cores add in another order than one, so no float32 is the same to the last bit, and what a last bit does to
a value depends on what comes after it. So it is measured: the step runs again with each weight and each input moved by
a last bit, up or down by chance, a few times; a value may differ by some times what that changes, or by a small share
of its scale.

Rule: an element of a weight whose gradient is within its tolerance of zero is not compared: an optimizer that divides
by the gradient's size makes a whole step of it, in either direction. Whole numbers are equal or not. NaN
is equal to nothing; where one core makes it, that is said. So is infinity, but in a layer's output that has finite
numbers: masks do that.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from anytpu.train.checking.marking import read_mark
from anytpu.train.checking.outcome import Outcome
from anytpu.train.checking.record import CheckedValue, Kind


@dataclasses.dataclass(frozen=True)
class Precision:
    """How exact a model is expected to be.

    Attributes:
        unit: what a last bit is of a number.
        factor: by how many times of what a last bit changes a value may differ.
        share_of_outputs: the share of its scale by which an output or a loss may differ in any case.
        share_of_gradients: likewise a gradient or a variable: they are sums over a batch of what comes out of branches
            (ReLU, pooling) that one last bit may turn.
    """

    unit: float
    factor: float
    share_of_outputs: float
    share_of_gradients: float


FLOAT32 = Precision(2.0**-23, 16, 2.0**-16, 2.0**-10)
HALF = Precision(2.0**-8, 4, 2.0**-5, 2.0**-4)
"""Of a model whose layers compute in bfloat16 or float16."""

TRIALS = 4
"""How many times inputs and weights are moved."""

_LAST_BIT = 2.0**-23

Key = tuple[Kind, str]
Values = dict[Key, np.ndarray]


def values_of(outcome: Outcome, before: Sequence[np.ndarray], names: Sequence[str]) -> Values:
    """Return everything that is compared, in the order in which it arises. Variables are compared by their change.

    Args:
        outcome: what a run computed.
        before: the leaves of the state that went in.
        names: their names.
    """
    values: Values = {}
    marks = [(read_mark(mark), outcome.marked[mark]) for mark in sorted(outcome.marked)]
    for wanted in ("output", "gradient"):
        values |= {(kind, name): one for (kind, name), one in marks if kind == wanted}
        if wanted == "output":
            values |= {("loss", name): one for name, one in outcome.logs.items() if "loss" in name}
    for name, old, new in zip(names, before, outcome.state, strict=True):
        values["variable", name] = new - old if _is_real(new) else new
    return values


def moved(
    arrays: Iterable[np.ndarray], unit: float, generator: np.random.Generator, moves_whole: bool = True
) -> list[np.ndarray]:
    """Return arrays with each number moved by this share of it, up or down by chance; integers as they are.

    Args:
        arrays: the arrays.
        unit: the share.
        generator: of chance.
        moves_whole: whether an array of floats that are all whole numbers is moved too: rows may be the indices of an
            embedding.
    """

    def one(array: np.ndarray) -> np.ndarray:
        if not _is_real(array) or not (moves_whole or np.any(array % 1)):
            return array
        return (array * (1 + unit * generator.choice([-1.0, 1.0], array.shape))).astype(array.dtype)

    return [one(array) for array in arrays]


def compared(
    reference: Values,
    trials: Sequence[Values],
    runs: dict[str, Values],
    weights: dict[str, float],
    precision: Precision,
) -> tuple[CheckedValue, ...]:
    """Compare runs with a reference.

    Args:
        reference: what one core computed.
        trials: what it computed of moved inputs and weights.
        runs: what the others computed, by what they are called.
        weights: the largest absolute value of each variable, by name.
        precision: of the model.
    """
    done: dict[Key, CheckedValue] = {}
    for key, value in reference.items():
        kind, name = key
        keep = _kept(value, reference.get(("gradient", name)), done.get(("gradient", name)), kind)
        differences = {run: _apart(value, values.get(key), keep) for run, values in runs.items()}
        scale, tolerance, broken = 1.0, 0.0, 0
        if _is_real(value):
            broken = _not_finite(value, kind)
            scale = largest(value[keep])
            change = max((_apart(value, one.get(key), keep) for one in trials), default=0.0)
            rounding = 4 * _LAST_BIT * weights[name] if kind == "variable" else 0.0
            is_sum = kind in ("gradient", "variable")
            share = precision.share_of_gradients if is_sum else precision.share_of_outputs
            tolerance = max(precision.factor * change if np.isfinite(change) else 0.0, share * scale, rounding)
        done[key] = CheckedValue(name, kind, scale, float(tolerance), differences, broken)
    return tuple(done.values())


def _kept(value: np.ndarray, slope: np.ndarray | None, of_slope: CheckedValue | None, kind: Kind) -> np.ndarray:
    """Return which elements are compared: of a weight those whose gradient is surely not zero."""
    if kind != "variable" or slope is None or of_slope is None or slope.shape != np.shape(value):
        return np.full(np.shape(value), True)
    return np.abs(slope) > of_slope.tolerance


def _not_finite(value: np.ndarray, kind: Kind) -> int:
    """Return how many numbers say nothing: NaN and infinity; of a layer's output NaN alone, if others are finite."""
    numbers = np.asarray(value, np.float64)
    may_be_masked = kind == "output" and bool(np.any(np.isfinite(numbers)))
    return int(np.sum(np.isnan(numbers) if may_be_masked else ~np.isfinite(numbers)))


def joined(values: Values, like: Values) -> Values:
    """Return what per-replica code computed, `(replicas, ...)` each, as one value.

    Rows are joined; of losses and gradients, which are means over each replica's rows, it is the mean; of anything else
    the value of the replica that is farthest from the one in `like`.

    Args:
        values: what the replicas computed.
        like: what one replica computed, joined, or nothing.
    """

    def one(key: Key, value: np.ndarray) -> np.ndarray:
        rows = value.reshape(-1, *value.shape[2:]) if value.ndim > 1 else value
        wanted = like.get(key, rows if key[0] == "output" and value.ndim > 1 else value[0])
        if rows.shape == wanted.shape:
            return rows
        if key[0] != "output":
            return value.mean(0)
        apart = [_apart(wanted, each, np.full(np.shape(wanted), True)) for each in value]
        return value[int(np.argmax(apart))]

    return {key: one(key, value) for key, value in values.items()}


def _apart(value: np.ndarray, other: np.ndarray | None, keep: np.ndarray) -> float:
    """Return the largest absolute difference; inf for another shape, or for what is finite in one of them only."""
    if other is None or np.shape(other) != np.shape(value):
        return float("inf")
    one, two = np.asarray(value, np.float64)[keep], np.asarray(other, np.float64)[keep]
    same = (one == two) | (np.isnan(one) & np.isnan(two))
    apart = np.abs(np.where(same, 0.0, one) - np.where(same, 0.0, two))
    return float(np.max(np.nan_to_num(apart, nan=np.inf, posinf=np.inf), initial=0.0))


def largest(value: np.ndarray) -> float:
    """Return the largest absolute value that is finite."""
    finite = np.abs(np.asarray(value, np.float64))
    return float(np.max(finite[np.isfinite(finite)], initial=0.0))


def _is_real(value: np.ndarray) -> bool:
    return np.issubdtype(np.asarray(value).dtype, np.floating)
