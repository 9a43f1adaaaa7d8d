"""`with_even_scatters`: scatters whose indices a mesh of two axes does not divide, kept right.

Idea: XLA pads an axis that its devices do not divide. Its partitioner also applies the padding of a scatter's updates,
at index 0, if the mesh has another axis (docs/decisions/0025 has a reproduction). A lookup's gradient is a scatter, and
so are `.at[].add`, `segment_sum` and `bincount`. So such an axis of the indices and updates is left whole.

Rule: an axis whose size is a multiple of the number of devices is never padded, and stays unconstrained. The axis of
the rows keeps its partition if that divides it. So a step whose rows and sequences fill the mesh is unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn
from jax.sharding import NamedSharding, PartitionSpec

from anytpu.program.jaxprs import calling, inner_jaxprs, level_of, rewrite_jaxprs, shape_of, with_rewritten_trace
from anytpu.program.placed import inside, mesh_of
from anytpu.program.program import Program, Tree, array_layouts


def with_even_scatters(program: Program) -> Callable[[Tree, Tree], tuple[Tree, Tree]]:
    """Return the step of whole-batch code, in which no scatter has padded updates.

    Args:
        program: whole-batch code, with a placement or without.

    Returns:
        The step itself if no mesh axis is left beside the one that splits an array.
    """
    placement = program.placement
    if placement is None:
        return program.step

    def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        with inside(placement):
            return program.step(state, batch)

    if sum(size > 1 for _, size in placement.axes) < 2:
        return step
    layouts = jax.tree.leaves(array_layouts(program)[1])
    rows = next((layout.spec[layout.axis : layout.axis + 1] for layout in layouts if layout.axis is not None), ())
    scatters = _Scatters(mesh_of(placement), rows[0] if rows else ())
    return with_rewritten_trace(step, scatters.rewrite)


class _Scatters:
    """The rewriting of the scatters of one program.

    Args:
        mesh: the mesh, an `AbstractMesh`.
        rows: names of the mesh axes that split the rows of a batch.
    """

    def __init__(self, mesh: Any, rows: tuple[str, ...]) -> None:
        self._mesh, self._rows = mesh, rows
        self._known: dict[Jaxpr, Jaxpr] = {}

    def rewrite(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """Return a trace without uneven scatters; the trace itself if it has none."""
        return rewrite_jaxprs(closed, self._level) if self._has_uneven(closed.jaxpr) else closed

    def _has_uneven(self, jaxpr: Jaxpr) -> bool:
        return any(
            self._is_uneven(equation) or any(self._has_uneven(level_of(inner)) for inner in inner_jaxprs(equation))
            for equation in jaxpr.eqns
            if equation.primitive.name != "shard_map"
        )

    def _is_uneven(self, equation: JaxprEqn) -> bool:
        is_scatter = equation.primitive.name.startswith("scatter") and "dimension_numbers" in equation.params
        return is_scatter and any(size % self._mesh.size for size in shape_of(equation.invars[1])[:-1])

    def _level(self, jaxpr: Jaxpr) -> Jaxpr:
        # A function that is called twice stays one function.
        if jaxpr not in self._known:
            self._known[jaxpr] = jaxpr.replace(eqns=[self._equation(equation) for equation in jaxpr.eqns])
        return self._known[jaxpr]

    def _equation(self, equation: JaxprEqn) -> JaxprEqn:
        # The body of a `shard_map` has the shards of one device.
        if equation.primitive.name == "shard_map":
            return equation
        if not self._is_uneven(equation):
            params = {name: rewrite_jaxprs(value, self._level) for name, value in equation.params.items()}
            return equation.replace(params=params)

        def even_scatter(operand: Any, indices: Any, updates: Any) -> Any:
            axes = self._partition(equation, indices.shape[:-1])
            windows, remaining = equation.params["dimension_numbers"].update_window_dims, iter(axes)
            of_updates = [_ANY if axis in windows else next(remaining) for axis in range(updates.ndim)]
            indices, updates = self._constrained(indices, [*axes, None]), self._constrained(updates, of_updates)
            return equation.primitive.bind(operand, indices, updates, **equation.params)

        return calling(even_scatter, equation.invars, equation.outvars, equation)

    def _partition(self, scatter: JaxprEqn, sizes: Sequence[int]) -> list[Any]:
        """Return the partition of each axis of a scatter's indices, the axis of a vector of indices left out."""
        pieces = math.prod(self._mesh.shape[name] for name in self._rows)
        rows = next((axis for axis, size in enumerate(sizes) if size % pieces == 0), None)
        parts: list[Any] = [_ANY if size % self._mesh.size == 0 else None for size in sizes]
        if rows is not None and parts[rows] is None:
            parts[rows] = self._rows
        # XLA partitions an axis that the operand has too correctly.
        for axis in scatter.params["dimension_numbers"].scatter_indices_batching_dims:
            parts[axis] = _ANY
        return parts

    def _constrained(self, array: Any, parts: Sequence[Any]) -> Any:
        return jax.lax.with_sharding_constraint(array, NamedSharding(self._mesh, PartitionSpec(*parts)))


_ANY = PartitionSpec.UNCONSTRAINED
