"""`Choices`: what is decided about each tensor before a node is touched.

Idea: deciding is apart from doing. Here each tensor gets its quantization, what is laid side by side is brought to one,
and where 16-bit numbers could make a sum too great the tensor gets coarser steps and uses fewer of its integers; before
a wide average, a table does so for the average alone.
`quantize` then only carries it out.

Rule: tensors are decided family by family (`families.py`). A tensor of the chip is one that a node other than a host's
step takes or makes; the others stay as they are.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping

import numpy as np

from anytpu.chip.network.nodes import (
    Concatenate,
    Convolution,
    Elementwise,
    Function,
    HostStep,
    Network,
    Node,
    Pool,
    Port,
)
from anytpu.chip.quantized.families import keeps_integers, starting_families
from anytpu.chip.quantized.multipliers import window_counts
from anytpu.chip.quantized.nodes import Quantization
from anytpu.chip.quantized.ranges import Range, step
from anytpu.chip.quantized.scales import (
    FIXED,
    LEAST_WIDTH,
    quantization_of,
    quantization_of_integers,
    without_flat_ends,
)
from anytpu.chip.quantized.weights import GREATEST_SUM, needed_bits
from anytpu.errors import QuantizationError

_TOLERATED = {8: 1.5, 16: 256.0}
"""By bits, how much coarser a tensor may become for what lies beside it, before a table changes a scale instead."""

_GREATEST = 1e20  # of the numbers of a tensor
_SPARE_BITS = 7  # that a tensor of 16 bits may leave unused


@dataclasses.dataclass(frozen=True)
class Choices:
    """What was decided.

    Attributes:
        quantizations: of each tensor of the chip.
        limits: the least and the greatest integer that a tensor may hold, where that is not all of them.
        detours: of (the name of a Concatenate or of an average, a tensor that it takes): the tensor of another scale
            that it takes instead.
    """

    quantizations: Mapping[str, Quantization]
    limits: Mapping[str, tuple[int, int]]
    detours: Mapping[tuple[str, str], str]


def tensors_of_chip(network: Network) -> list[str]:
    """Return the names of the tensors that a node other than a host's step takes or makes."""
    held = {}
    for node in network.nodes:
        if not isinstance(node, HostStep):
            held.update(dict.fromkeys((*node.inputs, node.output)))
    return list(held)


def choose(network: Network, ranges: Mapping[str, Range], bits: int) -> Choices:
    """Decide about each tensor of the chip.

    Args:
        network: the model.
        ranges: what each tensor of the chip should cover.
        bits: 8 or 16.

    Raises:
        QuantizationError: a tensor is too great or too small for float32 arithmetic with its scale, integers of the
            user would not stay exact for a step of the host, or an average is over so many positions that their sum
            leaves 32 bits.
    """
    return _Chooser(network, ranges, bits).choose()


