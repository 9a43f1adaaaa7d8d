"""What XLA compiled for a network is freed with it."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from typing import Any

import anytpu  # noqa: F401  # isort: skip
import jax
import jax.numpy as jnp
import numpy as np

from anytpu import program
from anytpu.chip.graph.nodes import Network
from anytpu.chip.network import foreign, read
from anytpu.chip.quantized import floats
from anytpu.chip.quantized.reference import compute as evaluate

ROWS = np.ones((4, 6), np.float32)


def network() -> Network:
    """Return a network of a product, which a kernel computes, and of a sort, which its text does."""

    def step(state: Any, batch: Any) -> Any:
        (x,) = batch
        return state, jnp.sort(x @ jnp.ones((6, 5)), axis=-1)

    made = program.of(step, ((), (ROWS,)), tensors=True)
    return read(dataclasses.replace(made, mode="infer"))


def test_kernels_and_operations_are_freed_with_their_network():
    evaluate(network(), [ROWS])  # What JAX keeps for itself it has from here on.
    gc.collect()
    before = counts()
    one = network()
    for _ in range(2):
        evaluate(one, [ROWS])
    assert counts()[:2] == (before[0] + 1, before[1] + 1)
    gone = weakref.ref(one)
    del one
    gc.collect()
    assert (gone(), counts()) == (None, before)


def test_operations_of_the_same_text_share_their_code():
    one, other = network(), network()
    evaluate(one, [ROWS])
    executables = counts()[2]
    evaluate(other, [ROWS])
    # The kernel of the product is the other network's own; the sort is shared.
    assert counts()[2] == executables + 1


def counts() -> tuple[int, int, int]:
    """Return the networks that have kernels, the operations that are compiled, and XLA's executables."""
    executables = jax.devices()[0].client.live_executables()
    return len(floats._KERNELS), len(foreign._COMPILED), len(executables)
