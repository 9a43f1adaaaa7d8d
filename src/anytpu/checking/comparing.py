"""Compute the tolerance of each value of a step, and the differences between runs.

Idea: eight cores add in another order than one core, so float32 results differ in the last bits. The effect of a last
bit on a value depends on the later computation, so it is measured. The step runs again a few times, with each weight
and each input randomly moved up or down by a last bit. A value may differ by a multiple of the measured change, or by a
small share of its scale.

Rule: an element of a weight whose gradient is within tolerance of zero is not compared. An optimizer that divides by
the gradient's magnitude turns it into a full step of either sign. Integers must be equal. NaN equals nothing; a value
that is NaN on one core is reported. Infinity is reported too, except in a layer's output that also has finite
values, as masks cause.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.checking.marking import read_mark
from anytpu.checking.outcome import Outcome
from anytpu.checking.record import CheckedValue, Kind
from anytpu.program.program import Tree


@dataclasses.dataclass(frozen=True)
class Precision:
    """The expected accuracy of a model.

    Attributes:
        unit: value of the last bit, relative to the number.
        factor: maximum ratio of a difference to the change measured when inputs and weights move by a last bit.
        share_of_outputs: share of its scale by which an output or a loss may always differ.
        share_of_gradients: the same share for a gradient or a variable. These are sums over a batch, in which one last
            bit may flip a branch (ReLU, pooling).
    """

    unit: float
    factor: float
    share_of_outputs: float
    share_of_gradients: float


FLOAT32 = Precision(2.0**-23, 16, 2.0**-16, 2.0**-10)
HALF = Precision(2.0**-8, 4, 2.0**-5, 2.0**-4)
"""Precision of a model whose layers compute in bfloat16 or float16."""

TRIALS = 4
"""Number of runs with moved inputs and weights."""

_LAST_BIT = 2.0**-23

Key = tuple[Kind, str]
Values = dict[Key, np.ndarray]


def values_of(outcome: Outcome, before: Sequence[np.ndarray], names: Sequence[str]) -> Values:
    """Return all values to compare, in the order in which they are computed. Variables are compared by their change.

    Args:
        outcome: the results of a run.
        before: the leaves of the input state.
        names: the names of these leaves.
    """
    values: Values = {}
    marks = [(read_mark(mark), outcome.marked[mark]) for mark in sorted(outcome.marked)]
    for wanted in ("output", "gradient"):
        values |= {(kind, name): value for (kind, name), value in marks if kind == wanted}
        if wanted == "output":
            values |= {("loss", name): value for name, value in outcome.logs.items() if "loss" in name}
    for name, old, new in zip(names, before, outcome.state, strict=True):
        values["variable", name] = new - old if _is_real(new) else new
    return values


def moved(tree: Tree, unit: float, generator: np.random.Generator, moves_whole: bool = True) -> Tree:
    """Return a tree of arrays with each number randomly moved up or down by a share of it; integers do not change.

    Args:
        tree: the arrays.
        unit: the share of each number.
        generator: random generator of the directions.
        moves_whole: whether to move a float array whose values are all integers; rows may be indices of an embedding.
    """

    def move(array: np.ndarray) -> np.ndarray:
        if not _is_real(array) or not (moves_whole or np.any(array % 1)):
            return array
        return (array * (1 + unit * generator.choice([-1.0, 1.0], array.shape))).astype(array.dtype)

    return jax.tree.map(move, tree)


def compared(
    reference: Values,
    trials: Sequence[Values],
    runs: dict[str, Values],
    weights: dict[str, float],
    precision: Precision,
) -> tuple[CheckedValue, ...]:
    """Compare runs with a reference.

    Args:
        reference: values computed on one core.
        trials: values computed on one core from moved inputs and weights.
        runs: values of the other runs, by the name of the run.
        weights: the largest absolute value of each variable, by name.
        precision: the expected accuracy of the model.
    """
    checked: dict[Key, CheckedValue] = {}
    for key, value in reference.items():
        kind, name = key
        # Gradients come before variables in `reference`, so the tolerance of this weight's gradient is known.
        keep = _kept(value, reference.get(("gradient", name)), checked.get(("gradient", name)), kind)
        differences = {run: _difference(value, values.get(key), keep) for run, values in runs.items()}
        scale, tolerance, broken = 1.0, 0.0, 0
        if _is_real(value):
            broken = _not_finite(value, kind)
            scale = largest(value[keep])
            change = max((_difference(value, trial.get(key), keep) for trial in trials), default=0.0)
            rounding = 4 * _LAST_BIT * weights[name] if kind == "variable" else 0.0
            is_sum = kind in ("gradient", "variable")
            share = precision.share_of_gradients if is_sum else precision.share_of_outputs
            tolerance = max(precision.factor * change if np.isfinite(change) else 0.0, share * scale, rounding)
        checked[key] = CheckedValue(name, kind, scale, float(tolerance), differences, broken)
    return tuple(checked.values())


def _kept(value: np.ndarray, gradient: np.ndarray | None, checked: CheckedValue | None, kind: Kind) -> np.ndarray:
    """Return the mask of elements to compare: for a weight, those whose gradient exceeds its tolerance."""
    if kind != "variable" or gradient is None or checked is None or gradient.shape != np.shape(value):
        return np.full(np.shape(value), True)
    return np.abs(gradient) > checked.tolerance


def _not_finite(value: np.ndarray, kind: Kind) -> int:
    """Return how many elements are NaN or infinite; in a layer's output with finite elements, count NaN alone."""
    numbers = np.asarray(value, np.float64)
    may_be_masked = kind == "output" and bool(np.any(np.isfinite(numbers)))
    return int(np.sum(np.isnan(numbers) if may_be_masked else ~np.isfinite(numbers)))


def _difference(value: np.ndarray, other: np.ndarray | None, keep: np.ndarray) -> float:
    """Return the largest absolute difference; inf if the shapes differ or an element is finite in only one array."""
    if other is None or np.shape(other) != np.shape(value):
        return float("inf")
    left, right = np.asarray(value, np.float64)[keep], np.asarray(other, np.float64)[keep]
    same = (left == right) | (np.isnan(left) & np.isnan(right))
    differences = np.abs(np.where(same, 0.0, left) - np.where(same, 0.0, right))
    return float(np.max(np.nan_to_num(differences, nan=np.inf, posinf=np.inf), initial=0.0))


def largest(value: np.ndarray) -> float:
    """Return the largest absolute value of the finite elements."""
    finite = np.abs(np.asarray(value, np.float64))
    return float(np.max(finite[np.isfinite(finite)], initial=0.0))


def _is_real(value: np.ndarray) -> bool:
    # NumPy does not count bfloat16 as a float type.
    return jnp.issubdtype(np.asarray(value).dtype, jnp.floating)
