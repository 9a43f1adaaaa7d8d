"""What in a prediction asks for a change: one function a topic, from the numbers to a sentence and its evidence.

Rule: a finding names its numbers. It says nothing where the change would gain little: each has its threshold beside it.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping

from anytpu import units
from anytpu.planning.records import Prediction

WORTH_SHARE = 0.05
"""A part of the step below this share is not worth a change."""

COLLECTIVE_SHARE = 0.2
"""Communication above this share of a step bounds it."""

WORTH_PADDING = 1.5
"""A tensor that padding makes larger than this is named."""

ROOMY_SHARE = 0.45
"""A step that needs less of the memory than this has room for twice the batch."""

LANES, SUBLANES = 128, 8
"""A vector register, and a tile of the memory, has 8 rows of 128 numbers; a matrix unit takes 128 or 256 of them."""

LEAST_FEATURES = 64
"""Fewer features than this are what a layer is for, a class or a channel each; 64 more of them would be another model,
and would gain little: that few outputs are little work."""

_KERNELS = ("kernel", "embeddings", "/w", "weight", "weights")

Weights = Mapping[str, tuple[int, ...]]
"""The shape of each weight of a program, by its name: "conv1/kernel"."""


@dataclasses.dataclass(frozen=True)
class Finding:
    """Something to change.

    Attributes:
        topic: as `Advice` has it.
        text: what to do.
        evidence: what says so.
        batch_size: the batch to try, or None.
        precision: the precision to try, or None.
        steps_per_execution: the steps a call to reckon with, or None.
    """

    topic: str
    text: str
    evidence: str
    batch_size: int | None = None
    precision: str | None = None
    steps_per_execution: int | None = None


def findings(prediction: Prediction, weights: Weights, is_model: bool = False) -> list[Finding]:
    """Return what a prediction asks to be changed.

    Args:
        prediction: what was predicted.
        weights: the shape of each weight of the program, by its name.
        is_model: it is a Keras model, to be changed in Keras's words.
    """
    found = [
        *(look(prediction) for look in LOOKS),
        wide_floats(prediction, is_model),
        odd_features(prediction, weights),
    ]
    return _each_batch_once([finding for finding in found if finding])


def _each_batch_once(found: list[Finding]) -> list[Finding]:
    """Leave out a finding that asks for the batch of one before it: that is one change, with two reasons."""
    seen: set[int] = set()
    kept = []
    for finding in found:
        if finding.batch_size not in seen:
            kept.append(finding)
        seen.update([finding.batch_size] if finding.batch_size else [])
    return kept


def uneven_batch(prediction: Prediction) -> Finding | None:
    """Find a batch that leaves rows of the vector registers empty."""
    batch, unit = prediction.batch_size, prediction.target.devices * SUBLANES
    if batch is None or batch % unit == 0:
        return None
    better = -(-batch // unit) * unit
    each = batch / prediction.target.devices
    return Finding(
        "batch",
        f"Use a batch of {better:,}: a multiple of {prediction.target.devices} devices x {SUBLANES} rows.",
        f"{batch:,} examples are {each:,.4g} a device, and the vector units take {SUBLANES} rows at a time.",
        batch_size=better,
    )


def room_for_batch(prediction: Prediction) -> Finding | None:
    """Find memory that a larger batch would use, where the matrix units wait."""
    memory, batch, mfu = prediction.memory, prediction.batch_size, prediction.mfu
    if memory is None or batch is None or mfu is None or not prediction.fits:
        return None
    used = memory.peak_bytes / memory.limit_bytes
    if used > ROOMY_SHARE or mfu > 0.5:
        return None
    better = _round_up(2 * batch, prediction.target.devices * SUBLANES)
    return Finding(
        "batch",
        f"Try a batch of {better:,}, with the learning rate that goes with it.",
        f"A step uses {units.format_bytes(memory.peak_bytes)} of {units.format_bytes(memory.limit_bytes)} and "
        f"{mfu:.0%} of the matrix units.",
        batch_size=better,
    )


def odd_features(prediction: Prediction, weights: Weights) -> Finding | None:
    """Find the weights whose features do not fill the lanes, largest share of the time first."""
    layers = _share_by_layer(prediction)
    for name, share in layers.items():
        widths = sorted({width for width in _widths(weights, name) if width % LANES and width >= LEAST_FEATURES})
        if widths and share >= WORTH_SHARE:
            width = widths[-1]
            better = math.ceil(width / LANES) * LANES
            return Finding(
                "features",
                f"Make the {width} features of {name!r} a multiple of {LANES}: {better}.",
                f"{name!r} takes {share:.0%} of the step, and {width} features fill {width / better:.0%} of the "
                f"{better} lanes that they occupy.",
            )
    return None


def wide_floats(prediction: Prediction, is_model: bool) -> Finding | None:
    """Find float32 activations in a program that trains as well with bfloat16."""
    memory = prediction.memory
    large = [buffer for buffer in memory.buffers if buffer.use == "temporary"] if memory else []
    floats = [buffer for buffer in large if buffer.shape.startswith(("f32", "bf16", "f16"))]
    wide = sum(buffer.bytes for buffer in floats if buffer.shape.startswith("f32"))
    total = sum(buffer.bytes for buffer in floats)
    if not total or wide < total / 2:
        return None
    return Finding(
        "precision",
        'Compute in bfloat16: keras.mixed_precision.set_global_policy("mixed_bfloat16") before the model is made.'
        if is_model
        else "Compute in bfloat16: cast the batch and the weights with .astype where the step uses them.",
        f"{wide / total:.0%} of the bytes of the largest temporaries are float32; the matrix units round to bfloat16 "
        "anyway, and every such array takes twice the memory and twice the time to move.",
        precision="bfloat16",
    )


def small_steps(prediction: Prediction) -> Finding | None:
    """Find steps so short that the host's dispatch counts."""
    host = _seconds(prediction, "host")
    if not prediction.step_s or host / prediction.step_s < WORTH_SHARE:
        return None
    rest = prediction.step_s - host
    steps = 1 << math.ceil(math.log2(prediction.steps_per_execution * host / (0.02 * max(rest, 1e-9))))
    steps = min(max(steps, 2), 1024)
    return Finding(
        "steps_per_execution",
        f"Start {steps} steps with one call: model.compile(..., steps_per_execution={steps}), or strategy.run_steps.",
        f"A step takes {units.format_seconds(prediction.step_s)}, and {host / prediction.step_s:.0%} of it is the "
        "host's call.",
        steps_per_execution=steps,
    )


