"""`candidates`: the layouts worth comparing for a traced step on a number of cores.

Idea: a layout splits the examples, the storage of weights and slots, and logical axes of weights. Logical axes that are
split over "model" must not meet in one weight; then each pair of products exchanges data once, as in Megatron-LM. So a
candidate takes a set of logical axes that share no weight, the largest first.

Experts of a mixture are an axis of weights with three axes and more. Each product takes its own expert's weight, or a
router takes a maximum over the experts. Their axis is split over "expert".

Rule: candidates come from the trace, never from names. The best of them is chosen elsewhere.

Source: M. Shoeybi et al., "Megatron-LM", 2019 (pairs of products); S. Rajbhandari et al., "ZeRO", 2020 (stages 1, 3).
"""

from __future__ import annotations

import collections
import functools
import math
from collections.abc import Iterator, Sequence

import jax
from jax.interpreters import partial_eval

from anytpu.program.program import state_names
from anytpu.sharding.layouts import ModelLayout, Spec, split_largest
from anytpu.sharding.logical_axes import Axes
from anytpu.sharding.placing import TracedStep
from anytpu.sharding.searched import searched_layout
from anytpu.sharding.tables import split_rows_of_table

MAX_AXIS_SETS = 3
"""Number of sets of logical axes that are tried for a size of the "model" axis."""

_MIN_SHARE = 0.02
"""A set that splits less than this share of the weights' bytes is not tried."""

_FEATURES_SHARE = 0.75
"""Minimum share of the weights' bytes with an axis that are the features between blocks, the residual axis. In a
transformer all weights have it, in a convolutional network none is in more than a half."""


def candidates(traced: TracedStep, devices: int) -> list[ModelLayout]:
    """Return the layouts to compare, each with another partition of the state or the batch.

    Example:
        >>> from anytpu import program as programs, sharding
        >>> step = lambda w, x: (w, (jax.nn.relu(x @ w[0]) @ w[1]).sum())
        >>> weights = jax.numpy.zeros((512, 2048)), jax.numpy.zeros((2048, 512))
        >>> traced = sharding.trace_step(programs.of(step, (weights, jax.numpy.zeros((64, 512)))))
        >>> [layout.name for layout in candidates(traced, 2)]
        ['data', 'fsdp', 'tensor=2', 'tensor=2 (2)', 'tensor=2 (3)']
    """
    model = _Model(traced)
    layouts = list(model.layouts(devices))
    distinct = {(layout.axes, tuple(_split(layout)), tuple(layout.inner.items())): layout for layout in layouts[::-1]}
    return [layout for layout in layouts if layout in distinct.values()]


def weights_of(traced: TracedStep) -> list[bool]:
    """Return for each leaf of the state whether the outputs depend on it; they do not on an optimizer's slots."""
    jaxpr, states = traced.trace.jaxpr, len(traced.state_axes)
    outputs = [index >= states for index in range(len(jaxpr.outvars))]
    _, used = partial_eval.dce_jaxpr(jaxpr, outputs)
    return list(used[:states])


def _split(layout: ModelLayout) -> Iterator[tuple[str, Spec]]:
    """Return the name and the partition of each array that a candidate splits."""
    return ((name, spec) for name, spec in layout.specs.items() if spec)


