"""Programs and networks that are rejected, before and after a program is read, and the messages."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from anytpu.chip.graph.nodes import HostStep, Network, Reshape
from anytpu.errors import QuantizationError
from anytpu.program.program import Program, leaf_names


def check_program(program: Program) -> None:
    """Raise `QuantizationError` unless a program infers, carries its weights, and takes examples of real numbers."""
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
    if not jax.tree.leaves(program.batch):
        raise QuantizationError(
            f"The program {program.name!r} takes no inputs beside its state: hand them in as batch."
        )
    for name, (_, layout) in zip(leaf_names(program.batch, "batch"), program.leaves(), strict=True):
        if layout.axis != 0:
            raise QuantizationError(
                f"The input {name!r} of {program.name!r} is not split over the batch, and the chip computes each "
                "example by itself. Hand it in with the state, as a weight, or give each example its own."
            )
    for name, leaf in zip(leaf_names(program.batch, "batch"), jax.tree.leaves(program.batch), strict=True):
        if np.dtype(leaf.dtype).name in ("float64", "complex64", "complex128"):
            raise QuantizationError(
                f"The input {name!r} of {program.name!r} is {np.dtype(leaf.dtype).name}, and the chip's numbers come "
                "from float32. Cast it to float32 before it goes in."
            )


def check_outputs(program: Program, depend: Sequence[bool]) -> None:
    """Raise `QuantizationError` unless a program has outputs, and all of them depend on its inputs."""
    if not depend:
        raise QuantizationError(f"The program {program.name!r} returns nothing beside its state: return the result.")
    for index, depends in enumerate(depend):
        if not depends:
            raise QuantizationError(
                f"Output {index} of {program.name!r} does not depend on the inputs: leave it out of what is returned."
            )


def check_network(network: Network) -> None:
    """Raise `QuantizationError` unless the chip has something to do, and every output is made or held by it."""
    steps = [node for node in network.nodes if isinstance(node, HostStep)]
    if not network.nodes:
        raise QuantizationError(f"The outputs of {network.name!r} are its inputs: there is nothing to compute.")
    if steps and all(isinstance(node, HostStep | Reshape) for node in network.nodes):
        layers = dict.fromkeys(f"{node.layer or node.name!r} ({node.why})" for node in steps)
        raise QuantizationError(f"Nothing of {network.name!r} can be computed on the chip: {', '.join(layers)}.")
    held = {name for node in network.nodes if not isinstance(node, HostStep) for name in node.inputs}
    inputs = {port.tensor for port in network.inputs}
    for index, port in enumerate(network.outputs):
        if port.tensor in inputs - held:
            raise QuantizationError(
                f"Output {index} of {network.name!r} is its input {port.tensor!r}, which the chip does not hold: "
                "leave it out of what is returned."
            )
