"""`prove`: check that a network computes the same outputs as its program, on the user's examples.

Idea: the reader folds hundreds of operations into a few nodes. To check the result, both are run in float32 on some of
the user's examples. The program also runs on the examples in another order and in a batch of another size, because the
chip computes each example independently.

Rule: a difference of more than rounding is an error, and the network is not compiled. Integers and booleans may differ
in few of the numbers, since an argmax or a rounding may fall either way where two values nearly tie.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from anytpu.chip.graph.nodes import Network
from anytpu.chip.quantized.calibration import evaluate_chunks
from anytpu.errors import QuantizationError
from anytpu.program import Program

TOLERANCE = 1e-3
"""Maximum error relative to an output's maximum. Reordered sums give about 1e-6, a wrong fold 0.1 or more."""

ROUGH_TOLERANCE = 0.06
"""The same for a program that computes in bfloat16 or float16 in part; the network computes in float32."""

MAX_TIES = 0.05
"""Maximum share of the integers or booleans of an output that may differ by any amount."""

MAX_ROUGH_TIES = 0.5
"""The same for a program that computes in bfloat16 or float16 in part, where ties are frequent."""


def prove(
    program: Program, network: Network, arrays: Sequence[np.ndarray], other: Callable[[], Program] | None = None
) -> None:
    """Run a program and its network on some examples, and compare their outputs.

    Args:
        program: a program of mode "infer", with its values.
        network: the float network read from it.
        arrays: examples for each input, `(rows, ...)`, at least one row.
        other: makes the program for another batch size; None if it has only one.

    Raises:
        QuantizationError: the outputs differ, or depend on an example's index in its batch or on the batch size.
    """
    # 1. The network's outputs on the examples.
    count = program.rows or 1
    few = [np.asarray(array)[:count] for array in arrays]
    chunks = list(evaluate_chunks(network, few))
    computed = {port.tensor: np.concatenate([chunk[port.tensor] for chunk in chunks]) for port in network.outputs}
    # 2. The program's outputs: a difference means that the network was read wrongly.
    lowered, text = _lowered(program)
    tolerance = ROUGH_TOLERANCE if "bf16" in text or "xf16" in text else TOLERANCE
    run = lowered.compile()
    order = np.arange(count) % len(few[0])
    first = _outputs(run, program, few, order)
    for port, wanted in zip(network.outputs, first, strict=True):
        _compare(network.name, port.tensor, port.dtype, wanted, computed[port.tensor][order], tolerance, _MISREAD)
    # 3. The examples in another order: a difference means that the program mixes the examples of a batch.
    moved = np.roll(order, count // 2 + 1)
    for port, wanted in zip(network.outputs, _outputs(run, program, few, moved), strict=True):
        _compare(network.name, port.tensor, port.dtype, wanted, computed[port.tensor][moved], tolerance, _MIXED)
    # 4. Another batch size: a difference means that the outputs depend on it.
    if other is None:
        return
    resized = other()
    lowered, resized_text = _lowered(resized)
    if _constants(resized_text) == _constants(text):
        return  # no constant depends on the batch size
    order = np.arange(resized.rows or 1) % len(few[0])
    for port, wanted in zip(network.outputs, _outputs(lowered.compile(), resized, few, order), strict=True):
        _compare(network.name, port.tensor, port.dtype, wanted, computed[port.tensor][order], tolerance, _COUNTED)


def _lowered(program: Program) -> tuple[Any, str]:
    name = program.name.rpartition("/")[0] or program.name
    try:
        lowered = jax.jit(program.step).lower(program.tensors, program.batch)
    except (ValueError, NotImplementedError) as error:
        cause = (str(error) or type(error).__name__).splitlines()[0]
        raise QuantizationError(
            f"{name} cannot be computed on the host, which compares the chip's network with it "
            f"({cause}). Make the model with float32; in mixed_float16, JAX has some products "
            "(Keras's attention) for no CPU."
        ) from error
    return lowered, lowered.as_text()


def _constants(text: str) -> list[str]:
    return re.findall(r"stablehlo\.constant dense<(.*?)> :", text)


_MISREAD = (
    "{name} was read wrongly: on the examples its output {output!r} is off by {off:.3g}, where the model's largest is "
    "{most:.3g}. This is a fault of anytpu: please report it, with the model. Nothing was compiled."
)
_MIXED = (
    "the output {output!r} of {name} depends on the position of an example in its batch: in another order it is off "
    "by {off:.3g}, where its largest is {most:.3g}. The chip computes each example by itself; remove the operation "
    "that mixes them from the model."
)

_COUNTED = (
    "the output {output!r} of {name} depends on how many examples a batch has: with another number it is off by "
    "{off:.3g}, where its largest is {most:.3g}. The chip computes each example by itself; remove the size of the "
    "batch from the model."
)


def _outputs(run: Any, program: Program, arrays: Sequence[np.ndarray], order: np.ndarray) -> list[np.ndarray]:
    leaves, structure = jax.tree.flatten(program.batch)
    taken = [array[order].astype(leaf.dtype) for array, leaf in zip(arrays, leaves, strict=True)]
    return [np.asarray(leaf) for leaf in jax.tree.leaves(run(program.tensors, jax.tree.unflatten(structure, taken))[1])]


def _compare(
    name: str, output: str, dtype: str, wanted: np.ndarray, computed: np.ndarray, tolerance: float, message: str
) -> None:
    wanted = wanted.astype(np.float64)
    computed = computed.reshape(wanted.shape).astype(np.float64)
    if not dtype.startswith(("float", "bfloat")):
        ties = MAX_TIES if tolerance == TOLERANCE else MAX_ROUGH_TIES
        if np.count_nonzero(computed != wanted) <= ties * wanted.size:
            return
    finite = np.isfinite(wanted)
    most = np.abs(wanted[finite]).max(initial=0.0)
    off = np.abs(computed[finite] - wanted[finite]).max(initial=0.0)
    if not off <= tolerance * max(most, 1e-30) or (np.isfinite(computed) != finite).any():
        raise QuantizationError(message.format(name=name, output=output, off=off, most=most))
