"""`estimate`: the time and memory of a step under a layout, from its products and their collectives, in milliseconds.

Idea: the trace has every product, and the layout says how each is split. So the work of one device, the weights that it
gathers and the partial results that it adds up follow by arithmetic. It ranks layouts; the TPU compiler decides.

Rule: it is a ranking, not a forecast. A product takes the longer of its FLOPs and its bytes at the peaks. Other
operations count their results at a quarter, because fusions keep the rest on the chip. Rows that a lookup's gradient
adds to a table count one by one. Gathers of stored weights run beside products, as XLA schedules them; other
collectives do not overlap.

Source: https://jax-ml.github.io/scaling-book/training (FSDP waits for the network only where gathers take longer than
products). `benchmarks/shard_accuracy.py` compares ranks with compiled layouts.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import jax
from jax.extend.core import JaxprEqn

from anytpu.planning.hlo.collectives import Collective
from anytpu.planning.records.target import Target
from anytpu.planning.shardings.candidates import weights_of
from anytpu.planning.timing.irregular import ROW_S, UPDATE_S
from anytpu.planning.timing.network import collective_price
from anytpu.planning.timing.rates import rates_of
from anytpu.program.axes import factors_of
from anytpu.program.jaxprs import aval_of
from anytpu.program.rematerialising import Remat, live_bytes
from anytpu.sharding import ModelLayout, TracedStep
from anytpu.sharding.layouts import Spec
from anytpu.sharding.logical_axes import Axes, AxisLevel
from anytpu.sharding.placing import axis_parts, specs_of

_FUSED_SHARE = 0.25
"""Share of the results of other operations that reach the memory."""

_PRODUCTS = ("dot_general", "conv_general_dilated")
_SCATTERS = ("scatter-add", "scatter_add")
_SORTED_ROWS = 2**18
"""Maximum number of rows of a table whose updates XLA sorts and streams. It does so for 131,072 rows of 128 and of 256
features on v5e, and not for 1,048,576; the limit between is a guess."""


@dataclasses.dataclass(frozen=True)
class Estimate:
    """The estimate of a step under a layout.

    Attributes:
        computing_s: time of the products and of the memory traffic of one device, seconds.
        network_s: time of the collectives that products do not hide, seconds.
        state_bytes: state and batch of one device, a lower bound of its memory.
    """

    computing_s: float
    network_s: float
    state_bytes: int

    @property
    def step_s(self) -> float:
        """Time of a step, seconds."""
        return self.computing_s + self.network_s


def estimate(traced: TracedStep, layout: ModelLayout, target: Target) -> Estimate:
    """Return the estimate of a step under a layout on a system.

    Raises:
        SettingError: the layout does not fit the state.
    """
    specs = specs_of(traced, layout)
    costs = _Costs(traced, layout, specs, target)
    # The work is the same for all layouts and kept; a layout only divides it.
    work = _work_of(traced)
    for axes, size_bytes in work.results.items():
        costs.add_results(axes, size_bytes)
    for level, equation, times in work.equations:
        costs.add(level, equation, times)
    costs.add_new_weights()
    leaves = jax.tree.leaves((traced.program.state, traced.program.batch))
    state_bytes = sum(
        leaf.size * leaf.dtype.itemsize // costs.pieces(part for parts in spec for part in parts)
        for leaf, spec in zip(leaves, specs, strict=True)
    )
    return Estimate(costs.computing_s, costs.network_s, state_bytes)


@dataclasses.dataclass(frozen=True)
class _StepWork:
    """The work of a step under any layout.

    Attributes:
        equations: products and gradients of lookups, with their level and number of executions.
        results: results of all equations but products, bytes by their logical axes.
    """

    equations: list[tuple[AxisLevel, JaxprEqn, int]]
    results: dict[Axes, int]


@functools.lru_cache(maxsize=8)
def _work_of(traced: TracedStep) -> _StepWork:
    equations, results = [], collections.Counter[Axes]()
    for level, equation, times in traced.level.equations():
        if equation.primitive.name in (*_PRODUCTS, *_SCATTERS):
            equations.append((level, equation, times))
        if equation.primitive.name not in _PRODUCTS:
            for result in equation.outvars:
                results[level.of(result)] += times * _whole_bytes(aval_of(result))
    return _StepWork(equations, results)


class _Costs:
    """The running sums of an estimate."""

    def __init__(self, traced: TracedStep, layout: ModelLayout, specs: Sequence[Spec], target: Target) -> None:
        self._sizes = dict(layout.axes)
        self._parts = axis_parts(traced, layout, specs)
        self._rows = traced.rows
        self._target, self._rates = target, rates_of(target)
        self._traced, self._specs = traced, specs
        self._stored = _storage(traced, layout, specs)
        is_weight = weights_of(traced)
        self._weights = _storage(
            traced, layout, [spec if own else () for spec, own in zip(specs, is_weight, strict=False)]
        )
        self._strides = _strides(layout.axes)
        self._products_s = 0.0
        self._others_s = 0.0
        self._gathers_s = 0.0
        self._waits_s = 0.0

    @property
    def computing_s(self) -> float:
        """Time of the products and of all other operations, seconds."""
        return self._products_s + self._others_s

    @property
    def network_s(self) -> float:
        """Time of the collectives that products do not hide, seconds."""
        return self._waits_s + max(0.0, self._gathers_s - self._products_s)

    def pieces(self, parts: Any) -> int:
        """Return the number of devices that some mesh axes split an array over."""
        return math.prod(self._sizes[part] for part in parts)

    def add_results(self, axes: Axes, size_bytes: int) -> None:
        """Add the time to write results; what has the axes of a stored weight lies in its shards."""
        apart = () if self._rows.intersection(axes) else self._stored.get(frozenset(axes), ())
        results = size_bytes / self.pieces(self._used(axes).values_of(axes)) / self.pieces(apart)
        self._others_s += _FUSED_SHARE * results / self._rates.streaming_bytes_per_s

    def add(self, level: AxisLevel, equation: JaxprEqn, times: int) -> None:
        """Add the time of a product, or of the gradient of a lookup beside that of its results."""
        if equation.primitive.name in _SCATTERS:
            self._add_scatter(level, equation, times)
            return
        # 1. The product on one device: its FLOPs or its bytes, whichever takes longer.
        operands, (result,) = equation.invars[:2], equation.outvars
        axes = [level.of(atom) for atom in (*operands, result)]
        factors = factors_of(equation)
        contracted = [group for group, axis in zip(axes[0], factors.operands[0], strict=True) if axis in factors.summed]
        used = self._used([*axes[2], *contracted])
        pieces = self.pieces(used.values_of(axes[2], contracted))
        flops = 2 * math.prod(aval_of(result).shape) * factors.depth / pieces
        moved = sum(self._bytes(aval_of(atom), own) for atom, own in zip((*operands, result), axes, strict=True))
        device_s = max(flops / self._rates.flops_per_s, moved / self._rates.streaming_bytes_per_s)
        self._products_s += times * device_s
        # 2. The network. Gathers of weights run beside products (`network_s`); exchanges of activations are waited for.
        self._gathers_s += times * self._gathers_of(operands, axes)
        self._waits_s += times * self._exchange_s(operands, result, axes, contracted, used)

    def add_new_weights(self) -> None:
        """Add the gathers of new weights at the end of a step, where only the slots are split (ZeRO-1)."""
        states = jax.tree.leaves(self._traced.program.state)
        for leaf, axes, spec, is_weight in zip(
            states, self._traced.state_axes, self._specs, weights_of(self._traced), strict=False
        ):
            stored = self._stored.get(frozenset(axes), ())
            if is_weight and stored and not any(spec):
                self._waits_s += self._collective_s("all-gather", leaf.size * leaf.dtype.itemsize, stored)

    def _add_scatter(self, level: AxisLevel, equation: JaxprEqn, times: int) -> None:
        """Add the gradient of a lookup: its updates, and the sum of the table over the devices of the rows.

        A large table takes its updates one by one. If its shards are stored apart, each device goes through the updates
        of all devices.
        """
        table, updates, (result,) = aval_of(equation.invars[0]), aval_of(equation.invars[2]), equation.outvars
        # 1. The updates, by the position of each row.
        axes, own, numbers = level.of(equation.invars[2]), level.of(result), equation.params["dimension_numbers"]
        positions = [index for index in range(len(axes)) if index not in numbers.update_window_dims]
        rows = self._used(axes).values_of([axes[index] for index in positions])
        stored, count = self._stored.get(frozenset(own), ()), math.prod(updates.shape[index] for index in positions)
        if math.prod(table.shape[axis] for axis in numbers.inserted_window_dims) > _SORTED_ROWS:
            self._others_s += times * UPDATE_S * count / self.pieces(set(rows) - set(stored))
        else:
            self._others_s += times * ROW_S * count / self.pieces(rows)
        # 2. The sum over the devices, unless the table itself is split like the examples.
        if self._rows.intersection(own):
            return
        if stored:
            self._waits_s += times * self._collective_s("reduce-scatter", self._bytes(table, own), stored)
        else:
            self._waits_s += times * self._collective_s("all-reduce", self._bytes(table, own), rows)

    def _bytes(self, aval: Any, axes: Axes) -> float:
        return _whole_bytes(aval) / self.pieces(self._used(axes).values_of(axes))

    def _used(self, axes: Sequence[int]) -> _Assignment:
        """Return the mesh axes of the logical axes of one operation; each mesh axis is used once, first by rows."""
        assignment = _Assignment()
        for axis in sorted(set(axes), key=lambda axis: axis not in self._rows):
            parts = self._parts.get(axis, ())
            if parts and not assignment.taken.intersection(parts):
                assignment[axis] = parts
                assignment.taken.update(parts)
        return assignment

    def _exchange_s(
        self, operands: Sequence[Any], result: Any, axes: list[Axes], contracted: Sequence[int], used: _Assignment
    ) -> float:
        """Return the time to gather activations before a product, and to add up its partial results after it."""
        seconds = 0.0
        for axis in {axis for axis in axes[2] if axes[2].count(axis) > 1}:
            # Scores of attention: one operand has queries, and the other has the keys of all positions.
            seconds += self._collective_s("all-gather", self._bytes(aval_of(operands[1]), axes[1]), used.get(axis, ()))
        # Devices that split a contracted axis have partial results.
        over = used.values_of(contracted)
        if over:
            stored = self._stored.get(frozenset(axes[2]), ())
            kind = "reduce-scatter" if stored and not self._rows.intersection(axes[2]) else "all-reduce"
            seconds += self._collective_s(kind, self._bytes(aval_of(result), axes[2]), over)
        return seconds

    def _gathers_of(self, operands: Sequence[Any], axes: list[Axes]) -> float:
        """Return the time to gather the stored weights among the operands of a product."""
        return sum(
            self._collective_s("all-gather", self._bytes(aval_of(operand), own), self._weights.get(frozenset(own), ()))
            for operand, own in zip(operands, axes, strict=False)
            if not self._rows.intersection(own)
        )

    def _collective_s(self, kind: str, size_bytes: float, parts: tuple[str, ...]) -> float:
        count = self.pieces(parts)
        if count == 1:
            return 0.0
        # The group of device 0: evenly spaced devices along the fastest of these axes.
        stride = self._strides[parts[-1]]
        group = () if count == self._target.devices else tuple(range(0, count * stride, stride))
        whole, part = round(size_bytes), round(size_bytes / count)
        operand, received = {"all-gather": (part, whole), "reduce-scatter": (whole, part)}.get(kind, (whole, whole))
        collective = Collective(kind, "whole", group, operand, received, None)
        return collective_price(collective, self._target, self._rates).time_s


class _Assignment(dict[int, tuple[str, ...]]):
    """The mesh axes of logical axes."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: set[str] = set()

    def values_of(self, *groups: Sequence[int]) -> tuple[str, ...]:
        """Return the mesh axes of some logical axes."""
        return tuple(dict.fromkeys(part for axes in groups for axis in axes for part in self.get(axis, ())))


