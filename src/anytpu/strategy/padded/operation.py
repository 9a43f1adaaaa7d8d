"""One operation of a traced step, as the rules for padded batches see it."""

from __future__ import annotations

import dataclasses
import os
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import jax

from anytpu.errors import ReplicaError
from anytpu.strategy.padded.axes import AbstractValue, AxisMismatchError, AxisSegment, RealRows, RowAxis, aligned
from anytpu.strategy.padded.counts import ReplicaSums

USE_ROW_MASK = (
    "count the real rows with jnp.sum(tpu.row_mask(x)), or take the mean with tpu.compute_average_loss(losses)"
)
"""Advice where a number of rows would be wrong."""

SUM_AN_ARRAY = 'sum an array, as in jax.lax.psum(jnp.asarray(len(x)), "replica"), and compute with that'
"""Advice where Python computes with a number of rows that JAX has summed over the replicas."""

GATHERS_NO_ROWS = (
    "gathers values that are not rows, but as many as the replica has rows",
    "gather value[None], and merge the first two axes of the result",
)
"""Reason and advice for an `all_gather` that takes values for rows because of their number."""

SAME_OPERATIONS = "write the step so that it has the same operations for any number of rows"
"""Advice where the traces for two numbers of rows differ."""

_LIBRARIES = (
    str(Path(jax.__file__).parents[1]),
    str(Path(__file__).parents[2]),
    sysconfig.get_paths()["stdlib"],
    "<",  # Code without a file, such as "<frozen importlib._bootstrap>" or "<string>".
)

Sizes = tuple[int, ...]
"""The size of one axis in each of the traces."""


Evaluation = Callable[[RealRows, list[Any]], Sequence[Any]]
"""Computes an operation without the pads' contributions: takes the operands, returns the results."""

Outcome = tuple[list[AbstractValue], Evaluation | None]
"""The results of an operation, and its evaluation; None binds the operation unchanged."""


@dataclasses.dataclass(frozen=True)
class PaddedContext:
    """The context in which the operations of a traced function are planned.

    Attributes:
        step: name of the step, for errors.
        rows: number of rows of the batch, pads included, for which the step is traced.
        other_rows: number of rows of the other trace; None for a step that can be traced for `rows` only.
        rules: the rule of each primitive, by name.
        failure: reason why the step cannot be traced for another number of rows; "" if it can.
        replica_sums: the constants that contain sums over the replicas.
        findings: row counts and row axes that were found, each with its operation. The analyses for two other numbers
            of rows must find the same.
        is_differentiated: True if the function is differentiated after it is planned.
        counts_are_divisors: True if every row count in the function is used only as a divisor.
        line: line of the user's code that calls the function, as " (line 12 of train.py)"; "" if it is unknown.
    """

    step: str
    rows: int
    other_rows: int | None
    rules: Mapping[str, Rule]
    failure: str = ""
    replica_sums: ReplicaSums = dataclasses.field(default_factory=ReplicaSums)
    findings: dict[Any, Any] = dataclasses.field(default_factory=dict)
    is_differentiated: bool = False
    counts_are_divisors: bool = False
    line: str = ""

    @property
    def traced_rows(self) -> tuple[int, ...]:
        """The numbers of rows of the traces."""
        return (self.rows,) if self.other_rows is None else (self.rows, self.other_rows)


