"""`UnevenStep`: a step on a batch that does not fill all replicas, where each replica computes with its own rows.

Idea: a replica has one of few numbers of rows: those of most replicas, the rest, or none. The step is traced once for
each number, with that many rows, so Python code on `len(x)` is right by construction. The traces run in lockstep.

Rule: arrays of different shapes travel in one array, padded with zeros. The pads are cut before the step reads an
array, and before anybody reads a result.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.extend.core import ClosedJaxpr

from anytpu import _jax
from anytpu.errors import AnyTPUError, ReplicaError
from anytpu.program.program import REPLICA_AXIS
from anytpu.strategy.uneven.agreement import Agreement, numbers_of, trace
from anytpu.strategy.uneven.groups import Devices, Groups, Lanes, PerGroup, Value, blank, groups_of, is_equal
from anytpu.strategy.uneven.lockstep import Lockstep
from anytpu.strategy.uneven.nodes import node_list

Step = Callable[[Any, list[Any]], tuple[Any, Any]]
"""`step(state, arrays) -> (state, outputs)` of one replica."""

_T = TypeVar("_T")

_MAX_PASSES = 8
"""Number of passes of traces after which the replicas' Python numbers are taken not to settle."""


def is_on_mesh() -> bool:
    """Return whether the traced replica is one device of a mesh, not a lane of a `vmap`."""
    return REPLICA_AXIS in jax.sharding.get_abstract_mesh().manual_axes


@contextlib.contextmanager
def tracing(name: str, counts: Sequence[int], rows: int, agreement: Agreement) -> Iterator[None]:
    """Trace a step in a block, for the replicas with a number of rows.

    Args:
        name: name of the step.
        counts: number of rows of each replica.
        rows: number of rows of these replicas.
        agreement: sums the Python numbers of all replicas.

    Raises:
        ReplicaError: the trace failed for fewer rows than other replicas have.
    """
    try:
        without_rows = contextlib.nullcontext() if rows else _jax.extremes_of_nothing()
        with numbers_of(agreement, list(kinds_of(counts)).index(rows)), without_rows:
            yield
    except AnyTPUError:
        raise
    except Exception as error:
        if rows == max(counts):
            raise
        raise ReplicaError(
            f"{name} was given a batch that does not fill all replicas, and it fails on a replica with {rows} rows, "
            f"where others have {max(counts)} ({type(error).__name__}: {str(error).splitlines()[0].rstrip('.')}). "
            "Write it for any number of rows, or leave such a batch out: batch(rows, drop_remainder=True)"
        ) from error


def agreed(name: str, counts: Sequence[int], trace_rows: Callable[[Agreement, int], _T]) -> list[_T]:
    """Trace a step for each number of rows, again and again until the replicas agree on their Python values.

    Args:
        name: name of the step.
        counts: number of rows of each replica.
        trace_rows: traces the step for a number of rows.

    Returns:
        The results for each number of rows, in the order of `kinds_of`.

    Raises:
        ReplicaError: they do not agree, or a trace failed for fewer rows than other replicas have.
    """
    kinds = kinds_of(counts)
    before: list[dict[str, list[Any]]] = []
    for _ in range(_MAX_PASSES):
        agreement, results, errors = Agreement(tuple(kinds.values()), before), list[_T](), list[Exception]()
        for rows in kinds:
            # A trace may fail by a value that the others have not told yet.
            try:
                with tracing(name, counts, rows, agreement):
                    results.append(trace_rows(agreement, rows))
            except Exception as error:
                errors.append(error)
        if agreement.is_settled():
            if errors:
                raise errors[0]
            return results
        before = agreement.told
    raise ReplicaError(
        f"{name} was given a batch that does not fill all replicas, and the Python numbers that its replicas sum "
        f'depend on these sums without end. Sum arrays: jax.lax.psum(jnp.asarray(number), "{REPLICA_AXIS}")'
    )


def exchange_of(agreement: Agreement, counts: Sequence[int], rows: int) -> Callable[[Any], list[Any]]:
    """Return the function that tells a Python value of the replicas with so many rows, and returns that of each."""
    kinds = list(kinds_of(counts))

    def exchange(value: Any) -> list[Any]:
        by_kind = dict(zip(kinds, agreement.exchange(kinds.index(rows), value), strict=True))
        return [by_kind[count] for count in counts]

    return exchange


