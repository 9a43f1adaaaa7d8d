"""`function_primitive`: a JAX operation whose parameters are a function of arrays and its settings.

Rule: derivatives are those of the function's plain form. Each module adds its own batching.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import jax
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, mlir


class ArrayFunction(Protocol):
    """A function with a form in JAX's own operations.

    Attributes:
        plain: takes arrays and settings, and returns a sequence of arrays.
    """

    @property
    def plain(self) -> Callable[..., Sequence[Array]]:
        """The form in JAX's own operations."""
        ...


def function_primitive(name: str, compute: Callable[..., list[Any]]) -> Primitive:
    """Return an operation without a rule for batching.

    Args:
        name: its name.
        compute: computes the results, `compute(*arrays, function=an ArrayFunction, settings=pairs)`.
    """
    primitive = Primitive(name)
    primitive.multiple_results = True
    primitive.def_impl(compute)

    def result_specs(*operands: Any, **parameters: Any) -> list[Any]:
        specs = [jax.ShapeDtypeStruct(operand.shape, operand.dtype) for operand in operands]
        results = jax.eval_shape(lambda *arrays: compute(*arrays, **parameters), *specs)
        return [ShapedArray(result.shape, result.dtype) for result in results]

    primitive.def_abstract_eval(result_specs)
    ad.primitive_jvps[primitive] = _differentiate
    mlir.register_lowering(primitive, mlir.lower_fun(compute, multiple_results=True))
    return primitive


def _differentiate(primals: Any, tangents: Any, *, function: ArrayFunction, settings: tuple) -> Any:
    tangents = tuple(map(ad.instantiate_zeros, tangents))
    return jax.jvp(lambda *arrays: list(function.plain(*arrays, **dict(settings))), primals, tangents)