class _Chooser:
    """The network, and what is known of its tensors while deciding.

    Attributes:
        makers: the node that makes a tensor.
        users: the nodes that take it.
        ports: the inputs, by tensor.
        delivered: the outputs' tensors.
        reach: what each family covers.
        only_laid: of a family with so many members, whether it is only taken by a Concatenate.
    """

    def __init__(self, network: Network, ranges: Mapping[str, Range], bits: int):
        self.network, self.ranges, self.bits = network, ranges, bits
        self.makers = {node.output: node for node in network.nodes}
        self.users: dict[str, list[Node]] = {name: [] for name in network.shapes}
        for node in network.nodes:
            for name in node.inputs:
                self.users[name].append(node)
        self.ports = {port.tensor: port for port in network.inputs}
        self.delivered = {port.tensor for port in network.outputs}
        self.families = starting_families(network, ranges)
        self.reach = {family: self.covered(names) for family, names in self.families.members.items()}
        self.only_laid: dict[tuple[str, int], bool] = {}
        self.stand_ins = _stand_ins(network, ranges)

    def choose(self) -> Choices:
        detours = self.lay_side_by_side()
        members = self.families.members
        chosen = {family: self.quantization(names) for family, names in members.items()}
        chosen |= {family: self.trimmed(names, chosen) for family, names in members.items()}
        spare_bits = {family: self.spare_bits(names, chosen[family]) for family, names in members.items()}
        families = {name: self.families.of(name) for name in self.ranges}
        families |= {new: self.families.of(node.output) for (node, _), new in detours.items()}
        quantizations = {name: _coarser(chosen[family], spare_bits[family]) for name, family in families.items()}
        limits = {
            name: (chosen[family].low >> spare, chosen[family].high >> spare)
            for name, family in families.items()
            if (spare := spare_bits[family])
        }
        renamed = {(node.name, name): new for (node, name), new in detours.items()}
        for node in self.network.nodes:
            if isinstance(node, Pool) and node.kind == "average":
                _make_room(node, self.network, (quantizations, limits, renamed))
        return Choices(quantizations, limits, renamed)

    # 1. What is laid side by side.

    def lay_side_by_side(self) -> dict[tuple[Concatenate, str], str]:
        """Join what each Concatenate takes to what it makes, or note that a table must change its scale."""
        detours, of = {}, self.families.of
        for node in self.network.nodes:
            if isinstance(node, Concatenate):
                parts = self.covered(node.inputs)
                for name in dict.fromkeys(node.inputs):
                    if of(name) == of(node.output) or self.may_join(name, node.output, parts):
                        self.join(name, node.output)
                    else:
                        detours[node, name] = f"{name}/as {node.output}"
        return {(node, name): new for (node, name), new in detours.items() if of(name) != of(node.output)}

    def may_join(self, name: str, whole: str, parts: Range) -> bool:
        """Tell whether a tensor may have the quantization of what it becomes a part of, whose parts cover `parts`."""
        own, others = self.reach[self.families.of(name)], self.reach[self.families.of(whole)].union(parts)
        most = self.step(own.union(others)) / _TOLERATED[self.bits]
        return most <= self.step(others) and (most <= self.step(own) or self.is_only_laid(self.families.of(name)))

    def join(self, name: str, whole: str) -> None:
        """Make the families of two tensors one."""
        reach = self.reach[self.families.of(name)].union(self.reach[self.families.of(whole)])
        self.families.join([whole, name])
        self.reach[self.families.of(whole)] = reach

    def is_only_laid(self, family: str) -> bool:
        """Tell whether nobody takes the tensors of a family but to lay them beside others."""
        # A family only grows: how many members it has says which they are.
        key = family, len(self.families.members[family])
        if key not in self.only_laid:
            own = set(self.families.members[family])
            users = [user for member in own for user in self.users[member] if user.output not in own]
            self.only_laid[key] = all(isinstance(user, Concatenate) for user in users) and not self.delivered & own
        return self.only_laid[key]

    def step(self, covered: Range) -> float:
        """Return the real number between two integers that cover a range."""
        return float(step(covered.low, covered.high, self.bits))

    def covered(self, names: Iterable[str]) -> Range:
        return functools.reduce(Range.union, (self.ranges[name] for name in names))

    # 2. What the integers stand for.

    def quantization(self, names: list[str]) -> Quantization:
        """Return the quantization of a family: what is fixed for what it comes from, else what covers its range."""
        covered = self.covered(names)
        if max(-covered.low, covered.high) > _GREATEST:
            raise QuantizationError(self.beyond(names, f"ends at {_GREATEST:g}: scale them down"))
        if 0 < covered.high - covered.low < LEAST_WIDTH:
            raise QuantizationError(self.beyond(names, f"begins at {LEAST_WIDTH:g}: scale them up"))
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
        """Return the members whose integers are not just those of another member."""
        makers = {name: self.makers.get(name) for name in names}
        return [name for name, node in makers.items() if not (node and _passes_on(node))]

    def check_indices(self, names: list[str], ports: list[Port]) -> None:
        """Refuse integers of the user that the chip takes and the host too: indices would not stay exact."""
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
        """Return the quantization of a family, finer when only functions look at it that are flat at its ends."""
        own, members = chosen[self.families.of(names[0])], set(names)
        users = [user for name in names for user in self.users[name] if user.output not in members]
        functions = [user for user in users if isinstance(user, Function)]
        if not functions or len(functions) < len(users) or self.delivered & members or members & set(self.ports):
            return own
        covered = self.covered(names)
        if covered.high == covered.low:
            return own
        distinct = {(user.kind, self.families.of(user.output)): user for user in functions}
        steps = [(user, chosen[family].scale) for (_, family), user in distinct.items()]
        parts = [without_flat_ends(covered, user.apply, width) for user, width in steps]
        part = functools.reduce(Range.union, parts)
        return own if part.high - part.low < LEAST_WIDTH else quantization_of(part, self.bits)

    # 3. Room for the sums.

    def spare_bits(self, names: list[str], own: Quantization) -> int:
        """Return how many of 16 bits a family leaves unused, so that no sum of a product leaves 32 bits.

        Where a member comes from the user or from the host, which use all integers, weights make room instead.
        """
        makers = [self.makers.get(name) for name in self.sources(names)]
        if self.bits == 8 or not all(isinstance(node, Convolution | Elementwise | Function) for node in makers):
            return 0
        products = [user for name in names for user in self.users[name] if isinstance(user, Convolution)]
        distinct = {id(node.weights): node for node in products}.values()
        reach = (own.low, own.high)
        needed = [needed_bits(node.weights, node.bias, own.scale, reach) for node in distinct]
        return min(max(needed, default=0), _SPARE_BITS)


