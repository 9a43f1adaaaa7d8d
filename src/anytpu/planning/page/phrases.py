"""Texts for a plan's numbers, the same in the terminal, on the page and in the plots.

Rule: an unknown number is `UNKNOWN`, never 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from anytpu import units
from anytpu.planning.records import Buffer, Kind, MemoryUse, OpTime, Plan, Prediction
from anytpu.report.wording import UNKNOWN as UNKNOWN
from anytpu.report.wording import one_line as one_line
from anytpu.report.wording import percent as percent
from anytpu.report.wording import plural as plural

KIND_NAMES: dict[Kind, str] = {
    "matmul": "matrix units",
    "vector": "vector units",
    "memory": "memory",
    "collective": "network",
    "copy": "exposed copies",
    "kernel": "own kernels",
    "host": "host",
    "input": "input pipeline",
}
"""The resource that limits operations of each kind."""

_KIND_MEANINGS: dict[Kind, str] = {
    "matmul": "products and convolutions at the speed of the units that multiply matrices",
    "vector": "other arithmetic (sums, activations, softmax, products with one row) at the speed of its units",
    "memory": "operations, products included, that mostly wait for the device's main memory (HBM)",
    "collective": "exchange between devices",
    "copy": "copies between main and on-chip memory that no computation overlaps",
    "kernel": "Pallas kernels and other custom calls",
    "host": "calls by the host computer",
    "input": "waiting for the next batch",
}

USE_NAMES = {"state": "state", "batch": "batch", "temporary": "temporaries", "output": "outputs", "code": "code"}
"""Names of the uses of buffers."""

PART_NAMES = USE_NAMES | {
    "weights": "weights",
    "frozen": "frozen weights",
    "slots": "optimizer slots",
    "cache": "key-value cache",
    "state": "other state",
    "gradients": "gradients",
    "activations": "activations",
}
"""Names of the parts of the memory."""

MFU_FORMULA = (
    "MFU = FLOPs of the matrix products and convolutions, rematerialised ones not counted again / (step time x peak "
    "rate), of one device."
)
"""Definition of the model FLOPs utilisation."""

HOSTS = (
    "A host supplies the rows of its own devices. of network: share of the peak rate of its network cards that the "
    "input takes; to slices: bytes that it sends to other slices in a step; write: time in which host 0 writes the "
    "checkpoint at that peak rate."
)
"""Meanings of the columns of the table of hosts."""

ACTIVATIONS = (
    "Activations are those in the main memory: what the compiler keeps on the chip takes none of it, and chips have "
    "more or less room for that."
)
"""Meaning of the part of the memory that differs most between chips."""

ONE_BY_ONE = (
    "The plan of one system, and the page (--html), also have the longest operations, the meanings of the kinds of "
    "time, and the evidence."
)
"""Statement in a report of several systems, which is short."""

RENTING = "To rent a TPU, and to give it back: anytpu docs getting_a_tpu"
"""The next step of a reader who has chosen a system."""

NOT_MEASURED = "Predicted, not measured."
"""Statement in every report of a plan."""


def kind_meanings(kinds: Iterable[Kind]) -> str:
    """Return the meanings of kinds, one clause each.

    Example:
        >>> kind_meanings(["collective", "input"])
        'network: exchange between devices; input pipeline: waiting for the next batch.'
    """
    return "; ".join(f"{KIND_NAMES[kind]}: {_KIND_MEANINGS[kind]}" for kind in kinds) + "."


def usd(amount: float | None) -> str:
    """Format an amount in USD.

    Example:
        >>> usd(1234.5), usd(12.3), usd(0.0123), usd(0.000123), usd(None)
        ('$1,234', '$12.30', '$0.012', '< $0.001', '-')
    """
    if amount is None:
        return UNKNOWN
    if 0 < amount < 0.0005:
        return "< $0.001"
    digits = 0 if amount >= 999.5 else 2 if amount >= 0.0995 or amount == 0 else 3
    return f"${amount:,.{digits}f}"


def seconds(duration_s: float | None) -> str:
    """Format a duration; `UNKNOWN` for None."""
    return UNKNOWN if duration_s is None else units.format_seconds(duration_s)


def size(size_bytes: float | None) -> str:
    """Format a size; `UNKNOWN` for None."""
    return UNKNOWN if size_bytes is None else units.format_bytes(size_bytes)


def interval(ends_s: tuple[float, float] | None) -> str:
    """Format an interval of time.

    Example:
        >>> interval((0.0981, 0.1212)), interval((0.9, 1.2)), interval(None)
        ('98.1 to 121 ms', '900 ms to 1.2 s', '-')
        >>> interval((0.0981, math.inf))
        'at least 98.1 ms'
    """
    if ends_s is None:
        return UNKNOWN
    if math.isinf(ends_s[1]):
        return f"at least {units.format_seconds(ends_s[0])}"
    low, high = (units.format_seconds(end_s) for end_s in ends_s)
    return f"{low.split()[0]} to {high}" if low.split()[1:] == high.split()[1:] and " " in low else f"{low} to {high}"


def drawn(ends_s: tuple[float, float], time_s: float | None) -> tuple[float, float]:
    """Return a finite interval for a plot: without an upper bound it ends at the predicted time.

    Example:
        >>> drawn((0.9, 1.2), 1.0), drawn((0.9, math.inf), 1.0)
        ((0.9, 1.2), (0.9, 1.0))
    """
    low_s, high_s = ends_s
    return low_s, high_s if math.isfinite(high_s) else max(low_s, time_s or 0.0)


def count(value: float | None) -> str:
    """Format a count; `UNKNOWN` for None."""
    return UNKNOWN if value is None else f"{round(value):,}"


def rate(per_second: float | None) -> str:
    """Format a rate in examples per second, without the unit.

    Example:
        >>> rate(9412.7), rate(0.5), rate(None)
        ('9,413', '0.5', '-')
    """
    if per_second is None:
        return UNKNOWN
    return f"{round(per_second):,}" if per_second >= 100 else f"{per_second:.3g}"


def least(prediction: Prediction, text: str) -> str:
    """Mark a memory size as a lower bound if the prediction is a floor."""
    return f">= {text}" if prediction.is_floor and text != UNKNOWN else text


def at_least(prediction: Prediction, text: str) -> str:
    """Mark a time or a cost as a lower bound if the prediction has no upper bound."""
    return text if prediction.is_bounded or text == UNKNOWN else f">= {text}"


def most(prediction: Prediction, text: str) -> str:
    """Mark a rate as an upper bound if the prediction's time has no upper bound."""
    return text if prediction.is_bounded or text == UNKNOWN else f"<= {text}"


