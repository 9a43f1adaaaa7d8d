"""`prove`: check that a network computes the same outputs as its program, on the user's examples.

Idea: the reader folds hundreds of operations into a few nodes. To check the result, both are run in float32 on some of
the user's examples. The program also runs on the examples in another order and in a batch of another size, because the
chip computes each example independently.

Rule: a difference of more than rounding is an error, and the network is not compiled. Integers and booleans may differ
in few of the numbers, since an argmax or a rounding may fall either way where two values nearly tie. In a program of
16-bit floats ties are frequent. There a number is a tie if the program itself gives another one when its inputs and
state change as much as such floats round. The network must then give one of these numbers, or one beside them. If
most of an output is ties, as of large integers or of indices in floats, none of them counts as one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from anytpu.chip.graph.nodes import Network, Port
from anytpu.chip.quantized.calibration import evaluate_chunks
from anytpu.errors import QuantizationError
from anytpu.program import Program

TOLERANCE = 1e-3
"""Maximum error relative to an output's maximum. Reordered sums give about 1e-6, a wrong fold 0.1 or more."""

ROUGH_TOLERANCE = 0.06
"""The same for a program that computes in bfloat16 or float16 in part; the network computes in float32."""

MAX_TIES = 0.05
"""Maximum share of the integers or booleans of an output that may differ by any amount, without those of `_ties`."""

MAX_ROUGH_TIES = 0.5
"""Maximum share of the numbers of an output that are ties in the sense of `_ties`."""

_SHAKES, _SHAKE = 4, 2.0**-7
"""Runs of a program with 16-bit floats that find its ties, and the maximum relative change of each number."""


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
    is_rough = tolerance == ROUGH_TOLERANCE and any(map(_is_whole, network.outputs))
    ties = _ties(run, program, few, order, first) if is_rough else [made[None] for made in first]

    def compare(made: Sequence[np.ndarray], order: np.ndarray, message: str) -> None:
        for port, wanted, tied in zip(network.outputs, made, ties, strict=True):
            _compare(network.name, port, wanted, computed[port.tensor][order], tied[:, order], tolerance, message)

    compare(first, order, _MISREAD)
    # 3. The examples in another order: a difference means that the program mixes the examples of a batch.
    moved = np.roll(order, count // 2 + 1)
    compare(_outputs(run, program, few, moved), moved, _MIXED)
    # 4. Another batch size: a difference means that the outputs depend on it.
    if other is None:
        return
    resized = other()
    lowered, resized_text = _lowered(resized)
    if _constants(resized_text) == _constants(text):
        return  # no constant depends on the batch size
    order = np.arange(resized.rows or 1) % len(few[0])
    compare(_outputs(lowered.compile(), resized, few, order), order, _COUNTED)


def _lowered(program: Program) -> tuple[Any, str]:
    name = program.name.rpartition("/")[0] or program.name
    try:
        lowered = jax.jit(program.step).lower(program.tensors, program.batch)
    except (ValueError, NotImplementedError) as error:
        cause = (str(error) or type(error).__name__).splitlines()[0]
        raise QuantizationError(
            f"{name} cannot be computed on the host, which compares the chip's network with it ({cause}). Make the "
            "model with float32; in mixed_float16, JAX has some products (Keras's attention) for no CPU."
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


def _outputs(
    run: Any, program: Program, arrays: Sequence[np.ndarray], order: np.ndarray, tensors: Any = None
) -> list[np.ndarray]:
    leaves, structure = jax.tree.flatten(program.batch)
    taken = [array[order].astype(leaf.dtype) for array, leaf in zip(arrays, leaves, strict=True)]
    state = program.tensors if tensors is None else tensors
    return [np.asarray(leaf) for leaf in jax.tree.leaves(run(state, jax.tree.unflatten(structure, taken))[1])]


def _ties(
    run: Any, program: Program, arrays: Sequence[np.ndarray], order: np.ndarray, first: Sequence[np.ndarray]
) -> list[np.ndarray]:
    """Return each output of `first` and of runs with other inputs and state, stacked; only `first` if most differ."""
    random = np.random.default_rng(0)

    def shaken(leaf: Any) -> Any:
        if not jnp.issubdtype(leaf.dtype, jnp.floating):  # also the keys of random numbers
            return leaf
        array = np.asarray(leaf)
        return (array * (1 + _SHAKE * random.uniform(-1, 1, array.shape))).astype(array.dtype)

    runs = [
        _outputs(run, program, [*map(shaken, arrays)], order, jax.tree.map(shaken, program.tensors))
        for _ in range(_SHAKES)
    ]
    seen = [np.stack(made) for made in zip(first, *runs, strict=True)]
    return [made if (made != made[0]).any(0).mean() <= MAX_ROUGH_TIES else made[:1] for made in seen]


def _is_whole(port: Port) -> bool:
    return not port.dtype.startswith(("float", "bfloat"))


def _compare(
    name: str, port: Port, wanted: np.ndarray, computed: np.ndarray, ties: np.ndarray, tolerance: float, message: str
) -> None:
    wanted = wanted.astype(np.float64)
    computed = computed.reshape(wanted.shape).astype(np.float64)
    if _is_whole(port):
        near = (abs(ties.astype(np.float64) - computed) <= 1).any(0) & (ties != ties[0]).any(0)
        if np.count_nonzero((computed != wanted) & ~near) <= MAX_TIES * wanted.size:
            return
    finite = np.isfinite(wanted)
    most = np.abs(wanted[finite]).max(initial=0.0)
    off = np.abs(computed[finite] - wanted[finite]).max(initial=0.0)
    if not off <= tolerance * max(most, 1e-30) or (np.isfinite(computed) != finite).any():
        raise QuantizationError(message.format(name=name, output=port.tensor, off=off, most=most))
