"""`with_joint_sums`: the sums over the rows of a batch, such as gradients, in few all-reduces.

Idea: XLA's CPU backend reduces each gradient by an exchange of its own between the processes. An exchange through TCP
takes longer than the step of a small model. Here each core first computes its part of every sum. All parts that are
ready go into one vector, and one all-reduce adds the vectors. A sum that depends on another, as after batch
normalization, comes in a later all-reduce.

Rule: a sum is split by the cores' equal shares of an axis, and added again. This is exact for every array, up to the
order of additions. So `RowAxes` may guess which axis has the rows. A wrong guess costs time, and no correctness.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, final

import jax
import jax.numpy as jnp
from jax import lax
from jax.core import ShapedArray
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var
from jax.sharding import Mesh, PartitionSpec

from anytpu.program.axes import factors_of
from anytpu.program.jaxprs import calling, shape_of
from anytpu.program.passes import inlined

_SUMS = ("reduce_sum", "dot_general", "conv_general_dilated")


@dataclasses.dataclass(frozen=True)
class _PartialSum:
    """A sum of which each core computes its part.

    Attributes:
        equation: the original equation, which makes the whole sum.
        parts: the variable of the parts, `(cores, *shape of the sum)`, split by its first axis.
    """

    equation: JaxprEqn
    parts: Var


def with_joint_sums(closed: ClosedJaxpr, row_axes: Sequence[int | None], mesh: Mesh) -> ClosedJaxpr:
    """Return a traced function whose sums over rows are joint all-reduces.

    Args:
        closed: the trace, on whole arrays.
        row_axes: axis of the rows of each argument; None for an argument without rows.
        mesh: the cores, a mesh of one axis.

    Returns:
        The new trace; `closed` itself if it has no such sum, or has side effects.
    """
    # 1. Find the equations that sum over rows.
    jaxpr = inlined(closed.jaxpr)
    axes = RowAxes(mesh.devices.size)
    for variable, axis in zip(jaxpr.invars, row_axes, strict=True):
        axes.add(variable, axis)
    summed: dict[Any, tuple[int | None, ...]] = {}
    for equation in jaxpr.eqns:
        axes.add_results(equation)
        if operand_axes := axes.summed(equation):
            summed[equation.outvars[0]] = operand_axes
    # 2. Reorder the equations into rounds. Side effects keep their order, so a function with effects stays as it is.
    if not summed or jaxpr.effects:
        return closed
    return closed.replace(jaxpr=jaxpr.replace(eqns=_in_rounds(jaxpr.eqns, summed, mesh)))


def _in_rounds(equations: Sequence[JaxprEqn], summed: dict[Any, tuple[int | None, ...]], mesh: Mesh) -> list[JaxprEqn]:
    """Return the equations in rounds; a round computes all that needs no later sum, and ends with one all-reduce.

    Args:
        equations: the equations of the function.
        summed: axes of the operands over which an equation sums, by its result.
        mesh: the cores.
    """
    ordered: list[JaxprEqn] = []
    while equations:
        waiting: list[JaxprEqn] = []
        parts: list[_PartialSum] = []
        # The results that this round does not have: its own sums, and all that depends on them.
        missing = set[Any]()
        for equation in equations:
            if any(isinstance(atom, Var) and atom in missing for atom in equation.invars):
                waiting.append(equation)
            elif equation.outvars[0] in summed:
                part = _PartialSum(equation, _parts_variable(equation, mesh))
                ordered.append(_part_of_each_core(part, summed[equation.outvars[0]], mesh))
                parts.append(part)
            else:
                ordered.append(equation)
                continue
            missing.update(equation.outvars)
        # The joint all-reduce ends the round. What waited for its sums is the input of the next round.
        ordered += _all_reduces(parts, mesh)
        equations = waiting
    return ordered


def _parts_variable(equation: JaxprEqn, mesh: Mesh) -> Var:
    (result,) = equation.outvars
    aval: Any = result.aval
    return Var(ShapedArray((mesh.devices.size, *aval.shape), aval.dtype))


def _part_of_each_core(part: _PartialSum, operand_axes: Sequence[int | None], mesh: Mesh) -> JaxprEqn:
    """Return the equation in which each core sums over its share of the rows."""
    equation, (axis_name,) = part.equation, mesh.axis_names

    def compute(*operands: Any) -> Any:
        return equation.primitive.bind(*operands, **equation.params)[None]

    specs = tuple(
        PartitionSpec() if axis is None else PartitionSpec(*[None] * axis, axis_name) for axis in operand_axes
    )
    split = jax.shard_map(compute, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(axis_name), check_vma=False)
    return calling(split, equation.invars, [part.parts], equation)


def _all_reduces(parts: Sequence[_PartialSum], mesh: Mesh) -> list[JaxprEqn]:
    """Return the equations that add the parts: one for each dtype."""
    by_dtype: dict[Any, list[_PartialSum]] = {}
    for part in parts:
        by_dtype.setdefault(part.parts.aval.dtype, []).append(part)  # pyright: ignore[reportAttributeAccessIssue]
    (axis_name,) = mesh.axis_names

    def add(*parts: Any) -> list[Any]:
        return joint_sum([part[0] for part in parts], axis_name, mesh.devices.size)

    split, whole = PartitionSpec(axis_name), PartitionSpec()
    added = jax.shard_map(add, mesh=mesh, in_specs=split, out_specs=whole, check_vma=False)
    return [
        calling(added, [part.parts for part in group], [part.equation.outvars[0] for part in group], group[-1].equation)
        for group in by_dtype.values()
    ]


def joint_sum(arrays: Sequence[Any], axis_name: str, cores: int) -> list[Any]:
    """Return the sums of arrays over the cores, by one exchange.

    `lax.concatenate` is not used: XLA's CPU backend fuses the reductions before it into it, and then computes them for
    every element (seen in jaxlib 0.10.2).
    """
    sizes = [array.size for array in arrays]
    vector, offset = jnp.zeros(sum(sizes), arrays[0].dtype), 0
    # One vector holds all arrays, so there is one exchange.
    for array, size in zip(arrays, sizes, strict=True):
        vector, offset = lax.dynamic_update_slice(vector, array.ravel(), (offset,)), offset + size
    # Of two cores each sends one message to the other. Gloo's ring sends two, one after the other.
    is_pair = cores == 2
    other = lax.ppermute(vector, axis_name, [(0, 1), (1, 0)]) if is_pair else None
    vector = lax.psum(vector, axis_name) if other is None else vector + other
    sums, offset = [], 0
    for array, size in zip(arrays, sizes, strict=True):
        sums.append(lax.slice(vector, (offset,), (offset + size,)).reshape(array.shape))
        offset += size
    return sums


@final
class RowAxes:
    """The axis of each array of a traced step along which the rows of the batch are, as far as it is known.

    Args:
        pieces: number of equal pieces into which an axis of rows must be divisible.
    """

    def __init__(self, pieces: int) -> None:
        self._pieces = pieces
        self._axes: dict[Any, int] = {}

    def add(self, variable: Any, axis: int | None) -> None:
        """Add the axis of a variable; None and an axis that the pieces do not divide are left out."""
        if axis is not None and shape_of(variable)[axis] % self._pieces == 0:
            self._axes[variable] = axis

    def of(self, atom: Any) -> int | None:
        """Return the axis of the rows of a variable; None for a literal or a variable without rows."""
        return self._axes.get(atom) if isinstance(atom, Var) else None

    def add_results(self, equation: JaxprEqn) -> None:
        """Add the axes of the results of an equation, whose operands are known."""
        axes = [(index, axis) for index, atom in enumerate(equation.invars) if (axis := self.of(atom)) is not None]
        if not axes:
            return
        factors = factors_of(equation)
        for result, variable in enumerate(equation.outvars):
            moved = (factors.moved(operand, axis, result) for operand, axis in axes)
            self.add(variable, next((axis for axis in moved if axis is not None), None))

    def summed(self, equation: JaxprEqn) -> tuple[int | None, ...] | None:
        """Return for each operand the axis of rows over which an equation sums; None if it does not sum over rows."""
        axes = tuple(map(self.of, equation.invars))
        if equation.primitive.name not in _SUMS or None in axes:
            return None
        factors = factors_of(equation)
        over = {own[axis] for own, axis in zip(factors.operands, axes, strict=True) if axis is not None}
        # Both operands of a product must be split along the same axis of the sum.
        return axes if len(over) == 1 and factors.summed >= over else None
