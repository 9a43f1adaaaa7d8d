"""The terms of a traced loss, seen from its last addition: their scales, their sums over rows, and their dependences.

Idea: whether the sum of the replicas' losses is the loss of the whole batch is visible in the trace. A loss is a sum of
terms. Each has constant factors, reductions, and a rest that is not linear. A term depends on rows of this replica, on
results of collectives, which are equal on all replicas, or on the differentiated values only.

Rule: the walk goes back from the loss through linear operations, calls, branches, and functions of one number. It
ignores terms that do not depend on the differentiated values.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.core import Tracer
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal

from anytpu.program.jaxprs import aval_of, called_jaxpr, inner_jaxprs, level_of, scan_arguments, shape_of
from anytpu.program.program import REPLICA_AXIS

_SHARE = "anytpu: share of a loss"
_VALUES, _OWN, _REDUCED = "values", "own", "reduced"
_EQUAL = frozenset({"psum", "psum_invariant", "pmax", "pmin", "all_gather", "all_gather_invariant"})
"""Collectives whose result is equal on all replicas."""
_ONE_OPERAND = frozenset({"convert_element_type", "copy", "copy_p", "name", "neg", "reduce_precision", "squeeze"})
_OF_A_NUMBER = frozenset(
    {"abs", "clamp", "cbrt", "exp", "exp2", "expm1", "integer_pow", "log", "log1p", "logistic", "max", "min", "pow"}
    | {"rsqrt", "sqrt", "square", "tanh"}
)
_MAX_VISITS = 5_000

Node = tuple["_Frame", Any]
"""A variable or literal in a call of a function."""


def mark_share(loss: Any) -> Any:
    """Mark a loss as this replica's share of the loss of the whole batch."""
    return checkpoint_name(loss, _SHARE)


@dataclasses.dataclass(frozen=True)
class LossTerm:
    """One term of a loss.

    Attributes:
        is_share: it was marked by `mark_share`.
        depends_on_rows: it may differ between the replicas.
        is_reduced: it depends on a result of a collective.
        factors: its constant factors.
        row_counts: for each way to read its sums, the number of elements that a mean over rows would divide by.
        has_own_divisor: it is divided by a number that may differ between the replicas.
    """

    is_share: bool
    depends_on_rows: bool
    is_reduced: bool
    factors: tuple[float, ...]
    row_counts: frozenset[int]
    has_own_divisor: bool


def terms_of(loss: ClosedJaxpr, own: list[bool]) -> list[LossTerm]:
    """Return the terms of a loss that depend on the values that it is differentiated by.

    Args:
        loss: its trace; its arguments are the values, its first result is the loss.
        own: for each captured array, and then each value, whether it may differ between the replicas.
    """
    level = level_of(loss)
    inputs: dict[Any, Any] = {}
    for variable, array, differs in zip(level.constvars, loss.consts, own, strict=False):
        inputs[variable] = _Leaf(frozenset({_OWN} if differs else ()), array)
    for variable, differs in zip(level.invars, own[len(level.constvars) :], strict=True):
        inputs[variable] = _Leaf(frozenset({_VALUES, _OWN} if differs else {_VALUES}))
    arrays = [array for array, differs in zip(loss.consts, own, strict=False) if differs]
    lengths = {shape[0] for array in arrays if (shape := np.shape(array)) and jnp.issubdtype(array.dtype, jnp.inexact)}
    walk = _Walk(frozenset(lengths))
    return list(walk.terms((_Frame(level, inputs), level.outvars[0])))


@dataclasses.dataclass(frozen=True, eq=False)
class _Leaf:
    """An argument of the loss: its dependences, and its value if it is known."""

    dependences: frozenset[str]
    value: Any = None


class _Frame:
    """One call of a function: its equations by result, and the nodes of its arguments.

    Args:
        jaxpr: the function.
        inputs: for each argument the node or leaf that is passed.
    """

    def __init__(self, jaxpr: Jaxpr, inputs: dict[Any, Any]) -> None:
        self.inputs = inputs
        self.equations = jaxpr.eqns
        self.dependences: dict[Any, frozenset[str]] = {}
        self.numbers: dict[Any, float | None] = {}
        self.made_by = {result: equation for equation in jaxpr.eqns for result in equation.outvars}
        self._called: dict[tuple[int, int], _Frame] = {}

    def called(self, equation: JaxprEqn, inner: Any, inputs: list[Any]) -> _Frame:
        """Return the frame of a function that an equation calls."""
        level, key = level_of(inner), (id(equation), id(level_of(inner)))
        if key not in self._called:
            known = dict(zip(level.invars, inputs, strict=True))
            known |= dict(zip(level.constvars, map(_known, getattr(inner, "consts", ())), strict=False))
            self._called[key] = _Frame(level, known)
        return self._called[key]


