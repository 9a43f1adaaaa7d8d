"""`prove`: that a network computes what the program it was read from computes, before anything is built on it.

Idea: reading folds hundreds of operations into few nodes. Whether it did so rightly can be seen: both are run on some
of the user's own examples, in float32.

Rule: what differs by more than rounding is refused, never compiled.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from anytpu.chip.network import evaluate
from anytpu.chip.network.nodes import Network
from anytpu.errors import QuantizationError
from anytpu.program import Program

TOLERANCE = 1e-3
"""Of the largest number of an output: sums in another order differ by some 1e-6, a wrong fold by 0.1 and more."""


def prove(program: Program, network: Network, arrays: Sequence[np.ndarray]) -> None:
    """Run a program and the network that was read from it on some examples, and compare their outputs.

    Args:
        program: of mode "infer", with its values.
        network: what was read from it.
        arrays: examples for each input, `(rows, ...)`, at least one row.

    Raises:
        QuantizationError: they differ; the output is named.
    """
    rows = np.arange(program.rows or 1) % len(arrays[0])
    leaves, structure = jax.tree.flatten(program.batch)
    taken = [np.asarray(array)[rows].astype(leaf.dtype) for array, leaf in zip(arrays, leaves, strict=True)]
    _, outputs = jax.jit(program.step)(program.tensors, jax.tree.unflatten(structure, taken))
    found = evaluate(network, taken)
    for port, wanted in zip(network.outputs, jax.tree.leaves(outputs), strict=True):
        # Whole numbers (an argmax) may differ where two were as good as equal.
        if port.dtype.startswith(("float", "bfloat")):
            _compare(network.name, port.tensor, np.asarray(wanted, np.float64), found[port.tensor])


def _compare(name: str, output: str, wanted: np.ndarray, found: np.ndarray) -> None:
    found = found.reshape(wanted.shape)
    finite = np.isfinite(wanted)
    most = np.abs(wanted[finite]).max(initial=0.0)
    off = np.abs(found[finite] - wanted[finite]).max(initial=0.0)
    if not off <= TOLERANCE * max(most, 1e-30) or (np.isfinite(found) != finite).any():
        raise QuantizationError(
            f"{name} was read wrongly: on the examples its output {output!r} is off by {off:.3g}, where the model's "
            f"largest is {most:.3g}. This is a fault of anytpu: please report it, with the model. Nothing was compiled."
        )
