"""`Node`: one value of a program and what computing it takes; a program as a list of them, calls taken apart.

Idea: what JAX hands to a compiler is a module of functions that call each other. Taken apart, a step is one list of
values, each made of others before it; a loop is a list of its own, with how often it runs.

Rule: a tuple is no value. Who takes an element of one uses what was put there.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping

from anytpu.planning.hlo import Computation, Instruction, Module, Shape

INPUT = "parameter"
"""The opcode of a node that is there before: an input of the program, or what a loop carries."""

_INDEX = re.compile(r"\bindex=(\d+)")
_NUMBER = re.compile(r"parameter\((\d+)\)")
_HAVE_PRODUCTS = ("dot", "convolution", "fusion")
_SAME = {"optimization-barrier", "bitcast", "copy"}
_SAME_CALLS = ('custom_call_target="Sharding"', 'custom_call_target="SPMD')


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A value, and what makes it.

    Attributes:
        name: what the module calls it; nodes of taken-apart calls have the path in front.
        opcode: its HLO opcode.
        shapes: its shape; several of an operation that returns a tuple.
        operands: what it is made of.
        flops: those of the matrix products and convolutions in it, by the type that they are computed in.
        instruction: what it was in the module; None of a loop's result.
        count: how often it runs in a step.
        number: of an input of the program its number, else None.
    """

    name: str
    opcode: str
    shapes: tuple[Shape, ...]
    operands: tuple[Node, ...] = ()
    flops: Mapping[str, float] = dataclasses.field(default_factory=dict)
    instruction: Instruction | None = None
    count: int = 1
    number: int | None = None

    @property
    def bytes(self) -> int:
        """Its size."""
        return sum(shape.bytes for shape in self.shapes)


@dataclasses.dataclass(frozen=True, slots=True)
class Scope:
    """The values of a program, or of the body of a loop in it.

    Attributes:
        nodes: in the order of the module, each after what it is made of.
        results: what it is run for.
        loop: the value that stands for the loop in the scope around it; None for the program itself.
    """

    nodes: tuple[Node, ...]
    results: tuple[Node, ...]
    loop: Node | None = None


_Value = Node | tuple["_Value", ...]


def scopes_of(module: Module) -> tuple[list[Scope], list[str]]:
    """Take a module apart.

    Returns:
        The program first, then each loop, outer ones before inner ones; and in words what could not be counted: loops
        whose number of turns the program does not fix.
    """
    reader = _Reader(module)
    entry = reader.read(module.entry, None, 1, "", None)
    return [entry, *reader.loops], reader.unknown


class _Reader:
    """Reads computations, and gathers the loops on the way."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self.loops: list[Scope] = []
        self.unknown: list[str] = []

    def read(
        self, computation: Computation, given: tuple[_Value, ...] | None, count: int, prefix: str, loop: Node | None
    ) -> Scope:
        """Read a computation as a scope; `given` is what its parameters are, None for the program's inputs."""
        nodes: list[Node] = []
        result = self._run(computation, given, count, prefix, nodes)
        return Scope(tuple(nodes), tuple(_leaves(result)), loop)

    def _run(
        self,
        computation: Computation,
        given: tuple[_Value, ...] | None,
        count: int,
        prefix: str,
        nodes: list[Node],
    ) -> _Value:
        values: dict[str, _Value] = {}
        for one in computation.instructions.values():
            operands = tuple(values[name] for name in one.operands if name in values)
            values[one.name] = self._value(one, operands, given, count, prefix, nodes)
        return values[computation.root]

    def _value(
        self,
        one: Instruction,
        operands: tuple[_Value, ...],
        given: tuple[_Value, ...] | None,
        count: int,
        prefix: str,
        nodes: list[Node],
    ) -> _Value:
        if one.opcode == "parameter" and given is not None:
            return given[_match(_NUMBER, one.text)]
        if one.opcode == "tuple":
            return operands
        if one.opcode == "get-tuple-element" and isinstance(operands[0], tuple):
            return operands[0][_match(_INDEX, one.text)]
        if one.opcode in _SAME or any(mark in one.text for mark in _SAME_CALLS):
            return operands[0] if len(operands) == 1 else operands
        if one.opcode == "call":
            inner = self._module.computations[one.called[0]]
            return self._run(inner, operands, count, f"{prefix}{one.name}/", nodes)
        if one.opcode == "while":
            return self._while(one, operands[0], count, prefix, nodes)
        if one.opcode == "conditional":
            return self._conditional(one, operands, count, prefix, nodes)
        node = self._node(one, operands, count, prefix)
        nodes.append(node)
        return node

    def _node(self, one: Instruction, operands: tuple[_Value, ...], count: int, prefix: str) -> Node:
        return Node(
            f"{prefix}{one.name}",
            one.opcode,
            one.shapes,
            tuple(leaf for operand in operands for leaf in _leaves(operand)),
            self._module.flops_by_dtype(one) if one.opcode in _HAVE_PRODUCTS else {},
            one,
            count,
            _match(_NUMBER, one.text) if one.opcode == INPUT else None,
        )

    def _while(self, one: Instruction, start: _Value, count: int, prefix: str, nodes: list[Node]) -> _Value:
        turns = self._module.trip_count(one)
        if turns is None:
            self.unknown.append(f"{one.name}: a loop whose number of turns is not fixed before it runs; counted once")
        starts = tuple(_leaves(start))
        path = f"{prefix}{one.name}"
        loop = Node(path, "while", (), starts, instruction=one, count=count)
        nodes.append(loop)
        body = self._module.computations[one.called[1]]
        carried = tuple(Node(f"{path}/{number}", INPUT, leaf.shapes, count=count) for number, leaf in enumerate(starts))
        place = len(self.loops)
        scope = self.read(
            body, (_like(start, iter(carried)),), count * (1 if turns is None else turns), f"{path}/", loop
        )
        self.loops.insert(place, dataclasses.replace(scope, nodes=(*carried, *scope.nodes)))
        results = [Node(f"{path}.{number}", "loop", leaf.shapes, (loop,)) for number, leaf in enumerate(starts)]
        nodes += results
        return _like(start, iter(results))

    def _conditional(
        self,
        one: Instruction,
        operands: tuple[_Value, ...],
        count: int,
        prefix: str,
        nodes: list[Node],
    ) -> _Value:
        """Read the branch with most to compute: which one runs is not known."""
        branches = [self._module.computations[name] for name in one.called]

        def weight(branch: Computation) -> tuple[float, int]:
            flops = sum(self._module.flops_of(each) for each in branch.instructions.values())
            return flops, len(branch.instructions)

        number = max(range(len(branches)), key=lambda index: weight(branches[index]))
        return self._run(branches[number], (operands[1 + number],), count, f"{prefix}{one.name}/", nodes)


def _leaves(value: _Value) -> Iterator[Node]:
    if isinstance(value, Node):
        yield value
    else:
        for one in value:
            yield from _leaves(one)


def _like(value: _Value, leaves: Iterator[Node]) -> _Value:
    """Return other leaves in the form of a value."""
    if isinstance(value, Node):
        return next(leaves)
    return tuple(_like(one, leaves) for one in value)


def _match(pattern: re.Pattern[str], text: str) -> int:
    found = pattern.search(text)
    assert found is not None, text
    return int(found[1])
