"""The state of the random generators of the process: Python's, NumPy's and Keras's.

Keras shuffles arrays with NumPy's generator, and draws new seeds with Python's and its own. The seed generators of
layers are variables of the model.
"""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np

from anytpu import _keras
from anytpu.engine.hosts import Hosts


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


def share_random_states(hosts: Hosts) -> None:
    """Give the generators of all hosts the states of host 0, so that the hosts make equal weights and orders."""
    if not hosts.is_alone:
        restore_random_states(_from_json(hosts.share(_to_json(random_states()))))


def compact(states: dict[str, Any]) -> dict[str, Any]:
    """Return the states with Python's 625 integers as one array, for a checkpoint."""
    version, internal, gauss = states["python"]
    return {**states, "python": (version, np.array(internal, np.uint32), gauss)}


def _to_json(states: dict[str, Any]) -> bytes:
    generator = states["numpy"]
    key = generator["state"]["key"].tolist()
    keras = None if states["keras"] is None else np.asarray(states["keras"]).tolist()
    numpy = {**generator, "state": {**generator["state"], "key": key}}
    return json.dumps({"python": states["python"], "numpy": numpy, "keras": keras}, default=int).encode()


def _from_json(content: bytes) -> dict[str, Any]:
    states = json.loads(content)
    state = states["numpy"]["state"]
    state["key"] = np.array(state["key"], np.uint32)
    keras = states["keras"]
    return {**states, "keras": None if keras is None else np.array(keras, np.uint32)}
