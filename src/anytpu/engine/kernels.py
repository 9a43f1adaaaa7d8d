"""The switch for the CPU kernels: operations in the forms that XLA:CPU runs fast.

Idea: convolutions, gradients of max pooling and small products are rewritten when JAX lowers them for the CPU,
after differentiation and batching. LSTMs, GRUs and the statistics of batch normalization are replaced at the functions
of the backend that Keras calls. One switch controls all of them.

A large sum of gradients that matrix products read is computed once. XLA:CPU fuses the sums with each of their uses, as
deep as they go. So each layer of a deep residual network computed the gradients of all layers behind it again. That
took half of the time of a GPT of four layers. XLA respects no barrier here, but it fuses nothing with a call.

Rule: the switch is on only in the thread that turned it on; elsewhere JAX and Keras behave as always. Trace AND lower
inside it (`jax.jit(f).lower(...)` does both), from a fresh function: JAX's caches do not depend on it. If
anytpu-kernels is installed (`engine/foreign.py`), oneDNN computes the convolutions that it supports.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import jax
from jax import Array, lax
from jax.experimental.xla_metadata import set_xla_metadata
from jax.extend.core.primitives import add_jaxvals_p
from jax.extend.mlir import ir
from jax.interpreters import mlir

from anytpu import _jax, _keras_layers
from anytpu._contexts import value_within
from anytpu.engine import batch_norm
from anytpu.engine.convolution import needs_rewriting, rewrite_convolution
from anytpu.engine.foreign import foreign_kernels
from anytpu.engine.gru import gru
from anytpu.engine.lstm import lstm
from anytpu.engine.pooling import pool_gradient, takes_pool_gradient
from anytpu.engine.products import as_matrices, as_sum, has_leading_sums, is_small

_MAPPED_BYTES = 2**25
"""Minimum size of an allocation for which glibc maps memory, and returns it to the system when it is freed."""

MIN_GRADIENT_ELEMENTS = 2**14
"""Minimum size of a sum of gradients that is computed once; a smaller one stays in the processor's first cache."""

_ON = contextvars.ContextVar("anytpu_fast_kernels", default=False)
_LAYERS_ON = contextvars.ContextVar("anytpu_fast_layers", default=False)


@contextlib.contextmanager
def fast_kernels(layers: bool = True) -> Iterator[None]:
    """Return a context in which these operations are lowered to the forms that XLA:CPU runs fast.

    Args:
        layers: whether LSTMs, GRUs and batch normalizations of Keras are included. The products of an LSTM differ from
            those of Keras's: they contain the bias.

    Example:
        >>> with fast_kernels():
        ...     lowered = jax.jit(lambda x: x + 1).lower(1.0)
    """
    _install()
    if layers:
        _install_layers()
    with value_within(_ON, True), value_within(_LAYERS_ON, layers):
        yield


def fuse_other_sums(lowered: jax.stages.Lowered) -> None:
    """Let XLA fuse again the sums of gradients that no matrix product reads beside another use, before compilation.

    The rule of a sum sees no uses. Without products XLA's fusions are faster, and need no memory for the sum.
    """
    module: Any = lowered.compiler_ir()

    def fuse(operation: Any) -> Any:
        if operation.name == "func.call" and _UNFUSED in str(operation.attributes["callee"]):
            result = operation.results[0]
            if len(list(result.uses)) == 1 or not _feeds_product(result):
                result.replace_all_uses_with(operation.operands[0])
        return ir.WalkResult.ADVANCE

    if any(_UNFUSED in str(function.name) for function in module.body.operations):
        module.operation.walk(fuse)


def _feeds_product(value: Any) -> bool:
    """Return whether a matrix product reads a value of a lowered program, also in another shape or order."""
    users = [use.owner for use in value.uses]
    moved = [user for user in users if user.name in ("stablehlo.reshape", "stablehlo.transpose")]
    return any(user.name == "stablehlo.dot_general" for user in users) or any(
        _feeds_product(user.results[0]) for user in moved
    )


