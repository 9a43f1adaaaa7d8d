"""Whether a replica's loss is its share of the loss of the batch, or the loss of the whole batch.

Idea: `tpu.value_and_grad` sums the gradients of the replicas. That is right for a share, whose sum over the replicas is
the loss of the batch. A loss that is equal on all replicas, as after `psum`, is counted once. A mean over the rows of
one replica would count once for each replica. Nobody can tell from the numbers, but the trace shows it.

Rule: a loss that the trace shows to be neither a share nor equal on all replicas is refused. A share is marked
(`compute_average_loss`), a sum over rows, or a mean that is divided by the number of replicas.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

from jax.core import Tracer
from jax.extend.core import ClosedJaxpr

from anytpu import _jax
from anytpu.errors import ReplicaError
from anytpu.strategy.loss_terms import LossTerm, terms_of
from anytpu.strategy.replicas import Replica

_TOLERANCE = 1e-5
"""Relative error of a product of float32 constants."""


def is_whole(loss: ClosedJaxpr, values: list[Any], loss_fn: Callable, replica: Replica) -> bool:
    """Return whether a loss is the loss of the whole batch, equal on all replicas, and not this replica's share.

    Args:
        loss: its trace; its arguments are the differentiated values, its first result is the loss.
        values: the differentiated values.
        loss_fn: the user's function, for the place of the loss in the program.
        replica: the replica that traces it.

    Raises:
        ReplicaError: it is a mean over this replica's rows, or the sum of a share and a term that is equal on all
            replicas.
    """
    # 1. Find the terms. Only a trace under `vmap` knows which arrays differ between the replicas.
    is_known = _jax.is_mapped(replica.index)
    shared = {id(array) for array in replica.shared}
    differs = [
        _jax.is_mapped(array) if is_known else isinstance(array, Tracer) and id(array) not in shared
        for array in loss.consts
    ]
    terms = terms_of(loss, [*differs, *[is_known and _jax.is_mapped(value) for value in values]])
    equal = [term for term in terms if _is_equal(term, replica.replicas)]
    # 2. A later trace follows the first one.
    key = _key_of(loss_fn, replica)
    if not is_known and key in replica.verdicts:
        return replica.verdicts[key]
    # 3. Refuse what is neither. Replicas with fewer rows are not asked: one row, or none, looks like a mean.
    if replica.shard is None or replica.shard.rows == max(replica.shard.counts):
        for term in terms:
            if term.depends_on_rows and not term.is_share:
                _check_is_no_mean(term, replica.replicas)
        if equal and len(equal) < len(terms):
            raise ReplicaError(
                "loss_fn adds a term that is equal on all replicas to this replica's share of the loss, and "
                f"tpu.value_and_grad sums the gradients of {replica.replicas} replicas, so this term would count "
                f"{replica.replicas} times: add tpu.scale_regularization_loss(term), which counts it once"
            )
    verdict = bool(equal) and (len(equal) == len(terms) or any(term.is_reduced for term in equal))
    replica.verdicts[key] = verdict
    return verdict


def _is_equal(term: LossTerm, replicas: int) -> bool:
    """Return whether a term is equal on all replicas, and is not a share of the user's own division."""
    if term.is_share or term.depends_on_rows:
        return False
    return term.is_reduced or not _has_inverse((*term.factors, math.prod(term.factors)), replicas)


def _check_is_no_mean(term: LossTerm, replicas: int) -> None:
    """Raise if a term is a mean over this replica's rows, unless it is divided by the number of replicas."""
    if term.has_own_divisor:
        if _has_inverse(term.factors, replicas):
            return
        raise ReplicaError(
            "loss_fn divides by a number of this replica's rows, and tpu.value_and_grad sums the gradients of "
            f"{replicas} replicas, so they would be {replicas} times those of one device. {_INSTEAD}"
        )
    if not any(_has_inverse(term.factors, count) for count in term.row_counts):
        return
    total = math.prod(term.factors)
    is_mean, is_share = (any(_has_inverse((total,), n * count) for count in term.row_counts) for n in (1, replicas))
    # On two replicas a half is a share, or a factor of the loss.
    if is_share and (is_mean or replicas == 2):
        raise ReplicaError(
            f"loss_fn takes {total:.6g} of a sum over this replica's rows, which may be a mean of theirs, or this "
            f"replica's share of the mean of {replicas} replicas: tpu.value_and_grad cannot tell which. {_INSTEAD}"
        )
    if not is_share:
        raise ReplicaError(
            "loss_fn returns a mean over this replica's rows, and tpu.value_and_grad sums the gradients of "
            f"{replicas} replicas, so they would be {replicas} times those of one device. {_INSTEAD}"
        )


_INSTEAD = (
    "Return this replica's share, tpu.compute_average_loss(losses), of one loss for each row; or the loss of all "
    'replicas: total, count = jax.lax.psum((jnp.sum(losses), len(losses)), "replica"), and return total / count. '
    "Losses of layers are a share after tpu.scale_regularization_loss(model.losses)"
)


def _has_inverse(factors: tuple[float, ...], number: int) -> bool:
    """Return whether one of the factors divides by a number, whatever its sign."""
    return any(math.isclose(abs(factor) * number, 1, rel_tol=_TOLERANCE) for factor in factors)


def _key_of(loss_fn: Callable, replica: Replica) -> Any:
    """Return the place of a loss function in the program, its number there, and the replica's number of rows."""
    while isinstance(loss_fn, functools.partial):
        loss_fn = loss_fn.func
    code = getattr(loss_fn, "__code__", None)
    place = type(loss_fn) if code is None else (code.co_filename, code.co_firstlineno, code.co_name)
    replica.losses[place] = replica.losses.get(place, 0) + 1
    return place, replica.losses[place], None if replica.shard is None else replica.shard.rows