def padded_tensors(prediction: Prediction) -> Finding | None:
    """Find the tensor that padding makes largest."""
    memory = prediction.memory
    padded = [
        buffer
        for buffer in (memory.buffers if memory else ())
        if buffer.padding_factor >= WORTH_PADDING and buffer.bytes >= WORTH_SHARE * (memory.peak_bytes if memory else 1)
    ]
    if not padded:
        return None
    worst = max(padded, key=lambda buffer: buffer.bytes - buffer.logical_bytes)
    factor = worst.padding_factor
    times = f"{factor:,.0f}" if factor >= 9.95 else f"{factor:.2g}"
    return Finding(
        "padding",
        f"Reshape {worst.name!r} so that its two fastest dimensions are multiples of {SUBLANES} and {LANES}.",
        f"{worst.shape} takes {units.format_bytes(worst.bytes)}, {times} times its "
        f"{units.format_bytes(worst.logical_bytes)} of numbers.",
    )


def slow_collectives(prediction: Prediction) -> Finding | None:
    """Find a step that waits for the network between chips."""
    seconds = _seconds(prediction, "collective")
    if not prediction.step_s or seconds / prediction.step_s < COLLECTIVE_SHARE:
        return None
    better = _round_up(2 * prediction.batch_size, SUBLANES) if prediction.batch_size else None
    return Finding(
        "collectives",
        "Give each device more rows, or use fewer devices: the gradients are summed once a step, however large it is.",
        f"{seconds / prediction.step_s:.0%} of a step is communication between the chips.",
        batch_size=better,
    )


def slow_input(prediction: Prediction) -> Finding | None:
    """Find a step that waits for its batch."""
    seconds = _seconds(prediction, "input")
    if not prediction.step_s or seconds / prediction.step_s < WORTH_SHARE:
        return None
    rate = prediction.examples_per_s or 0.0
    device_rate = rate * prediction.step_s / (prediction.step_s - seconds)
    return Finding(
        "input",
        f"Deliver {units.format_rate(device_rate, 'examples')}: more reading workers, records, or smaller images.",
        f"{seconds / prediction.step_s:.0%} of a step is waiting for the input pipeline.",
    )


def too_large(prediction: Prediction) -> Finding | None:
    """Find a program that does not fit, and what would."""
    memory = prediction.memory
    if memory is None or memory.fits:
        return None
    largest = prediction.largest_batch
    if largest:
        text = f"Use a batch of {largest:,}, the largest that fits."
    elif largest == 0:
        text = "Use a chip with more memory, or split the state over the devices: not one example a device fits."
    else:
        text = "Use a smaller batch, or a chip with more memory."
    return Finding(
        "memory",
        text,
        f"{units.format_bytes(memory.missing_bytes)} are missing: {units.format_bytes(memory.peak_bytes)} of "
        f"{units.format_bytes(memory.limit_bytes)}.",
        batch_size=largest or None,
        precision=None,
    )


LOOKS: tuple[Callable[[Prediction], Finding | None], ...] = (
    too_large,
    uneven_batch,
    small_steps,
    slow_collectives,
    slow_input,
    room_for_batch,
    padded_tensors,
)
"""Each topic's function, in the order in which advice is given where nothing was tried."""


def _seconds(prediction: Prediction, kind: str) -> float:
    return prediction.time.by(lambda op: op.kind).get(kind, 0.0) if prediction.time else 0.0


def _share_by_layer(prediction: Prediction) -> dict[str, float]:
    seconds = prediction.time.by(lambda op: op.layer) if prediction.time else {}
    total = sum(seconds.values())
    return {layer: part / total for layer, part in seconds.items() if layer and total}


def _widths(weights: Weights, layer: str) -> list[int]:
    """Return the features of a layer: the last dimension of its weights that have two or more.

    An optimizer's slots are weights of no layer: their names end otherwise.
    """
    own = [shape for name, shape in weights.items() if f"{layer}/" in f"/{name}" and name.endswith(_KERNELS)]
    return [shape[-1] for shape in own if len(shape) > 1]


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
