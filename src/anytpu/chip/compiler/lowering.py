"""`Lowering`: nodes of a quantized network become jobs, one kind of node a function.

Idea: the functions are registered for their kind of node (`lower`), and all that they share is here: where each tensor
lies, the jobs made so far, what lies in the Weight Memory and in the host's buffer.

Rule: nothing here depends on where a storage will lie in the Unified Buffer.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Hashable

import numpy as np

from anytpu.chip.compiler.cutting import Cuts
from anytpu.chip.compiler.jobs import Job, Settings
from anytpu.chip.compiler.joining import fusable, written_in_place
from anytpu.chip.compiler.planes import Layout, Storage, Structure, place, structure_for, structure_of
from anytpu.chip.compiler.tables import Tables
from anytpu.chip.compiler.tiles import digest
from anytpu.chip.compiler.weight_memory import WeightMemory
from anytpu.chip.design import Design
from anytpu.chip.image import Binding, Service
from anytpu.chip.isa.registers import Register
from anytpu.chip.network.nodes import Node
from anytpu.chip.quantized.nodes import (
    Quantization,
    QuantizedNetwork,
)


@dataclasses.dataclass(frozen=True)
class Result:
    """What a node is to make, with the table that is looked up in the same instruction, if any.

    Attributes:
        tensor: what is made: the node's output, or the table's.
        kind: of the table; "" without one.
        settings: the registers that the end of an Activate needs.
        wide: of 16 bits.
        table: whether a table is looked up.
    """

    tensor: str
    kind: str
    settings: Settings
    wide: bool
    table: bool


class Lowering:
    """A network on its way to jobs.

    Attributes:
        network, batch, design, convolution: what is compiled, and how.
        by_content: what lies in the Weight Memory is compared by content; else arrays are compared by identity.
        cuts: where channels are cut.
        memory: the Weight Memory.
        tables: the tables that are looked up.
        jobs: so far.
        storages: by their numbers.
        layouts: where each tensor lies.
        bindings: where tensors lie in the host's buffer, those that do.
        on_host: the storages whose contents come from the host's buffer, and from which byte on.
        host_bytes: of the host's buffer, so far.
        services: the host's steps.
        parts: tensors that are written as a part of another one, with that and the first position.
        fused: tables that are looked up by the instruction that makes what they take, by the name of that.
    """

    def __init__(
        self, network: QuantizedNetwork, batch: int, design: Design, convolution: str, by_content: bool, in_place: bool
    ):
        self.network, self.batch, self.design, self.convolution = network, batch, design, convolution
        self.by_content = by_content
        self.cuts = Cuts(network)
        self.memory = WeightMemory(design)
        self.tables = Tables(self.memory)
        self.jobs: list[Job] = []
        self.storages: list[Storage] = []
        self.layouts: dict[str, Layout] = {}
        self.bindings: dict[str, Binding] = {}
        self.on_host: dict[int, int] = {}
        self.host_bytes = 0
        self.fused = fusable(network)
        self.parts = written_in_place(network) if in_place else {}
        self._digests: dict[int, bytes] = {}
        self.services: list[Service] = []

    def rows(self, tensor: str) -> int:
        """Return the rows of each plane of a tensor."""
        height, width, _ = self.network.shapes[tensor]
        return height * width * self.batch

    def channels(self, tensor: str) -> int:
        """Return the channels of a tensor."""
        return self.network.shapes[tensor][2]

    def quantization(self, tensor: str) -> Quantization:
        """Return what the integers of a tensor stand for."""
        return self.network.quantizations[tensor]

    def structure(self, tensor: str, *, compact: bool = False) -> Structure:
        """Return how the channels of a tensor are put in planes where it can be chosen."""
        return structure_for(self.channels(tensor), self.cuts.of(tensor), self.design.array, compact=compact)

    def make(self, tensor: str, structure: Structure, layer: str, bits: int = 0) -> Layout:
        """Return planes in a new storage.

        Args:
            tensor: whose rows they have.
            structure: the runs of each.
            layer: who wants it.
            bits: of each number; 0: those of the tensor.
        """
        number = len(self.storages)
        layout, units = place(number, structure, self.rows(tensor), bits or self.quantization(tensor).bits)
        self.storages.append(Storage(number, tensor, units, layer))
        return layout

    def bind(self, tensor: str, structure: Structure) -> Binding:
        """Return where a tensor lies in the host's buffer, with as many channels in each plane as in `structure`."""
        if tensor not in self.bindings:
            lanes = tuple(sum(run.count for run in runs) for runs in structure)
            quantization = self.quantization(tensor)
            binding = Binding(tensor, self.network.shapes[tensor], quantization, self.host_bytes, lanes)
            self.bindings[tensor] = binding
            self.host_bytes += binding.total_bytes(self.batch)
        return self.bindings[tensor]

    def target(self, tensor: str, structure: Structure, layer: str, *, adaptable: bool = False) -> Layout:
        """Return the planes that a tensor is written to, and remember that it lies there.

        Args:
            tensor: what is written.
            structure: the runs of its planes.
            layer: who writes it.
            adaptable: other runs of the same channels are as good.
        """
        if tensor in self.parts:
            whole, first = self.parts[tensor]
            if whole not in self.layouts:
                self.target(whole, structure, layer, adaptable=adaptable)
            place = self.layouts[whole]
            if adaptable or structure_of(place) == structure:
                self.layouts[tensor] = tuple(plane.row(first * self.batch) for plane in place)
                return self.layouts[tensor]
        self.layouts[tensor] = self.make(tensor, structure, layer)
        return self.layouts[tensor]

    def result(self, node: Node, low: int | None = None, high: int | None = None) -> Result:
        """Return what a node is to make, clipped to `low` and `high` (None: to the range of its integers)."""
        own, table = self.quantization(node.output), self.fused.get(node.output)
        settings: dict[Register, int | float] = {
            Register.OUT_ZERO_POINT: own.zero_point,
            Register.LOW: own.low if low is None else low,
            Register.HIGH: own.high if high is None else high,
        }
        if table is None:
            return Result(node.output, "", settings, own.bits == 16, False)
        settings[Register.TABLE] = self.tables.slot(table.table, own.bits == 16, table.layer or table.name)
        return Result(table.output, table.kind, settings, own.bits == 16, True)

    def identity(self, array: np.ndarray) -> Hashable:
        """Return what tells an array from others: its content, or where only time is asked for, which object it is."""
        if not self.by_content:
            return id(array)
        if id(array) not in self._digests:
            self._digests[id(array)] = digest(array)
        return self._digests[id(array)]

    def inputs(self, node: Node) -> list[Layout]:
        """Return where the inputs of a node lie."""
        return [self.layouts[name] for name in node.inputs]


@functools.singledispatch
def lower(node: Node, lowering: Lowering) -> None:
    """Make the jobs of a node, and say where its output lies."""
    raise NotImplementedError(f"{type(node).__name__} is no node of a quantized network")
