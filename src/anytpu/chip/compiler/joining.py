"""Fusion of nodes: a table into the instruction that makes its input, a concatenation's input into the whole."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from anytpu.chip.compiler.cutting import ChannelCuts
from anytpu.chip.compiler.planes import structure_for
from anytpu.chip.graph.nodes import (
    Concatenate,
    Convolution,
    Elementwise,
    Network,
    Node,
    Pool,
    Reshape,
    Slice,
    Table,
)
from anytpu.chip.isa.design import Design

_MAKERS = Convolution | Elementwise | Pool | Table

MAX_SHARED_ROWS = 24
"""Maximum rows that channels of several tensors share: each row is a range of its own for compiler and checker.

For an LSTM these then take at most 1.5 times as long; 2 times with 64 rows."""


def fusable_tables(network: Network, makers: Any = Convolution | Elementwise | Pool) -> dict[str, Table]:
    """Return the tables that can be fused into the instruction that makes their input, by the input tensor.

    The table must be the only user of its input, and have as many bits.

    Args:
        network: the network.
        makers: the kinds of nodes that make the inputs.
    """
    uses = Counter(name for node in network.nodes for name in node.inputs)
    uses.update(port.tensor for port in network.outputs)
    nodes = {node.output: node for node in network.nodes}
    tables = {}
    for node in network.nodes:
        if not isinstance(node, Table) or uses[node.inputs[0]] != 1:
            continue
        bits = {network.quantizations[name].bits for name in (node.inputs[0], node.output)}
        if isinstance(nodes.get(node.inputs[0]), makers) and len(bits) == 1:
            tables[node.inputs[0]] = node
    return tables


def written_in_place(network: Network, shared: Collection[str] = ()) -> dict[str, tuple[str, int, int]]:
    """Return the tensors that are written directly into a concatenation: its output, first position and channel there.

    The concatenation must be along the height, or along the width of a sequence. Each input is then a range of rows.
    One of channels must be in `shared`; each input is then a range of lanes. It must be the first to take the input and
    take it once. A copy reads whole rows, and the lanes beside it are written last.
    """
    makers = {node.output: node for node in network.nodes}
    first_uses = {port.tensor: "" for port in network.outputs}
    for node in network.nodes:
        for name in node.inputs:
            first_uses.setdefault(name, node.output)
    parts: dict[str, tuple[str, int, int]] = {}
    for node in network.nodes:
        if not isinstance(node, Concatenate) or (node.axis == 2 and node.output not in shared):
            continue
        if node.axis == 1 and network.shapes[node.output][0] > 1:
            continue
        first = channel = 0
        for name in node.inputs:
            height, width, channels = network.shapes[name]
            origin = _origin(name, makers, network)
            is_first = first_uses[name] == node.output and node.inputs.count(name) == 1
            if node.axis == 2 and (origin != name or not is_first):
                origin = None
            if origin is not None and origin not in parts:
                parts[origin] = (node.output, first, channel)
            if node.axis == 2:
                channel += channels
            else:
                first += height * width
    return parts


def shared_rows(network: Network, cuts: ChannelCuts, batch: int, design: Design) -> set[str]:
    """Return the concatenations of channels whose copy takes less time than the passes that it saves.

    Only products of one position take them. Each input is a pass for each block of outputs, unless their channels share
    rows.
    """
    users: dict[str, list[Node]] = {}
    for node in network.nodes:
        for name in node.inputs:
            users.setdefault(name, []).append(node)
    outputs, shared = {port.tensor for port in network.outputs}, set[str]()
    for node in network.nodes:
        if not isinstance(node, Concatenate) or node.axis != 2 or node.output in outputs:
            continue
        height, width, channels = network.shapes[node.output]
        products = [user for user in users.get(node.output, ()) if isinstance(user, Convolution) and user.groups == 1]
        is_one = len(structure_for(channels, cuts.of(node.output), design.array)) == 1
        if (
            not is_one
            or height * width > 1
            or batch > MAX_SHARED_ROWS
            or len(products) < len(users.get(node.output, ()))
        ):
            continue
        blocks = -(-sum(product.weights.shape[3] for product in products) // design.array)
        saved = (len(node.inputs) - 1) * blocks * max(batch, design.array, design.tile_cycles)
        if saved > len(node.inputs) * batch:
            shared.add(node.output)
    return shared


def _origin(tensor: str, makers: dict[str, Node], network: Network) -> str | None:
    """Return the tensor that an instruction writes and `tensor` is a reshape of; None: no instruction writes it."""
    node = makers.get(tensor)
    while isinstance(node, Reshape) and network.shapes[node.inputs[0]][2] == network.shapes[tensor][2]:
        tensor = node.inputs[0]
        node = makers.get(tensor)
    return tensor if isinstance(node, _MAKERS) or (isinstance(node, Concatenate) and node.axis != 2) else None


def are_gates(network: Network, alike: Sequence[Sequence[Slice]]) -> bool:
    """Return whether slices of results are only looked up in tables, each in one of its own.

    As products, they look up the table in the instruction that makes them.
    """
    tables = fusable_tables(network, Slice)
    return all(part.output in tables for slices in alike for part in slices)


def joint_products(network: Network, array: int) -> dict[str, list[Convolution]]:
    """Return by the result of a convolution the convolutions after it that are made in the same tiles.

    They follow one another in the network, have the same input and geometry, and take fewer tiles side by side. All
    their results are in the Unified Buffer at once, so they have one position, or are parts of one layer.
    """
    joints: dict[str, list[Convolution]] = {}
    group: list[Convolution] = []
    for node in (*network.nodes, None):
        if isinstance(node, Convolution) and group and _is_joint(group[0], node, network):
            group.append(node)
            continue
        widths = [one.weights.shape[3] for one in group]
        if len(group) > 1 and group[0].groups == 1 and _has_room(widths, array):
            joints[group[0].output] = group[1:]
        group = [node] if isinstance(node, Convolution) else []
    return joints


def _is_joint(first: Convolution, other: Convolution, network: Network) -> bool:
    has_room = math.prod(network.shapes[first.output][:2]) == 1 or first.layer == other.layer != ""
    return has_room and _geometry(first) == _geometry(other)


def _geometry(node: Convolution) -> tuple[object, ...]:
    kernel = node.weights.shape[:3]
    return node.inputs, kernel, node.strides, node.dilation, node.padding, node.groups


def _has_room(widths: Sequence[int], array: int) -> bool:
    """Return whether two of some products fit in the columns that one takes."""
    rests = sorted(width % array for width in widths if width % array)
    return len(rests) > 1 and rests[0] + rests[1] <= array
