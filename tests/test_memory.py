"""Front doors: a model that is made, used once and dropped is freed, with its arrays, executables and processes.

One door of each kind; `benchmarks/memory.py` measures all of them.
"""

from __future__ import annotations

import gc
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "benchmarks"))

from memory_doors import DOORS

WARM_UP, ROUNDS = 2, 2
TRIED = (
    "fit",
    "train_on_batch and its siblings",
    "run, model in the closure",
    "run, model in the arguments",
    "run_steps with state",
    "TPUEstimator",
    "plan",
    "chip.compile, run, time",
    "pipeline, worker processes",
)


def held() -> dict[str, int]:
    """Return what this process holds."""
    gc.collect()
    return {
        "arrays": len(jax.live_arrays()),
        "executables": len(jax.devices()[0].client.live_executables()),
        "threads": threading.active_count(),
        "files": len(os.listdir("/proc/self/fd")),
        "processes": len(Path(f"/proc/self/task/{threading.get_native_id()}/children").read_text().split()),
    }


def kept_by(use: Callable[[int], list[Any]]) -> tuple[int, dict[str, int]]:
    """Return how many of the dropped objects live on, and what there is more of than before, after some rounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(WARM_UP):
            use(16)
        before = held()
        gone = [weakref.ref(owner) for _ in range(ROUNDS) for owner in use(16)]
        after = held()
    alive = sum(reference() is not None for reference in gone)
    return alive, {name: after[name] - before[name] for name in after if after[name] > before[name]}


@pytest.mark.timeout(600)  # Some start processes, which takes long on a busy machine.
@pytest.mark.parametrize("name", TRIED)
def test_what_is_dropped_is_freed(name):
    assert kept_by(DOORS[name].ours) == (0, {})
