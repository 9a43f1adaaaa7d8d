"""Replicas: strategies, step functions on each replica, and reductions over replicas."""

# ruff: noqa: E402 - the imports below the check import Keras, whose backend cannot be changed afterwards.
from anytpu import _env

_env.require_keras_on_jax()

from anytpu.strategy.base import DefaultStrategy, get_strategy
from anytpu.strategy.collectives import ReduceOp
from anytpu.strategy.distributed import InputContext
from anytpu.strategy.gradients import value_and_grad
from anytpu.strategy.per_replica import PerReplica
from anytpu.strategy.replica_context import (
    ReplicaContext,
    get_replica_context,
    has_strategy,
    in_cross_replica_context,
)
from anytpu.strategy.rows import compute_average_loss, row_mask, scale_regularization_loss
from anytpu.strategy.strategy import TPUStrategy, connect
from anytpu.strategy.summed import SummedGradient

__all__ = [
    "DefaultStrategy",
    "InputContext",
    "PerReplica",
    "ReduceOp",
    "ReplicaContext",
    "SummedGradient",
    "TPUStrategy",
    "compute_average_loss",
    "connect",
    "get_replica_context",
    "get_strategy",
    "has_strategy",
    "in_cross_replica_context",
    "row_mask",
    "scale_regularization_loss",
    "value_and_grad",
]
