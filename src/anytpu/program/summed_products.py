"""`with_summed_products`: gradients of each replica, summed over the replicas, as one product.

Idea: under `vmap` the gradient of a shared weight is a product with a batch axis, and a `psum` adds the gradients of
the replicas. The sum over a batch axis of a product is the product that contracts this axis too. It makes one gradient,
with an eighth of the memory, and a twentieth of the time for a large Dense layer. So code that was written for
`jax.pmap` (`jax.grad` and `jax.lax.pmean`) takes as long as `jax.jit` on one device.

The gradient of a table of which each replica reads some rows is a scatter-add for each replica. Their sum is one
scatter-add of the rows of all replicas.

Rule: a sum moves back to the product through operations that are linear and act on each replica separately. These are
transpositions, reshapes that keep the axis, conversions, products with a scalar, and additions. A sum that does not
reach a product or a scatter-add stays as it is. Only the order of additions changes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from anytpu.program.axes import holds, spans_of
from anytpu.program.jaxprs import aval_of, called_jaxpr, inner_jaxprs, level_of, rewrite_jaxprs

MIN_SIZE = 4096
"""Minimum number of elements of a gradient whose sum is rewritten; a smaller one is soon added."""

_INLINED = ("jit", "pjit")

Atom = Var | Literal


def with_summed_products(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return a traced function with each sum of products over the replicas as one product.

    Args:
        closed: a trace under `vmap`, in which a `psum` names the position of the axis.

    Returns:
        The new trace; `closed` itself if no sum reaches a product.

    Example:
        >>> def step(w, x):
        ...     return jax.lax.psum(jax.grad(lambda w: ((x @ w) ** 2).sum())(w), "replica")
        >>> over = jax.vmap(step, in_axes=(None, 0), out_axes=None, axis_name="replica")
        >>> trace = jax.make_jaxpr(over)(np.ones((64, 64)), np.ones((8, 4, 64)))
        >>> "psum" in str(trace), "psum" in str(with_summed_products(trace))
        (True, False)
    """
    rewriting = _Rewriting()
    rewritten = rewrite_jaxprs(closed, rewriting.rewrite)
    return rewritten if rewriting.count else closed