def _known(value: Any) -> _Leaf:
    return _Leaf(frozenset(), value)


@dataclasses.dataclass(frozen=True)
class _Path:
    """The operations between the loss and a node.

    Attributes:
        factors: constant factors.
        labels: for each axis of the node, the indices of the reductions over it.
        sums: for each reduction, the sizes of its axes.
        has_own_divisor: a number that may differ between the replicas divides the node.
        is_mixed: an axis of the node may be made of rows and other axes.
        is_own: a condition that may differ between the replicas selects the node.
    """

    factors: tuple[float, ...] = ()
    labels: tuple[frozenset[int], ...] = ()
    sums: tuple[tuple[int, ...], ...] = ()
    has_own_divisor: bool = False
    is_mixed: bool = False
    is_own: bool = False

    def scaled(self, factor: float | None) -> _Path:
        return self if factor is None else dataclasses.replace(self, factors=(*self.factors, factor))

    def summed(self, sizes: tuple[int, ...], axes: tuple[int, ...]) -> _Path:
        """Return the path to the operand of a sum over some axes."""
        kept, index = iter(self.labels), len(self.sums)
        labels = tuple(frozenset({index}) if axis in axes else next(kept) for axis in range(len(sizes)))
        return dataclasses.replace(self, labels=labels, sums=(*self.sums, tuple(sizes[axis] for axis in axes)))

    def row_counts(self, lengths: frozenset[int]) -> frozenset[int]:
        """Return the numbers by which a mean over the first axis, and others summed with it, would divide."""
        total = math.prod(itertools.chain(*self.sums))
        counts = {total} if self.sums else set()
        if self.is_mixed:
            counts |= {length for length in lengths if length and total % length == 0}
        for index in self.labels[0] if self.labels else range(len(self.sums)):
            first, *others = self.sums[index] or (1,)
            for length in range(len(others) + 1):
                counts |= {first * math.prod(some) for some in itertools.combinations(others, length)}
        return frozenset(counts)


