"""`memory_estimate`: what lies in a device's memory when a step needs most of it, reckoned from the Program.

Idea: the state and the batch lie there all the time, the new state takes the place of the old. What a kernel writes
lies there until it is read for the last time: what the forward pass leaves for the backward pass adds up, which is
what fills a memory in training.

Rule: kernels run in the order in which the program was traced, without padding, and the compiler's own choices
(recomputing, sharing of room) are not known: an estimate, an upper bound in most cases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from anytpu.planning.hlo import layer_of
from anytpu.planning.records import Buffer
from anytpu.planning.roofline.fusing import Kernel
from anytpu.planning.roofline.node import Node, Scope

_LARGEST = 50


def temporaries(
    scopes: Mapping[Node | None, Scope],
    kernels: Mapping[Node | None, list[Kernel]],
    bytes_of: Callable[[Node], float],
    loop: Node | None = None,
) -> tuple[float, list[Node]]:
    """Return the most that temporaries take at a time, and which they are then.

    Args:
        scopes: the program, by None, and each loop's body, by the loop.
        kernels: those of each scope.
        bytes_of: the size of a value on one device.
        loop: which scope; None is the program.
    """
    scope = scopes[loop]
    last = _last_uses(scope, kernels[loop])
    results = set(scope.results)
    by_root = {kernel.root: kernel for kernel in kernels[loop]}
    live: dict[Node, float] = {}
    live_bytes, most, at_most = 0.0, 0.0, list[Node]()
    for position, node in enumerate(scope.nodes):
        inside, within = temporaries(scopes, kernels, bytes_of, node) if node in scopes else (0.0, [])
        is_temporary = node in by_root or (node.opcode == "loop")
        if is_temporary and (node not in results or loop is not None):
            live[node] = bytes_of(node)
            live_bytes += live[node]
        if live_bytes + inside > most:
            most, at_most = live_bytes + inside, [*live, *within]
        for gone in last.get(position, ()):
            live_bytes -= live.pop(gone, 0.0)
    return most, at_most


def _last_uses(scope: Scope, kernels: list[Kernel]) -> dict[int, list[Node]]:
    """Return for each position the values that nothing after it reads."""
    position = {node: number for number, node in enumerate(scope.nodes)}
    last: dict[Node, int] = {}
    for kernel in kernels:
        for one in (*kernel.reads, kernel.root):
            last[one] = max(last.get(one, 0), position[kernel.root])
    for node in scope.nodes:
        if node.opcode in ("while", "loop"):
            for one in node.operands:
                last[one] = max(last.get(one, 0), position[node])
    for node in scope.results:
        last[node] = len(scope.nodes)
    ends: dict[int, list[Node]] = {}
    for node, number in last.items():
        ends.setdefault(number, []).append(node)
    return ends


def buffers(live: list[Node], bytes_of: Callable[[Node], float]) -> list[Buffer]:
    """Return the largest temporaries as buffers, largest first."""
    largest = sorted(live, key=lambda node: -bytes_of(node))[:_LARGEST]
    return [_buffer(node, round(bytes_of(node))) for node in largest if bytes_of(node) > 0]


def _buffer(node: Node, size_bytes: int) -> Buffer:
    path = node.instruction.op_name if node.instruction else ""
    layer = layer_of(path).layer if path else ""
    shape = node.shapes[0]
    name = f"{layer or path.rpartition('/')[2] or node.name} output"
    return Buffer(name, "temporary", size_bytes, size_bytes, f"{shape.dtype}[{','.join(map(str, shape.dims))}]", layer)