def sums_over_replicas(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    """Yield each sum over the replicas of a trace, also in the functions that it calls."""
    for equation in jaxpr.eqns:
        if summed_axes(equation):
            yield equation
        for inner in inner_jaxprs(equation):
            yield from sums_over_replicas(level_of(inner))


def summed_axes(equation: JaxprEqn) -> tuple[int, ...]:
    """Return the positions of the axes that an equation sums over the replicas; () for any other equation."""
    if equation.primitive.name != "psum" or equation.params.get("axis_index_groups") is not None:
        return ()
    return tuple(axis for axis in equation.params["axes"] if isinstance(axis, int))


class _Rewriting:
    """One pass over a traced function.

    Attributes:
        count: number of sums that became products.
    """

    def __init__(self) -> None:
        self.count = 0

    def rewrite(self, jaxpr: Jaxpr) -> Jaxpr:
        """Rewrite a function and the functions inside it."""
        if next(sums_over_replicas(jaxpr), None) is None:
            return jaxpr
        level = _Level(self, any(summed_axes(equation) for equation in jaxpr.eqns))
        level.add(jaxpr.eqns)
        return jaxpr.replace(eqns=level.equations, outvars=[level.read(atom) for atom in jaxpr.outvars])


class _Level:
    """The equations of one function, rewritten.

    Args:
        rewriting: the pass.
        has_sums: whether the function itself sums over the replicas; calls of compiled functions are inlined then, so
            that a sum reaches the products inside.
    """

    def __init__(self, rewriting: _Rewriting, has_sums: bool) -> None:
        self._rewriting = rewriting
        self.equations: list[JaxprEqn] = []
        self._has_sums = has_sums
        self._made_by: dict[Atom, JaxprEqn] = {}
        self._renamed: dict[Atom, Atom] = {}
        self._source: Any = None
        self._scatters: dict[Atom, tuple[Callable[..., Any], Atom, Atom]] = {}

    def read(self, atom: Atom) -> Atom:
        """Return the variable that stands for a variable of the original function."""
        return atom if isinstance(atom, Literal) else self._renamed.get(atom, atom)

    def add(self, equations: Sequence[JaxprEqn]) -> None:
        """Add equations of the original function."""
        for equation in equations:
            equation = equation.replace(invars=[self.read(atom) for atom in equation.invars])
            called = called_jaxpr(equation) if equation.primitive.name in _INLINED else None
            if axes := summed_axes(equation):
                self._add_sum(equation, axes)
            elif self._is_mean_of_scatter(equation):
                # Divide the rows that are scattered, not the whole table.
                (scatter, indices, updates), number = self._scatters[equation.invars[0]], equation.invars[1]
                self._renamed[equation.outvars[0]] = self._emit(
                    lambda i, u, n, scatter=scatter: scatter(i, u / n), indices, updates, number
                )
            elif self._has_sums and called is not None and not called.constvars:
                self._renamed.update(zip(equation.outvars, self._inline(called, equation.invars), strict=True))
            else:
                rewrite = self._rewriting.rewrite
                params = {name: rewrite_jaxprs(value, rewrite) for name, value in equation.params.items()}
                self._append(equation.replace(params=params))

    def _append(self, equation: JaxprEqn) -> None:
        self.equations.append(equation)
        self._made_by.update(dict.fromkeys(equation.outvars, equation))

    def _inline(self, called: Jaxpr, operands: Sequence[Atom]) -> list[Atom]:
        """Add the equations of a function with new variables, because it may be called twice. Return its results."""
        names: dict[Any, Atom] = dict(zip(called.invars, operands, strict=True))

        def read(atom: Any) -> Atom:
            return atom if isinstance(atom, Literal) else self.read(names[atom])

        for equation in called.eqns:
            variables = [Var(variable.aval) for variable in equation.outvars]
            source = self._source or equation.source_info
            invars = [read(atom) for atom in equation.invars]
            self.add([equation.replace(invars=invars, outvars=variables, source_info=source)])
            names.update(zip(equation.outvars, variables, strict=True))
        return [read(atom) for atom in called.outvars]

    def _add_sum(self, equation: JaxprEqn, axes: tuple[int, ...]) -> None:
        """Add a sum over the replicas; leave out the operands whose sum is a product."""
        kept: list[tuple[Atom, Any]] = []
        for operand, result in zip(equation.invars, equation.outvars, strict=True):
            is_large = math.prod(aval_of(result).shape) >= MIN_SIZE and len(equation.params["axes"]) == 1
            summed = self._sum(operand, axes[0]) if is_large else None
            if summed is None:
                kept.append((operand, result))
            else:
                self._renamed[result] = summed
                self._rewriting.count += 1
        if kept:
            operands, results = zip(*kept, strict=True)
            self._append(equation.replace(invars=list(operands), outvars=list(results)))

    def _emit(self, function: Callable[..., Any], *operands: Atom) -> Atom:
        """Add the equations of a function of arrays, and return its result.

        They get the source lines and names of the equation that is rewritten: profiles and plans show them.
        """
        closed = jax.make_jaxpr(function)(*[jax.ShapeDtypeStruct(aval_of(a).shape, aval_of(a).dtype) for a in operands])
        (result,) = self._inline(closed.jaxpr, operands)
        return result

    def _sum(self, atom: Atom, axis: int) -> Atom | None:
        """Return the sum of an array over an axis, computed by a product; None if no product makes the array."""
        equation = None if isinstance(atom, Literal) else self._made_by.get(atom)
        name = None if equation is None else equation.primitive.name.replace("-", "_")
        rule = getattr(self, f"_sum_{name}", None)
        if equation is None or rule is None:
            return None
        outer, self._source = self._source, equation.source_info
        try:
            return rule(equation, axis)
        finally:
            self._source = outer

    def _sum_dot_general(self, equation: JaxprEqn, axis: int) -> Atom | None:
        (left, right), (left_batch, right_batch) = equation.params["dimension_numbers"]
        # Only a batch axis of the product can be contracted in addition; its results have the batch axes first.
        if axis >= len(left_batch):
            return None
        contracted = (*left, left_batch[axis]), (*right, right_batch[axis])
        batch = _without(left_batch, axis), _without(right_batch, axis)
        settings = {name: equation.params[name] for name in ("precision", "preferred_element_type")}
        return self._emit(lambda x, y: lax.dot_general(x, y, (contracted, batch), **settings), *equation.invars)

    def _sum_scatter_add(self, equation: JaxprEqn, axis: int) -> Atom | None:
        operand, indices, updates = equation.invars
        numbers, params = equation.params["dimension_numbers"], equation.params
        if not self._is_zero(operand):
            return None
        batch, index_batch = numbers.operand_batching_dims, numbers.scatter_indices_batching_dims
        window = [d for d in range(len(aval_of(operand).shape)) if d not in (*numbers.inserted_window_dims, *batch)]
        update_window, dropped = numbers.update_window_dims, None
        if axis in batch:
            # The replicas are one more axis of rows: the indices and the updates already have it.
            index_batch = _without(index_batch, batch.index(axis))
        elif axis in window and axis not in numbers.scatter_dims_to_operand_dims:
            # All replicas use the same rows, so their updates are added first.
            dropped = update_window[window.index(axis)]
            update_window = tuple(d - (d > dropped) for d in update_window if d != dropped)
        else:
            return None
        below = lambda dims: tuple(d - (d > axis) for d in dims if d != axis)  # noqa: E731
        summed = lax.ScatterDimensionNumbers(
            update_window_dims=update_window,
            inserted_window_dims=below(numbers.inserted_window_dims),
            scatter_dims_to_operand_dims=below(numbers.scatter_dims_to_operand_dims),
            operand_batching_dims=below(batch),
            scatter_indices_batching_dims=index_batch,
        )
        aval = aval_of(operand)

        def scatter(indices: Any, updates: Any) -> Any:
            zeros = jax.numpy.zeros(_without(aval.shape, axis), aval.dtype)
            updates = updates if dropped is None else updates.sum(dropped)
            return lax.scatter_add(zeros, indices, updates, summed, mode=params["mode"])

        result = self._emit(scatter, indices, updates)
        self._scatters[result] = scatter, indices, updates
        return result

    def _is_mean_of_scatter(self, equation: JaxprEqn) -> bool:
        """Return whether an equation divides a summed scatter-add by a number, as `pmean` does."""
        if equation.primitive.name != "div" or aval_of(equation.invars[1]).shape != ():
            return False
        array = equation.invars[0]
        return not isinstance(array, Literal) and array in self._scatters

    def _is_zero(self, atom: Atom) -> bool:
        """Return whether an array is a zero that was broadcast."""
        while not isinstance(atom, Literal):
            equation = self._made_by.get(atom)
            if equation is None or equation.primitive.name != "broadcast_in_dim":
                return False
            atom = equation.invars[0]
        return atom.val == 0

    def _sum_transpose(self, equation: JaxprEqn, axis: int) -> Atom | None:
        order = equation.params["permutation"]
        # The operand's axis is summed before the permutation, so the axes behind it move down by one.
        summed = self._sum(equation.invars[0], order[axis])
        kept = [source - (source > order[axis]) for source in _without(order, axis)]
        return None if summed is None else self._emit(lambda x: lax.transpose(x, kept), summed)

    def _sum_neg(self, equation: JaxprEqn, axis: int) -> Atom | None:
        """Return the operation of the operand's sum: it is linear, with one operand."""
        summed = self._sum(equation.invars[0], axis)
        operation = functools.partial(equation.primitive.bind, **equation.params)
        return None if summed is None else self._emit(operation, summed)

    _sum_convert_element_type = _sum_neg

    def _sum_mul(self, equation: JaxprEqn, axis: int) -> Atom | None:
        left, right = equation.invars
        return self._scaled(left, right, axis, lax.mul) or self._scaled(right, left, axis, lax.mul)

    def _sum_div(self, equation: JaxprEqn, axis: int) -> Atom | None:
        array, number = equation.invars
        return self._scaled(array, number, axis, lax.div)

    def _scaled(self, array: Atom, number: Atom, axis: int, operation: Callable) -> Atom | None:
        """Return the sum of an array that is multiplied or divided by one number."""
        if aval_of(number).shape != ():
            return None
        summed = self._sum(array, axis)
        return None if summed is None else self._emit(operation, summed, number)

    def _sum_add_any(self, equation: JaxprEqn, axis: int) -> Atom | None:
        if aval_of(equation.invars[0]).shape != aval_of(equation.invars[1]).shape:
            return None
        parts = [self._sum(operand, axis) for operand in equation.invars]
        if all(part is None for part in parts):
            return None
        # A term that is no product is summed as it is.
        both = zip(parts, equation.invars, strict=True)
        parts = [self._emit(lambda x: x.sum(axis), o) if part is None else part for part, o in both]
        return self._emit(lax.add, *parts)

    _sum_add = _sum_add_any

    def _sum_reshape(self, equation: JaxprEqn, axis: int) -> Atom | None:
        source, shape = equation.invars[0], aval_of(equation.outvars[0]).shape
        if equation.params.get("dimensions") is not None:
            return None
        own = spans_of(shape)[axis]
        # The axis to sum begins at the same stride in the operand of the reshape.
        for position, span in enumerate(spans_of(aval_of(source).shape)):
            if span == own:
                summed = self._sum(source, position)
            elif span[0] == own[0] and holds(span, own):
                summed = self._sum_groups(source, position, shape[axis])
            else:
                continue
            return None if summed is None else self._emit(lambda x: lax.reshape(x, _without(shape, axis)), summed)
        return None

    def _sum_groups(self, atom: Atom, position: int, groups: int) -> Atom | None:
        """Return the sum over the groups of a convolution, along the axis of its output features.

        The gradient of a convolution's weights is a convolution that contracts the rows. `vmap` makes one with a group
        for each replica. The sum over the groups is the convolution that contracts the rows of all replicas.
        """
        equation = None if isinstance(atom, Literal) else self._made_by.get(atom)
        if equation is None or equation.primitive.name != "conv_general_dilated":
            return None
        params, numbers = dict(equation.params), equation.params["dimension_numbers"]
        if params["feature_group_count"] != groups or numbers.out_spec[1] != position or groups == 1:
            return None
        features, rows = numbers.rhs_spec[:2]
        settings: dict[str, Any] = {name: params[name] for name in _CONVOLUTION} | {"feature_group_count": 1}

        def convolve(left: Any, right: Any) -> Any:
            shape = right.shape
            parted = right.reshape(*shape[:features], groups, shape[features] // groups, *shape[features + 1 :])
            # The groups go in front of the rows: those of the first replica come first, as in the other operand.
            target = rows + (rows > features)
            moved = jax.numpy.moveaxis(parted, features, target - (target > features))
            merged = [*shape]
            merged[features], merged[rows] = shape[features] // groups, shape[rows] * groups
            return lax.conv_general_dilated(left, moved.reshape(merged), **settings)

        return self._emit(convolve, *equation.invars)


_CONVOLUTION = (
    "window_strides",
    "padding",
    "lhs_dilation",
    "rhs_dilation",
    "dimension_numbers",
    "batch_group_count",
    "precision",
    "preferred_element_type",
)


def _without(items: Sequence[int], index: int) -> tuple[int, ...]:
    return (*items[:index], *items[index + 1 :])
