"""Changes that a prediction asks for: one function for each topic, from the numbers to a sentence and its evidence.

Rule: a finding names its numbers. A change that would gain little gives no finding; its threshold is named above.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from anytpu import units
from anytpu.planning.advice.facts import Facts, ProposedChange
from anytpu.planning.advice.fitting import Shortage, larger_slices, ways_to_fit
from anytpu.planning.advice.reshards import find_reshards
from anytpu.planning.costs.waits import HOST_WAIT
from anytpu.planning.memory.batches import MemoryLine
from anytpu.planning.records import Buffer, Prediction

WORTH_SHARE = 0.05
"""A part of the step below this share is not worth a change."""

COLLECTIVE_SHARE = 0.2
"""Communication above this share of a step bounds it."""

WORTH_PADDING = 1.5
"""A tensor is named if padding makes it larger by this factor."""

WORTH_MEMORY = 0.1
"""If a smaller share of the memory is in use, padding does not matter."""

ROOMY_SHARE = 0.45
"""A step that needs a smaller share of the memory has room for twice the batch."""

WORTH_CALL = 0.02
"""Share of the devices' time that a call of the host may take."""

MAX_STEPS = 1024
"""Maximum number of steps in one call of `fit`."""

SUBLANES, LANES = 8, 128
"""Rows and lanes of a vector register, and of a tile of the memory."""


def findings(prediction: Prediction, facts: Facts, line: MemoryLine | None = None) -> list[ProposedChange]:
    """Return the changes that a prediction asks for.

    Args:
        prediction: the prediction.
        facts: properties of its program.
        line: memory as a function of the batch, for a program that does not fit; None if it is not known.
    """
    # A step that does not fit has no time, so only changes that make it fit are looked for.
    if prediction.memory is not None and not prediction.fits:
        candidates = [
            find_fitting_batch(prediction),
            *find_ways_to_fit(prediction, facts, line),
            find_wide_floats(prediction, facts),
        ]
    else:
        candidates = [look(prediction, facts) for look in LOOKS]
    return _each_batch_once([finding for finding in candidates if finding])


def _each_batch_once(candidates: list[ProposedChange]) -> list[ProposedChange]:
    """Drop a finding that asks for the same batch as an earlier one: both are one change, with two reasons."""
    seen: set[int] = set()
    kept = []
    for finding in candidates:
        if finding.batch_size not in seen or finding.tpu:
            kept.append(finding)
        seen.update([finding.batch_size] if finding.batch_size else [])
    return kept


def find_uneven_batch(prediction: Prediction, facts: Facts) -> ProposedChange | None:
    """Find a batch that the devices do not divide, or rows that do not fill the tiles of the memory."""
    batch, devices, padding = prediction.batch_size, prediction.target.devices, prediction.batch_padding
    parts = facts.batch_parts or devices
    if batch is None:
        return None
    unit = _unit(prediction)
    better = _round_up(batch, parts * unit)
    if better == batch or better > 2 * batch:
        return None
    by = "" if parts == 1 else f"{devices} devices" if parts == devices else f"{parts} parts of the batch"
    rows = f"{unit} rows" if unit > 1 else ""
    over = f" in {parts} parts" if 1 < parts < devices else ""
    said = f"{batch:,} examples{over} are {batch / parts:,.4g} a device"
    lost = (
        f"The memory takes arrays such as {padding.largest} by {unit} rows, and {padding.share:.0%} of the bytes that "
        "the operations of a step take and return are padding for it."
        if padding is not None and unit > 1
        else f"A step takes as long as one of {_round_up(batch, parts):,} examples: the last devices take fewer."
    )
    return ProposedChange(
        "batch",
        f"Use a batch of {better:,}: a multiple of {' x '.join(part for part in (by, rows) if part)}.",
        f"{said}. {lost}",
        batch_size=better,
    )


def _unit(prediction: Prediction) -> int:
    """Return the number that a device's rows should be a multiple of: 1 if padding takes little."""
    padding = prediction.batch_padding
    return padding.unit if padding is not None and padding.share >= WORTH_SHARE else 1


