"""Plans: the computation of each operation of a traced step so that pads have no effect.

Idea: the step is traced to a jaxpr, and an abstract interpretation finds the axes that are over rows. Operations that
work row by row are left unchanged. Operations that reduce rows are masked. Operations that mix rows in a way that no
mask corrects are refused.

A second trace, for another number of rows, checks the analysis: an axis is over rows exactly if its size differs
between the traces. A constant that differs is a number of rows (`counts.py`).

Rule: an unknown operation is refused if it has unmasked rows as an operand, and left unchanged otherwise.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any, NoReturn

import numpy as np
from jax.extend.core import DropVar, Literal

from anytpu.strategy.padded.axes import ROWS, AbstractValue, PadState, RealRows, without_rows
from anytpu.strategy.padded.counts import CountConstant, count_constant_of, is_equal
from anytpu.strategy.padded.operation import (
    GATHERS_NO_ROWS,
    SAME_OPERATIONS,
    SUM_AN_ARRAY,
    USE_ROW_MASK,
    Evaluation,
    Outcome,
    PaddedContext,
    StepOperation,
    bind,
)
from anytpu.strategy.recorded import GATHERED

_SIZE_PARAMETERS = frozenset(
    [
        "dimension_numbers", "end_index", "length", "limit_indices", "new_sizes", "out_sharding", "padding_config",
        "reps", "shape", "sharding", "sizes", "slice_sizes", "start_index", "start_indices", "window_dimensions",
    ]
)  # fmt: skip
"""The parameters that the rules compare themselves, or that follow from the sizes of the results."""

_CALLS = frozenset(
    [
        "checkpoint", "closed_call", "cond", "custom_jvp_call", "custom_vjp_call", "custom_vmap_call", "debug_callback",
        "debug_print", "jit", "pjit", "remat2", "scan", "summed_value_and_grad", "while",
    ]
)  # fmt: skip
"""The primitives with functions among their parameters, which cannot be compared."""


@dataclasses.dataclass(frozen=True)
class PaddedPlan:
    """A traced function, and its computation on a padded batch.

    Attributes:
        jaxpr: the function.
        inputs: its variables for the constants and the arguments.
        consts: its constants.
        evaluations: evaluation of some operations, by index; the others are bound unchanged.
        counts: row counts among the operands of some operations, by operation index and operand index. The index behind
            the last operation is for the results of the function.
        outputs: its results.
    """

    jaxpr: Any
    inputs: tuple[Any, ...]
    consts: tuple[Any, ...]
    evaluations: dict[int, Evaluation]
    counts: dict[int, dict[int, CountConstant]]
    outputs: list[AbstractValue]

    @property
    def is_unchanged(self) -> bool:
        """Whether the function is correct on a padded batch without changes."""
        return not (self.evaluations or self.counts)

    def run(self, real: RealRows, operands: list[Any]) -> list[Any]:
        """Compute the function on operands."""
        arrays: dict[Any, Any] = dict(zip(self.inputs, [*self.consts, *operands], strict=True))

        def read(atoms: Any, index: int) -> list[Any]:
            values = [atom.val if isinstance(atom, Literal) else arrays[atom] for atom in atoms]
            for position, count in self.counts.get(index, {}).items():
                values[position] = count.value(real, atoms[position].aval.dtype)
            return values

        for index, equation in enumerate(self.jaxpr.eqns):
            values, evaluate = read(equation.invars, index), self.evaluations.get(index)
            results = evaluate(real, values) if evaluate else bind(equation.primitive, equation.params, values)
            arrays.update(zip(equation.outvars, results, strict=True))
        return read(self.jaxpr.outvars, len(self.jaxpr.eqns))


def plan_function(
    context: PaddedContext,
    first: Any,
    second: Any | None,
    values: list[AbstractValue],
    *,
    takes_constants: bool = False,
) -> PaddedPlan:
    """Return the plan of a traced function.

    Args:
        context: the context of the function.
        first: its trace for the batch's rows.
        second: its trace for another number of rows; None if there is none.
        values: its arguments.
        takes_constants: True if `values` has the constants too, behind the arguments.
    """
    return _Analysis(context, first, second, takes_constants=takes_constants).plan(values)


def plan_nested(
    operation: StepOperation,
    name: str,
    values: list[AbstractValue],
    *,
    index: int | None = None,
    is_loss: bool = False,
    counts_are_divisors: bool = False,
) -> PaddedPlan:
    """Return the plan of a function that an operation calls.

    Args:
        operation: the operation.
        name: name of the parameter that is the function.
        values: arguments of the function.
        index: index of the function if the parameter is a tuple; None if it is one function.
        is_loss: True if the function is differentiated, and takes its constants as arguments behind the others.
        counts_are_divisors: True if every row count in the function is used only as a divisor.
    """
    first, second = operation.params[name], operation.other_param(name)
    if index is not None:
        first, second = first[index], None if second is None else second[index]
    outer = operation.context
    context = dataclasses.replace(
        outer,
        is_differentiated=outer.is_differentiated or is_loss,
        counts_are_divisors=outer.counts_are_divisors or counts_are_divisors,
        line=operation.line,
    )
    return plan_function(context, first, second, values, takes_constants=is_loss)


def check_same_findings(context: PaddedContext, other: PaddedContext) -> None:
    """Refuse the step if the analyses for two other numbers of rows have different findings."""
    for finding in context.findings.keys() ^ other.findings.keys():
        equation = {**other.findings, **context.findings}[finding]
        StepOperation(equation, None, [], context).refuse(
            f"depends on the number of rows differently for {context.other_rows} and for {other.other_rows} rows",
            SAME_OPERATIONS,
        )


def refuse_replica_sum(context: PaddedContext, equation: Any) -> NoReturn:
    """Refuse an operation that depends on a number that Python computed from a sum over the replicas."""
    StepOperation(equation, None, [], context).refuse(
        "depends on a number that Python has computed from a sum of numbers of rows over the replicas", SUM_AN_ARRAY
    )


class _Analysis:
    """The abstract interpretation of one traced function, in both traces at once."""

    def __init__(self, context: PaddedContext, first: Any, second: Any | None, *, takes_constants: bool) -> None:
        self._context = context
        self._first, self._second = getattr(first, "jaxpr", first), getattr(second, "jaxpr", second)
        self._values: dict[Any, AbstractValue] = {}
        self._counts: dict[Any, CountConstant] = {}
        self._in_second: dict[Any, Any] = {}
        self._consts: tuple[Any, ...] = ()
        # A differentiated loss gets its constants as operands, behind its arguments. Any other function has its own,
        # in front.
        self._inputs = (*self._first.invars, *self._first.constvars)
        if self._second is not None:
            self._check_same_operations(self._second)
            others = (*self._second.invars, *self._second.constvars)
            self._check_same(len(self._inputs) == len(others), None)
            self._in_second.update(zip(self._inputs, others, strict=True))
        if not takes_constants:
            self._inputs = (*self._first.constvars, *self._first.invars)
            self._consts = tuple(getattr(first, "consts", ()))
            self._interpret_constants(tuple(getattr(second, "consts", ())))

    def plan(self, arguments: list[AbstractValue]) -> PaddedPlan:
        """Return the plan for the arguments."""
        self._values.update(zip(self._inputs[len(self._consts) :], arguments, strict=True))
        evaluations: dict[int, Evaluation] = {}
        counts: dict[int, dict[int, CountConstant]] = {}
        for index, equation in enumerate(self._first.eqns):
            other = None if self._second is None else self._second.eqns[index]
            # 1. Find the operands that count rows.
            counts[index] = self._row_counts(equation.invars, None if other is None else other.invars, equation)
            # 2. Find the row axes of the results.
            outputs, evaluation = self._interpret(equation, other)
            if evaluation is not None:
                evaluations[index] = evaluation
            self._values.update(zip(equation.outvars, outputs, strict=True))
            if other is not None:
                self._in_second.update(zip(equation.outvars, other.outvars, strict=True))
        second = None if self._second is None else self._second.outvars
        counts[len(self._first.eqns)] = self._row_counts(self._first.outvars, second, None)
        counts = {index: operands for index, operands in counts.items() if operands}
        outputs = [self._value(atom) for atom in self._first.outvars]
        return PaddedPlan(self._first, self._inputs, self._consts, evaluations, counts, outputs)

    def _operation(self, equation: Any, other: Any = None, values: tuple[AbstractValue, ...] = ()) -> StepOperation:
        return StepOperation(equation, other, list(values), self._context)

    def _check_same_operations(self, second: Any) -> None:
        """Refuse a function whose trace for another number of rows has other operations."""
        rows = self._context.traced_rows
        for a, b in itertools.zip_longest(self._first.eqns, second.eqns):
            if a is not None and b is not None and a.primitive is b.primitive:
                continue
            for equation in (a, b):
                if equation is not None and equation.params.get("name") == GATHERED:
                    self._operation(equation).refuse(*GATHERS_NO_ROWS)
            here, there = rows if a is not None else rows[::-1]
            self._operation(b if a is None else a).refuse(
                f"is an operation of the step for {here} rows and not of the step for {there} rows", SAME_OPERATIONS
            )

    def _check_same(self, is_same: bool, equation: Any) -> None:
        """Refuse an operation that has other operands in the trace for another number of rows."""
        if not is_same:
            first, second = self._context.traced_rows
            self._operation(equation).refuse(
                f"takes other operands in the step for {second} rows than in the step for {first} rows", SAME_OPERATIONS
            )

    def _interpret_constants(self, second: tuple[Any, ...]) -> None:
        for index, (variable, value) in enumerate(zip(self._first.constvars, self._consts, strict=True)):
            is_fixed = self._second is None or is_equal(value, second[index])
            self._values[variable] = (
                without_rows(variable.aval) if is_fixed else self._growing_constant(variable, value, second[index])
            )

    def _growing_constant(self, variable: Any, first: Any, second: Any) -> AbstractValue:
        """Return the value of a constant that depends on the number of rows: a row count, or an array over rows."""
        user = next((equation for equation in self._first.eqns if variable in equation.invars), None)
        if np.ndim(first) == 0:
            self._counts[variable] = self._row_count(first, second, user, variable, 0)
            return without_rows(variable.aval)
        a, b = np.asarray(first), np.asarray(second)
        self._check_same(a.ndim == b.ndim, user)
        sizes = list(zip(a.shape, b.shape, strict=True))
        common = tuple(slice(min(pair)) for pair in sizes)
        grows = all(pair[0] == pair[1] or pair == self._context.traced_rows for pair in sizes)
        self._check_same(grows and is_equal(a[common], b[common]), user)
        if self._context.replica_sums.power(variable, 0) is not None:
            refuse_replica_sum(self._context, user)
        return AbstractValue(tuple(None if pair[0] == pair[1] else ROWS for pair in sizes))

    def _value(self, atom: Any) -> AbstractValue:
        if isinstance(atom, Literal):
            return without_rows(atom.aval, bool(atom.val == 0))
        return self._values[atom]

    def _row_counts(self, first: Any, second: Any | None, equation: Any) -> dict[int, CountConstant]:
        """Return the operands of an operation that count rows, by index; of the function's return for None."""
        counts: dict[int, CountConstant] = {}
        for index, atom in enumerate(first):
            in_second = None if second is None else second[index]
            if isinstance(atom, Literal):
                count = self._literal_count(atom, in_second, equation, index)
            else:
                self._check_same(second is None or self._in_second.get(atom) is in_second, equation)
                count = self._counts.get(atom)
            if count is not None:
                is_divisor = equation is not None and equation.primitive.name == "div" and index == 1
                self._context.findings[id(equation), index, count] = equation
                counts[index] = dataclasses.replace(count, is_divisor=is_divisor or self._context.counts_are_divisors)
        return counts

    def _literal_count(self, literal: Any, in_second: Any, equation: Any, index: int) -> CountConstant | None:
        owner = self._first if equation is None else equation
        power = self._context.replica_sums.power(owner, index)
        if power == 0:
            refuse_replica_sum(self._context, equation)
        if in_second is None:
            if power is not None:
                self._operation(equation).refuse(
                    "takes a Python number that JAX has summed over the replicas. The step "
                    f"{self._context.failure}, so it may be a number of rows",
                    SUM_AN_ARRAY,
                )
            return None
        self._check_same(isinstance(in_second, Literal), equation)
        if is_equal(literal.val, in_second.val):
            return None
        return self._row_count(literal.val, in_second.val, equation, owner, index)

    def _row_count(self, first: Any, second: Any, equation: Any, owner: Any, index: int) -> CountConstant:
        """Return the row count that an operation takes, of this replica, or of all replicas if JAX has summed it."""
        context = self._context
        count = count_constant_of(first, second, (context.rows, context.other_rows or 0))
        if count is None:
            self._operation(equation).refuse(
                "takes a number that depends on the number of rows and is not a multiple of it", USE_ROW_MASK
            )
        power = context.replica_sums.power(owner, index)
        if power is None:
            return count
        if power != count.power:
            refuse_replica_sum(context, equation)
        return dataclasses.replace(count, replicas=context.replica_sums.replicas)

    def _interpret(self, equation: Any, other: Any | None) -> Outcome:
        """Return the results of an operation by its rule, and check them by the traces."""
        if other is not None:
            self._check_same(len(equation.outvars) == len(other.outvars), equation)
        operation = self._operation(equation, other, tuple(self._value(atom) for atom in equation.invars))
        _check_parameters(operation)
        outcome = self._context.rules.get(operation.name, _unknown)(operation)
        _check_sizes(operation, outcome[0])
        self._context.findings[id(equation), *(value.axes for value in outcome[0])] = equation
        return outcome


