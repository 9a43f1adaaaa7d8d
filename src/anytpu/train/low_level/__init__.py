"""The low-level interface: run functions of arrays and loops on the cores, and sum gradients over the cores."""

from anytpu.strategy.collectives import cross_replica_sum
from anytpu.train.low_level.cross_shard import CrossShardOptimizer
from anytpu.train.low_level.device_loops import repeat, while_loop
from anytpu.train.low_level.evidence import Evidence, evidence
from anytpu.train.low_level.host_calls import bfloat16_scope, outside_compilation
from anytpu.train.low_level.session import DeviceAttributes, core, initialize_system, list_devices, shutdown_system
from anytpu.train.low_level.shard_context import TPUContext, get_tpu_context
from anytpu.train.low_level.sharding import batch_parallel, replicate, rewrite, shard

__all__ = [
    "CrossShardOptimizer",
    "DeviceAttributes",
    "Evidence",
    "TPUContext",
    "batch_parallel",
    "bfloat16_scope",
    "core",
    "cross_replica_sum",
    "evidence",
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
