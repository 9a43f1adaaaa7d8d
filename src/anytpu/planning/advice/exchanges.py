"""`exchanges`: data that a layout moves between devices inside a step, beside gathers of stored weights and sums.

Idea: as in `planning/advice/reshards.py`, which prices them for a TPU. Here the module is that of the partitioned CPU
devices, made by the same partitioner.

Rule: an exchange that is small beside the state is not reported.
"""

from __future__ import annotations

import collections
import math

import jax

from anytpu import units
from anytpu.planning.advice.facts import facts_of
from anytpu.planning.hlo import HloInstruction, collective_of, layer_of, parse
from anytpu.program.program import Program

_EXCHANGES = ("all-gather", "all-to-all", "ragged-all-to-all", "collective-permute", "collective-broadcast")
_MIN_SHARE = 0.01
"""Exchanges of fewer bytes than this share of the state are not reported."""
_MAX_LISTED = 5


def exchanges(hlo: str, program: Program) -> list[str]:
    """Return a sentence on each exchange that the layout of a program did not ask for, the largest first.

    Args:
        hlo: HLO text of the compiled step over the devices of the mesh.
        program: the placed program.
    """
    assert program.placement is not None
    gathered = facts_of(program, False, program.placement.devices).gathered_bytes
    state_bytes = sum(math.prod(leaf.shape) * leaf.dtype.itemsize for leaf in jax.tree.leaves(program.state))
    moved: collections.Counter[tuple[str, str]] = collections.Counter()
    module = parse(hlo)
    for computation in module.computations.values():
        for instruction in computation.instructions.values():
            size_bytes = _moved_bytes(instruction, gathered)
            if size_bytes > _MIN_SHARE * state_bytes:
                moved[instruction.opcode, layer_of(instruction.op_name).layer or instruction.name] += size_bytes
    lines = [
        f"the step moves {units.format_bytes(size_bytes)} between devices at {place!r} ({kind}): constrain the value "
        "there with jax.lax.with_sharding_constraint, or split another axis of its weight."
        for (kind, place), size_bytes in moved.most_common(_MAX_LISTED)
    ]
    more = len(moved) - len(lines)
    return [
        *lines,
        *([f"and {more} more such exchanges." if more > 1 else "and 1 more such exchange."] if more else []),
    ]


def _moved_bytes(instruction: HloInstruction, gathered: frozenset[float]) -> int:
    """Return the bytes that a device receives by an exchange; 0 for other instructions and gathers of weights."""
    collective = collective_of(instruction) if instruction.opcode.startswith(_EXCHANGES) else None
    if collective is None:
        return 0
    is_gather = collective.kind == "all-gather"
    received = collective.result_bytes - (collective.operand_bytes if is_gather else 0)
    return 0 if is_gather and any(math.isclose(received, size, rel_tol=0.01) for size in gathered) else received