def _unknown(operation: StepOperation) -> Outcome:
    """Leave an operation without a rule unchanged; refuse it if it has unmasked rows as an operand."""
    axes = [axis for value in operation.values for axis in value.axes if axis is not None]
    if any(axis.pads is PadState.UNMASKED for axis in axes):
        operation.refuse("may mix the rows with the pads")
    return [without_rows(variable.aval) for variable in operation.equation.outvars], None


def _check_parameters(operation: StepOperation) -> None:
    """Refuse an operation with a parameter that depends on the number of rows, such as an exponent."""
    if operation.other is None:
        return
    for name, value in operation.params.items():
        if name in _SIZE_PARAMETERS or (operation.name in _CALLS and not isinstance(value, int | float | str)):
            continue
        other = operation.other.params[name]
        if value is not other and value != other:
            operation.refuse(f"has a parameter that depends on the number of rows, {name}={value!r}", USE_ROW_MASK)


def _check_sizes(operation: StepOperation, values: list[AbstractValue]) -> None:
    """Check a rule by the traces: an axis is over rows exactly if its size differs between them."""
    for index, (value, variable) in enumerate(zip(values, operation.equation.outvars, strict=True)):
        if isinstance(variable, DropVar) or not hasattr(variable.aval, "shape"):
            continue
        for axis, sizes in zip(value.axes, operation.out_sizes(index), strict=True):
            if axis is not None:
                if tuple(axis.size(rows) for rows in operation.context.traced_rows) != sizes:
                    operation.refuse("takes some of the rows only")
            elif len(set(sizes)) > 1:
                operation.refuse("makes an axis whose length depends on the number of rows")