@dataclasses.dataclass(frozen=True)
class StepOperation:
    """An operation of a traced function.

    Attributes:
        equation: the operation in the trace for the batch's rows; None for the return of the step.
        other: the operation in the other trace; None if there is no other trace.
        values: its operands.
        context: the context of its function.
    """

    equation: Any
    other: Any | None
    values: list[AbstractValue]
    context: PaddedContext

    @property
    def name(self) -> str:
        """Name of the primitive; "the step" for the return of the step."""
        return "the step" if self.equation is None else self.equation.primitive.name

    @property
    def params(self) -> dict[str, Any]:
        """The parameters in the trace for the batch's rows."""
        return self.equation.params

    def other_param(self, name: str) -> Any:
        """Return a parameter in the other trace; None if there is no other trace."""
        return None if self.other is None else self.other.params[name]

    def param_sizes(self, name: str) -> list[Sizes]:
        """Return a parameter that is a list of integers, each in all traces."""
        lists = [self.params[name]] if self.other is None else [self.params[name], self.other.params[name]]
        return [tuple(int(size) for size in sizes) for sizes in zip(*lists, strict=True)]

    def in_sizes(self, index: int) -> list[Sizes]:
        """Return the size of each axis of an operand in all traces."""
        return self._sizes(lambda equation: equation.invars[index])

    def out_sizes(self, index: int = 0) -> list[Sizes]:
        """Return the size of each axis of a result in all traces."""
        return self._sizes(lambda equation: equation.outvars[index])

    def _sizes(self, variable_of: Callable[[Any], Any]) -> list[Sizes]:
        equations = [self.equation] if self.other is None else [self.equation, self.other]
        return list(zip(*(variable_of(equation).aval.shape for equation in equations), strict=True))

    def aligned(self, axes: Sequence[RowAxis | None]) -> RowAxis | None:
        """Return the axis of entries that the operation pairs; see `axes.aligned`."""
        try:
            return aligned(axes)
        except AxisMismatchError:
            self.refuse("joins values whose rows are not in the same order")

    def new_axis(self, sizes: Sizes, *, is_uniform: bool) -> RowAxis | None:
        """Return an axis that the operation creates; None if its size does not depend on the number of rows."""
        if len(set(sizes)) == 1:
            return None
        rows, other_rows = self.context.rows, self.context.other_rows
        if other_rows is not None and sizes[0] % rows == 0:
            per_row = sizes[0] // rows
            if per_row * other_rows == sizes[1]:
                return RowAxis((AxisSegment(per_row, 0),), is_uniform=is_uniform)
        self.refuse("makes an axis whose length depends on the number of rows and is not a multiple of it")

    def bind(self, operands: list[Any], **changed: Any) -> Sequence[Any]:
        """Compute the operation on operands, with some parameters changed."""
        return bind(self.equation.primitive, {**self.params, **changed}, operands)

    @property
    def line(self) -> str:
        """Line of the user's code that calls the operation, as " (line 12 of train.py)"; "" if it is unknown."""
        return _line_text(self.equation) or self.context.line

    def refuse(self, reason: str, advice: str = "") -> NoReturn:
        """Raise the error that names the operation, the line of the step that calls it, and an alternative."""
        fill = "give the pads a value first, for example with jnp.where(tpu.row_mask(x)[:, None], x, 0)"
        raise ReplicaError(
            f"{self.context.step} was given a batch that does not fill all replicas, so its last rows are pads, and "
            f"{self.name}{self.line} {reason}: {advice or fill}; or leave such a batch out, with "
            "batch(rows, drop_remainder=True)"
        )


Rule = Callable[[StepOperation], Outcome]
"""Finds the row axes of an operation's results, and its evaluation if pads would contribute to them."""


def bind(primitive: Any, params: dict[str, Any], operands: list[Any]) -> Sequence[Any]:
    """Compute an operation of a traced function on operands."""
    results = primitive.bind(*operands, **primitive.get_bind_params(params))
    return results if primitive.multiple_results else [results]


def _line_text(equation: Any) -> str:
    """Return the line of the user's code that calls an operation, as " (line 12 of train.py)"; "" if it is unknown.

    It is the line of the innermost frame outside of libraries.
    """
    traceback = None if equation is None else equation.source_info.traceback
    for frame in [] if traceback is None else traceback.frames:
        if not frame.file_name.startswith(_LIBRARIES):
            return f" (line {frame.line_num} of {os.path.basename(frame.file_name)})"
    return ""
