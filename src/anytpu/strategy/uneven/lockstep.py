"""`Lockstep`: runs the traces of groups of replicas beside each other, from collective to collective.

Idea: replicas with different numbers of rows have different traces, and meet at collectives. Between two collectives
each group computes its own operations. At a collective the operands of all groups are put together, the collective
runs, and each group gets its part of the results. Nothing is masked, and nothing interpreted.

Rule: all groups run the same collectives in the same order. A loop or a branch with a collective in it runs in lockstep
itself (`control_flow.py`). So its number of steps must be equal on all replicas.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Hashable
from typing import Any, NoReturn

import jax
from jax.extend.core import JaxprEqn, Literal, jaxpr_as_fun

from anytpu.errors import ReplicaError
from anytpu.program.jaxprs import inner_jaxprs, shape_of
from anytpu.strategy.uneven.control_flow import CONTROL_FLOW, Packing, with_index
from anytpu.strategy.uneven.groups import Groups, Lanes, PerGroup, Single, Task, Value, is_equal
from anytpu.strategy.uneven.nodes import (
    NodeList,
    Ref,
    StepNode,
    bind,
    described,
    has_index,
    has_own_derivative,
    identity_of,
    identity_of_constant,
    identity_of_literal,
    meets,
    meets_in,
    node_list,
    spec_of_result,
)
from anytpu.strategy.uneven.recorded import GRADIENTS

_EQUAL_RESULTS = ("psum", "psum_invariant", "pmax", "pmin", "all_gather")
"""Collectives whose result is equal on all replicas."""


@dataclasses.dataclass(eq=False)
class _Track:
    """The progress of one group.

    Attributes:
        source: its operations.
        values: the known values by their index; None for one that a waiting operation computes.
        position: index of the next operation.
        waiting: operations since the last collective that each replica computes for itself.
    """

    source: NodeList
    values: dict[int, Value | None]
    position: int = 0
    waiting: list[StepNode] = dataclasses.field(default_factory=list)

    def read(self, ref: Ref) -> Value | None:
        """Return a value; None if a waiting operation computes it."""
        return Value(ref.val, identity_of_literal(ref)) if isinstance(ref, Literal) else self.values[ref]

    def known(self, ref: Ref) -> Value:
        """Return a value that is computed already."""
        value = self.read(ref)
        assert value is not None
        return value


class Lockstep:
    """The run of one function by all groups.

    Args:
        name: name of the step, for errors.
        groups: the groups of replicas.
        is_differentiated: JAX differentiates the run. Values with other derivatives are not equal then.
    """

    def __init__(self, name: str, groups: Groups, is_differentiated: bool = False) -> None:
        self.name, self.groups, self._is_differentiated = name, groups, is_differentiated
        self._results: dict[Hashable, list[Any]] = {}
        self._meetings = itertools.count()

    def run(self, sources: list[NodeList], arguments: PerGroup) -> PerGroup:
        """Run the operations of each group. Return the results of each group's trace.

        Raises:
            ReplicaError: the groups run different collectives.
        """
        tracks = []
        for source, values in zip(sources, arguments, strict=True):
            known: dict[int, Value | None] = dict(zip(source.inputs, values, strict=True))
            known |= {index: Value(array, identity_of_constant(array)) for index, array in source.constants.items()}
            tracks.append(_Track(source, known))
        while True:
            nodes = [self._advance(track) for track in tracks]
            self._compute_waiting(tracks)
            if all(node is None for node in nodes):
                return [[track.known(ref) for ref in track.source.outputs] for track in tracks]
            # The groups stand at a collective: run it on the values of all, and continue.
            equations = self._matching(nodes)
            operands = [[t.known(ref) for ref in node.operands] for t, node in zip(tracks, nodes, strict=True) if node]
            for track, node, values in zip(tracks, nodes, self._run_together(equations, operands), strict=True):
                assert node is not None
                track.values.update(zip(node.results, values, strict=True))

    def beside(self) -> Lockstep:
        """Return a lockstep of the same groups, for a function that JAX traces by itself."""
        return Lockstep(self.name, self.groups, self._is_differentiated)

    def meeting(self) -> Hashable:
        """Return a new identity, which no other operation has."""
        return id(self), next(self._meetings)

    def refuse(self, reason: str) -> NoReturn:
        """Raise the error of a step that cannot run on such a batch."""
        raise ReplicaError(
            f"{self.name} was given a batch that does not fill all replicas, and {reason}. Let all replicas run the "
            "same collectives, on values of the same shapes, or leave such a batch out: "
            "batch(rows, drop_remainder=True)"
        )

    def _advance(self, track: _Track) -> StepNode | None:
        """Compute what is equal on all replicas of a group, and collect the rest, up to the next collective."""
        while track.position < len(track.source.nodes):
            node = track.source.nodes[track.position]
            track.position += 1
            if meets(node.equation):
                return node
            operands = [track.read(ref) for ref in node.operands]
            if has_index(node.equation) or any(value is None or value.identity is None for value in operands):
                track.waiting.append(node)
                track.values.update(dict.fromkeys(node.results))
                continue
            # Another group may have computed the same.
            identities = [value.identity for value in operands if value]
            identity = identity_of(node.equation, identities, with_derivative=self._is_differentiated)
            if identity not in self._results:
                self._results[identity] = bind(node.equation, [value.array for value in operands if value])
            for index, (ref, array) in enumerate(zip(node.results, self._results[identity], strict=True)):
                track.values[ref] = Value(array, (identity, index))
        return None

    def _compute_waiting(self, tracks: list[_Track]) -> None:
        """Compute the waiting operations of all groups."""
        if not any(track.waiting for track in tracks):
            return
        tasks, operands, specs = [], [], []
        for track in tracks:
            atoms = {r: atom for n in track.waiting for r, atom in zip(n.results, n.equation.outvars, strict=True)}
            read = [ref for node in track.waiting for ref in node.operands if isinstance(ref, int) and ref not in atoms]
            given = list(dict.fromkeys(read))
            # The collective at which the group stands reads values too.
            needed = [ref for ref in atoms if track.source.last_use.get(ref, -1) >= track.position - 1]
            tasks.append(_task(self.name, track.waiting, given, needed))
            operands.append([track.known(ref) for ref in given])
            specs.append({ref: spec_of_result(atoms[ref]) for ref in needed})
        results = self.groups.compute(tasks, operands, [list(spec.values()) for spec in specs])
        for track, needed, arrays in zip(tracks, specs, results, strict=True):
            track.values.update({ref: Value(array, None) for ref, array in zip(needed, arrays, strict=True)})
            track.waiting = []

    def _run_together(self, equations: list[JaxprEqn], operands: PerGroup) -> PerGroup:
        primitive = equations[0].primitive
        if primitive is GRADIENTS:
            return self._gradients(equations, operands)
        if primitive.name in CONTROL_FLOW:
            return CONTROL_FLOW[primitive.name](self, equations, operands)
        if any(map(meets_in, inner_jaxprs(equations[0]))):
            self.refuse(f"{described(equations[0])} has a collective in it")
        return self._collect(equations, operands)

    def _collect(self, equations: list[JaxprEqn], operands: PerGroup) -> PerGroup:
        """Run a collective on the values of all replicas."""
        first = equations[0]
        shapes = dict.fromkeys(tuple(map(shape_of, equation.invars)) for equation in equations)
        if len(shapes) > 1:
            listed = " and ".join(" and ".join(map(str, each)) for each in shapes)
            self.refuse(f"{described(first)} joins values of the replicas that have the shapes {listed}")
        columns = list(zip(*operands, strict=True))
        own = [not is_equal(column) for column in columns]
        arrays = [self.groups.joined(c) if flag else c[0].array for c, flag in zip(columns, own, strict=True)]
        results = self.groups.collect(lambda *arrays: bind(first, arrays), arrays, own)
        if first.primitive.name in _EQUAL_RESULTS and not first.params.get("axis_index_groups"):
            return self._shared([self.groups.shared(result) for result in results])
        parts = zip(*map(self.groups.cut, results), strict=True)
        return [[Value(array, None) for array in arrays] for arrays in parts]

    def _shared(self, arrays: list[Any]) -> PerGroup:
        """Return arrays that are equal on all replicas as values of each group."""
        meeting = self.meeting()
        return [[Value(array, (meeting, index)) for index, array in enumerate(arrays)] for _ in self.groups.groups]

    def _gradients(self, equations: list[JaxprEqn], operands: PerGroup) -> PerGroup:
        """Differentiate the sum of the losses of all replicas."""
        count = equations[0].params["values"]
        losses = [equation.params["loss"] for equation in equations]
        if any(map(has_own_derivative, losses)):
            self.refuse("a function with a derivative of its own has a collective in it, or reads the replica's index")
        packing = Packing(self.groups, list(zip(*(values[:count] for values in operands), strict=True)))
        found: PerGroup = []

        def total(arrays: list[Any]) -> tuple[Any, Any]:
            captured = [values[count:] for values in operands]
            arguments = [[*rest, *own] for rest, own in zip(captured, packing.values(arrays), strict=True)]
            beside = Lockstep(self.name, self.groups, is_differentiated=True)
            found[:] = beside.run([node_list(loss) for loss in losses], arguments)
            return self.groups.total([v[0] for v in found]), [[value.array for value in values] for values in found]

        closed, shape = jax.make_jaxpr(jax.grad(total, has_aux=True), return_shape=True)(packing.arrays())
        # The collectives of all replicas were run, so what is left would be run by one group alone.
        if isinstance(self.groups, Lanes) and meets_in(closed):
            self.refuse("a function with a derivative of its own runs a collective in the derivative")
        results = jaxpr_as_fun(closed)(*jax.tree.leaves(packing.arrays()))
        gradients, arrays = jax.tree.unflatten(jax.tree.structure(shape), results)
        meeting = self.meeting()
        results = [
            [Value(array, value.identity and (meeting, value.identity)) for array, value in zip(*pair, strict=True)]
            for pair in zip(arrays, found, strict=True)
        ]
        for index, (gradient, is_shared) in enumerate(zip(gradients, packing.shared, strict=True)):
            parts = self.groups.summed(gradient, is_shared)
            for group, (values, part) in enumerate(zip(results, parts, strict=True)):
                values.append(Value(part, (meeting, index, 0 if part is parts[0] else group)))
        return results

    def _matching(self, nodes: list[StepNode | None]) -> list[JaxprEqn]:
        """Return the operations at which the groups stand.

        Raises:
            ReplicaError: they differ.
        """
        kinds = [node and (node.equation.primitive, len(node.results)) for node in nodes]
        if len(set(kinds)) > 1:
            pairs = zip(self.groups.groups, nodes, strict=True)
            told = {group.rows: described(node.equation) if node else "no other" for group, node in pairs}
            listed = ", ".join(f"with {rows} rows {text}" for rows, text in told.items())
            self.refuse(f"replicas with different numbers of rows run different collectives: {listed}")
        return [node.equation for node in nodes if node is not None]


def _task(name: str, nodes: list[StepNode], given: list[int], needed: list[int]) -> Task:
    """Return the work of one replica: these operations on the given values."""

    def task(index: Any, arrays: list[Any]) -> list[Any]:
        values = dict(zip(given, arrays, strict=True))
        for node in nodes:
            operands = [ref.val if isinstance(ref, Literal) else values[ref] for ref in node.operands]
            if node.equation.primitive.name == "axis_index":
                results = [index]
            elif has_index(node.equation):
                results = with_index(Lockstep(name, Single(index)), node.equation, operands)
            else:
                results = bind(node.equation, operands)
            values.update(zip(node.results, results, strict=True))
        return [values[ref] for ref in needed]

    return task
