"""What rematerialisation would save of a program that does not fit.

Idea: the memory that grows with the batch is, in training, nearly all activations kept for the backward pass. Keeping
only every sqrt(n)-th layer's, and computing the others again, needs about 2 / sqrt(n) of it for n layers and costs one
more forward pass, a third of the step's products (Chen et al., "Training Deep Nets with Sublinear Memory Cost", 2016,
section 3).

Rule: this is a rule of thumb beside two compiled points, and says so: where to put `jax.checkpoint` is the user's to
decide, so nothing is compiled for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from anytpu import units
from anytpu.planning.records import Advice, Memory

FEWEST_LAYERS = 6
"""With fewer layers the rule promises nothing worth having."""


def rematerialisation(batch_size: int, layers: int, tried: Sequence[tuple[int, Memory]]) -> Advice | None:
    """Return what rematerialisation would save of a training step that does not fit, or None where it would not help.

    Args:
        batch_size: the global batch that does not fit.
        layers: layers with weights.
        tried: at least two compiled batches, each with its memory.
    """
    line = _line(tried)
    if line is None or layers < FEWEST_LAYERS:
        return None
    fixed_bytes, example_bytes = line
    growing = example_bytes * batch_size
    kept = growing * min(2 / math.sqrt(layers), 1.0)
    limit = tried[0][1].limit_bytes
    fits = "which fits" if fixed_bytes + kept <= limit else "which still does not fit"
    return Advice(
        "memory",
        "Rematerialise: jax.checkpoint around each block of layers computes activations again instead of keeping them.",
        f"{units.format_bytes(growing)} grow with the batch; keeping every {round(math.sqrt(layers))}th of {layers} "
        f"layers leaves about {units.format_bytes(fixed_bytes + kept)} of {units.format_bytes(limit)}, {fits}, for "
        "about a third more computation (a rule of thumb, not compiled).",
    )


def _line(tried: Sequence[tuple[int, Memory]]) -> tuple[float, float] | None:
    """Return the bytes that do not grow with the batch, and those of one example, from the two largest batches."""
    points = sorted({batch: memory.peak_bytes for batch, memory in tried}.items())[-2:]
    if len(points) < 2 or points[1][1] <= points[0][1]:
        return None
    (low, low_bytes), (high, high_bytes) = points
    each = (high_bytes - low_bytes) / (high - low)
    return max(low_bytes - each * low, 0.0), each
