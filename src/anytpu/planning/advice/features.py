"""`odd_features`: the layer whose features leave lanes empty.

Idea: a register has 128 lanes, and features lie along them: what is left of the last 128 is computed and thrown away.

Rule: what is advised is what the user writes, the units of a recurrent layer and not the features of its gates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from anytpu.planning.advice.facts import Facts
from anytpu.planning.advice.finding import Finding
from anytpu.planning.records import Prediction

WORTH_SHARE = 0.05
"""A layer that takes less of the step than this share is not worth a change."""

LANES = 128
"""The lanes of a vector register; a matrix unit takes 128 or 256 of them."""

WORTH_LANES = 0.01
"""Lanes that stay empty for less than this share of the step are not worth a change."""

LEAST_FEATURES = 64
"""Fewer features than this are what a layer is for, a class or a channel each; 64 more of them would be another model,
and would gain little: that few outputs are little work."""

_KERNELS = ("kernel", "embeddings", "/w", "weight", "weights")


def odd_features(prediction: Prediction, facts: Facts) -> Finding | None:
    """Find the weights whose features do not fill the lanes, largest share of the time first."""
    for name, share in _share_by_layer(prediction).items():
        own = {weight: shape for weight, shape in facts.weights.items() if _is_of(weight, name)}
        gates = _gates(own)
        widths = [width for width in _widths(own) if width % LANES and width >= LEAST_FEATURES]
        if not widths or share < WORTH_SHARE:
            continue
        width = max(widths)
        units_, better = (width // gates, _lanes(width // gates)) if gates else (width, _lanes(width))
        lanes = _lanes(width)
        if share * (1 - width / lanes) < WORTH_LANES:
            continue
        what = f"{units_} units" if gates else f"{width} features"
        of = f"{gates} gates of {units_} units are {width} features, which" if gates else f"{width} features"
        return Finding(
            "features",
            f"Make the {what} of {name!r} a multiple of {LANES}: {better}.",
            f"{name!r} takes {share:.0%} of the step, and {of} fill {width / lanes:.0%} of the {lanes} lanes that they "
            "occupy.",
        )
    return None


def _share_by_layer(prediction: Prediction) -> dict[str, float]:
    seconds = prediction.time.by(lambda op: op.layer) if prediction.time else {}
    total = sum(seconds.values())
    return {layer: part / total for layer, part in seconds.items() if layer and total}


def _is_of(weight: str, layer: str) -> bool:
    """Return whether a weight is a layer's. An optimizer's slots are weights of no layer: their names end otherwise."""
    return f"{layer}/" in f"/{weight}" and weight.endswith(_KERNELS)


def _widths(own: Mapping[str, tuple[int, ...]]) -> list[int]:
    """Return the features of weights: the last dimension of those that have two or more.

    The heads of an attention and the size of each are two dimensions, which lie as one.
    """
    widths = []
    for name, shape in own.items():
        is_headed = len(shape) == 3 and name.split("/")[-2:-1] in (["query"], ["key"], ["value"])
        if len(shape) > 1:
            widths.append(shape[-2] * shape[-1] if is_headed else shape[-1])
    return widths


def _gates(own: Mapping[str, tuple[int, ...]]) -> int:
    """Return the gates of a recurrent layer, whose kernel has the features of all of them; 0 of another layer."""
    shapes = [shape for name, shape in own.items() if name.endswith("recurrent_kernel") and len(shape) == 2]
    return shapes[0][1] // shapes[0][0] if shapes else 0


def _lanes(features: int) -> int:
    """Return the lanes that features occupy."""
    return math.ceil(features / LANES) * LANES
