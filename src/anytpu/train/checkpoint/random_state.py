"""The state of the random generators of the process: Python's, NumPy's and Keras's.

Keras shuffles arrays with NumPy's generator, and draws new seeds with Python's and its own. The seed generators of
layers are variables of the model.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from anytpu import _keras


def random_states() -> dict[str, Any]:
    """Return the states of Python's and NumPy's global generators and Keras's global seed generator."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(legacy=False),
        "keras": _keras.global_seed_state(),
    }


def restore_random_states(states: dict[str, Any]) -> None:
    """Set the generators to the states that `random_states` returned."""
    version, internal, gauss = states["python"]
    random.setstate((version, tuple(map(int, internal)), gauss))
    np.random.set_state(states["numpy"])
    _keras.set_global_seed_state(states["keras"])


def compact(states: dict[str, Any]) -> dict[str, Any]:
    """Return the states with Python's 625 integers as one array, for a checkpoint."""
    version, internal, gauss = states["python"]
    return {**states, "python": (version, np.array(internal, np.uint32), gauss)}