def kinds_of(counts: Sequence[int]) -> dict[int, int]:
    """Return the numbers of rows that replicas have, the largest first, and how many replicas have each.

    Example:
        >>> kinds_of((4, 4, 2))
        {4: 2, 2: 1}
    """
    return {rows: counts.count(rows) for rows in sorted(set(counts), reverse=True)}


class UnevenStep:
    """A step `(state, arrays) -> (state, outputs)` of one replica on a batch that does not fill all replicas.

    Args:
        name: name of the step, for errors.
        counts: number of rows of each replica.
        step_for: takes a number of rows and a function; returns the step of a replica with so many rows. The function
            tells the other replicas a Python value, and returns that of each replica.
        have_rows: for each array, whether its first axis is over rows, and padded.

    Attributes:
        shapes: for each output, its shape on each replica, or None if they are equal; empty before the first trace.
    """

    def __init__(
        self,
        name: str,
        counts: tuple[int, ...],
        step_for: Callable[[int, Callable[[Any], list[Any]]], Step],
        have_rows: list[bool],
    ) -> None:
        self._name, self._counts, self._step_for, self._have_rows = name, counts, step_for, have_rows
        self._groups = groups_of(counts)
        self.shapes: list[tuple[tuple[int, ...], ...] | None] = []

    def __call__(self, state: Any, arrays: list[Any]) -> tuple[Any, Any]:
        """Trace the step for each number of rows, and run the traces in lockstep."""
        traces = self._traces(state, arrays)
        tree = jax.tree.structure(traces[0][1])
        flat = jax.tree.leaves((state, arrays))
        if is_on_mesh():
            results, _own = self._run(Devices(self._groups), traces, flat, [False] * len(flat))
            return tree.unflatten(results)

        # The rule of a function for `vmap` sees the lanes of all replicas.
        @custom_vmap
        def run(*flat: Any) -> list[Any]:
            return [blank(spec) for spec in self._transported(traces)]

        @run.def_vmap
        def over_lanes(axis_size: int, in_batched: Any, *flat: Any) -> tuple[list[Any], list[bool]]:
            return self._run(Lanes(self._groups), traces, list(flat), in_batched)

        return tree.unflatten(run(*flat))

    def _traces(self, state: Any, arrays: list[Any]) -> list[tuple[ClosedJaxpr, Any]]:
        """Return the trace of each group, and the specs of its results."""
        kinds = kinds_of(self._counts)
        traced = agreed(self._name, self._counts, lambda agreement, rows: self._trace(agreement, rows, state, arrays))
        by_rows = dict(zip(kinds, traced, strict=True))
        traces = [by_rows[group.rows] for group in self._groups]
        self._check_trees([shape for _, shape in traces])
        self.shapes = self._output_shapes([shape for _, shape in traces])
        return traces

    def _trace(self, agreement: Agreement, rows: int, state: Any, arrays: list[Any]) -> Any:
        exchange = exchange_of(agreement, self._counts, rows)
        specs = [
            jax.ShapeDtypeStruct((rows, *array.shape[1:]) if has_rows else array.shape, array.dtype)
            for array, has_rows in zip(arrays, self._have_rows, strict=True)
        ]
        states = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
        return trace(self._step_for(rows, exchange), (states, specs), len(self._counts))

    def _run(
        self, groups: Groups, traces: list[tuple[ClosedJaxpr, Any]], flat: list[Any], batched: list[bool]
    ) -> tuple[list[Any], list[bool]]:
        """Run the traces. Return the results over all replicas, and for each whether the replicas have their own."""
        arguments = self._arguments(groups, flat, batched)
        sources = [node_list(closed, closed.consts) for closed, _ in traces]
        found = Lockstep(self._name, groups).run(sources, arguments)
        results, own = [], []
        for column, spec in zip(zip(*found, strict=True), self._transported(traces), strict=True):
            own.append(not is_equal(column))
            pairs = list(zip(column, self._groups, strict=True))
            padded = [Value(_padded(groups.own(value, group), spec), None) for value, group in pairs]
            results.append(groups.joined(padded) if own[-1] else _padded(column[0].array, spec))
        return results, own

    def _arguments(self, groups: Groups, flat: list[Any], batched: list[bool]) -> PerGroup:
        """Return the arguments of each group's trace: the state, and its own rows of the arrays."""
        have_rows = [False] * (len(flat) - len(self._have_rows)) + self._have_rows
        columns = []
        for index, (array, is_own, has_rows) in enumerate(zip(flat, batched, have_rows, strict=True)):
            is_lanes = isinstance(groups, Lanes)
            if not (is_own or has_rows) and (is_lanes or index < len(flat) - len(self._have_rows)):
                columns.append([Value(array, ("argument", index))] * len(self._groups))
                continue
            parts = groups.cut(array)
            if has_rows:
                pairs = zip(parts, self._groups, strict=True)
                parts = [jax.lax.slice_in_dim(part, 0, group.rows, axis=1 if is_lanes else 0) for part, group in pairs]
            columns.append([Value(part, None) for part in parts])
        return [list(row) for row in zip(*columns, strict=True)]

    def _transported(self, traces: Sequence[tuple[ClosedJaxpr, Any]]) -> list[jax.ShapeDtypeStruct]:
        """Return the spec of each result with pads: the largest size of each axis over the replicas."""
        columns = zip(*(jax.tree.leaves(shape) for _, shape in traces), strict=True)
        specs = []
        for column in columns:
            sizes = zip(*(leaf.shape for leaf in column), strict=True)
            dtypes = {leaf.dtype for leaf in column}
            # Random keys have no common dtype with numbers.
            dtype = dtypes.pop() if len(dtypes) == 1 else jnp.result_type(*dtypes)
            specs.append(jax.ShapeDtypeStruct(tuple(map(max, sizes)), dtype))
        return specs

    def _check_trees(self, shapes: list[Any]) -> None:
        trees = list(dict.fromkeys(jax.tree.structure(outputs) for _, outputs in shapes))
        if len(trees) > 1:
            raise ReplicaError(
                f"{self._name} was given a batch that does not fill all replicas, and returns {trees[0]} on a replica "
                f"with {self._groups[0].rows} rows but {trees[1]} on another: return the same lists, tuples and "
                "dictionaries on all replicas"
            )
        for column in zip(*map(jax.tree.leaves, shapes), strict=True):
            if len({leaf.ndim for leaf in column}) > 1:
                raise ReplicaError(
                    f"{self._name} was given a batch that does not fill all replicas, and returns arrays of the shapes "
                    f"{' and '.join(str(leaf.shape) for leaf in column)} on its replicas: return arrays with the same "
                    "number of axes"
                )

    def _output_shapes(self, shapes: list[Any]) -> list[tuple[tuple[int, ...], ...] | None]:
        """Return for each output the shape on each replica, or None if they are equal."""
        found = []
        for column in zip(*(jax.tree.leaves(outputs) for _, outputs in shapes), strict=True):
            pairs = zip(column, self._groups, strict=True)
            each = tuple(leaf.shape for leaf, group in pairs for _ in range(group.replicas))
            found.append(each if len(set(each)) > 1 else None)
        return found


def _padded(array: Any, spec: jax.ShapeDtypeStruct) -> Any:
    """Return a result in the dtype of a spec, padded with zeros to its shape; an axis of lanes before it stays."""
    array = jnp.asarray(array)
    array = array if array.dtype == spec.dtype else array.astype(spec.dtype)
    lanes = array.ndim - len(spec.shape)
    widths = [(0, 0)] * lanes + [(0, a - b) for a, b in zip(spec.shape, array.shape[lanes:], strict=True)]
    if not any(width for _, width in widths):
        return array
    if jnp.issubdtype(spec.dtype, jax.dtypes.prng_key):
        numbers = jax.random.key_data(array)
        numbers = jnp.pad(numbers, [*widths, *[(0, 0)] * (numbers.ndim - array.ndim)])
        return jax.random.wrap_key_data(numbers, impl=jax.random.key_impl(array))
    return jnp.pad(array, widths)
