"""Plans: how each operation of a traced step is computed so that pads do not count.

Idea: the step is traced to a jaxpr. A walk over it follows which axes run over rows. Operations that work row by row
are left as they are; those that reduce rows get an action that masks them; those that mix rows in a way that no mask
mends are refused. A second trace, for another number of rows, proves the walk: an axis is over rows exactly where its
size differs between the traces, and a constant that differs is a number of rows (`counts.py`).

Rule: whatever is not known is refused where it touches rows, and left alone where it does not.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jax.extend.core import DropVar, Literal

from anytpu.strategy.padded.axes import ROWS, Fill, Value
from anytpu.strategy.padded.counts import Count, count_of, is_same
from anytpu.strategy.padded.operation import COUNT, Action, Operation, Outcome, RealRows, Rooms, bound
from anytpu.strategy.padded.rules import CALLS, RULES, SIZES, elementwise, is_elementwise


@dataclasses.dataclass(frozen=True)
class Plan:
    """A traced function, and how it is computed on a padded batch.

    Attributes:
        jaxpr: the function.
        inputs: its variables for the constants and the arguments.
        consts: its constants.
        actions: for some operations, by position, how they are computed; the others are bound as they are.
        counts: for some operations, by position, the operands that are numbers of rows.
        outputs: what it returns.
    """

    jaxpr: Any
    inputs: tuple[Any, ...]
    consts: tuple[Any, ...]
    actions: dict[int, Action]
    counts: dict[int, dict[int, Count]]
    outputs: list[Value]

    @property
    def is_plain(self) -> bool:
        """Whether the function is right as it is."""
        return not (self.actions or self.counts)

    def run(self, real: RealRows, operands: list[Any]) -> list[Any]:
        """Compute the function.

        Args:
            real: the real rows.
            operands: its arguments.
        """
        held: dict[Any, Any] = dict(zip(self.inputs, [*self.consts, *operands], strict=True))

        def read(atom: Any) -> Any:
            return atom.val if isinstance(atom, Literal) else held[atom]

        for position, equation in enumerate(self.jaxpr.eqns):
            given = [read(atom) for atom in equation.invars]
            for index, count in self.counts.get(position, {}).items():
                given[index] = count.value(real.rows, equation.invars[index].aval.dtype)
            action = self.actions.get(position)
            made = bound(equation.primitive, equation.params, given) if action is None else action(real, given)
            held.update(zip(equation.outvars, made, strict=True))
        last = self.counts.get(len(self.jaxpr.eqns), {})
        return [
            last[index].value(real.rows, atom.aval.dtype) if index in last else read(atom)
            for index, atom in enumerate(self.jaxpr.outvars)
        ]


@dataclasses.dataclass(frozen=True)
class Planner:
    """What plans the operations of one traced function.

    Attributes:
        rooms: the numbers of rows of its traces.
        is_differentiated: it is differentiated after it was planned.
        divides: its numbers of rows are divisors, however they get there.
        line: where the user's code calls it, for errors.
        findings: the numbers of rows and the row axes that were found, by operation. The walks for two other numbers of
            rows must find the same.
    """

    rooms: Rooms
    is_differentiated: bool = False
    divides: bool = False
    line: str = ""
    findings: set[Any] = dataclasses.field(default_factory=set)

    def plan(self, first: Any, second: Any | None, values: list[Value]) -> Plan:
        """Return the plan of a function.

        Args:
            first: its trace for the batch's rows.
            second: its trace for another number of rows; None where it has none.
            values: its arguments.
        """
        return _Walk(self, first, second).planned(values)

    def inside(
        self,
        operation: Operation,
        name: str,
        index: int | None,
        values: list[Value],
        *,
        is_loss: bool = False,
        divides: bool = False,
    ) -> Plan:
        """Return the plan of a function that an operation calls.

        Args:
            operation: the operation.
            name: the parameter that is the function.
            index: which of several functions it is; None for one.
            values: its arguments.
            is_loss: it is differentiated, and takes its constants as arguments, behind the others.
            divides: its numbers of rows are divisors.
        """
        first, second = operation.params[name], operation.other_param(name)
        if index is not None:
            first, second = first[index], None if second is None else second[index]
        inner = dataclasses.replace(
            self,
            is_differentiated=self.is_differentiated or is_loss,
            divides=self.divides or divides,
            line=operation.line,
        )
        return _Walk(inner, first, second, takes_constants=is_loss).planned(values)


class _Walk:
    """A walk over one traced function, in both traces at once."""

    def __init__(self, planner: Planner, first: Any, second: Any | None, *, takes_constants: bool = False) -> None:
        self._planner = planner
        self._first, self._second = getattr(first, "jaxpr", first), getattr(second, "jaxpr", second)
        self._values: dict[Any, Value] = {}
        self._counts: dict[Any, Count] = {}
        self._twin: dict[Any, Any] = {}
        self._consts: tuple[Any, ...] = ()
        self._inputs = (*self._first.invars, *self._first.constvars)
        if self._second is not None:
            _check(len(self._first.eqns) == len(self._second.eqns))
            others = (*self._second.invars, *self._second.constvars)
            _check(len(self._inputs) == len(others))
            self._twin.update(zip(self._inputs, others, strict=True))
        if not takes_constants:
            self._take_constants(tuple(getattr(first, "consts", ())), tuple(getattr(second, "consts", ())))

    def _take_constants(self, first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
        self._consts, self._inputs = first, (*self._first.constvars, *self._first.invars)
        for index, (variable, one) in enumerate(zip(self._first.constvars, first, strict=True)):
            is_known = self._second is None or is_same(one, second[index])
            self._values[variable] = plain(variable.aval) if is_known else self._constant(variable, one, second[index])

    def _constant(self, variable: Any, one: Any, two: Any) -> Value:
        """Return the value of a constant that hangs on the number of rows: a count, or an array with a row axis."""
        rooms = (self._planner.rooms.first, self._planner.rooms.second or 0)
        if np.ndim(one) == 0:
            count = count_of(one, two, rooms)
            _check(count is not None)
            assert count is not None
            self._counts[variable] = count
            return plain(variable.aval)
        one, two = np.asarray(one), np.asarray(two)
        _check(one.shape[:1] == rooms[:1] and two.shape[:1] == rooms[1:] and is_same(one, two[: rooms[0]]))
        return Value((ROWS, *[None] * (one.ndim - 1)))

    def planned(self, values: list[Value]) -> Plan:
        """Return the plan, for the arguments."""
        self._values.update(zip(self._inputs[len(self._consts) :], values, strict=True))
        actions: dict[int, Action] = {}
        counts: dict[int, dict[int, Count]] = {}
        for position, equation in enumerate(self._first.eqns):
            other = None if self._second is None else self._second.eqns[position]
            found = self._counted(equation.invars, None if other is None else other.invars, equation)
            if found:
                counts[position] = found
            outputs, action = self._one(equation, other)
            if action is not None:
                actions[position] = action
            self._values.update(zip(equation.outvars, outputs, strict=True))
            if other is not None:
                self._twin.update(zip(equation.outvars, other.outvars, strict=True))
        last = self._counted(self._first.outvars, None if self._second is None else self._second.outvars, None)
        if last:
            counts[len(self._first.eqns)] = last
        outputs = [self._value(atom) for atom in self._first.outvars]
        return Plan(self._first, self._inputs, self._consts, actions, counts, outputs)

    def _value(self, atom: Any) -> Value:
        if isinstance(atom, Literal):
            return plain(atom.aval, bool(atom.val == 0))
        return self._values[atom]

    def _counted(self, first: Any, second: Any | None, equation: Any) -> dict[int, Count]:
        """Return the operands that are numbers of rows, by position."""
        found: dict[int, Count] = {}
        for index, atom in enumerate(first):
            count = None
            if isinstance(atom, Literal):
                if second is not None:
                    two = second[index]
                    _check(isinstance(two, Literal))
                    if not is_same(atom.val, two.val):
                        rooms = (self._planner.rooms.first, self._planner.rooms.second or 0)
                        count = count_of(atom.val, two.val, rooms)
                        if count is None:
                            self._operation(equation, None, []).refuse(
                                "takes a number that hangs on the number of rows and is not a multiple of it", COUNT
                            )
            else:
                if second is not None:
                    _check(self._twin.get(atom) is second[index])
                count = self._counts.get(atom)
            if count is not None:
                divides = equation is not None and equation.primitive.name == "div" and index == 1
                self._planner.findings.add((id(equation), index, count))
                found[index] = dataclasses.replace(count, is_divisor=divides or self._planner.divides)
        return found

    def _operation(self, equation: Any, other: Any, values: list[Value]) -> Operation:
        return Operation(equation, other, values, self._planner.rooms, self._planner)

    def _one(self, equation: Any, other: Any | None) -> Outcome:
        values = [self._value(atom) for atom in equation.invars]
        if other is not None:
            _check(equation.primitive is other.primitive and len(equation.outvars) == len(other.outvars))
        operation = self._operation(equation, other, values)
        rule = RULES.get(equation.primitive.name)
        _check_params(operation)
        if rule is None and is_elementwise(equation.primitive.name):
            rule = elementwise
        outcome = unknown(operation) if rule is None else rule(operation)
        _check_sizes(operation, outcome[0])
        self._planner.findings.add((id(equation), *(value.axes for value in outcome[0])))
        return outcome


class UntraceableError(Exception):
    """The two traces of a step do not agree: its operations hang on the number of rows."""


def _check(agrees: bool) -> None:
    if not agrees:
        raise UntraceableError


def plain(aval: Any, is_zero: bool = False) -> Value:
    """Return a value without an axis over rows."""
    return Value((None,) * len(getattr(aval, "shape", ())), is_zero)


def unknown(operation: Operation) -> Outcome:
    """Leave an operation that no rule knows as it is; refuse one that is given rows whose pads nobody has filled."""
    axes = [axis for value in operation.values for axis in value.axes if axis is not None]
    if any(axis.fill is Fill.ANY for axis in axes):
        operation.refuse("may mix the rows with the pads")
    return [plain(variable.aval) for variable in operation.equation.outvars], None


def _check_params(operation: Operation) -> None:
    """Refuse an operation with a parameter that hangs on the number of rows, such as an exponent."""
    if operation.other is None:
        return
    for name, one in operation.params.items():
        calls = name in SIZES or (operation.name in CALLS and not isinstance(one, int | float | str))
        if not calls and one is not operation.other.params[name] and one != operation.other.params[name]:
            operation.refuse(f"has a parameter that hangs on the number of rows, {name}={one!r}", COUNT)


def _check_sizes(operation: Operation, values: list[Value]) -> None:
    """Check a rule by the traces: an axis is over rows exactly where its size differs between them."""
    for index, (value, variable) in enumerate(zip(values, operation.equation.outvars, strict=True)):
        if isinstance(variable, DropVar) or not hasattr(variable.aval, "shape"):
            continue
        for axis, sizes in zip(value.axes, operation.out_sizes(index), strict=True):
            if axis is not None:
                expected = tuple(axis.size(room) for room in operation.rooms.all)
                if expected != sizes:
                    operation.refuse("takes some of the rows only")
            elif len(set(sizes)) > 1:
                operation.refuse("makes an axis whose length hangs on the number of rows")