def layout(prediction: Prediction) -> str:
    """Return a sentence on the layout of a program over the devices; "" without one."""
    if not prediction.layout:
        return ""
    name = f"layout {prediction.layout_name}" if prediction.layout_name else "its own layout"
    return f"{name}, {prediction.layout}."


def step(prediction: Prediction) -> str:
    """Format the step time: "98.1 ms a step", "at least 98.1 ms a step"; else the verdict on the memory."""
    if prediction.step_s is None:
        return verdict(prediction)
    return f"{'' if prediction.is_bounded else 'at least '}{seconds(prediction.step_s)} a step"


def devices(prediction: Prediction) -> str:
    """Format the devices of a system: "4 chips, 8 cores", "8 chips"."""
    target = prediction.target
    chips = plural(target.chips, "chip")
    return chips if target.devices == target.chips else f"{chips}, {plural(target.devices, 'core')}"


def memory_share(memory: MemoryUse | None) -> float | None:
    """Return the peak as a fraction of the memory; above 1 if it does not fit."""
    return memory.peak_bytes / memory.limit_bytes if memory and memory.limit_bytes else None


def used(memory: MemoryUse) -> str:
    """Format the used part of a memory.

    Example:
        >>> used(MemoryUse(9 * 2**30, 15 * 2**30)), used(MemoryUse(700 * 2**20, 15 * 2**30))
        ('9 of 15 GiB', '700 MiB of 15 GiB')
    """
    peak, limit = units.format_bytes(memory.peak_bytes), units.format_bytes(memory.limit_bytes)
    return f"{peak.split()[0]} of {limit}" if peak.split()[1] == limit.split()[1] else f"{peak} of {limit}"


