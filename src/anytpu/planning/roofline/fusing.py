"""`Kernel`: what a compiler would run as one piece; a guess at how it would fuse a program.

Idea: a compiler computes element-wise operations where their result is needed, so that their inputs and outputs never
reach the memory. What it cannot take apart (products, convolutions, reductions, gathers) reads its inputs and writes
its result. So the traffic of a step is about that of the pieces between.

Rule: an element-wise value is written to memory only when it is a result, or when several need it and reading what it
is made of again would take more than reading it. A product takes the element-wise operations after it along, where
nobody else wants the product itself. Whatever else a compiler does (layouts, multi-output fusions, memory on the chip)
is not modelled.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from anytpu.planning.roofline.node import INPUT, Node, Scope

ANCHORS = frozenset(
    [
        "dot",
        "convolution",
        "reduce",
        "reduce-window",
        "select-and-scatter",
        "scatter",
        "gather",
        "sort",
        "concatenate",
        "dynamic-update-slice",
        "custom-call",
        "while",
        "rng-bit-generator",
        "fft",
        "cholesky",
        "triangular-solve",
        "all-reduce",
        "all-gather",
        "reduce-scatter",
        "all-to-all",
        "collective-permute",
        "fusion",
        "infeed",
        "outfeed",
    ]
)
"""Operations that no compiler computes anew wherever they are needed."""

_FREE = frozenset({"constant", "iota"})
_INPUTS = frozenset({INPUT, "loop", "get-tuple-element"})
_ALONE = frozenset({"while", "custom-call", "sort", "scatter", "gather", "dynamic-update-slice", "select-and-scatter"})
_SMALL = 0.02
_PARTS = frozenset({"gather", "dynamic-slice", "slice"})


@dataclasses.dataclass(frozen=True, eq=False)
class Kernel:
    """A value that reaches the memory, and all that is computed for it on the way.

    Attributes:
        root: the value.
        product: the product that was taken along, or the root where it is one; else None.
        reads: the values in memory that it reads, and how many bytes of each.
        written_bytes: what it writes.
    """

    root: Node
    product: Node | None
    reads: Mapping[Node, float]
    written_bytes: float

    @property
    def main(self) -> Node:
        """What it is called by: its product, where it has one."""
        return self.product or self.root


def kernels_of(scope: Scope) -> list[Kernel]:
    """Return the kernels of a scope, in order; inputs are none, a loop stands for what its body does."""
    users = _user_counts(scope)
    results = set(scope.results)
    made_of: dict[Node, dict[Node, float]] = {}
    kept: dict[Node, dict[Node, float]] = {}
    for node in scope.nodes:
        if node.opcode in _FREE:
            made_of[node] = {}
            continue
        reads = _reads(node, made_of)
        if _is_kept(node, reads, users.get(node, 0), node in results):
            kept[node], made_of[node] = reads, {node: float(node.bytes)}
        else:
            made_of[node] = reads
    return _kernels(kept, results)


def _reads(node: Node, made_of: Mapping[Node, Mapping[Node, float]]) -> dict[Node, float]:
    """Return what computing a value reads from memory, its element-wise operands computed on the way."""
    if node.opcode in ("dynamic-update-slice", "scatter") and made_of[node.operands[0]]:
        operands = node.operands[1:]  # In place: what it changes is neither read nor written as a whole.
    else:
        operands = node.operands
    reads: dict[Node, float] = {}
    for operand in operands:
        for one, size_bytes in made_of[operand].items():
            reads[one] = max(reads.get(one, 0.0), size_bytes)
    most = float(node.bytes) if node.opcode in _PARTS else math.inf
    return {one: min(size_bytes, most) for one, size_bytes in reads.items()}


def _is_kept(node: Node, reads: Mapping[Node, float], users: int, is_result: bool) -> bool:
    if node.opcode in ANCHORS or node.opcode in _INPUTS or is_result:
        return True
    return users > 1 and sum(reads.values()) > node.bytes > 0


def _written_bytes(node: Node, reads: Mapping[Node, float]) -> float:
    if node.opcode == "dynamic-update-slice":
        return float(node.operands[1].bytes)
    if node.opcode == "scatter" and node.operands[0] not in reads and node.operands[0].opcode not in _FREE:
        return 2.0 * node.operands[-1].bytes
    return float(node.bytes)


def _user_counts(scope: Scope) -> dict[Node, int]:
    counts: dict[Node, int] = {}
    for node in scope.nodes:
        for operand in set(node.operands):
            counts[operand] = counts.get(operand, 0) + 1
    return counts


def _kernels(kept: Mapping[Node, dict[Node, float]], results: set[Node]) -> list[Kernel]:
    taken = _taken(kept, results)
    inside = set(taken.values())
    kernels = []
    for node, reads in kept.items():
        if node.opcode in _INPUTS or node in inside:
            continue
        product = taken.get(node)
        if product is not None:
            reads = {**{one: size for one, size in reads.items() if one is not product}, **kept[product]}
        elif node.flops:
            product = node
        kernels.append(Kernel(node, product, reads, _written_bytes(node, reads)))
    return kernels


def _taken(kept: Mapping[Node, dict[Node, float]], results: set[Node]) -> dict[Node, Node]:
    """Return for each element-wise kernel the product that is computed in it, as nobody else reads that."""
    readers: dict[Node, list[Node]] = {}
    for node, reads in kept.items():
        for one in reads:
            readers.setdefault(one, []).append(node)
    taken: dict[Node, Node] = {}
    for node in kept:
        alone = readers.get(node, [])
        if not node.flops or len(alone) != 1 or node in results:
            continue
        taker = alone[0]
        if taker.opcode not in ANCHORS and taker.opcode not in _INPUTS and taker not in taken:
            taken[taker] = node
    return taken


def siblings(kernels: list[Kernel]) -> set[Kernel]:
    """Return the kernels that are computed along with one before them, as they read the same and not each other."""
    first: dict[frozenset[Node], list[Kernel]] = {}
    beside: set[Kernel] = set()
    for kernel in kernels:
        if kernel.product is not None or kernel.root.opcode in _ALONE or not kernel.reads:
            continue
        largest = max(kernel.reads.values())
        same = first.setdefault(frozenset(one for one, size in kernel.reads.items() if size > _SMALL * largest), [])
        if same and not any(one.root in kernel.reads for one in same):
            beside.add(kernel)
        same.append(kernel)
    return beside