def find_room_for_batch(prediction: Prediction, facts: Facts) -> ProposedChange | None:
    """Find memory that a larger batch would use, where the matrix units wait."""
    memory, batch, mfu = prediction.memory, prediction.batch_size, prediction.mfu
    if memory is None or batch is None or mfu is None or not prediction.fits:
        return None
    used = memory.peak_bytes / memory.limit_bytes
    if used > ROOMY_SHARE or mfu > 0.5:
        return None
    better = _round_up(2 * batch, (facts.batch_parts or prediction.target.devices) * _unit(prediction))
    trains = prediction.mode == "train" and prediction.has_backward is not False
    rate = ", with the learning rate that goes with it" if trains else ""
    return ProposedChange(
        "batch",
        f"Try a batch of {better:,}{rate}.",
        f"A step uses {units.format_bytes(memory.peak_bytes)} of {units.format_bytes(memory.limit_bytes)} and "
        f"{f'{mfu:.0%}' if mfu >= 0.01 else 'less than 1%'} of the peak of the matrix units.",
        batch_size=better,
    )


def find_wide_floats(prediction: Prediction, facts: Facts) -> ProposedChange | None:
    """Find float32 activations in a program that multiplies float32.

    A program that multiplies bfloat16 already computes in it: its float32 arrays are sums, and gradients of master
    weights.
    """
    if facts.float32_share is None or facts.float32_share < 0.5:
        return None
    weights = {shape for shape in facts.weights.values() if shape}
    temporaries = [
        buffer
        for buffer in (prediction.memory.buffers if prediction.memory else ())
        if buffer.use == "temporary"
        and buffer.shape.startswith(("f32", "bf16", "f16"))
        and _dims(buffer) not in weights
    ]
    wide = sum(buffer.bytes for buffer in temporaries if buffer.shape.startswith("f32"))
    total = sum(buffer.bytes for buffer in temporaries)
    if not total or wide < total / 2:
        return None
    return ProposedChange(
        "precision",
        'Compute in bfloat16: keras.mixed_precision.set_global_policy("mixed_bfloat16") before the model is made.'
        if facts.is_model
        else "Compute in bfloat16: cast the batch and the weights with .astype where the step uses them.",
        f"{facts.float32_share:.0%} of the products multiply float32, which the matrix units round to bfloat16 anyway, "
        f"and {wide / total:.0%} of the bytes of the largest activations are float32: twice the memory, and twice the "
        "time to move them.",
        precision="bfloat16",
    )


def find_small_steps(prediction: Prediction, facts: Facts) -> ProposedChange | None:
    """Find steps so short that the host's call takes a visible share."""
    host = _seconds(prediction, "host")
    if not prediction.step_s or host / prediction.step_s < WORTH_SHARE:
        return None
    rest = max(prediction.step_s - host, 1e-9)
    call_s = call_of(prediction)
    # The smallest power of two with which the host's call takes at most WORTH_CALL of the devices' time.
    steps = min(max(1 << math.ceil(math.log2(max(call_s / (WORTH_CALL * rest), 1))), 2), MAX_STEPS)
    if steps <= prediction.steps_per_execution:
        return None
    return ProposedChange(
        "steps_per_execution",
        f"Start {steps} steps with one call: model.compile(..., steps_per_execution={steps}), or leave it to fit."
        if facts.is_model
        else f"Start {steps} steps with one call: jax.lax.scan(step, state, batches) over {steps} batches, or "
        "strategy.run_steps.",
        f"{'The host bounds: the' if 2 * host > prediction.step_s else 'The'} devices need "
        f"{units.format_seconds(rest)} a step, and a call takes the host {units.format_seconds(call_s)}; "
        f"{host / prediction.step_s:.0%} of the step is waiting for it.",
        steps_per_execution=steps,
    )


def find_padded_tensors(prediction: Prediction, facts: Facts) -> ProposedChange | None:
    """Find the tensor that loses most to padding, among those whose shape the user chooses.

    A weight has the shape of its layer, and so have its gradient and its optimizer slots.
    """
    memory = prediction.memory
    weights = {shape for shape in facts.weights.values() if shape}
    padded = [
        buffer
        for buffer in (memory.buffers if memory and memory.peak_bytes >= WORTH_MEMORY * memory.limit_bytes else ())
        if buffer.padding_factor >= WORTH_PADDING
        and buffer.bytes >= WORTH_SHARE * (memory.peak_bytes if memory else 1)
        and buffer.use in ("batch", "temporary")
        and not buffer.name.endswith(" gradient")
        and buffer.shape
        and _dims(buffer) not in weights
    ]
    if not padded:
        return None
    worst = max(padded, key=lambda buffer: buffer.bytes - buffer.logical_bytes)
    factor = worst.padding_factor
    times = f"{factor:,.0f}" if factor >= 9.95 else f"{factor:.2g}"
    return ProposedChange(
        "padding",
        f"Reshape {worst.name!r} so that its two fastest dimensions are multiples of {SUBLANES} and {LANES}.",
        f"{worst.shape} takes {units.format_bytes(worst.bytes)}, {times} times its "
        f"{units.format_bytes(worst.logical_bytes)} of numbers.",
    )


