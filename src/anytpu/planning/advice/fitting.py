"""The changes after which a step that does not fit would fit: one function each, each with its arithmetic.

Idea: two compiled batches say how much of the memory stays and how much grows with the batch; the traced step says how
much of what grows is kept for the backward pass. From these each change has a number.

Rule: a change is named only where its number is below the limit, for the batch that was asked for or for one that is
larger by half than what fits today. What is reckoned and not compiled says "about".
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping

from anytpu.planning.advice.facts import Facts
from anytpu.planning.advice.finding import Finding
from anytpu.planning.advice.line import MemoryLine
from anytpu.planning.advice.slices import cheapest, fastest
from anytpu.planning.records import Holding, Memory, Prediction
from anytpu.units import MIB, format_bytes, format_seconds

WORTH_SAVING = 0.85
"""A change that leaves more of the growing bytes than this share is not worth its trouble."""

WORTH_BATCH = 1.5
"""A change that does not make the batch fit is worth naming where it makes one fit that is larger by this."""

WORTH_SHARE = 1 / 8
"""A batch smaller than this share of what was asked for answers another question."""

_MIN_BATCH_SHARE = 0.05
"""A batch that takes a smaller share of the growing bytes is not told."""

LARGE_BYTES = MIB
"""Weights smaller than this are not worth splitting."""


@dataclasses.dataclass(frozen=True)
class Shortage:
    """A step that does not fit.

    Attributes:
        prediction: of it.
        memory: of it.
        batch_size: the batch that was asked for.
        facts: of its program.
        line: its memory as a function of the batch.
    """

    prediction: Prediction
    memory: Memory
    batch_size: int
    facts: Facts
    line: MemoryLine

    @property
    def devices(self) -> int:
        """The number of devices."""
        return self.prediction.target.devices

    @property
    def batch_share(self) -> float:
        """The share of the growing bytes that is the batch, and the next one: no change of the step saves these."""
        growing = self.line.growing(self.batch_size)
        return min(2 * self.facts.batch_bytes / self.devices / growing, 1.0) if growing else 0.0

    def outcome(self, share: float = 1.0, saved_bytes: float = 0.0) -> str | None:
        """Return the memory after a change, in words, or None where too little would fit.

        Args:
            share: the share that is left of the growing bytes, the batch aside.
            saved_bytes: the fixed bytes that are saved.
        """
        line, limit = self.line, format_bytes(self.line.limit_bytes)
        share += (1 - share) * self.batch_share
        after = line.fixed_bytes - saved_bytes + line.growing(self.batch_size) * share
        if after <= line.limit_bytes:
            return f"about {format_bytes(after)} of {limit}"
        largest = line.largest(share, saved_bytes)
        if largest < max(WORTH_BATCH * (self.prediction.largest_batch or 0), WORTH_SHARE * self.batch_size):
            return None
        return f"a batch of about {largest:,} then fits, where {self.prediction.largest_batch or 0:,} fit today"


def ways_to_fit(shortage: Shortage) -> list[Finding]:
    """Return the changes after which a step fits, the least trouble first."""
    found = (way(shortage) for way in _WAYS)
    return [*(finding for finding in found if finding), *larger_slices(shortage.prediction)]


def rematerialise(shortage: Shortage) -> Finding | None:
    """Keep the inputs of blocks of layers, and compute their inside again."""
    saved, growing = shortage.facts.saved, shortage.line.growing(shortage.batch_size)
    share = saved.kept_bytes / saved.total_bytes if saved.total_bytes else 1.0
    outcome = shortage.outcome(share) if share <= WORTH_SAVING else None
    if outcome is None:
        return None
    return Finding(
        "memory",
        "Rematerialise by block: keras.remat(lambda x: block(x))(x), in the call of a layer, around each of about "
        f"{saved.blocks} blocks of layers."
        if shortage.facts.is_model
        else f"Rematerialise by block: jax.checkpoint(block)(x, weights) around each of about {saved.blocks} blocks.",
        f"{format_bytes(growing)} grow with the batch{_of_batches(shortage)}; of what the forward pass keeps for the "
        f"backward pass, {share:.0%} would be left: {outcome}, for about a third more computation (reckoned from the "
        "traced step).",
    )


def _of_batches(shortage: Shortage) -> str:
    batches = shortage.batch_share * shortage.line.growing(shortage.batch_size)
    return f", {format_bytes(batches)} of it this batch and the next" if shortage.batch_share > _MIN_BATCH_SHARE else ""


def flash_attention(shortage: Shortage) -> Finding | None:
    """Never keep softmax(QK)."""
    saved = shortage.facts.saved
    share = 1 - saved.attention_bytes / saved.total_bytes if saved.total_bytes else 1.0
    outcome = shortage.outcome(share) if share <= WORTH_SAVING else None
    if outcome is None:
        return None
    return Finding(
        "memory",
        "Use flash attention: keras.config.enable_flash_attention() before the model is made."
        if shortage.facts.is_model
        else "Use flash attention: flash_attention(q, k, v) of jax.experimental.pallas.ops.tpu.flash_attention.",
        f"{1 - share:.0%} of what the forward pass keeps for the backward pass are products of queries and keys, such "
        f"as {saved.attention}, which flash attention never keeps: {outcome} (reckoned from the traced step).",
    )


def accumulate(shortage: Shortage) -> Finding | None:
    """Sum the gradients of smaller batches before an update."""
    largest, batch, line = shortage.prediction.largest_batch or 0, shortage.batch_size, shortage.line
    sum_bytes = shortage.facts.state_bytes
    parts = next((parts for parts in _divisors(batch) if batch // parts <= largest), None)
    if parts is None or batch // parts < shortage.devices or shortage.facts.is_placed or not sum_bytes:
        return None
    part = batch // parts
    need = line.fixed_bytes + line.growing(part) + sum_bytes
    if part % shortage.devices or need > line.limit_bytes:
        return None
    return Finding(
        "memory",
        f"Accumulate gradients: gradient_accumulation_steps={parts} in the optimizer, and batches of {part:,}."
        if shortage.facts.is_model
        else f"Accumulate gradients: jax.lax.scan over {parts} micro-batches of {part:,}, then one update with the sum "
        "of their gradients.",
        f"A batch of {part:,} needs about {format_bytes(need - sum_bytes)}, the sum of the gradients at most "
        f"{format_bytes(sum_bytes)}: {format_bytes(need)} of {format_bytes(line.limit_bytes)} (reckoned from two "
        f"compiled batches). Batch statistics, as of BatchNorm, are then those of {part:,} examples.",
    )


def split_the_state(shortage: Shortage) -> Finding | None:
    """Split weights and optimizer slots over the devices."""
    facts, devices = shortage.facts, shortage.devices
    if devices == 1 or facts.is_model or facts.is_placed or shortage.prediction.mode != "train":
        return None
    large = {name: shape for name, shape in facts.weights.items() if 4 * math.prod(shape) >= LARGE_BYTES}
    axes = {name: _axis(shape, devices) for name, shape in large.items()}
    split = {name: shape for name, shape in large.items() if axes[name] is not None}
    every = sum(math.prod(shape) for shape in facts.weights.values())
    if not split or not every:
        return None
    share = sum(math.prod(shape) for shape in split.values()) / every
    largest = max(split, key=lambda name: math.prod(split[name]))
    # One weight at a time is whole while it is used.
    whole_bytes = facts.state_bytes * math.prod(split[largest]) / every
    state_bytes = facts.state_bytes * share
    saved_bytes = state_bytes * (1 - 1 / devices) - whole_bytes
    outcome = shortage.outcome(saved_bytes=saved_bytes) if saved_bytes > 0.1 * shortage.memory.limit_bytes else None
    if outcome is None:
        return None
    parts = ", ".join('"data"' if axis == axes[largest] else "None" for axis in range(len(split[largest])))
    return Finding(
        "memory",
        f'Split the state over the {devices} devices: mesh = jax.sharding.AbstractMesh(({devices},), ("data",), '
        "(jax.sharding.AxisType.Auto,)), and "
        f"NamedSharding(mesh, PartitionSpec({parts})) on {largest!r}, the same on each large weight and its slots, and "
        f'"data" on {_axes_text(facts.batch_axes)}.',
        f"{format_bytes(state_bytes)} of the state are whole on each device, {format_bytes(state_bytes / devices)} if "
        f"they are split: {outcome} (reckoned, with the largest array whole while it is used).",
    )


def larger_slices(prediction: Prediction) -> Iterator[Finding]:
    """Name the slice that holds a step on which it costs least, and the one on which it takes least."""
    holding = prediction.holding
    best = {"costs least": cheapest(holding), "takes least time": fastest(holding)}
    named = [one for one in dict.fromkeys(best.values()) if one is not None] or list(holding[:1])
    for one in named:
        why = " and ".join(what for what, winner in best.items() if winner == one)
        reason = f": of the smallest slices that hold it, a step {why} there" if why and len(holding) > 1 else ""
        alone = f", the smallest slice of {one.target.chip.name} that holds it" if not reason else ""
        yield Finding(
            "memory",
            f"Use {one.target.name} ({_chips(one)}){reason}{alone}.",
            f"{_need(one)}{_floor(one)}",
            batch_size=one.batch_size if one.target.devices != prediction.target.devices else None,
            tpu=one.target.name,
        )


def _need(one: Holding) -> str:
    rows = f"With {math.ceil(one.batch_size / one.target.devices):,} examples a device it" if one.batch_size else "It"
    return (
        f"{rows} needs about {format_bytes(one.need_bytes)} of {format_bytes(one.limit_bytes)} (reckoned, not "
        "compiled)."
    )


def _floor(one: Holding) -> str:
    if one.least_step_s is None:
        return ""
    usd = one.least_usd_per_step
    cost = f" and ${1e6 * usd / (one.batch_size or 1):,.2f} a million {_unit(one)}" if usd is not None else ""
    return f" At the peak of its chips, a floor: {format_seconds(one.least_step_s)} a step{cost}."


def _unit(one: Holding) -> str:
    return "examples" if one.batch_size else "steps"


_WAYS: tuple[Callable[[Shortage], Finding | None], ...] = (
    rematerialise,
    flash_attention,
    accumulate,
    split_the_state,
)


def _chips(one: Holding) -> str:
    chips = "1 chip" if one.target.chips == 1 else f"{one.target.chips:,} chips"
    return chips if one.usd_per_hour is None else f"{chips}, ${one.usd_per_hour:,.2f} an hour"


def _divisors(batch: int) -> Iterator[int]:
    return (parts for parts in range(2, min(batch, 1024) + 1) if batch % parts == 0)


def _axes_text(axes: Mapping[str, int]) -> str:
    """Return the axes of the examples in words: "axis 0 of the batch", or "axis 3 of 'x' and axis 0 of 'y'"."""
    if len(set(axes.values())) <= 1:
        return f"axis {next(iter(axes.values()), 0)} of the batch"
    return " and ".join(f"axis {axis} of {of!r}" for of, axis in axes.items())


def _axis(shape: tuple[int, ...], devices: int) -> int | None:
    """Return the longest axis that the devices divide, or None."""
    axes = [axis for axis, size in enumerate(shape) if size % devices == 0 and size >= devices]
    return max(axes, key=lambda axis: shape[axis], default=None)
