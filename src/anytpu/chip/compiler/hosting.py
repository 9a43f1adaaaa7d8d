"""Tensors exchanged with the host: inputs, outputs, and those of steps that the chip has no instruction for.

Rule: a tensor is in the host's buffer at most once, as compact planes. A tensor that came from the host need not be
written back to it.
"""

from __future__ import annotations

from anytpu.chip.compiler.jobs import ExportJob, HostServiceJob, storages_of
from anytpu.chip.compiler.lowering import Lowering, lower
from anytpu.chip.compiler.planes import is_compact, structure_of
from anytpu.chip.compiler.rearranging import compacted
from anytpu.chip.graph.nodes import HostStep, Node
from anytpu.chip.image.image import Service, Tag


def receive(tensor: str, layer: str, lowering: Lowering) -> frozenset[int]:
    """Declare that a tensor comes from the host's buffer, and return the storages that hold it on the chip."""
    structure = lowering.structure(tensor, compact=True)
    layout = lowering.target(tensor, structure, layer)
    binding = lowering.bind(tensor, structure)
    storages = storages_of([layout])
    lowering.on_host.update(dict.fromkeys(storages, binding.host_address))
    return storages


def export(tensor: str, node: Node, tag: Tag, lowering: Lowering) -> None:
    """Write a tensor to the host's buffer, unless it is already there."""
    if tensor in lowering.bindings:
        return
    layout = lowering.layouts[tensor]
    if not is_compact(layout):
        layout = compacted(tensor, node, lowering)
    binding = lowering.bind(tensor, structure_of(layout))
    lowering.jobs.append(
        ExportJob(tag, storages_of([layout]), frozenset(), layout, lowering.rows(tensor), binding.host_address)
    )


@lower.register
def _(node: HostStep, lowering: Lowering) -> None:
    layer = node.layer or node.name
    tag = Tag(node.name, node.layer, f"{node.kind} on the host", 0, f"on the host: {node.why}")
    known = lowering.network.quantizations
    for name in node.inputs:
        if name in known:
            export(name, node, tag, lowering)
    inputs = tuple(lowering.bindings.get(name) for name in node.inputs)
    results = receive(node.output, layer, lowering) if node.output in known else frozenset[int]()
    lowering.jobs.append(HostServiceJob(tag, frozenset(), frozenset(), len(lowering.services), results))
    lowering.services.append(Service(node, inputs, lowering.bindings.get(node.output)))
