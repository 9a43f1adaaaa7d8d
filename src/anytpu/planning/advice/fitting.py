"""Changes after which a step that does not fit would fit: one function for each, with its arithmetic.

Idea: two compiled batches give the part of the memory that is fixed and the part that grows with the batch. The traced
step gives the share of the growing part that is kept for the backward pass. From these each change gets a number.

Rule: a change is named only if its number is below the limit, for the requested batch or for 1.5 times the largest that
fits today. A number that was computed and not compiled says "about".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator

from anytpu.planning.advice.facts import Facts, ProposedChange
from anytpu.planning.advice.remat import how_to_rematerialise
from anytpu.planning.advice.slices import cheapest, fastest
from anytpu.planning.memory.batches import MemoryLine
from anytpu.planning.records import Holding, MemoryUse, Prediction
from anytpu.sharding.layouts import split_largest
from anytpu.units import format_bytes, format_seconds

WORTH_SAVING = 0.85
"""A change that leaves a larger share of the growing bytes is not worth its trouble."""

WORTH_BATCH = 1.5
"""A change after which the requested batch still does not fit is named if it makes the largest batch larger by this
factor."""

WORTH_SHARE = 1 / 8
"""A batch smaller than this share of the requested one answers another question."""

_MIN_BATCH_SHARE = 0.05
"""A batch that takes a smaller share of the growing bytes is not mentioned."""


@dataclasses.dataclass(frozen=True)
class Shortage:
    """A step that does not fit.

    Attributes:
        prediction: its prediction.
        memory: its memory.
        batch_size: the requested batch, in examples over all devices.
        facts: properties of its program.
        line: its memory as a function of the batch.
    """

    prediction: Prediction
    memory: MemoryUse
    batch_size: int
    facts: Facts
    line: MemoryLine

    @property
    def devices(self) -> int:
        """Number of devices."""
        return self.prediction.target.devices

    @property
    def batch_share(self) -> float:
        """Share of the growing bytes that is this batch and the next one, 0 to 1: no change of the step saves these."""
        growing = self.line.growing_bytes(self.batch_size)
        return min(2 * self.facts.batch_bytes / self.devices / growing, 1.0) if growing else 0.0

    def outcome(self, share: float = 1.0, saved_bytes: float = 0.0) -> str | None:
        """Return the memory after a change, in words, or None if too small a batch would fit.

        Args:
            share: share of the growing bytes that is left, without the batch itself, 0 to 1.
            saved_bytes: fixed bytes that the change saves.
        """
        line, limit = self.line, format_bytes(self.line.limit_bytes)
        # No change of the step makes the batch itself smaller.
        share += (1 - share) * self.batch_share
        after = line.fixed_bytes - saved_bytes + line.growing_bytes(self.batch_size) * share
        if after <= line.limit_bytes:
            return f"about {format_bytes(after)} of {limit}"
        largest = line.largest(share, saved_bytes)
        if largest < max(WORTH_BATCH * (self.prediction.largest_batch or 0), WORTH_SHARE * self.batch_size):
            return None
        return f"a batch of about {largest:,} then fits, where {self.prediction.largest_batch or 0:,} fit today"


def ways_to_fit(shortage: Shortage) -> list[ProposedChange]:
    """Return the changes after which a step fits, the least trouble first."""
    candidates = (way(shortage) for way in _WAYS)
    return [*(finding for finding in candidates if finding), *larger_slices(shortage.prediction)]


def propose_remat(shortage: Shortage) -> ProposedChange | None:
    """Keep the inputs of blocks of layers, and compute the inside of the blocks again."""
    residuals, growing = shortage.facts.residuals, shortage.line.growing_bytes(shortage.batch_size)
    share = residuals.kept_bytes / residuals.total_bytes if residuals.total_bytes else 1.0
    outcome = shortage.outcome(share) if share <= WORTH_SAVING else None
    if outcome is None:
        return None
    return ProposedChange(
        "memory",
        how_to_rematerialise("by block", residuals.blocks, shortage.facts.is_model),
        f"{format_bytes(growing)} grow with the batch{_of_batches(shortage)}; of what the forward pass keeps for the "
        f"backward pass, {share:.0%} would be left: {outcome}, for about a third more computation (estimated from the "
        "traced step).",
    )


def _of_batches(shortage: Shortage) -> str:
    batches = shortage.batch_share * shortage.line.growing_bytes(shortage.batch_size)
    return f", {format_bytes(batches)} of it this batch and the next" if shortage.batch_share > _MIN_BATCH_SHARE else ""


def propose_flash_attention(shortage: Shortage) -> ProposedChange | None:
    """Do not keep softmax(QK)."""
    residuals = shortage.facts.residuals
    share = 1 - residuals.attention_bytes / residuals.total_bytes if residuals.total_bytes else 1.0
    outcome = shortage.outcome(share) if share <= WORTH_SAVING else None
    if outcome is None:
        return None
    return ProposedChange(
        "memory",
        "Use flash attention: keras.config.enable_flash_attention() before the model is made."
        if shortage.facts.is_model
        else "Use flash attention: flash_attention(q, k, v) of jax.experimental.pallas.ops.tpu.flash_attention.",
        f"{1 - share:.0%} of what the forward pass keeps for the backward pass are products of queries and keys, such "
        f"as {residuals.attention}, which flash attention never keeps: {outcome} (estimated from the traced step).",
    )


def propose_accumulation(shortage: Shortage) -> ProposedChange | None:
    """Sum the gradients of smaller batches before an update."""
    largest, batch, line = shortage.prediction.largest_batch or 0, shortage.batch_size, shortage.line
    # At most: the state has the slots of the optimizer too.
    sum_bytes = shortage.facts.state_bytes
    parts = next((parts for parts in _divisors(batch) if batch // parts <= largest), None)
    if parts is None or batch // parts < shortage.devices or shortage.facts.is_placed or not sum_bytes:
        return None
    part = batch // parts
    need = line.fixed_bytes + line.growing_bytes(part) + sum_bytes
    if part % shortage.devices or need > line.limit_bytes:
        return None
    return ProposedChange(
        "memory",
        f"Accumulate gradients: gradient_accumulation_steps={parts} in the optimizer, and batches of {part:,}."
        if shortage.facts.is_model
        else f"Accumulate gradients: jax.lax.scan over {parts} micro-batches of {part:,}, then one update with the sum "
        "of their gradients.",
        f"A batch of {part:,} needs about {format_bytes(need - sum_bytes)}, the sum of the gradients at most "
        f"{format_bytes(sum_bytes)}: {format_bytes(need)} of {format_bytes(line.limit_bytes)} (estimated from two "
        f"compiled batches). Batch statistics, as of BatchNorm, are then those of {part:,} examples.",
    )


def propose_split_state(shortage: Shortage) -> ProposedChange | None:
    """Split weights and optimizer slots over the devices."""
    facts, devices = shortage.facts, shortage.devices
    if devices == 1 or facts.is_placed or shortage.prediction.mode != "train":
        return None
    sizes = {name: math.prod(shape) for name, shape in facts.weights.items()}
    split = [sizes[name] for name, shape in facts.weights.items() if split_largest(shape, ("d",), {"d": devices})]
    if not split:
        return None
    state_bytes, largest_bytes = (facts.state_bytes * size / sum(sizes.values()) for size in (sum(split), max(split)))
    # While it is used, one weight at a time is whole on the device.
    saved_bytes = state_bytes * (1 - 1 / devices) - largest_bytes
    outcome = shortage.outcome(saved_bytes=saved_bytes) if saved_bytes > 0.1 * shortage.memory.limit_bytes else None
    if outcome is None:
        return None
    return ProposedChange(
        "memory",
        f'Split the state over the {devices} devices: layout="fsdp" (--layout fsdp).',
        f"{format_bytes(state_bytes)} of the state are whole on each device, {format_bytes(state_bytes / devices)} if "
        f"they are split: {outcome} (estimated, with the largest array whole while it is used).",
    )


def larger_slices(prediction: Prediction) -> Iterator[ProposedChange]:
    """Name the slice that holds the step at the lowest cost, and the one with the shortest step."""
    holding = prediction.holding
    best = {"costs least": cheapest(holding), "takes least time": fastest(holding)}
    named = [choice for choice in dict.fromkeys(best.values()) if choice is not None] or list(holding[:1])
    for choice in named:
        why = " and ".join(advantage for advantage, winner in best.items() if winner == choice)
        reason = f": of the smallest slices that hold it, a step {why} there" if why and len(holding) > 1 else ""
        alone = f", the smallest slice of {choice.target.chip.name} that holds it" if not reason else ""
        yield ProposedChange(
            "memory",
            f"Use {choice.target.name} ({_chips(choice)}){reason}{alone}.",
            f"{_need(choice)}{_floor(choice)}",
            batch_size=choice.batch_size if choice.target.devices != prediction.target.devices else None,
            tpu=choice.target.name,
        )


def _need(slice_: Holding) -> str:
    rows = (
        f"With {math.ceil(slice_.batch_size / slice_.target.devices):,} examples a device it"
        if slice_.batch_size
        else "It"
    )
    return (
        f"{rows} needs about {format_bytes(slice_.need_bytes)} of {format_bytes(slice_.limit_bytes)} (estimated, not "
        "compiled)."
    )


def _floor(slice_: Holding) -> str:
    if slice_.least_step_s is None:
        return ""
    usd = slice_.least_usd_per_step
    cost = f" and ${1e6 * usd / (slice_.batch_size or 1):,.2f} a million {_unit(slice_)}" if usd is not None else ""
    return f" At the peak of its chips, a floor: {format_seconds(slice_.least_step_s)} a step{cost}."


def _unit(slice_: Holding) -> str:
    return "examples" if slice_.batch_size else "steps"


_WAYS: tuple[Callable[[Shortage], ProposedChange | None], ...] = (
    propose_remat,
    propose_flash_attention,
    propose_accumulation,
    propose_split_state,
)


def _chips(slice_: Holding) -> str:
    chips = "1 chip" if slice_.target.chips == 1 else f"{slice_.target.chips:,} chips"
    return chips if slice_.usd_per_hour is None else f"{chips}, ${slice_.usd_per_hour:,.2f} an hour"


def _divisors(batch: int) -> Iterator[int]:
    return (parts for parts in range(2, min(batch, 1024) + 1) if batch % parts == 0)
