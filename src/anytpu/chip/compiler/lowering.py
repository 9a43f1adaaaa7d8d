"""`Lowering`: nodes of a quantized network become jobs, by a function for each kind of node.

Idea: each kind of node has a registered function (`lower`). Their shared state is here: the layout of each tensor, the
jobs so far, the contents of the Weight Memory and of the host's buffer.

Rule: nothing here depends on the address of a storage in the Unified Buffer.
"""

from __future__ import annotations

import functools

from anytpu.chip.compiler.cutting import ChannelCuts
from anytpu.chip.compiler.jobs import Job
from anytpu.chip.compiler.joining import are_gates, fusable_tables, joint_products, shared_rows, written_in_place
from anytpu.chip.compiler.planes import (
    Layout,
    LayoutStructure,
    Storage,
    channels_of,
    place_planes,
    structure_for,
    structure_of,
)
from anytpu.chip.compiler.tables import TableSlots
from anytpu.chip.compiler.weight_memory import WeightMemory
from anytpu.chip.graph.nodes import Network, Node, Quantization
from anytpu.chip.graph.splitting import split_products
from anytpu.chip.image.image import Binding, Service
from anytpu.chip.isa.design import Design


class Lowering:
    """The state of lowering a network to jobs.

    Attributes:
        batch, design: as in `compile_image`.
        network: the network, in which gates are products of their own.
        cuts: the channels at which tensors are cut.
        fused: maps a tensor to the table that the instruction that makes it also looks up.
        parts: maps a tensor that is written into a concatenation to its output, first position and channel there.
        shared: concatenations of channels that are copied, so that their channels share rows.
        joints: maps the result of a convolution to those that are made side by side with it.
        joined: outputs of the convolutions that are made with another.
        memory: the Weight Memory.
        tables: the lookup tables.
        jobs: the jobs so far, in order.
        storages: the storages so far, by index.
        layouts: planes of each tensor.
        bindings: placement of tensors in the host's buffer, for those that are there.
        on_host: first byte in the host's buffer of each storage whose contents come from there.
        host_bytes: size of the host's buffer so far, in bytes.
        services: the host's steps.
    """

    def __init__(self, network: Network, batch: int, design: Design, by_content: bool, in_place: bool):
        self.batch, self.design = batch, design
        self.network = split_products(network, lambda alike: are_gates(network, alike)) if in_place else network
        self.cuts, self.fused = ChannelCuts(self.network), fusable_tables(self.network)
        # Without `in_place`, inputs of concatenations are copied, and each product is by itself.
        self.shared = shared_rows(self.network, self.cuts, batch, design) if in_place else set[str]()
        self.parts = written_in_place(self.network, self.shared) if in_place else {}
        self.joints = joint_products(self.network, design.array) if in_place else {}
        self.joined = {other.output for others in self.joints.values() for other in others}
        self.memory = WeightMemory(design, by_content=by_content)
        self.tables = TableSlots(self.memory)
        self.jobs: list[Job] = []
        self.storages: list[Storage] = []
        self.layouts: dict[str, Layout] = {}
        self.bindings: dict[str, Binding] = {}
        self.on_host: dict[int, int] = {}
        self.host_bytes = 0
        self.services: list[Service] = []

    def rows(self, tensor: str) -> int:
        """Return the rows of each plane of a tensor."""
        height, width, _ = self.network.shapes[tensor]
        return height * width * self.batch

    def channels(self, tensor: str) -> int:
        """Return the channels of a tensor."""
        return self.network.shapes[tensor][2]

    def quantization(self, tensor: str) -> Quantization:
        """Return the quantization of a tensor's integers."""
        return self.network.quantizations[tensor]

    def structure(self, tensor: str, *, compact: bool = False) -> LayoutStructure:
        """Return the assignment of a tensor's channels to planes, for a tensor whose layout is free."""
        return structure_for(self.channels(tensor), self.cuts.of(tensor), self.design.array, compact=compact)

    def make(self, tensor: str, structure: LayoutStructure, layer: str, bits: int = 0) -> Layout:
        """Return planes in a new storage.

        Args:
            tensor: the tensor that gives the number of rows.
            structure: the runs of each plane.
            layer: the layer that needs it, for messages.
            bits: bits of each number; 0: those of the tensor.
        """
        number = len(self.storages)
        layout, units = place_planes(number, structure, self.rows(tensor), bits or self.quantization(tensor).bits)
        self.storages.append(Storage(number, tensor, units, layer))
        return layout

    def bind(self, tensor: str, structure: LayoutStructure) -> Binding:
        """Return the tensor's location in the host's buffer, with as many channels in each plane as in `structure`."""
        if tensor not in self.bindings:
            lanes = tuple(sum(run.count for run in runs) for runs in structure)
            quantization = self.quantization(tensor)
            binding = Binding(tensor, self.network.shapes[tensor], quantization, self.host_bytes, lanes)
            self.bindings[tensor] = binding
            self.host_bytes += binding.total_bytes(self.batch)
        return self.bindings[tensor]

    def target(self, tensor: str, structure: LayoutStructure, layer: str, *, adaptable: bool = False) -> Layout:
        """Return the planes that a tensor is written to, and record them as its layout.

        Args:
            tensor: the tensor that is written.
            structure: the runs of its planes.
            layer: the layer that writes it, for messages.
            adaptable: whether the writer accepts other runs of the same channels.
        """
        if tensor in self.parts:
            whole, first, channel = self.parts[tensor]
            if whole not in self.layouts:
                is_shared = whole in self.shared
                self.target(whole, self.structure(whole) if is_shared else structure, layer, adaptable=adaptable)
            part = channels_of(self.layouts[whole], channel, channel + self.channels(tensor))
            if part is not None and (adaptable or structure_of(part) == structure):
                self.layouts[tensor] = tuple(plane.row(first * self.batch) for plane in part)
                return self.layouts[tensor]
        self.layouts[tensor] = self.make(tensor, structure, layer)
        return self.layouts[tensor]

    def inputs(self, node: Node) -> list[Layout]:
        """Return the layouts of the inputs of a node."""
        return [self.layouts[name] for name in node.inputs]


@functools.singledispatch
def lower(node: Node, lowering: Lowering) -> None:
    """Append the jobs of a node, and record the layout of its output."""
    raise NotImplementedError(f"{type(node).__name__} is no node of a quantized network")
