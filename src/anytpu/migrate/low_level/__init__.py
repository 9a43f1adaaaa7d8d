"""The low-level interface: run functions of arrays and loops on the cores, and sum gradients over the cores."""

from anytpu.migrate.low_level.cross_shard import CrossShardOptimizer
from anytpu.migrate.low_level.device_code import bfloat16_scope, outside_compilation, repeat, while_loop
from anytpu.migrate.low_level.session import DeviceAttributes, TPUContext, core, get_tpu_context, list_devices
from anytpu.migrate.low_level.sharding import batch_parallel, replicate, rewrite, shard
from anytpu.strategy.collectives import cross_replica_sum
from anytpu.system.lifecycle import initialize_tpu_system as initialize_system
from anytpu.system.lifecycle import shutdown_tpu_system as shutdown_system

__all__ = [
    "CrossShardOptimizer",
    "DeviceAttributes",
    "TPUContext",
    "batch_parallel",
    "bfloat16_scope",
    "core",
    "cross_replica_sum",
    "get_tpu_context",
    "initialize_system",
    "list_devices",
    "outside_compilation",
    "repeat",
    "replicate",
    "rewrite",
    "shard",
    "shutdown_system",
    "while_loop",
]
