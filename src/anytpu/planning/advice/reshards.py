"""`find_reshards`: data that a layout moves between devices inside a step, and its author probably did not mean.

Idea: a layout pays for gathers of the weights that it stores in shards, and for sums of gradients and of partial
results. Any other gather, exchange or permutation is XLA's answer to partitions that do not fit each other.

Rule: a gather is of a weight if a device receives the bytes of one, in its type or in half as many bits.
"""

from __future__ import annotations

from anytpu import units
from anytpu.planning.advice.facts import Facts, ProposedChange
from anytpu.planning.records import OpTime, Prediction

WORTH_SHARE = 0.05
"""Exchanges below this share of a step are not worth a change."""

_EXCHANGES = ("all-gather", "all-to-all", "ragged-all-to-all", "collective-permute", "collective-broadcast")
_PADDING = 0.1
"""Share by which the tiles of the memory may make a weight larger."""


def find_reshards(prediction: Prediction, facts: Facts) -> ProposedChange | None:
    """Find data that a layout moves between devices in the step, beside gathers of weights and sums of gradients."""
    if not facts.is_placed or prediction.time is None or not prediction.step_s:
        return None
    moved = [op for op in prediction.time.ops if op.collective in _EXCHANGES and not _gathers_weight(op, facts)]
    seconds = sum(op.time_s for op in moved)
    if seconds / prediction.step_s < WORTH_SHARE:
        return None
    worst = max(moved, key=lambda op: op.time_s)
    place = " ".join(part for part in (worst.layer, f"({worst.source})" if worst.source else "") if part)
    times = f", {worst.count:,} times" if worst.count > 1 else ""
    exchanges = "exchange" if len(moved) == 1 else "exchanges"
    # No link carries data that two cores of one chip exchange.
    amount = f"of {units.format_bytes(worst.bytes / worst.count)}" if worst.bytes else "between the cores of a chip"
    return ProposedChange(
        "collectives",
        f"Constrain the value at {place or worst.name} with jax.lax.with_sharding_constraint, or split another axis of "
        "its weight: the layout moves it between devices inside the step.",
        f"{seconds / prediction.step_s:.0%} of a step is {len(moved)} such {exchanges}. The longest is an "
        f"{worst.collective} {amount}{times}, {units.format_seconds(worst.time_s)}.",
    )


def _gathers_weight(op: OpTime, facts: Facts) -> bool:
    """Return whether an operation gathers a weight that lies in shards, in its type or in half as many bits."""
    received = op.bytes / op.count
    return op.collective == "all-gather" and any(
        abs(received - share * size) <= _PADDING * share * size for size in facts.gathered_bytes for share in (1.0, 0.5)
    )
