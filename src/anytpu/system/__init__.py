"""TPU chips, slices and cores; finding a TPU system, starting it and shutting it down."""

from anytpu.system.chips import CHIPS, Chip, chip_named, chip_of_kind
from anytpu.system.cores import Address, Core, Kind, LogicalDevice
from anytpu.system.job import HostJob, current_job
from anytpu.system.joining import join_hosts
from anytpu.system.lifecycle import (
    System,
    current_system,
    experimental_connect_to_cluster,
    initialize_tpu_system,
    list_logical_devices,
    running_system,
    shutdown_tpu_system,
)
from anytpu.system.probes import Reason
from anytpu.system.resolver import TPUClusterResolver
from anytpu.system.topologies import Topology, known_slices, slice_sizes, topology_of

__all__ = [
    "CHIPS",
    "Address",
    "Chip",
    "Core",
    "HostJob",
    "Kind",
    "LogicalDevice",
    "Reason",
    "System",
    "TPUClusterResolver",
    "Topology",
    "chip_named",
    "chip_of_kind",
    "current_job",
    "current_system",
    "experimental_connect_to_cluster",
    "initialize_tpu_system",
    "join_hosts",
    "known_slices",
    "list_logical_devices",
    "running_system",
    "shutdown_tpu_system",
    "slice_sizes",
    "topology_of",
]
