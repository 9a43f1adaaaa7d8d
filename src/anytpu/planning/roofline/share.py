"""`Share`: what one device does of a step, and which values every device has a part of.

Idea: whoever splits a batch over N devices gives each a step on an N-th of the rows. So the step is traced for those
rows, and once more for twice as many: a value whose size differs between the two has rows, one whose size does not is
whole on every device. A value without rows that is computed from values with rows (a weight's gradient, the mean of a
batch) is a sum over the devices: there the network is needed.

Rule: where a step cannot be traced for another number of rows (a file has one), it is traced whole, each device is
taken to do an N-th, and what has rows is told by its shape. Of code that brings shardings of its own each device is
taken to do an N-th of everything.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax

from anytpu.errors import AnyTPUError
from anytpu.planning.hlo import Module, parse
from anytpu.planning.roofline.node import Node, Scope, scopes_of
from anytpu.program.lowering import PLATFORMS, trace
from anytpu.program.program import Program

_SCALAR_BYTES = 64
_SUMMING = frozenset({"dot", "convolution", "reduce", "scatter", "reduce-window", "select-and-scatter", "sort"})


@dataclasses.dataclass(frozen=True)
class Share:
    """One device's part of a step.

    Attributes:
        scopes: the program and its loops.
        module: where source lines are looked up.
        has_rows: whether a value has rows, of which a device has a part.
        part: the part that a device has of what has rows, as it stands in `scopes`: 1 where it was traced for it.
        is_exact: False where it was traced whole.
        unknown: what could not be counted.
    """

    scopes: list[Scope]
    module: Module
    has_rows: Callable[[Node], bool]
    part: float
    is_exact: bool
    unknown: list[str]

    def bytes_of(self, node: Node) -> float:
        """Return the size of a value on one device."""
        return node.bytes * (self.part if self.has_rows(node) else 1.0)

    def is_summed(self, node: Node) -> bool:
        """Whether the devices have to add up their parts of a value."""
        return node.opcode in _SUMMING and not self.has_rows(node) and any(map(self.has_rows, node.operands))


def share_of(program: Program, devices: int) -> Share:
    """Return what one of so many devices does of a step.

    Raises:
        ProgramError: the step cannot be traced at all.
    """
    if program.placement is not None:
        return _placed(program)
    if devices > 1:
        try:
            return _traced_share(program, devices)
        except (AnyTPUError, TypeError, ValueError, ArithmeticError):
            pass  # Written for its number of rows, as a file is: then it is traced whole.
    return _whole(program, devices)


def lowered_module(program: Program) -> Module:
    """Return the module that JAX hands to a compiler, for one device: a TPU, or what a program file was written for."""
    traced = trace(program)
    *others, last = PLATFORMS[::-1]
    for platform in others:
        try:
            return module_of(traced.lower(lowering_platforms=(platform,)))
        except (ValueError, NotImplementedError):
            continue  # A file has the code of one platform.
    return module_of(traced.lower(lowering_platforms=(last,)))


def module_of(lowered: jax.stages.Lowered) -> Module:
    """Return the module that was handed to a compiler, before it was optimized."""
    computation: Any = lowered.compiler_ir("hlo")
    return parse(computation.as_hlo_module().to_string())


def with_rows(program: Program, rows: int) -> Program:
    """Return the program for another number of rows; of per-replica code, for another number of replicas."""
    old = program.replicas or program.rows
    leaves = [
        jax.ShapeDtypeStruct((rows, *leaf.shape[1:]), leaf.dtype)
        if layout.axis == 0 and leaf.shape[:1] == (old,)
        else leaf
        for leaf, layout in program.leaves()
    ]
    batch = jax.tree.unflatten(jax.tree.structure(program.batch), leaves)
    return dataclasses.replace(program, batch=batch, replicas=rows if program.replicas else None)


def _traced_share(program: Program, devices: int) -> Share:
    rows = 1 if program.replicas else math.ceil((program.rows or devices) / devices)
    module = lowered_module(with_rows(program, rows))
    scopes, unknown = scopes_of(module)
    twice, _ = scopes_of(lowered_module(with_rows(program, 2 * rows)))
    nodes = [node for scope in scopes for node in scope.nodes]
    others = [node for scope in twice for node in scope.nodes]
    if [node.opcode for node in nodes] != [node.opcode for node in others]:
        raise ValueError("another program for another number of rows")
    differing = {
        node
        for node, other in zip(nodes, others, strict=True)
        if [shape.dims for shape in node.shapes] != [shape.dims for shape in other.shapes]
    }
    return Share(scopes, module, differing.__contains__, 1.0, True, unknown)


def _placed(program: Program) -> Share:
    """Return a share of code that brings shardings of its own: an even part of whatever is no scalar."""
    assert program.placement is not None
    module = lowered_module(program)
    scopes, unknown = scopes_of(module)
    part = 1.0 / program.placement.devices
    return Share(scopes, module, lambda node: node.bytes > _SCALAR_BYTES, part, False, unknown)


def _whole(program: Program, devices: int) -> Share:
    module = lowered_module(program)
    scopes, unknown = scopes_of(module)
    rows = _splitting_sizes(program)
    first = len(jax.tree.leaves(program.state))
    kept = {leaf.shape for leaf in jax.tree.leaves(program.state)}
    from_batch: set[Node] = set()
    for scope in scopes:
        for node in scope.nodes:
            is_batch = node.number is not None and node.number >= first
            if is_batch or (node.number is None and (not node.operands or not from_batch.isdisjoint(node.operands))):
                from_batch.add(node)

    def has_rows(node: Node) -> bool:
        if devices == 1 or node not in from_batch or not node.shapes or node.shapes[0].dims in kept:
            return False
        return any(dim % size == 0 for dim in node.shapes[0].dims for size in rows if dim > 0)

    return Share(scopes, module, has_rows, 1.0 / devices, devices == 1, unknown)


def _splitting_sizes(program: Program) -> set[int]:
    return {
        leaf.shape[layout.axis]
        for leaf, layout in program.leaves()
        if layout.axis is not None and leaf.shape[layout.axis] > 1
    }
