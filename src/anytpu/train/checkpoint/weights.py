"""The weights in a checkpoint, for other programs: no optimizer's state, metrics or seeds.

Rule: `fit` puts the kind before each name. It is left out: "sequential/dense/kernel". A custom loop puts the object
before it, which stays: "model/sequential/dense/kernel". All arrays of a JAX program count as weights.
"""

from __future__ import annotations

import numpy as np

from anytpu.train.checkpoint.folder import Checkpoint
from anytpu.train.checkpoint.snapshot import HOST, maker_of

METRICS = "metrics"
"""The entry of a custom loop's facts that lists its metrics."""


def weights_of(checkpoint: Checkpoint) -> dict[str, np.ndarray]:
    """Return the weights of the model in a checkpoint by name."""
    weights: dict[str, np.ndarray] = {}
    is_fit = maker_of(checkpoint.host) == "fit"
    for name in weight_names(checkpoint):
        short = name.partition("/")[2] if is_fit else name
        # A trained and another variable may have one name.
        weights[name if short in weights else short] = checkpoint.values[name]
    return weights


def weight_names(checkpoint: Checkpoint) -> list[str]:
    """Return the names that the weights have in the checkpoint."""
    made = checkpoint.host["made"] if maker_of(checkpoint.host) != "TPUEstimator" else {}
    others = {HOST.rstrip("/"), "global_step", *made.get(METRICS, ["metrics"])}
    return [
        name
        for name, form in checkpoint.forms.items()
        if not form.is_optimizer_state and name.partition("/")[0] not in others and not is_seed(name)
    ]


def is_seed(name: str) -> bool:
    """Return whether a variable is the state of a random generator of Keras, by its name."""
    return name.rpartition("/")[2].partition("#")[0] == "seed_generator_state"
