"""`read`: a Program as a `Network`.

Idea: separate passes.

1. `lowering.py` lowers the program to StableHLO, and `parsing.py` reads the module into records.
2. `partial_evaluation.py` runs it with its known values, which leaves a flat list of operations (`trace.py`).
3. `batching.py` propagates the batch axis through the operations.
4. `placement.py` places each operation on the chip or the host.
5. `drafting.py` lowers the operations to nodes, and `simplifying.py` simplifies the nodes.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.mlir import ir

from anytpu.chip.graph.nodes import Network, Port
from anytpu.chip.network.drafting import TraceLowering
from anytpu.chip.network.graph import NetworkGraph
from anytpu.chip.network.layout import BatchLayout
from anytpu.chip.network.lowering import lowered
from anytpu.chip.network.parsing import TensorType, parse
from anytpu.chip.network.partial_evaluation import PartialEvaluator
from anytpu.chip.network.placement import place_operations
from anytpu.chip.network.recorder import Recorder, Symbol, Value
from anytpu.chip.network.refusals import check_outputs, check_program
from anytpu.chip.network.simplifying import simplify
from anytpu.chip.network.trace import OperationTrace
from anytpu.program.program import Program


def read(program: Program) -> Network:
    """Return the computation of a program for one example, as nodes that the chip knows.

    Args:
        program: an inference program with the values of its state: `anytpu.program.of(model, mode="infer",
            tensors=True, batch_size=8)`. The batch may have any size.

    Raises:
        QuantizationError: the program trains, has no values, or is written per replica. Or it computes with 64 bits or
            complex numbers, mixes the examples of a batch, or has a loop of unknown count. The layer is named.

    Example:
        >>> network = read(program)
        >>> [type(node).__name__ for node in network.nodes]
        ['Convolution']
    """
    check_program(program)
    trace = trace_of(program)
    graph = NetworkGraph({value: trace.shape(value) for value in trace.inputs})
    TraceLowering(trace, place_operations(trace), graph).run()
    outputs = [Port(graph.tensor(value), trace.example(value), trace.dtype(value).name) for value in trace.outputs]
    inputs = [Port(value, trace.example(value), trace.dtype(value).name) for value in trace.inputs]
    return simplify(program.name, graph, dict(zip(_names(program), inputs, strict=True)), outputs)


def trace_of(program: Program) -> OperationTrace:
    """Run the program with its weights, and return the operations that are left over."""
    recorder = Recorder()
    inputs = _inputs(program, recorder)
    weights: list[Value] = [_weight(leaf) for leaf in jax.tree.leaves(program.tensors)]
    module = lowered(program)
    with module.context, ir.Location.unknown():
        functions = parse(module)
        results = PartialEvaluator(functions, recorder).run(functions["main"], [*weights, *inputs])
        outputs = [recorder.whole(result) for result in results[len(jax.tree.leaves(program.state)) :]]
    rows = program.rows
    assert rows is not None
    check_outputs(program, [isinstance(output, Symbol) for output in outputs])
    names = [output.name for output in outputs if isinstance(output, Symbol)]
    return OperationTrace.of(
        recorder.operations, recorder.types, {symbol.name: BatchLayout(0, rows) for symbol in inputs}, names
    )


def _inputs(program: Program, recorder: Recorder) -> list[Symbol]:
    """Declare the inputs under internal names: the user's names may equal names of values."""
    types = [TensorType(tuple(leaf.shape), np.dtype(leaf.dtype)) for leaf in jax.tree.leaves(program.batch)]
    return [recorder.input(f"input {index}", tensor_type) for index, tensor_type in enumerate(types)]


def _names(program: Program) -> list[str]:
    """Return the user's names of the inputs."""
    leaves = jax.tree_util.tree_flatten_with_path(program.batch)[0]
    names = [_key(path) for path, _ in leaves]
    if not all(names) or len(set(names)) < len(names):
        return ["input"] if len(leaves) == 1 else [f"input_{index}" for index in range(len(leaves))]
    return names


def _key(path: Any) -> str:
    """Return the key by which an input is found in a dictionary, or ""."""
    return path[-1].key if path and isinstance(getattr(path[-1], "key", None), str) else ""


def _weight(leaf: Any) -> np.ndarray:
    typed_key = isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(leaf) if typed_key else leaf)
