"""Plans: how each operation of a traced step is computed so that pads do not count.

Idea: the step is traced to a jaxpr. A walk over it follows which axes run over rows. Operations that work row by row
are left as they are; those that reduce rows get an action that masks them; those that mix rows in a way that no mask
mends are refused. A second trace, for another number of rows, proves the walk: an axis is over rows exactly where its
size differs between the traces, and a constant that differs is a number of rows (`counts.py`).

Rule: whatever is not known is refused where it touches rows, and left alone where it does not.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, NoReturn

import numpy as np
from jax.extend.core import DropVar, Literal

from anytpu.strategy.padded.axes import ROWS, Fill, Value
from anytpu.strategy.padded.counts import Count, count_of, is_same
from anytpu.strategy.padded.folds import Folds
from anytpu.strategy.padded.operation import (
    COUNT,
    FOLDED,
    NOT_ROWS,
    SAME,
    SUMMED,
    Action,
    Operation,
    Outcome,
    RealRows,
    Rooms,
    bound,
)
from anytpu.strategy.padded.rules import CALLS, RULES, SIZES, elementwise, is_elementwise
from anytpu.strategy.recorded import GATHERED


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
                given[index] = count.value(real, equation.invars[index].aval.dtype)
            action = self.actions.get(position)
            made = bound(equation.primitive, equation.params, given) if action is None else action(real, given)
            held.update(zip(equation.outvars, made, strict=True))
        last = self.counts.get(len(self.jaxpr.eqns), {})
        return [
            last[index].value(real, atom.aval.dtype) if index in last else read(atom)
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
        folds: its constants that are sums over the replicas.
        findings: the numbers of rows and the row axes that were found, each with its operation. The walks for two other
            numbers of rows must find the same.
    """

    rooms: Rooms
    is_differentiated: bool = False
    divides: bool = False
    line: str = ""
    folds: Folds = dataclasses.field(default_factory=Folds)
    findings: dict[Any, Any] = dataclasses.field(default_factory=dict)

    def plan(self, first: Any, second: Any | None, values: list[Value]) -> Plan:
        """Return the plan of a function.

        Args:
            first: its trace for the batch's rows.
            second: its trace for another number of rows; None where it has none.
            values: its arguments.
        """
        return _Walk(self, first, second).planned(values)

    def check_same(self, witness: Planner) -> None:
        """Refuse the step where the walk for other numbers of rows has found others."""
        for finding in self.findings.keys() ^ witness.findings.keys():
            equation = {**witness.findings, **self.findings}[finding]
            rooms = f"{self.rooms.second} and for {witness.rooms.second} rows"
            Operation(equation, None, [], self.rooms, self).refuse(
                f"hangs on the number of rows otherwise for {rooms}", SAME
            )

    def refuse_folded(self, equation: Any) -> NoReturn:
        """Refuse an operation that hangs on a number that Python has computed from a sum over the replicas."""
        Operation(equation, None, [], self.rooms, self).refuse("hangs on " + FOLDED, SUMMED)

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
            self._check_same_operations(self._second)
            others = (*self._second.invars, *self._second.constvars)
            self._check(len(self._inputs) == len(others), None)
            self._twin.update(zip(self._inputs, others, strict=True))
        if not takes_constants:
            self._take_constants(tuple(getattr(first, "consts", ())), tuple(getattr(second, "consts", ())))

    def _check_same_operations(self, second: Any) -> None:
        """Refuse a function whose trace for another number of rows has other operations."""
        rooms = self._planner.rooms.all
        for one, two in itertools.zip_longest(self._first.eqns, second.eqns):
            if one is None or two is None or one.primitive is not two.primitive:
                gathers = [each for each in (one, two) if each is not None and each.params.get("name") == GATHERED]
                if gathers:
                    self._operation(gathers[0], None, []).refuse(*NOT_ROWS)
                here, there = rooms if one is not None else rooms[::-1]
                self._operation(two if one is None else one, None, []).refuse(
                    f"is an operation of the step for {here} rows and not of the step for {there} rows", SAME
                )

    def _check(self, agrees: bool, equation: Any) -> None:
        """Refuse an operation that is another one in the trace for another number of rows."""
        if not agrees:
            first, second = self._planner.rooms.all
            self._operation(equation, None, []).refuse(
                f"takes something else in the step for {second} rows than in the step for {first} rows", SAME
            )

    def _take_constants(self, first: tuple[Any, ...], second: tuple[Any, ...]) -> None:
        self._consts, self._inputs = first, (*self._first.constvars, *self._first.invars)
        for index, (variable, one) in enumerate(zip(self._first.constvars, first, strict=True)):
            is_known = self._second is None or is_same(one, second[index])
            self._values[variable] = plain(variable.aval) if is_known else self._constant(variable, one, second[index])

    def _constant(self, variable: Any, one: Any, two: Any) -> Value:
        """Return the value of a constant that hangs on the number of rows: a count, or an array with a row axis."""
        user = next((equation for equation in self._first.eqns if variable in equation.invars), None)
        if np.ndim(one) == 0:
            self._counts[variable] = self._count(one, two, user, variable, 0)
            return plain(variable.aval)
        one, two = np.asarray(one), np.asarray(two)
        self._check(one.ndim == two.ndim, user)
        sizes = list(zip(one.shape, two.shape, strict=True))
        common = tuple(slice(min(pair)) for pair in sizes)
        grows = all(first == second or (first, second) == self._planner.rooms.all for first, second in sizes)
        self._check(grows and is_same(one[common], two[common]), user)
        if self._planner.folds.power(variable, 0) is not None:
            self._planner.refuse_folded(user)
        return Value(tuple(None if first == second else ROWS for first, second in sizes))

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
        owner = self._first if equation is None else equation
        for index, atom in enumerate(first):
            count = None
            if isinstance(atom, Literal):
                power = self._planner.folds.power(owner, index)
                if power == 0:
                    self._planner.refuse_folded(equation)
                if second is None and power is not None:
                    self._operation(equation, None, []).refuse(
                        "takes a Python number that JAX has summed over the replicas. The step "
                        f"{self._planner.rooms.failure}, so it may be a number of rows",
                        SUMMED,
                    )
                if second is not None:
                    two = second[index]
                    self._check(isinstance(two, Literal), equation)
                    if not is_same(atom.val, two.val):
                        count = self._count(atom.val, two.val, equation, owner, index)
            else:
                if second is not None:
                    self._check(self._twin.get(atom) is second[index], equation)
                count = self._counts.get(atom)
            if count is not None:
                divides = equation is not None and equation.primitive.name == "div" and index == 1
                self._planner.findings[id(equation), index, count] = equation
                found[index] = dataclasses.replace(count, is_divisor=divides or self._planner.divides)
        return found

    def _count(self, one: Any, two: Any, equation: Any, owner: Any, position: int) -> Count:
        """Return the number of rows that an operation takes: this replica's, or all replicas' where JAX summed it."""
        planner = self._planner
        count = count_of(one, two, (planner.rooms.first, planner.rooms.second or 0))
        if count is None:
            self._operation(equation, None, []).refuse(
                "takes a number that hangs on the number of rows and is not a multiple of it", COUNT
            )
        power = planner.folds.power(owner, position)
        if power is None:
            return count
        if power != count.power:
            planner.refuse_folded(equation)
        return dataclasses.replace(count, replicas=planner.folds.replicas)

    def _operation(self, equation: Any, other: Any, values: list[Value]) -> Operation:
        return Operation(equation, other, values, self._planner.rooms, self._planner)

    def _one(self, equation: Any, other: Any | None) -> Outcome:
        values = [self._value(atom) for atom in equation.invars]
        if other is not None:
            self._check(len(equation.outvars) == len(other.outvars), equation)
        operation = self._operation(equation, other, values)
        rule = RULES.get(equation.primitive.name)
        _check_params(operation)
        if rule is None and is_elementwise(equation.primitive.name):
            rule = elementwise
        outcome = unknown(operation) if rule is None else rule(operation)
        _check_sizes(operation, outcome[0])
        self._planner.findings[id(equation), *(value.axes for value in outcome[0])] = equation
        return outcome


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
