"""`CpuCall`: a function of arrays that a kernel of anytpu-kernels computes on the CPU.

Idea: a table's lookup and its update have a form in JAX's own operations, and a kernel. A call becomes an operation of
its own only while the CPU's kernels are switched on (`engine/kernels.py`). JAX chooses a form when it lowers the
operation: the kernel for the CPU, the plain form elsewhere. Batching and differentiation use the plain form.

Rule: both forms have the same results, within float32's rounding.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import jax
from jax import Array
from jax.interpreters import batching, mlir

from anytpu.engine.function_primitives import function_primitive
from anytpu.engine.kernels import kernels_in_use


@dataclasses.dataclass(frozen=True)
class CpuCall:
    """A function with a kernel.

    Attributes:
        plain: takes arrays and settings, and returns a sequence of arrays.
        foreign: computes the same by the module of kernels, its first argument.
        takes: returns whether the kernel supports these arrays and settings.
    """

    plain: Callable[..., Sequence[Array]]
    foreign: Callable[..., Sequence[Array]]
    takes: Callable[..., bool]

    def __call__(self, *operands: Array, **settings: Any) -> Sequence[Array]:
        """Compute the results."""
        if kernels_in_use() is None or not self.takes(*operands, **settings):
            return self.plain(*operands, **settings)
        return cpu_call_p.bind(*operands, function=self, settings=tuple(sorted(settings.items())))


def _compute(*operands: Any, function: CpuCall, settings: tuple) -> list[Any]:
    return list(function.plain(*operands, **dict(settings)))


cpu_call_p = function_primitive("cpu_call", _compute)


def _batch(operands: Any, dims: Any, *, function: CpuCall, settings: tuple) -> Any:
    results = jax.vmap(lambda *arrays: _compute(*arrays, function=function, settings=settings), dims)(*operands)
    return results, [0] * len(results)


def _lower_on_cpu(context: Any, *operands: Any, function: CpuCall, settings: tuple) -> Any:
    """Lower a call for the CPU: by its kernel, if the switch of the kernels is on."""
    kernels: ModuleType | None = kernels_in_use()

    def compute(*arrays: Any) -> list[Any]:
        if kernels is None:
            return _compute(*arrays, function=function, settings=settings)
        return list(function.foreign(kernels, *arrays, **dict(settings)))

    return mlir.lower_fun(compute, multiple_results=True)(context, *operands)


batching.primitive_batchers[cpu_call_p] = _batch
mlir.register_lowering(cpu_call_p, _lower_on_cpu, platform="cpu")
