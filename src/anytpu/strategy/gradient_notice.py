"""A notice to those who sum one gradient of each replica, where one for all replicas is many times faster.

Idea: under `vmap` a gradient by weights that all replicas share is one array a replica, summed afterwards: eight times
the memory, and 20 times the time for a large Dense layer. `tpu.value_and_grad` differentiates the sum instead. In the
trace the slow form is a `psum` over an axis of the array itself. Where a product makes the gradient, the sum becomes
part of it (`summed_products.py`) and nothing is told.
"""

from __future__ import annotations

import math
import sys
import warnings
from typing import Any

import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr

from anytpu.program.jaxprs import level_of
from anytpu.program.summed_products import sums_over_replicas, with_summed_products
from anytpu.units import MIB, format_bytes

MIN_BYTES = 4 * MIB
"""The fewest bytes of one replica's sums that are told of: less is soon added."""


def tell_of_gradients(name: str, trace: ClosedJaxpr, replicas: int) -> None:
    """Warn of sums over the replicas that are as large as the gradients of a model.

    Args:
        name: the step function.
        trace: the step under `vmap`.
        replicas: the number of replicas.
    """
    rewritten = level_of(with_summed_products(trace))
    arrays: list[Any] = [operand.aval for equation in sums_over_replicas(rewritten) for operand in equation.invars]
    floating = [array for array in arrays if jnp.issubdtype(array.dtype, jnp.inexact)]
    size_bytes = sum(math.prod(array.shape) * array.dtype.itemsize for array in floating) // replicas
    if size_bytes >= MIN_BYTES:
        warnings.warn(
            f"{name} adds {format_bytes(size_bytes)} of each of {replicas} replicas. If they are gradients, "
            "(loss, gradients) = tpu.value_and_grad(loss_fn, parameters)(...) makes one for all replicas, already "
            "summed, and is many times faster on virtual cores",
            stacklevel=_users_level(),
        )


def _users_level() -> int:
    """Return the `stacklevel`, for our caller, of the first frame outside of this package."""
    level, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("anytpu."):
        level, frame = level + 1, frame.f_back
    return level + 1
