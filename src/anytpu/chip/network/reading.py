"""`read`: a Program as a `Network`.

Idea: four steps, each of its own. The program is lowered to StableHLO and run with what is known (`unfolding.py`),
which leaves a flat list of operations; the batch is followed through them (`batching.py`); what the chip can do is told
from what the host must do (`placing.py`), and becomes nodes (`drafting.py`), which are simplified (`simplifying.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir import ir

from anytpu.chip.network.drafting import draft
from anytpu.chip.network.lay import Lay
from anytpu.chip.network.lowering import lowered
from anytpu.chip.network.nodes import Network
from anytpu.chip.network.parsing import Type, parse
from anytpu.chip.network.recorder import Recorder, Symbol, Value
from anytpu.chip.network.trace import Trace
from anytpu.chip.network.unfolding import Unfolding
from anytpu.errors import QuantizationError
from anytpu.program.leaves import leaf_names
from anytpu.program.program import Program


def read(program: Program) -> Network:
    """Return what a program computes for one example, in the nodes that the chip knows.

    Args:
        program: one that infers and carries the values of its state: `anytpu.program.of(model, mode="infer",
            tensors=True, batch_size=8)`. The batch may have any size.

    Raises:
        QuantizationError: the program trains, has no values, is written per replica, computes with 64 bits or complex
            numbers, mixes the examples of a batch, or has a loop whose count is not known; the layer is named.

    Example:
        >>> network = read(program)
        >>> [type(node).__name__ for node in network.nodes]
        ['Convolution']
    """
    _check(program)
    return draft(program.name, _trace(program))


def _check(program: Program) -> None:
    if program.mode != "infer":
        raise QuantizationError(
            f"The program {program.name!r} trains, and the chip only infers. Make it with mode='infer': "
            "anytpu.program.of(model, mode='infer', tensors=True, batch_size=8)."
        )
    if program.replicas is not None:
        raise QuantizationError(
            f"The program {program.name!r} is written for each of {program.replicas} replicas, and the chip is one. "
            "Make it of the model itself: anytpu.program.of(model, mode='infer', tensors=True, batch_size=8)."
        )
    if program.tensors is None and jax.tree.leaves(program.state):
        raise QuantizationError(
            f"The program {program.name!r} does not carry the values of its weights, which become part of what the "
            "chip runs. Make it with tensors=True: anytpu.program.of(model, mode='infer', tensors=True, batch_size=8)."
        )
    for name, (_, layout) in zip(leaf_names(program.batch, "batch"), program.leaves(), strict=True):
        if layout.axis != 0:
            raise QuantizationError(
                f"The input {name!r} of {program.name!r} is not split over the batch, and the chip computes each "
                "example by itself. Hand it in with the state, as a weight, or give each example its own."
            )


def _trace(program: Program) -> Trace:
    """Run the program with its weights, and return the operations that are left over."""
    recorder = Recorder()
    inputs = _inputs(program, recorder)
    weights: list[Value] = [_weight(leaf) for leaf in jax.tree.leaves(program.tensors)]
    module = lowered(program)
    with module.context, ir.Location.unknown():
        functions = parse(module)
        results = Unfolding(functions, recorder).run(functions["main"], [*weights, *inputs])
        outputs = [recorder.whole(one) for one in results[len(jax.tree.leaves(program.state)) :]]
    rows = program.rows
    assert rows is not None
    return Trace.of(
        recorder.operations, recorder.types, {one.name: Lay(0, rows) for one in inputs}, _named(program, outputs)
    )


def _inputs(program: Program, recorder: Recorder) -> list[Symbol]:
    leaves = jax.tree.leaves(program.batch)
    names = ["input"] if len(leaves) == 1 else [f"input_{number}" for number in range(len(leaves))]
    for name, leaf in zip(leaf_names(program.batch, "batch"), leaves, strict=True):
        if np.dtype(leaf.dtype).name in ("float64", "complex64", "complex128"):
            raise QuantizationError(
                f"The input {name!r} of {program.name!r} is {np.dtype(leaf.dtype).name}, and the chip's numbers come "
                "from float32. Cast it to float32 before it goes in."
            )
    return [
        recorder.input(name, Type(tuple(leaf.shape), np.dtype(leaf.dtype)))
        for name, leaf in zip(names, leaves, strict=True)
    ]


def _weight(leaf: Any) -> np.ndarray:
    typed_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if typed_key else leaf)


def _named(program: Program, outputs: Sequence[np.ndarray | Symbol]) -> list[str]:
    for number, one in enumerate(outputs):
        if not isinstance(one, Symbol):
            raise QuantizationError(
                f"Output {number} of {program.name!r} does not depend on the inputs: leave it out of what is returned."
            )
    if not outputs:
        raise QuantizationError(f"The program {program.name!r} returns nothing beside its state: return the result.")
    return [one.name for one in outputs if isinstance(one, Symbol)]
