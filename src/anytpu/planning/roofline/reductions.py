"""What the devices have to add up between them, and how long that takes.

Idea: in data-parallel training each device has the gradient of its own rows; the sum over all devices is what a step
needs. Compilers join the sums of all gradients to one; those of the forward pass (a mean over a batch) come one by one.
"""

from __future__ import annotations

from anytpu.planning.hlo import layer_of
from anytpu.planning.records import OpTime
from anytpu.planning.roofline.node import Node
from anytpu.planning.roofline.share import Share
from anytpu.planning.target import Target
from anytpu.planning.timing.rates import rates_of
from anytpu.planning.timing.torus import span_of


def reductions(share: Share, target: Target) -> list[OpTime]:
    """Return the sums over the devices: those of weights' gradients together, as compilers join them; others each."""
    if target.devices == 1:
        return []
    summed = [node for scope in share.scopes for node in scope.nodes if share.is_summed(node)]
    gradients = [node for node in summed if node.flops or node.opcode == "scatter" or _is_backward(node)]
    others = [node for node in summed if node not in set(gradients)]
    ops = [_all_reduce("gradients", gradients, target)] if gradients else []
    return ops + [_all_reduce(node.name, [node], target) for node in others]


def _is_backward(node: Node) -> bool:
    return node.instruction is not None and layer_of(node.instruction.op_name).is_backward


def _all_reduce(name: str, nodes: list[Node], target: Target) -> OpTime:
    size_bytes = sum(node.bytes for node in nodes)
    path = nodes[0].instruction.op_name if len(nodes) == 1 and nodes[0].instruction else ""
    layer, is_backward = layer_of(path) if path else ("", len(nodes) > 1)
    return OpTime(
        f"all-reduce {name}",
        "all-reduce",
        "collective",
        all_reduce_s(size_bytes, target),
        bytes=float(size_bytes),
        layer=layer,
        is_backward=is_backward,
        bound="network",
        priced_by="roofline",
    )


def all_reduce_s(size_bytes: float, target: Target) -> float:
    """Return how long adding up arrays over all devices takes: over the links between chips, in a chip's memory."""
    rates = rates_of(target)
    span = span_of(target, tuple(range(target.devices)))
    if span.chips <= 1:
        return rates.start_s + 2 * size_bytes / rates.streaming_bytes_per_s
    taken_in = 2 * size_bytes * (span.chips - 1) / span.chips
    latency_s = rates.collective_start_s + 2 * span.hops * rates.hop_s
    return latency_s + taken_in / (span.links * rates.link_bytes_per_s * rates.reduce_share)
