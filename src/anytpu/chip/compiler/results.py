"""`result_of`: the epilogue of the instruction that makes a node's output: zero point, clip, and any fused table."""

from __future__ import annotations

import dataclasses

from anytpu.chip.compiler.jobs import RegisterValues
from anytpu.chip.compiler.lowering import Lowering
from anytpu.chip.graph.nodes import Node
from anytpu.chip.isa.registers import Register


@dataclasses.dataclass(frozen=True)
class NodeResult:
    """The result of a node, with the table that is looked up in the same instruction, if any.

    Attributes:
        tensor: name of the result: the node's output, or the table's.
        kind: kind of the table; "" without a table.
        settings: the registers for the last steps of an Activate.
        wide: whether the result is 16-bit.
        table: whether a table is looked up.
    """

    tensor: str
    kind: str
    settings: RegisterValues
    wide: bool
    table: bool

    def named(self, kind: str) -> str:
        """Return the kind of a node, followed by the kind of its table, if any."""
        return f"{kind} + {self.kind}" if self.kind else kind


def result_of(node: Node, lowering: Lowering, low: int | None = None, high: int | None = None) -> NodeResult:
    """Return the result of a node, clipped to `low` and `high` (None: to the range of its integers)."""
    own, table = lowering.quantization(node.output), lowering.fused.get(node.output)
    settings: dict[Register, int | float] = {
        Register.OUT_ZERO_POINT: own.zero_point,
        Register.LOW: own.low if low is None else low,
        Register.HIGH: own.high if high is None else high,
    }
    if table is None:
        return NodeResult(node.output, "", settings, own.bits == 16, False)
    settings[Register.TABLE] = lowering.tables.slot(table.table, own.bits == 16, table.layer or table.name)
    return NodeResult(table.output, table.kind, settings, own.bits == 16, True)
