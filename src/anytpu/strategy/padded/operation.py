"""One operation of a traced step, as the rules for padded batches see it."""

from __future__ import annotations

import dataclasses
import os
import sysconfig
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn, Protocol

import jax
import jax.numpy as jnp

from anytpu.errors import ReplicaError
from anytpu.strategy.padded.axes import Fill, MismatchError, RowAxis, Segment, Value, joined

COUNT = "count the real rows with jnp.sum(tpu.row_mask(x)), or take the mean with tpu.compute_average_loss(losses)"
"""What to write where a number of rows is wrong."""

FOLDED = "a number that Python has computed from a sum of numbers of rows over the replicas"
SUMMED = 'sum an array, as in jax.lax.psum(jnp.asarray(len(x)), "replica"), and compute with that'
"""What to write where Python has computed with a number of rows that JAX has summed over the replicas."""

NOT_ROWS = (
    "gathers values that are no rows, but as many as the replica has rows",
    "gather value[None], and merge the first two axes of the result",
)
"""What is wrong with an `all_gather` that takes values for rows by their number, and what to write."""

SAME = "write the step so that it has the same operations for any number of rows"
"""What to write where the traces for two numbers of rows differ."""

_NOT_THE_USERS = (
    str(Path(jax.__file__).parents[1]),
    str(Path(__file__).parents[2]),
    sysconfig.get_paths()["stdlib"],
    "<",
)

Sizes = tuple[int, ...]
"""The size of one axis in each of the traces."""


@dataclasses.dataclass(frozen=True)
class Rooms:
    """The numbers of rows, pads included, for which a step is traced.

    Attributes:
        step: the name of the step, for errors.
        first: the rows of the batch.
        second: those of the other trace; None for a step that can be traced for the first number only.
        failure: why the step cannot be traced for another number; "" where it can.
    """

    step: str
    first: int
    second: int | None
    failure: str = ""

    @property
    def all(self) -> tuple[int, ...]:
        """The numbers of rows of the traces that there are."""
        return (self.first,) if self.second is None else (self.first, self.second)


@dataclasses.dataclass(frozen=True)
class RealRows:
    """The real rows of one replica while a padded step is computed.

    Attributes:
        rows: their number, an int32 scalar.
        room: the number of rows with pads.
        total: the number of real rows of all replicas, an int32 scalar.
    """

    rows: Any
    room: int
    total: Any

    def replaced(self, array: Any, position: int, axis: RowAxis, fill: Any) -> Any:
        """Return an array with the entries of pads along an axis replaced."""
        if axis.fill is Fill.ZERO and fill is zero:
            return array
        shape = [1] * array.ndim
        shape[position] = -1
        filled = jnp.asarray(fill(array.dtype), array.dtype)
        return jnp.where(axis.mask(self.rows, self.room).reshape(shape), array, filled)


def zero(dtype: Any) -> Any:
    """Return zero, or False."""
    return jnp.zeros((), dtype)


Action = Callable[[RealRows, list[Any]], Sequence[Any]]
"""How an operation is computed where binding it as it is would count pads: from the operands to the results."""

Outcome = tuple[list[Value], Action | None]
"""The results of an operation, and how it is computed; None binds it as it is."""