class _Walk:
    """One walk over a loss.

    Args:
        lengths: lengths of the captured arrays that differ between the replicas: numbers of rows.
    """

    def __init__(self, lengths: frozenset[int]) -> None:
        self._lengths = lengths
        self._visits = 0

    def terms(self, loss: Node) -> Iterator[LossTerm]:
        """Yield the terms of a loss."""
        # The outer function comes first: those that it calls ask for the dependences of their arguments.
        self.dependences(loss)
        waiting: list[tuple[Any, _Path]] = [(loss, _Path())]
        while waiting:
            node, path = waiting.pop()
            frame, atom = node = self._resolved(node)
            if _VALUES not in self.dependences(node):
                continue
            self._visits += 1
            equation = None if isinstance(frame, _Leaf) else frame.made_by.get(atom)
            is_share = equation is not None and equation.params.get("name") == _SHARE
            if equation is not None and not is_share and not _is_collective(equation) and self._visits < _MAX_VISITS:
                inner = self._inner(node, equation, path)
                if inner is not None:
                    waiting.extend(inner)
                    continue
                path = _with_product(equation, path)
            yield self._term(node, path, is_share)

    def _term(self, node: Node, path: _Path, is_share: bool) -> LossTerm:
        dependences = self.dependences(node)
        return LossTerm(
            is_share,
            _OWN in dependences or path.is_own or path.has_own_divisor,
            _REDUCED in dependences,
            path.factors,
            path.row_counts(self._lengths),
            path.has_own_divisor,
        )

    def _inner(self, node: Node, equation: JaxprEqn, path: _Path) -> list[tuple[Node, _Path]] | None:
        """Return the operands of a linear operation, and the path to each; None for any other operation."""
        frame, atom = node
        name, shape = equation.primitive.name, shape_of(atom)
        operands: list[Node] = [(frame, operand) for operand in equation.invars]
        if name in ("add", "sub", "add_any"):
            # A bias that is added to each row belongs to the term of that row.
            is_of_rows = shape != () and len({_OWN in self.dependences(operand) for operand in operands}) > 1
            return None if is_of_rows else [(operand, path) for operand in operands]
        if name in ("select_n", "cond"):
            path = dataclasses.replace(path, is_own=path.is_own or _OWN in self.dependences(operands[0]))
            if name == "select_n":
                return [(operand, path) for operand in operands[1:]]
            branches = [
                (frame.called(equation, branch, operands[1:]), level_of(branch))
                for branch in equation.params["branches"]
            ]
            position = equation.outvars.index(atom)
            return [((inner, level.outvars[position]), path) for inner, level in branches]
        if name == "scan":
            return self._scanned(node, equation, path)
        if name in ("mul", "div"):
            return self._scaled(name, operands, path)
        if name in _ONE_OPERAND and shape_of(equation.invars[0]) == shape:
            return [(operands[0], path)]
        if name == "reduce_sum":
            return [(operands[0], path.summed(shape_of(equation.invars[0]), equation.params["axes"]))]
        if name in ("broadcast_in_dim", "reshape", "squeeze", "transpose"):
            labels = _labels_below(equation, path.labels)
            is_mixed = path.is_mixed or (name == "reshape" and len(labels) != len(set(labels)))
            return [(operands[0], dataclasses.replace(path, labels=tuple(labels), is_mixed=is_mixed))]
        if shape == () and name in _OF_A_NUMBER:
            return [(operand, path) for operand in operands]
        return None

    def _scaled(self, name: str, operands: list[Node], path: _Path) -> list[tuple[Node, _Path]] | None:
        left, right = operands
        number = self.number(right)
        if number is not None:
            if name == "div" and number == 0:
                return None
            return [(left, path.scaled(1 / number if name == "div" else number))]
        if name == "mul" and (number := self.number(left)) is not None:
            return [(right, path.scaled(number))]
        differs = [_OWN in self.dependences(operand) for operand in operands]
        if name == "div":
            if not self._is_number(right):
                return None
            return [(left, dataclasses.replace(path, has_own_divisor=path.has_own_divisor or differs[1]))]
        for array, factor, is_own in ((left, right, differs[1]), (right, left, differs[0])):
            if self._is_number(factor) and not is_own and _VALUES not in self.dependences(factor):
                return [(array, path)]
            if self._is_inverse(factor):
                return [(array, dataclasses.replace(path, has_own_divisor=path.has_own_divisor or is_own))]
        return None

    def _scanned(self, node: Node, scan: JaxprEqn, path: _Path) -> list[tuple[Node, _Path]] | None:
        """Return what a loop adds to a carried number: its first value, and the terms of one iteration."""
        frame, atom = node
        position, (constants, carried) = scan.outvars.index(atom), scan_arguments(scan)
        if position >= carried:
            return None
        body = level_of(scan.params["jaxpr"])
        outer: list[Any] = [(frame, operand) for operand in scan.invars]
        # The carried values of an iteration add no terms of their own.
        inputs = [*outer[:constants], *[_known(None)] * carried, *outer[constants + carried :]]
        inner = frame.called(scan, scan.params["jaxpr"], inputs)
        # The loop adds the iterations.
        added = dataclasses.replace(path, sums=(*path.sums, (scan.params["length"],)), is_mixed=True)
        return [(outer[constants + position], path), ((inner, body.outvars[position]), added)]

    def _resolved(self, node: Any) -> Any:
        """Follow a node through the arguments and results of calls."""
        while not isinstance(node, _Leaf):
            frame, atom = node
            if isinstance(frame, _Leaf) or isinstance(atom, Literal):
                break
            if atom in frame.inputs:
                node = frame.inputs[atom]
                continue
            equation = frame.made_by[atom]
            results = _call(frame, equation)
            if results is None:
                break
            node = results[equation.outvars.index(atom)]
        return (node, None) if isinstance(node, _Leaf) else node

    def dependences(self, node: Any) -> frozenset[str]:
        """Return what a node depends on: the differentiated values, own rows, results of collectives."""
        frame, atom = (node, None) if isinstance(node, _Leaf) else node
        if isinstance(frame, _Leaf):
            return frame.dependences
        if isinstance(atom, Literal):
            return frozenset()
        if atom in frame.inputs:
            return self.dependences(frame.inputs[atom])
        if not frame.dependences:
            # All operations in order: a deep network would pass the limit of recursion.
            for equation in frame.equations:
                frame.dependences.update(zip(equation.outvars, self._of_results(frame, equation), strict=True))
        return frame.dependences[atom]

    def _of_results(self, frame: _Frame, equation: JaxprEqn) -> list[frozenset[str]]:
        inner = _call(frame, equation)
        if inner is not None:
            return [self.dependences(node) for node in inner]
        found = frozenset().union(*(self.dependences((frame, operand)) for operand in equation.invars))
        return [_through(equation, found)] * len(equation.outvars)

    def number(self, node: Any) -> float | None:
        """Return the value of a constant number, or of all elements of a constant array; None if it is not constant."""
        frame, atom = self._resolved(node)
        value = frame.value if isinstance(frame, _Leaf) else atom.val if isinstance(atom, Literal) else None
        if value is not None:
            is_number = not isinstance(value, Tracer) and np.size(value) == 1
            return float(np.asarray(value).ravel()[0]) if is_number else None
        if isinstance(frame, _Leaf) or self.dependences((frame, atom)):
            return None
        if atom not in frame.numbers:
            frame.numbers[atom] = self._computed(frame, frame.made_by[atom])
        return frame.numbers[atom]

    def _computed(self, frame: _Frame, equation: JaxprEqn) -> float | None:
        """Return the result of an operation on constant numbers; None for any other operation."""
        if len(equation.outvars) > 1 or not equation.invars or any(True for _ in inner_jaxprs(equation)):
            return None
        operands = [self.number((frame, operand)) for operand in equation.invars]
        if any(operand is None for operand in operands):
            return None
        if equation.primitive.name in ("broadcast_in_dim", "reshape", "convert_element_type", "squeeze", "copy"):
            return operands[0]
        if any(shape_of(atom) != () for atom in (*equation.invars, *equation.outvars)):
            return None
        with jax.ensure_compile_time_eval():
            arrays = [jnp.asarray(o, aval_of(v).dtype) for o, v in zip(operands, equation.invars, strict=True)]
            return float(equation.primitive.bind(*arrays, **equation.params))

    def _is_number(self, node: Any) -> bool:
        """Return whether a node is a scalar, or a scalar that was broadcast."""
        frame, atom = self._resolved(node)
        if isinstance(frame, _Leaf):
            return np.ndim(frame.value) == 0 and frame.value is not None
        if shape_of(atom) == () or math.prod(shape_of(atom)) == 1:
            return True
        equation = frame.made_by.get(atom)
        if equation is None or equation.primitive.name not in ("broadcast_in_dim", "reshape"):
            return False
        return self._is_number((frame, equation.invars[0]))

    def _is_inverse(self, node: Any) -> bool:
        """Return whether a node is one number divided by another."""
        frame, atom = self._resolved(node)
        equation = None if isinstance(frame, _Leaf) or isinstance(atom, Literal) else frame.made_by.get(atom)
        if equation is None or not self._is_number(node):
            return False
        if equation.primitive.name == "broadcast_in_dim":
            return self._is_inverse((frame, equation.invars[0]))
        return equation.primitive.name == "div" and self.number((frame, equation.invars[0])) is not None