def verdict(prediction: Prediction) -> str:
    """Return whether a program fits, in a few words: "fits", "3.2 GiB too much", "not known"."""
    if prediction.memory is None or (prediction.is_floor and prediction.fits):
        return "not known"
    return (
        "fits"
        if prediction.fits
        else f"{_at_least(prediction)}{units.format_bytes(prediction.memory.missing_bytes)} too much"
    )


def anchor(prediction: Prediction) -> str:
    """Return a system's name for anchors and file names: "v4-8-cores"."""
    return "".join(char if char.isalnum() or char == "-" else "-" for char in prediction.target.name)


def shortage(prediction: Prediction) -> str:
    """Return a sentence on the missing memory and the largest batch that fits; "" for a program that fits."""
    memory = prediction.memory
    if memory is None or prediction.fits:
        return ""
    needs, limit, missing = map(units.format_bytes, (memory.peak_bytes, memory.limit_bytes, memory.missing_bytes))
    at_least = _at_least(prediction)
    said = f"does not fit: a device needs {at_least}{needs} of {limit}, {at_least}{missing} too much"
    if prediction.largest_batch is None:
        return f"{said}."
    if prediction.largest_batch == 0:
        return f"{said}; no batch fits."
    return f"{said}; the largest batch that fits is {prediction.largest_batch:,}."


def _at_least(prediction: Prediction) -> str:
    return "at least " if prediction.is_floor else ""


def op_label(op: OpTime) -> str:
    """Return an operation's label, the user's layer if it is known: "conv1, backward"."""
    return f"{op.layer or op.name}{', backward' if op.is_backward else ''}"


def op_hover(op: OpTime) -> str:
    """Return the tooltip of an operation, in one line."""
    times = f" in {op.count:,} executions" if op.count > 1 else ""
    parts = [
        f"{op.name} ({op.opcode})",
        op.layer,
        op.source,
        f"{units.format_seconds(op.time_s)}{times}",
        units.format_flops(op.flops) if op.flops else "",
        f"{units.format_bytes(op.bytes)} moved" if op.bytes else "",
        f"bound by {op.bound}" if op.bound else "",
        f"priced by {op.priced_by}",
    ]
    return " · ".join(part for part in parts if part)


def padding(buffer: Buffer) -> str:
    """Format the factor by which padding enlarges a buffer; "" without padding.

    Example:
        >>> padding(Buffer("image", "batch", bytes=128, logical_bytes=32, shape="f32[8,1]"))
        '4 x'
    """
    factor = buffer.padding_factor
    return "" if factor < 1.005 else f"{factor:,.0f} x" if factor >= 99.5 else f"{factor:.3g} x"


def subtitle(plan: Plan) -> str:
    """Return the planned work: "training, 1,024 examples a step, 1,281,167 examples an epoch, 90 epochs"."""
    first = plan.predictions[0] if plan.predictions else None
    batches = sorted({prediction.batch_size for prediction in plan.predictions if prediction.batch_size})
    parts = [_work(first) if first else ""]
    if batches:
        parts.append(f"{' or '.join(f'{size:,}' for size in batches[:3])} examples a step")
    if plan.examples:
        parts.append(f"{plan.examples:,} examples an epoch")
    if plan.epochs:
        parts.append(plural(plan.epochs, "epoch"))
    return ", ".join(part for part in parts if part)


def _work(prediction: Prediction) -> str:
    if prediction.mode == "train":
        return "a step without a backward pass" if prediction.has_backward is False else "training"
    return "inference" if prediction.mode == "infer" else prediction.mode


def predictors(plan: Plan) -> str:
    """Return the sources of the predictions: "the TPU compiler (libtpu 0.0.51)"."""
    return ", ".join(dict.fromkeys(prediction.predicted_by for prediction in (*plan.predictions, *plan.sweep)))