def find_slow_collectives(prediction: Prediction, facts: Facts) -> ProposedChange | None:
    """Find a step that waits for the network between chips."""
    seconds = _seconds(prediction, "collective")
    if not prediction.step_s or seconds / prediction.step_s < COLLECTIVE_SHARE:
        return None
    if facts.batch_parts is not None and facts.batch_parts < prediction.target.devices:
        return None  # If a mesh splits the weights, sums of activations grow with the batch.
    better = _round_up(2 * prediction.batch_size, prediction.target.devices) if prediction.batch_size else None
    return ProposedChange(
        "collectives",
        "Give each device more rows, or use fewer devices: the gradients are summed once a step, however large it is.",
        f"{seconds / prediction.step_s:.0%} of a step is communication between the chips.",
        batch_size=better,
    )


def find_slow_input(prediction: Prediction, facts: Facts) -> ProposedChange | None:
    """Find a step that waits for its batch."""
    seconds = _seconds(prediction, "input")
    if not prediction.step_s or seconds / prediction.step_s < WORTH_SHARE:
        return None
    rate = prediction.examples_per_s or 0.0
    device_rate = rate * prediction.step_s / (prediction.step_s - seconds)
    return ProposedChange(
        "input",
        f"Deliver {units.format_rate(device_rate, 'examples')}: more reading workers, records, or smaller images.",
        f"{seconds / prediction.step_s:.0%} of a step is waiting for the input pipeline.",
    )


def find_fitting_batch(prediction: Prediction) -> ProposedChange | None:
    """Find a program that does not fit, and the largest batch that does."""
    memory, largest = prediction.memory, prediction.largest_batch
    if memory is None or memory.fits or not largest:
        return None
    return ProposedChange(
        "memory", f"Use a batch of {largest:,}, the largest that fits.", _missing(prediction), largest
    )


def find_ways_to_fit(prediction: Prediction, facts: Facts, line: MemoryLine | None) -> list[ProposedChange]:
    """Find the changes after which a program fits."""
    memory, batch = prediction.memory, prediction.batch_size
    if memory is None or memory.fits:
        return []
    if line is not None and batch:
        return ways_to_fit(Shortage(prediction, memory, batch, facts, line))
    return list(larger_slices(prediction))


LOOKS: tuple[Callable[[Prediction, Facts], ProposedChange | None], ...] = (
    find_uneven_batch,
    find_small_steps,
    find_reshards,
    find_slow_collectives,
    find_slow_input,
    find_room_for_batch,
    find_padded_tensors,
    find_wide_floats,
)
"""Each topic's function, in the order in which advice is given where nothing was tried."""


def _missing(prediction: Prediction) -> str:
    memory = prediction.memory
    assert memory is not None
    return (
        f"{units.format_bytes(memory.missing_bytes)} are missing: {units.format_bytes(memory.peak_bytes)} of "
        f"{units.format_bytes(memory.limit_bytes)}."
    )


def call_of(prediction: Prediction) -> float:
    """Return the host's time for one call, seconds.

    If the devices wait for the host, a call lasts as long as its steps. Otherwise only the host's share is known.
    """
    waits = any(op.name == HOST_WAIT and op.time_s for op in (prediction.time.ops if prediction.time else ()))
    step_s = prediction.step_s or 0.0
    return (step_s if waits else _seconds(prediction, "host")) * prediction.steps_per_execution


def _seconds(prediction: Prediction, kind: str) -> float:
    return prediction.time.by(lambda op: op.kind).get(kind, 0.0) if prediction.time else 0.0


def _dims(buffer: Buffer) -> tuple[int, ...]:
    """Return the dimensions in a buffer's shape: (128, 28) of "f32[128,28]"."""
    inside = buffer.shape.partition("[")[2].partition("]")[0]
    return tuple(int(part) for part in inside.split(",") if part.isdigit())


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