def kernels_in_use() -> ModuleType | None:
    """Return the module `anytpu_kernels` if operations are lowered to its calls here and now, or None."""
    return foreign_kernels() if _ON.get() else None


def prepare_memory(temporary_bytes: int) -> None:
    """Request huge pages from Linux if so much is allocated that glibc maps memory for it.

    Args:
        temporary_bytes: bytes that a call of an executable, or an array, allocates.
    """
    foreign = foreign_kernels() if temporary_bytes >= _MAPPED_BYTES else None
    if foreign is not None:
        foreign.use_huge_pages()


@functools.cache
def _install() -> None:
    """Register the lowering rules permanently: while the switch is off, each calls JAX's own rule, `plain`."""
    rules = {
        lax.conv_general_dilated_p: _lower_convolution,
        lax.dot_general_p: _lower_product,
        add_jaxvals_p: _lower_gradient_sum,
        lax.select_and_scatter_add_p: _lower_pool_gradient,
    }
    for primitive, rule in rules.items():
        plain = _jax.cpu_lowering(primitive)
        mlir.register_lowering(primitive, functools.partial(rule, plain), platform="cpu")


@functools.cache
def _install_layers() -> None:
    """Offer Keras the functions of layers permanently. This imports Keras."""
    _keras_layers.offer_recurrent(lstm, gru, lambda: _LAYERS_ON.get())
    _keras_layers.offer_batch_norm(batch_norm.moments, batch_norm.normalize, lambda: _LAYERS_ON.get())


def _lower_convolution(plain: Any, context: Any, image: Any, kernel: Any, **parameters: Any) -> Any:
    """Lower a convolution: as a call of oneDNN, in another form, or by JAX's rule."""
    operands = context.avals_in[0], context.avals_in[1]
    foreign = kernels_in_use()
    if foreign is not None and foreign.takes_convolution(*operands, parameters):
        computed = foreign.convolution
    elif _ON.get() and needs_rewriting(*operands, parameters):
        computed = rewrite_convolution
    else:
        return plain(context, image, kernel, **parameters)
    return _lower_as(computed, parameters, context, image, kernel)


def _lower_product(plain: Any, context: Any, left: Any, right: Any, **parameters: Any) -> Any:
    """Lower a matrix product: as a sum if it is small, as one of plain matrices, or by JAX's rule."""
    operands = context.avals_in
    if _ON.get() and is_small(operands[0], operands[1], parameters):
        return _lower_as(as_sum, parameters, context, left, right)
    if _ON.get() and has_leading_sums(operands, parameters):
        return _lower_as(as_matrices, parameters, context, left, right)
    return plain(context, left, right, **parameters)


def _lower_pool_gradient(plain: Any, context: Any, gradient: Any, image: Any, **parameters: Any) -> Any:
    """Lower the gradient of max pooling: as selections, or by JAX's rule."""
    operands = context.avals_in
    if not (_ON.get() and takes_pool_gradient(operands[0], operands[1], parameters)):
        return plain(context, gradient, image, **parameters)
    return _lower_as(pool_gradient, parameters, context, gradient, image)


def _lower_gradient_sum(plain: Any, context: Any, left: Any, right: Any) -> Any:
    """Lower a sum of the gradients of two uses of a value: if it is large, as one that is computed once."""
    if not (_ON.get() and context.avals_out[0].size >= MIN_GRADIENT_ELEMENTS):
        return plain(context, left, right)
    return _lower_as(_sum_once, {}, context, left, right)


def _sum_once(left: Array, right: Array) -> Array:
    total = lax.add(left, right)
    with set_xla_metadata(inlineable="false"):
        return _unfused_sum(total)  # XLA gives the call's result the buffer of its operand: no copy.


@jax.jit
def _unfused_sum(total: Array) -> Array:
    return lax.optimization_barrier(total)


_UNFUSED = "_unfused_sum"


def _lower_as(function: Callable[..., Array], parameters: dict[str, Any], context: Any, *operands: Any) -> Any:
    """Lower an operation as a function of JAX's operations with the same parameters."""
    lower: Any = mlir.lower_fun(functools.partial(function, **parameters), multiple_results=False)
    return lower(context, *operands)