def _stand_ins(network: Network, ranges: Mapping[str, Range]) -> dict[str, Range]:
    """Return what tensors cover; where nothing but 0 was seen, what those that it is made of reach, on both sides.

    An input that was 0 throughout is taken to be between -1 and 1.
    """
    found = {name: one if one.high > one.low else Range(-1.0, 1.0) for name, one in ranges.items()}
    for node in network.nodes:
        if node.output in ranges and ranges[node.output].high == ranges[node.output].low:
            taken = functools.reduce(Range.union, (found.get(name, Range()) for name in node.inputs), Range())
            reach = max(-taken.low, taken.high) or 1.0
            found[node.output] = Range(-reach, reach)
    return found


def _coarser(own: Quantization, spare_bits: int) -> Quantization:
    return dataclasses.replace(own, scale=own.scale * 2**spare_bits)


def _make_room(
    node: Pool,
    network: Network,
    choices: tuple[dict[str, Quantization], dict[str, tuple[int, int]], dict[tuple[str, str], str]],
) -> None:
    """Let an average take its tensor in coarser steps, where the sum over a window could leave 32 bits."""
    quantizations, limits, detours = choices
    name, own = node.inputs[0], quantizations[node.inputs[0]]
    low, high = limits.get(name, (own.low, own.high))
    shapes = network.shapes[name], network.shapes[node.output]
    count = int(window_counts(node.window, node.strides, node.padding, *shapes).max(initial=0))
    reach = max(high - own.zero_point, own.zero_point - low)
    spare_bits = next(bits for bits in range(64) if count * (reach >> bits) <= GREATEST_SUM)
    if spare_bits > (_SPARE_BITS if own.bits == 16 else 0):
        most = GREATEST_SUM // (reach if own.bits == 8 else reach >> _SPARE_BITS)
        raise QuantizationError(
            f"layer {_named(node)} averages {count:,} positions at once, and sums of 32 bits hold {most:,} of "
            f"{own.bits} bits: average smaller windows first, then what they give"
        )
    if spare_bits:
        detours[node.name, name] = new = f"{name}/as {node.output}"
        quantizations[new], limits[new] = _coarser(own, spare_bits), (low >> spare_bits, high >> spare_bits)


def _passes_on(node: Node) -> bool:
    return keeps_integers(node) or isinstance(node, Concatenate)


def _named(node: Node) -> str:
    return repr(node.layer or node.name)