class _Model:
    """The arrays of a step, as candidates see them."""

    def __init__(self, traced: TracedStep) -> None:
        self._traced = traced
        self._names = state_names(traced.program)
        leaves = jax.tree.leaves(traced.program.state)
        self._shapes = [tuple(leaf.shape) for leaf in leaves]
        self._bytes = [leaf.size * leaf.dtype.itemsize for leaf in leaves]
        self._is_weight = weights_of(traced)
        self._weight_bytes = 0
        # Bytes of the weights of two axes and more that each logical axis splits. The outputs depend on a cache too.
        self._covered: collections.Counter[int] = collections.Counter()
        kinds = traced.program.state_kinds or [""] * len(leaves)
        for axes, count, is_weight, kind in zip(traced.state_axes, self._bytes, self._is_weight, kinds, strict=True):
            if is_weight and kind != "cache" and len(axes) > 1:
                self._weight_bytes += count
                self._covered.update(dict.fromkeys([axis for axis in axes if axis not in traced.rows], count))

    @functools.cached_property
    def _experts(self) -> frozenset[int]:
        """The logical axes of experts."""
        return _expert_axes(self._traced, [axes for axes, is_weight in self._weights() if is_weight])

    def _weights(self) -> Iterator[tuple[Axes, bool]]:
        """Yield the logical axes of each array of the state, and whether it is a weight."""
        return zip(self._traced.state_axes, self._is_weight, strict=True)

    def layouts(self, devices: int) -> Iterator[ModelLayout]:
        """Yield the candidates, simple ones first; some may be equal."""
        # 1. The examples over all devices; slots and weights are stored whole or split.
        data = (("data", devices),)
        yield self._layout("data", data)
        yield self._layout("zero-1", data, splits_slots=True)
        yield self._layout("fsdp", data, splits_slots=True, splits_weights=True)
        # An embedding that is split by features is looked up and updated without the ids of other devices.
        features, count = next(iter(self._covered.most_common(1)), (None, 0))
        if features is not None and count >= _FEATURES_SHARE * self._weight_bytes:
            yield self._layout("fsdp by features", data, splits_slots=True, splits_weights=True, along=features)
        # 2. Axes of weights over a second mesh axis.
        for size in _divisors(devices):
            axes = (("data", devices // size), ("model", size))
            for number, chosen in enumerate(self._axis_sets(size)):
                title = f"tensor={size}" + (f" ({number + 1})" if number else "")
                yield self._layout(title, axes, chosen)
                if size < devices:
                    yield self._layout(f"fsdp, {title}", axes, chosen, splits_slots=True, splits_weights=True)
        # 3. Experts over a second mesh axis.
        for size in _divisors(devices):
            experts = frozenset(axis for axis in self._experts if self._divides(axis, size))
            if experts and self._independent(sorted(experts)) == experts:
                axes = (("data", devices // size), ("expert", size))
                yield self._layout(f"expert={size}", axes, experts)
                if size < devices:
                    yield self._layout(f"fsdp, expert={size}", axes, experts, splits_slots=True, splits_weights=True)
        # 4. An axis within the examples over a second mesh axis.
        for size in _divisors(devices):
            for axis in self._sequence_axes(size):
                axes = (("data", devices // size), ("sequence", size))
                inner = {axis: ("sequence",)}
                yield self._layout(f"sequence={size}", axes, inner=inner)
                yield self._layout(f"fsdp, sequence={size}", axes, inner=inner, splits_slots=True, splits_weights=True)

    def _layout(
        self,
        name: str,
        axes: tuple[tuple[str, int], ...],
        chosen: frozenset[int] = frozenset(),
        *,
        inner: dict[int, tuple[str, ...]] | None = None,
        splits_slots: bool = False,
        splits_weights: bool = False,
        along: int | None = None,
    ) -> ModelLayout:
        sizes, inside = dict(axes), axes[-1][0]
        # A sequence axis holds the weights whole too, so their storage is split over it as well.
        stored = tuple(part for part, size in axes if part not in ("model", "expert") and size > 1)
        specs: dict[str, Spec] = {}
        for leaf, shape in enumerate(self._shapes):
            spec: Spec = tuple((inside,) if axis in chosen else () for axis in self._traced.state_axes[leaf])
            spec = spec if any(spec) else ()
            if self._names[leaf] in self._traced.program.tables:
                specs[self._names[leaf]] = split_rows_of_table(shape, sizes)
                continue
            if splits_weights if self._is_weight[leaf] else splits_slots:
                first = [place for place, axis in enumerate(self._traced.state_axes[leaf]) if axis == along]
                spec = split_largest(shape, stored, sizes, spec, first)
            specs[self._names[leaf]] = spec

        split_weights = [
            name for name, is_weight in zip(self._names, self._is_weight, strict=True) if is_weight and specs[name]
        ]
        shapes = dict(zip(self._names, self._shapes, strict=True))
        return searched_layout(name, axes, specs, shapes, tuple(split_weights), inner or {})

    def _axis_sets(self, size: int) -> list[frozenset[int]]:
        """Return sets of logical axes, no two of one weight, each without the largest axis of the set before."""
        splittable = [axis for axis, _ in self._covered.most_common() if self._divides(axis, size)]
        axis_sets: list[frozenset[int]] = []
        for first in range(min(MAX_AXIS_SETS, len(splittable))):
            chosen = self._independent(splittable[first:])
            share = sum(self._covered[axis] for axis in chosen) / max(self._weight_bytes, 1)
            # A split of experts alone has a name of its own.
            if chosen not in axis_sets and share >= _MIN_SHARE and not chosen <= self._experts:
                axis_sets.append(chosen)
        return axis_sets

    def _divides(self, axis: int, size: int) -> bool:
        return axis not in self._traced.rows and self._traced.level.groups.divisor(axis) % size == 0

    def _independent(self, ordered: Sequence[int]) -> frozenset[int]:
        """Return the logical axes, in order, that share no weight with an earlier one, and occur once in a weight."""
        chosen: set[int] = set()
        weights = [axes for axes, is_weight in self._weights() if is_weight]
        for axis in ordered:
            mine = [axes for axes in weights if axis in axes]
            if all(axes.count(axis) == 1 and not chosen.intersection(axes) for axes in mine):
                chosen.add(axis)
        return frozenset(chosen)

    def _sequence_axes(self, size: int) -> list[int]:
        """Return the first position, beside the examples, at which an array of the batch may be split; at most one."""
        traced = self._traced
        positions: list[int] = []
        for axes, (leaf, layout) in zip(traced.batch_axes, traced.program.leaves(), strict=True):
            for position, axis in enumerate(axes):
                is_inner = layout.axis is not None and position != layout.axis and leaf.shape[position] > 1
                if is_inner and position not in positions and self._is_sequence(axis) and self._divides(axis, size):
                    positions.append(position)
        return positions[:1]

    def _is_sequence(self, axis: int) -> bool:
        """Return whether an axis indexes positions rather than features, which most weights have as an axis."""
        return self._covered[axis] < _MIN_SHARE * self._weight_bytes


def _expert_axes(traced: TracedStep, weights: Sequence[Axes]) -> frozenset[int]:
    """Return the logical axes that select one of several weights of the same shape.

    Such an axis is a batch axis of each product with a weight of three axes and more. Or all experts are multiplied at
    once. Then a router, a weight with fewer axes, has the axis too, and a maximum is taken along it.

    Args:
        traced: the step.
        weights: logical axes of each weight.
    """
    # 1. For each axis, the numbers of axes of the weights that have it.
    ranks: dict[int, set[int]] = {}
    for axes in weights:
        for axis in axes:
            ranks.setdefault(axis, set()).add(len(axes))
    known = {frozenset(axes) for axes in weights if len(axes) > 2}
    # 2. How products, maxima and sorts use the axes.
    selected, multiplied, routed = set[int](), set[int](), set[int]()
    for level, equation, _ in traced.level.equations():
        name, params = equation.primitive.name, equation.params
        if name == "dot_general":
            for atom, batch in zip(equation.invars, params["dimension_numbers"][1], strict=True):
                axes = level.of(atom)
                if frozenset(axes) in known:
                    selected.update(axes[axis] for axis in batch)
                    multiplied.update(axes[axis] for axis in range(len(axes)) if axis not in batch)
        elif name in ("reduce_max", "argmax"):
            routed.update(level.of(equation.invars[0])[axis] for axis in params["axes"])
        elif name in ("top_k", "sort"):
            # The axis of `top_k` is the last one in releases of JAX that do not name it.
            routed.add(level.of(equation.invars[0])[params.get("dimension", params.get("axis", -1))])
    # 3. A routed axis is one of the router too, a weight with fewer axes.
    routed = {axis for axis in routed if len(ranks.get(axis, ())) > 1}
    return frozenset(axis for axes in known for axis in axes) & ((selected - multiplied) | routed)


def _divisors(devices: int) -> list[int]:
    return [size for size in range(2, devices + 1) if devices % size == 0]


def batch_rows_divide(traced: TracedStep, layout: ModelLayout) -> bool:
    """Return whether the row axes of a layout divide the examples of the batch."""
    rows = traced.program.rows
    return rows is None or rows % math.prod(dict(layout.axes)[part] for part in layout.row_axes) == 0