def _call(frame: _Frame, equation: JaxprEqn) -> list[Node] | None:
    """Return the results of a function that an equation calls, as nodes of its frame; None for any other equation."""
    called = None if _is_collective(equation) else called_jaxpr(equation)
    if called is None or equation.primitive.name in ("scan", "while", "cond"):
        return None
    closed = next(inner for inner in inner_jaxprs(equation) if level_of(inner) is called)
    inner = frame.called(equation, closed, [(frame, operand) for operand in equation.invars])
    return [(inner, result) for result in called.outvars]


def _with_product(equation: JaxprEqn, path: _Path) -> _Path:
    """Return the path to the elements that a product of vectors adds."""
    if equation.primitive.name != "dot_general" or shape_of(equation.outvars[0]) != ():
        return path
    (contracted, _), _ = equation.params["dimension_numbers"]
    sizes = tuple(shape_of(equation.invars[0])[axis] for axis in contracted)
    return dataclasses.replace(path, sums=(*path.sums, sizes), is_mixed=True)


def _through(equation: JaxprEqn, found: frozenset[str]) -> frozenset[str]:
    """Return the dependences of an operation's results."""
    name = equation.primitive.name
    if name == "stop_gradient":
        return found - {_VALUES}
    if _is_collective(equation):
        return found - {_OWN} | {_REDUCED} if name in _EQUAL else found | {_OWN}
    inside = [_through(inner, found) for jaxpr in inner_jaxprs(equation) for inner in level_of(jaxpr).eqns]
    return found.union(*inside)


def _is_collective(equation: JaxprEqn) -> bool:
    """Return whether an operation uses the axis of the replicas by its name."""
    params = equation.params
    axes = params.get("axes", params.get("axis_name", ()))
    names = axes if isinstance(axes, tuple | list | frozenset) else (axes,)
    return REPLICA_AXIS in names and params.get("axis_index_groups") is None


def _labels_below(equation: JaxprEqn, labels: tuple[frozenset[int], ...]) -> list[frozenset[int]]:
    """Return the labels of the operand's axes of an operation that moves axes."""
    shape, params = shape_of(equation.invars[0]), equation.params
    if equation.primitive.name == "broadcast_in_dim":
        return [labels[axis] for axis in params["broadcast_dimensions"]]
    if equation.primitive.name == "transpose":
        order = list(params["permutation"])
        return [labels[order.index(axis)] for axis in range(len(shape))]
    # A reshape that adds or drops axes of size 1 keeps the others; any other mixes them.
    result = [size for size in shape_of(equation.outvars[0]) if size != 1]
    everything = frozenset().union(*labels)
    if result != [size for size in shape if size != 1]:
        return [everything] * len(shape)
    kept = iter([label for label, size in zip(labels, shape_of(equation.outvars[0]), strict=True) if size != 1])
    return [everything if size == 1 else next(kept) for size in shape]
