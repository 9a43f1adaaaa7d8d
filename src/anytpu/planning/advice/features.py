"""`find_odd_features`: the layer whose features leave lanes empty.

Idea: a register has 128 lanes, and features lie along them. The unused lanes of the last register are computed and
discarded.

Rule: advice is in the user's terms: the units of a recurrent layer, not the features of its gates.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from anytpu.planning.advice.facts import Facts, ProposedChange
from anytpu.planning.records import Prediction

WORTH_SHARE = 0.05
"""A layer that takes a smaller share of the step is not worth a change."""

LANES = 128
"""The lanes of a vector register; a matrix unit takes 128 or 256 of them."""

WORTH_LANES = 0.01
"""Empty lanes that cost a smaller share of the step are not worth a change."""

MIN_FEATURES = 64
"""A layer with fewer features is that small on purpose, one feature for each class or channel. 64 more features would
make another model, and would gain little, because so few outputs are little work."""

_KERNELS = ("kernel", "embeddings", "/w", "weight", "weights")


def find_odd_features(prediction: Prediction, facts: Facts) -> ProposedChange | None:
    """Find the weights whose features do not fill the lanes, largest share of the time first."""
    for name, share in _share_by_layer(prediction).items():
        own = {weight: shape for weight, shape in facts.weights.items() if _is_of(weight, name)}
        gates = _gates(own)
        widths = [width for width in _widths(own) if width % LANES and width >= MIN_FEATURES]
        if not widths or share < WORTH_SHARE:
            continue
        width = max(widths)
        units_, better = (width // gates, _lanes(width // gates)) if gates else (width, _lanes(width))
        lanes = _lanes(width)
        if share * (1 - width / lanes) < WORTH_LANES:
            continue
        wanted = f"{units_} units" if gates else f"{width} features"
        features = f"{gates} gates of {units_} units are {width} features, which" if gates else f"{width} features"
        return ProposedChange(
            "features",
            f"Make the {wanted} of {name!r} a multiple of {LANES}: {better}.",
            f"{name!r} takes {share:.0%} of the step, and {features} fill {width / lanes:.0%} of the {lanes} lanes "
            "that they occupy.",
        )
    return None


def _share_by_layer(prediction: Prediction) -> dict[str, float]:
    seconds = prediction.time.by(lambda op: op.layer) if prediction.time else {}
    total = sum(seconds.values())
    return {layer: part / total for layer, part in seconds.items() if layer and total}


def _is_of(weight: str, layer: str) -> bool:
    """Return whether a weight belongs to a layer: an optimizer's slots belong to none, and their names end
    differently."""
    return f"{layer}/" in f"/{weight}" and weight.endswith(_KERNELS)


def _widths(own: Mapping[str, tuple[int, ...]]) -> list[int]:
    """Return the number of features of each weight with two or more dimensions: its last dimension.

    In attention, the heads and the size of each head are two dimensions that are stored as one.
    """
    widths = []
    for name, shape in own.items():
        is_headed = len(shape) == 3 and name.split("/")[-2:-1] in (["query"], ["key"], ["value"])
        if len(shape) > 1:
            widths.append(shape[-2] * shape[-1] if is_headed else shape[-1])
    return widths


def _gates(own: Mapping[str, tuple[int, ...]]) -> int:
    """Return the number of gates of a recurrent layer, whose kernel holds the features of all gates; 0 for another
    layer."""
    shapes = [shape for name, shape in own.items() if name.endswith("recurrent_kernel") and len(shape) == 2]
    return shapes[0][1] // shapes[0][0] if shapes else 0


def _lanes(features: int) -> int:
    """Return the number of lanes that features occupy."""
    return math.ceil(features / LANES) * LANES
