"""The operations that a child accepts in a Program: an allow-list of dialects and custom calls.

Idea: XLA runs any custom call that is registered, and some take an address or an index from the program. So a Program
of a stranger is walked before it is compiled, and anything that is not listed is refused by name.

Rule: a list of allowed operations, never of forbidden ones. The size of every value is checked too.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.mlir import deserialize_portable_artifact, ir
from jax.interpreters import mlir

from anytpu.engine.foreign import foreign_kernels
from anytpu.errors import ProgramError
from anytpu.units import format_bytes

DIALECTS = frozenset(["builtin", "func", "stablehlo", "chlo", "sdy"])
"""The MLIR dialects of a Program."""

CUSTOM_CALLS = re.compile(
    r"Sharding|SPMDFullToShardShape|SPMDShardToFullShape|cu_threefry2x32_ffi|AllocateBuffer|ApproxTopK|Eigh|Qr"
    r"|ProductOfElementaryHouseholderReflectors|LuDecomposition|lapack_[sdcz][a-z]+_ffi|cusolver_[a-z]+_ffi"
    r"|mhlo\.(erf|topk)|annotate_device_placement"
)
"""The custom calls of JAX that are allowed: none calls back into Python or takes an address."""

FOREIGN_CALLS = (
    *("anytpu_convolution", "anytpu_column_moments", "anytpu_column_products"),
    *("anytpu_lstm_forward", "anytpu_lstm_backward", "anytpu_gru_forward", "anytpu_gru_backward"),
    *("anytpu_sequence_weights", "anytpu_row_sums", "anytpu_row_update"),
)
"""The custom calls of anytpu-kernels, allowed where they are installed. Each refuses arrays that do not fit."""

_BITS = re.compile(r"(?:tensor<|complex<|x)?[a-z]*?(\d+)")


def check_program(exported: jax.export.Exported, max_bytes: int) -> None:
    """Check every operation of a Program.

    Args:
        exported: the Program's code.
        max_bytes: maximum size of a value in it.

    Raises:
        ProgramError: an operation is not allowed, or a value is too large. The message is a sentence about "it".
    """
    if exported.ordered_effects or exported.unordered_effects:
        raise ProgramError("It has effects, such as callbacks into Python, which a worker does not run.")
    for aval in (*exported.in_avals, *exported.out_avals):
        _check_size(math.prod(aval.shape) * aval.dtype.itemsize, max_bytes)
    with mlir.make_ir_context() as context:
        try:
            module = deserialize_portable_artifact(exported.mlir_module_serialized, context)
        except (ir.MLIRError, ValueError, RuntimeError) as error:
            raise ProgramError(f"It is not StableHLO: {str(error)[:200]}.") from error
        for operation in _operations(module.operation):
            _check_operation(operation, max_bytes)


def _operations(operation: Any) -> Iterator[Any]:
    waiting = [operation]
    while waiting:
        yield (current := waiting.pop())
        for region in current.regions:
            for block in region.blocks:
                waiting += [inner.operation for inner in block.operations]


def _check_operation(operation: Any, max_bytes: int) -> None:
    if operation.name.split(".")[0] not in DIALECTS:
        raise ProgramError(f"It has the operation {operation.name!r}, which a worker does not run.")
    if operation.name == "stablehlo.custom_call":
        target = ir.StringAttr(operation.attributes["call_target_name"]).value
        is_foreign = target in FOREIGN_CALLS and foreign_kernels() is not None
        if not is_foreign and not CUSTOM_CALLS.fullmatch(target):
            raise ProgramError(f"It calls {target[:80]!r}, which a worker does not run.")
    for result in operation.results:
        if str(result.type).startswith("tensor<"):
            _check_type(ir.RankedTensorType(result.type), max_bytes)


def _check_type(tensor: Any, max_bytes: int) -> None:
    if not tensor.has_static_shape:
        raise ProgramError(f"It has a value of the dynamic shape {tensor}, which a worker does not run.")
    bits = int(match[1]) if (match := _BITS.search(str(tensor.element_type))) else 8
    bits *= 2 if str(tensor.element_type).startswith("complex") else 1
    _check_size(math.prod(tensor.shape) * bits // 8, max_bytes)


def _check_size(size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise ProgramError(
            f"It has a value of {format_bytes(size_bytes)}, and a session of this worker has "
            f"{format_bytes(max_bytes)}. Start the worker with a larger --memory-limit, or make the batch smaller."
        )
