"""`choose`: choose the quantization of every chip tensor, before any node is quantized.

A chip tensor is an input or an output of a node other than a host step. All other tensors stay in floating point.
Tensors that share one quantization form a group (`scale_groups.py`), and most passes decide per group. The passes are,
in order:

1. Form the initial groups: tensors that hold the same integers, choices by masks, and corresponding tensors of loops.
2. Join the inputs of each concatenation with its output. If a shared scale would be too coarse for an input, record a
   detour instead: a table requantizes that input for this concatenation only.
3. Choose the scale and the zero point of each group from its calibrated range. Groups of sigmoid or tanh outputs
   have fixed scales. Integer inputs get scale 1 if their values fit.
4. Choose a finer scale for a group that only functions (such as a sigmoid) take. Cut the ends of its range, at which
   the functions are constant.
5. With 16 bits, choose a coarser scale for a group that convolutions take, if an int32 sum could overflow. The group
   then uses fewer of its integers; `limits` has their bounds.
6. For each average pool whose int32 sum could overflow, record a detour. A table requantizes its input to a coarser
   scale, for this pool only.

The result is `QuantizationChoices`. `quantize` then makes the quantized nodes from it and decides nothing more.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping

import numpy as np

from anytpu.chip.graph.arithmetic import window_counts
from anytpu.chip.graph.nodes import (
    Concatenate,
    Convolution,
    Elementwise,
    Function,
    HostStep,
    Network,
    Node,
    Pool,
    Port,
    Quantization,
)
from anytpu.chip.quantized.ranges import Range, step
from anytpu.chip.quantized.scale_groups import initial_groups, keeps_integers
from anytpu.chip.quantized.scales import (
    FIXED,
    MIN_WIDTH,
    quantization_of,
    quantization_of_integers,
    without_flat_ends,
)
from anytpu.chip.quantized.weights import MAX_SUM, needed_bits
from anytpu.errors import QuantizationError

_TOLERATED = {8: 1.5, 16: 256.0}
"""By bits, the maximum ratio of a shared scale to the scale without sharing; above it a table requantizes."""

_MAX_VALUE = 1e20  # maximum absolute value in a tensor
_SPARE_BITS = 7  # maximum number of unused bits of a 16-bit tensor


@dataclasses.dataclass(frozen=True)
class QuantizationChoices:
    """The quantization of each chip tensor, and the requantizations between them.

    Attributes:
        quantizations: maps each chip tensor, and each new tensor of `detours`, to its quantization.
        limits: maps a tensor to its minimum and maximum integer, if it may not hold all integers of its type.
        detours: maps (name of a Concatenate or average pool, one of its inputs) to a new tensor. The node takes the
            new tensor instead: the input, requantized by a table.
    """

    quantizations: Mapping[str, Quantization]
    limits: Mapping[str, tuple[int, int]]
    detours: Mapping[tuple[str, str], str]


def tensors_of_chip(network: Network) -> list[str]:
    """Return the names of the inputs and outputs of all nodes other than host steps."""
    held = {}
    for node in network.nodes:
        if not isinstance(node, HostStep):
            held.update(dict.fromkeys((*node.inputs, node.output)))
    return list(held)


def choose(network: Network, ranges: Mapping[str, Range], bits: int) -> QuantizationChoices:
    """Choose the quantization of each chip tensor, by the passes listed in the module docstring.

    Args:
        network: the float network.
        ranges: maps each chip tensor to the range of values that its integers should cover.
        bits: bits per activation, 8 or 16.

    Raises:
        QuantizationError: a tensor's values are too large or too small for a float32 scale. Also: an integer input of
            the host would lose exactness, or the sum of an average pool overflows int32.
    """
    return _Chooser(network, ranges, bits).choose()


class _Chooser:
    """The state of the passes.

    Attributes:
        network: the float network.
        ranges: maps each chip tensor to the range that its integers should cover.
        bits: bits per activation, 8 or 16.
        makers: maps a tensor to the node whose output it is; inputs of the network are absent.
        users: maps a tensor to the nodes that take it as an input.
        ports: maps a tensor to the network input that it is.
        outputs: tensors that are outputs of the network.
        scale_groups: the partition of the chip tensors into groups; pass 2 joins more of them.
        group_ranges: maps a group to the union of its members' ranges.
        only_concatenated: cache of `is_only_concatenated`, by group and its number of members.
        stand_ins: ranges for tensors that were 0 in all examples.
    """

    def __init__(self, network: Network, ranges: Mapping[str, Range], bits: int):
        self.network, self.ranges, self.bits = network, ranges, bits
        self.makers = {node.output: node for node in network.nodes}
        self.users: dict[str, list[Node]] = {name: [] for name in network.shapes}
        for node in network.nodes:
            for name in node.inputs:
                self.users[name].append(node)
        self.ports = {port.tensor: port for port in network.inputs}
        self.outputs = {port.tensor for port in network.outputs}
        self.scale_groups = initial_groups(network, ranges)
        self.group_ranges = {group: self.covered(names) for group, names in self.scale_groups.members.items()}
        self.only_concatenated: dict[tuple[str, int], bool] = {}
        self.stand_ins = _stand_ins(network, ranges)

    def choose(self) -> QuantizationChoices:
        # Pass 1 is in __init__. 2. Join groups at concatenations.
        detours = self.join_concatenations()
        members = self.scale_groups.members
        # 3. Scales and zero points.
        chosen = {group: self.quantization(names) for group, names in members.items()}
        # 4. Finer scales where only functions use the tensors.
        chosen |= {group: self.trimmed(names, chosen) for group, names in members.items()}
        # 5. Coarser scales where an int32 sum could overflow.
        spare_bits = {group: self.spare_bits(names, chosen[group]) for group, names in members.items()}
        scale_groups = {name: self.scale_groups.of(name) for name in self.ranges}
        scale_groups |= {new: self.scale_groups.of(node.output) for (node, _), new in detours.items()}
        quantizations = {name: _coarser(chosen[group], spare_bits[group]) for name, group in scale_groups.items()}
        limits = {
            name: (chosen[group].low >> spare, chosen[group].high >> spare)
            for name, group in scale_groups.items()
            if (spare := spare_bits[group])
        }
        # 6. Coarser inputs of average pools whose int32 sum could overflow.
        renamed = {(node.name, name): new for (node, name), new in detours.items()}
        for node in self.network.nodes:
            if isinstance(node, Pool) and node.kind == "average":
                _make_room(node, self.network, (quantizations, limits, renamed))
        return QuantizationChoices(quantizations, limits, renamed)

    # Pass 2: concatenations.

    def join_concatenations(self) -> dict[tuple[Concatenate, str], str]:
        """Join the inputs of each Concatenate with its output, or record a detour.

        Returns:
            Maps (node, input) to the name of the requantized tensor, for each input that stays in another group.
        """
        detours, group_of = {}, self.scale_groups.of
        for node in self.network.nodes:
            if isinstance(node, Concatenate):
                parts = self.covered(node.inputs)
                for name in dict.fromkeys(node.inputs):
                    if group_of(name) == group_of(node.output) or self.may_join(name, node.output, parts):
                        self.join(name, node.output)
                    else:
                        detours[node, name] = f"{name}/as {node.output}"
        return {(node, name): new for (node, name), new in detours.items() if group_of(name) != group_of(node.output)}

    def may_join(self, name: str, whole: str, parts: Range) -> bool:
        """Return whether an input may share the quantization of a concatenation, whose inputs cover `parts`.

        The shared step may exceed that of the concatenation by at most `_TOLERATED`. It may also exceed the input's own
        step by at most that ratio, unless only concatenations take the input's group.
        """
        own, others = (
            self.group_ranges[self.scale_groups.of(name)],
            self.group_ranges[self.scale_groups.of(whole)].union(parts),
        )
        maximum = self.step(own.union(others)) / _TOLERATED[self.bits]
        return maximum <= self.step(others) and (
            maximum <= self.step(own) or self.is_only_concatenated(self.scale_groups.of(name))
        )

    def join(self, name: str, whole: str) -> None:
        """Join the groups of two tensors."""
        union = self.group_ranges[self.scale_groups.of(name)].union(self.group_ranges[self.scale_groups.of(whole)])
        self.scale_groups.join([whole, name])
        self.group_ranges[self.scale_groups.of(whole)] = union

    def is_only_concatenated(self, group: str) -> bool:
        """Return whether only Concatenate nodes take the tensors of a group, and no output delivers them."""
        # A group only grows, so its number of members identifies its set of members.
        key = group, len(self.scale_groups.members[group])
        if key not in self.only_concatenated:
            own = set(self.scale_groups.members[group])
            users = [user for member in own for user in self.users[member] if user.output not in own]
            self.only_concatenated[key] = (
                all(isinstance(user, Concatenate) for user in users) and not self.outputs & own
            )
        return self.only_concatenated[key]

    def step(self, covered: Range) -> float:
        """Return the real difference between consecutive integers that cover a range."""
        return float(step(covered.low, covered.high, self.bits))

    def covered(self, names: Iterable[str]) -> Range:
        return functools.reduce(Range.union, (self.ranges[name] for name in names))

    # Passes 3 and 4: scale and zero point.

    def quantization(self, names: list[str]) -> Quantization:
        """Return the quantization of a group.

        It is fixed for sigmoid and tanh outputs, exact for a single integer input if it fits, else from the range.
        """
        covered = self.covered(names)
        if max(-covered.low, covered.high) > _MAX_VALUE:
            raise QuantizationError(self.beyond(names, f"ends at {_MAX_VALUE:g}: scale them down"))
        if 0 < covered.high - covered.low < MIN_WIDTH:
            raise QuantizationError(self.beyond(names, f"begins at {MIN_WIDTH:g}: scale them up"))
        sources = self.sources(names)
        kinds = {node.kind if isinstance(node := self.makers.get(name), Function) else "" for name in sources}
        if len(kinds) == 1 and (fixed := FIXED.get((self.bits, kinds.pop()))):
            return fixed
        integers = [port for name in sources if (port := self.ports.get(name)) and np.dtype(port.dtype).kind in "iub"]
        self.check_indices(names, integers)
        if integers and len(sources) == 1:
            exact = quantization_of_integers(np.dtype(integers[0].dtype), covered, self.bits)
            return exact or quantization_of(covered, self.bits)
        if covered.high == covered.low:
            covered = functools.reduce(Range.union, (self.stand_ins[name] for name in names))
        return quantization_of(covered, self.bits)

    def sources(self, names: Iterable[str]) -> list[str]:
        """Return the members that no slice, reshape, max pool or concatenation makes."""
        makers = {name: self.makers.get(name) for name in names}
        return [name for name, node in makers.items() if not (node and _passes_on(node))]

    def check_indices(self, names: list[str], ports: list[Port]) -> None:
        """Refuse an integer input of over 8 bits that both chip and host take: indices would lose exactness."""
        users = [user for name in names for user in self.users[name]]
        hosts = [user for user in users if isinstance(user, HostStep)]
        for port in ports:
            if hosts and np.dtype(port.dtype).itemsize > 1:
                chips = [user for user in users if not isinstance(user, HostStep)]
                raise QuantizationError(
                    f"input {port.tensor!r} of {port.dtype} is taken by the host, for layer {_named(hosts[0])}, and by "
                    f"the chip, for layer {_named(chips[0])}, whose {self.bits} bits cannot hold them all: give the "
                    f"model this input twice, once for each"
                )

    def beyond(self, names: list[str], bound: str) -> str:
        name = max(names, key=lambda name: max(-self.ranges[name].low, self.ranges[name].high))
        covered, node = self.ranges[name], self.makers.get(name)
        where = f"layer {_named(node)} gives" if node else f"input {name!r} has"
        return f"{where} numbers from {covered.low:.3g} to {covered.high:.3g}, and what the chip scales {bound}"

    def trimmed(self, names: list[str], chosen: Mapping[str, Quantization]) -> Quantization:
        """Return the quantization of a group; finer if only functions take it and they are flat at the ends."""
        own, members = chosen[self.scale_groups.of(names[0])], set(names)
        users = [user for name in names for user in self.users[name] if user.output not in members]
        functions = [user for user in users if isinstance(user, Function)]
        if not functions or len(functions) < len(users) or self.outputs & members or members & set(self.ports):
            return own
        covered = self.covered(names)
        if covered.high == covered.low:
            return own
        distinct = {(user.kind, self.scale_groups.of(user.output)): user for user in functions}
        steps = [(user, chosen[group].scale) for (_, group), user in distinct.items()]
        parts = [without_flat_ends(covered, user.apply, width) for user, width in steps]
        part = functools.reduce(Range.union, parts)
        return own if part.high - part.low < MIN_WIDTH else quantization_of(part, self.bits)

    # Pass 5: overflow of int32 sums.

    def spare_bits(self, names: list[str], own: Quantization) -> int:
        """Return the number of bits that a 16-bit group leaves unused, so that no convolution overflows int32.

        A network input, a host step or an average pool may produce any integer. A group with such a member leaves no
        bits unused, and `quantize_weights` chooses coarser weight scales instead.
        """
        makers = [self.makers.get(name) for name in self.sources(names)]
        if self.bits == 8 or not all(isinstance(node, Convolution | Elementwise | Function) for node in makers):
            return 0
        products = [user for name in names for user in self.users[name] if isinstance(user, Convolution)]
        distinct = {id(node.weights): node for node in products}.values()
        bounds = (own.low, own.high)
        needed = [needed_bits(node.weights, node.bias, own.scale, bounds) for node in distinct]
        return min(max(needed, default=0), _SPARE_BITS)


def _stand_ins(network: Network, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """Return the range of each tensor, with a guess for tensors that were 0 in all examples.

    The guess is [-m, m], where m is the maximum absolute value in the ranges of the inputs of the node that makes the
    tensor. For a network input it is [-1, 1].
    """
    guesses = {name: covered if covered.high > covered.low else Range(-1.0, 1.0) for name, covered in ranges.items()}
    for node in network.nodes:
        if node.output in ranges and ranges[node.output].high == ranges[node.output].low:
            taken = functools.reduce(Range.union, (guesses.get(name, Range()) for name in node.inputs), Range())
            magnitude = max(-taken.low, taken.high) or 1.0
            guesses[node.output] = Range(-magnitude, magnitude)
    return guesses


def _coarser(own: Quantization, spare_bits: int) -> Quantization:
    return dataclasses.replace(own, scale=own.scale * 2**spare_bits)


def _make_room(
    node: Pool,
    network: Network,
    choices: tuple[dict[str, Quantization], dict[str, tuple[int, int]], dict[tuple[str, str], str]],
) -> None:
    """Pass 6: give an average pool a requantized input of coarser scale, if its sum could overflow int32."""
    quantizations, limits, detours = choices
    name, own = node.inputs[0], quantizations[node.inputs[0]]
    low, high = limits.get(name, (own.low, own.high))
    shapes = network.shapes[name], network.shapes[node.output]
    count = int(window_counts(node.window, node.strides, node.padding, *shapes).max(initial=0))
    magnitude = max(high - own.zero_point, own.zero_point - low)
    spare_bits = next(bits for bits in range(64) if count * (magnitude >> bits) <= MAX_SUM)
    if spare_bits > (_SPARE_BITS if own.bits == 16 else 0):
        maximum = MAX_SUM // (magnitude if own.bits == 8 else magnitude >> _SPARE_BITS)
        raise QuantizationError(
            f"layer {_named(node)} averages {count:,} positions at once, and sums of 32 bits hold {maximum:,} of "
            f"{own.bits} bits: average smaller windows first, then what they give"
        )
    if spare_bits:
        detours[node.name, name] = new = f"{name}/as {node.output}"
        quantizations[new], limits[new] = _coarser(own, spare_bits), (low >> spare_bits, high >> spare_bits)


def _passes_on(node: Node) -> bool:
    return keeps_integers(node) or isinstance(node, Concatenate)


def _named(node: Node) -> str:
    return repr(node.layer or node.name)
