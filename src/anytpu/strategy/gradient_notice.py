"""A warning for steps that sum one gradient per replica, although one gradient for all replicas is much faster.

Idea: under `vmap` a gradient with respect to shared weights is one array per replica, summed afterwards. That takes
eight times the memory, and 20 times the time for a large Dense layer. `tpu.value_and_grad` differentiates the sum
instead. In the trace the slow form is a `psum` over an axis of the array itself. If a product computes the gradient,
the sum becomes part of the product (`summed_products.py`), and there is no warning.
"""

from __future__ import annotations

import math
import warnings
from typing import Any

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from anytpu._calls import users_stacklevel
from anytpu.program.jaxprs import level_of
from anytpu.program.summed_products import sums_over_replicas, with_summed_products
from anytpu.units import MIB, format_bytes

MIN_BYTES = 4 * MIB
"""Minimum bytes of one replica's sums for a warning: smaller sums are fast."""


def check_replica_gradients(name: str, trace: ClosedJaxpr, replicas: int, *, is_virtual: bool) -> bool:
    """Return whether the step sums products over the replicas; warn if other sums are as large as gradients.

    Args:
        name: name of the step function.
        trace: trace of the step under `vmap`.
        replicas: number of replicas.
        is_virtual: whether the cores are virtual; there is no warning for other cores.
    """
    rewritten = with_summed_products(trace)
    size_bytes = _summed_bytes(rewritten) // replicas
    if is_virtual and replicas > 1 and size_bytes >= MIN_BYTES:
        warnings.warn(
            f"{name} adds {format_bytes(size_bytes)} of each of {replicas} replicas. If they are gradients, "
            "(loss, gradients) = tpu.value_and_grad(loss_fn, parameters)(...) makes one for all replicas, already "
            "summed, and is many times faster on virtual cores",
            stacklevel=users_stacklevel(),
        )
    return rewritten is not trace


def _summed_bytes(trace: ClosedJaxpr) -> int:
    """Return the bytes of the floating-point arrays that are summed over the replicas, of all replicas together."""
    sums = sums_over_replicas(level_of(trace))
    arrays: list[Any] = [operand.aval for equation in sums for operand in equation.invars]
    floating = [array for array in arrays if jnp.issubdtype(array.dtype, jnp.inexact)]
    return sum(math.prod(array.shape) * array.dtype.itemsize for array in floating)
