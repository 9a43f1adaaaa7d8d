"""`memory_estimate`: what lies in a device's memory when a step needs most of it, reckoned from the Program.

Idea: the state and the batch lie there all the time, the new state takes the place of the old. What a kernel writes
lies there until it is read for the last time: what the forward pass leaves for the backward pass adds up, which is
what fills a memory in training.

Rule: of the kernels that could run next the one goes first after which least lies in memory, which is about what a
compiler aims at. Padding, recomputing and other choices of a compiler are not known: an estimate.
"""

from __future__ import annotations

import heapq
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
    room = _Room(scopes[loop], kernels[loop], bytes_of)
    most, at_most = 0.0, list[Node]()
    while (kernel := room.next()) is not None:
        inside, within = 0.0, list[Node]()
        if kernel.root in scopes:
            inside, within = temporaries(scopes, kernels, bytes_of, kernel.root)
        taken = room.run(kernel) + inside
        if taken > most:
            most, at_most = taken, [*room.live, *within]
        room.drop(kernel)
    return most, at_most


class _Room:
    """What lies in memory while kernels run."""

    def __init__(self, scope: Scope, kernels: list[Kernel], bytes_of: Callable[[Node], float]) -> None:
        self._bytes_of = bytes_of
        self._results = set(scope.results)  # They take the place of what was there before.
        self._loops: dict[Node, list[Node]] = {}
        for node in scope.nodes:
            if node.opcode == "loop":
                self._loops.setdefault(node.operands[0], []).append(node)
        self._readers: dict[Node, set[Kernel]] = {}
        for kernel in kernels:
            for one in kernel.reads:
                self._readers.setdefault(one, set()).add(kernel)
        made = {one for kernel in kernels for one in self._made_by(kernel)}
        self._waiting = {kernel: made & set(kernel.reads) for kernel in kernels}
        self.live: dict[Node, float] = {}
        self._live_bytes = 0.0
        self._order = {kernel: number for number, kernel in enumerate(kernels)}
        self._ready: list[tuple[float, int, Kernel]] = []
        for kernel, missing in self._waiting.items():
            if not missing:
                self._push(kernel)

    def _made_by(self, kernel: Kernel) -> list[Node]:
        return self._loops.get(kernel.root, []) if kernel.root.opcode == "while" else [kernel.root]

    def next(self) -> Kernel | None:
        """Return the kernel that runs next, or None at the end."""
        while self._ready:
            kernel = heapq.heappop(self._ready)[2]
            if self._waiting.pop(kernel, None) is not None:
                return kernel
        return None

    def _push(self, kernel: Kernel) -> None:
        """Note that a kernel can run, and by how much more lies in memory after it."""
        growth = self._written_bytes(kernel) - self._dying_bytes(kernel)
        heapq.heappush(self._ready, (growth, self._order[kernel], kernel))

    def _written_bytes(self, kernel: Kernel) -> float:
        return sum(self._bytes_of(one) for one in self._made_by(kernel) if one not in self._results)

    def _dying_bytes(self, kernel: Kernel) -> float:
        """Return the bytes that nobody reads any more after a kernel."""
        return sum(self.live[one] for one in kernel.reads if one in self.live and len(self._readers[one]) == 1)

    def run(self, kernel: Kernel) -> float:
        """Run a kernel; return what lies in memory meanwhile."""
        # An element-wise kernel, and a loop, write where something lay that nobody reads any more.
        reused = 0.0 if kernel.product else min(self._written_bytes(kernel), self._dying_bytes(kernel))
        for one in self._made_by(kernel):
            if one not in self._results:
                self.live[one] = self._bytes_of(one)
                self._live_bytes += self.live[one]
        return self._live_bytes - reused

    def drop(self, kernel: Kernel) -> None:
        """Drop what no kernel reads any more, and see which can run now."""
        made = self._made_by(kernel)
        for one in kernel.reads:
            self._readers[one].discard(kernel)
        for one in (*kernel.reads, *made):
            if not self._readers.get(one):
                self._live_bytes -= self.live.pop(one, 0.0)
        for one in made:
            for reader in self._readers.get(one, ()):
                self._waiting[reader].discard(one)
        changed = {reader for one in made for reader in self._readers.get(one, ())}
        # Who is the last to read something makes more room than before.
        changed |= {reader for one in kernel.reads if len(self._readers[one]) == 1 for reader in self._readers[one]}
        for reader in changed:
            if reader in self._waiting and not self._waiting[reader]:
                self._push(reader)


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