def _whole_bytes(aval: Any) -> int:
    if not hasattr(aval, "shape") or not hasattr(aval.dtype, "itemsize"):
        return 0
    return aval.size * aval.dtype.itemsize


def _storage(
    traced: TracedStep, layout: ModelLayout, specs: Sequence[Spec]
) -> Mapping[frozenset[int], tuple[str, ...]]:
    """Return the mesh axes that store the shards of each array of the state, by its set of logical axes.

    A scanned layer sees a stacked weight without its first axis.
    """
    stored: dict[frozenset[int], tuple[str, ...]] = {}
    stacked: dict[frozenset[int], tuple[str, ...]] = {}
    for axes, spec in zip(traced.state_axes, specs, strict=False):
        parts = tuple(part for parts in spec for part in parts if part in layout.storage_axes)
        if parts:
            stored[frozenset(axes)] = parts
            stacked[frozenset(axes[1:])] = parts
    # The sliced form of one array may have the axes of another array as a whole, which comes first.
    return {**stacked, **stored}


def _strides(axes: Sequence[tuple[str, int]]) -> dict[str, int]:
    """Return the distance between neighbours along each mesh axis, in device numbers."""
    strides, stride = {}, 1
    for name, size in reversed(axes):
        strides[name] = stride
        stride *= size
    return strides


@functools.lru_cache(maxsize=8)
def live_bytes_of(traced: TracedStep, remat: Remat) -> int:
    """Return the maximum of the activations of a step that are live at once, in bytes over all devices, unfused.

    Args:
        traced: the step.
        remat: the form in which it computes activations again; "" for none.
    """
    return live_bytes(traced.rematerialised(remat).trace, len(traced.state_axes))