class Planner(Protocol):
    """What plans the operations of one traced function; see `planner.py`."""

    @property
    def rooms(self) -> Rooms:
        """The numbers of rows of the traces."""
        ...

    @property
    def is_differentiated(self) -> bool:
        """Whether the function is differentiated after it was planned."""
        ...

    @property
    def line(self) -> str:
        """Where the user's code calls the function, for errors."""
        ...

    def inside(
        self,
        operation: Operation,
        name: str,
        index: int | None,
        values: list[Value],
        *,
        is_loss: bool = False,
        divides: bool = False,
    ) -> Any:
        """Return the plan of a function inside the one that is planned."""
        ...


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation.

    Attributes:
        equation: in the trace for the batch's rows.
        other: in the trace for another number of rows; None where there is none.
        values: its operands.
        rooms: the numbers of rows of the traces.
        planner: plans the functions inside it.
    """

    equation: Any
    other: Any | None
    values: list[Value]
    rooms: Rooms
    planner: Planner

    @property
    def name(self) -> str:
        """The name of the primitive; "the step" for what the step returns."""
        return "the step" if self.equation is None else self.equation.primitive.name

    @property
    def params(self) -> dict[str, Any]:
        """The parameters in the trace for the batch's rows."""
        return self.equation.params

    def other_param(self, name: str) -> Any:
        """Return a parameter in the other trace; None where there is none."""
        return None if self.other is None else self.other.params[name]

    def param_sizes(self, name: str) -> list[Sizes]:
        """Return a parameter that is a list of integers, each in all traces."""
        given = [self.params[name]] if self.other is None else [self.params[name], self.other.params[name]]
        return [tuple(int(one) for one in pair) for pair in zip(*given, strict=True)]

    def in_sizes(self, index: int) -> list[Sizes]:
        """Return the size of each axis of an operand in all traces."""
        return self._sizes(lambda equation: equation.invars[index])

    def out_sizes(self, index: int = 0) -> list[Sizes]:
        """Return the size of each axis of a result in all traces."""
        return self._sizes(lambda equation: equation.outvars[index])

    def _sizes(self, of: Callable[[Any], Any]) -> list[Sizes]:
        equations = [self.equation] if self.other is None else [self.equation, self.other]
        return list(zip(*(of(equation).aval.shape for equation in equations), strict=True))

    def joined(self, axes: Sequence[RowAxis | None]) -> RowAxis | None:
        """Return the axis of entries that are taken pairwise; see `axes.joined`."""
        try:
            return joined(axes)
        except MismatchError:
            self.refuse("joins values whose rows are not in the same order")

    def created(self, sizes: Sizes, *, is_free: bool) -> RowAxis | None:
        """Return the axis that an operation makes anew, of so many entries."""
        if len(set(sizes)) == 1:
            return None
        if self.rooms.second is not None and sizes[0] % self.rooms.first == 0:
            each = sizes[0] // self.rooms.first
            if each * self.rooms.second == sizes[1]:
                return RowAxis((Segment(each, 0),), is_free=is_free)
        self.refuse("makes an axis whose length hangs on the number of rows and is not a multiple of it")

    def bound(self, operands: list[Any], **changed: Any) -> Sequence[Any]:
        """Compute the operation on operands, with some parameters changed."""
        return bound(self.equation.primitive, {**self.params, **changed}, operands)

    @property
    def line(self) -> str:
        """Where the user's code asks for the operation, for errors; "" where that is not known."""
        return _line(self.equation) or self.planner.line

    def refuse(self, reason: str, advice: str = "") -> NoReturn:
        """Raise the error that names the operation, the line of the step that asks for it, and what to write."""
        fill = "give the pads a value first, for example with jnp.where(tpu.row_mask(x)[:, None], x, 0)"
        raise ReplicaError(
            f"{self.rooms.step} was given a batch that does not fill all replicas, so its last rows are pads, and "
            f"{self.name}{self.line} {reason}: {advice or fill}; or leave such a batch out, with "
            "batch(rows, drop_remainder=True)"
        )


def bound(primitive: Any, params: dict[str, Any], operands: list[Any]) -> Sequence[Any]:
    """Compute an operation of a traced function on operands."""
    made = primitive.get_bind_params(params)
    # JAX 0.10.2 puts the functions among the parameters; before, they were apart. Delete with the last version before.
    functions, params = ((), made) if isinstance(made, dict) else made
    results = primitive.bind(*functions, *operands, **params)
    return results if primitive.multiple_results else [results]


def _line(equation: Any) -> str:
    """Return where the user's code asks for an operation: the innermost frame that is no library's."""
    traceback = None if equation is None else equation.source_info.traceback
    for frame in [] if traceback is None else traceback.frames:
        if not frame.file_name.startswith(_NOT_THE_USERS):
            return f" (line {frame.line_num} of {os.path.basename(frame.file_name)})"
    return ""
