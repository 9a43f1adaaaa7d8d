"""The report of the detected cores, and of the reason why each other source has none."""

from __future__ import annotations

from collections.abc import Sequence

from anytpu import units
from anytpu.report.terminal import hang
from anytpu.report.wording import aligned
from anytpu.system.cores import Core, LogicalDevice
from anytpu.system.probes import Reason
from anytpu.system.topologies import Topology


def headline(topology: Topology) -> str:
    """Return the topology in one line; virtual cores are marked as virtual.

    Example:
        >>> from anytpu.system.topologies import topology_of
        >>> headline(topology_of("v2-8"))
        "v2-8: 8 virtual cores, simulated on this machine's CPU"
    """
    count, first = len(topology.cores), topology.cores[0]
    cores = "core" if count == 1 else "cores"
    if first.virtual:
        return f"{topology.name}: {count} virtual {cores}, simulated on this machine's CPU"
    stand_in = "" if first.platform == "tpu" else f", each a {first.platform.upper()} in place of a TPU core"
    return f"{topology.name}: {count} {cores}{stand_in}"


def names_line(devices: Sequence[LogicalDevice]) -> str:
    """Return the names of devices in one line: the first, and the last when there are more.

    Example:
        >>> names_line([LogicalDevice(f"/job:worker/replica:0/task:0/device:TPU:{i}", "TPU") for i in range(8)])
        '/job:worker/replica:0/task:0/device:TPU:0 to TPU:7'
    """
    first, last = devices[0].name, devices[-1].name
    if first == last:
        return first
    is_one_host = first.rpartition("/")[0] == last.rpartition("/")[0]
    return f"{first} to {last.rpartition('device:')[2] if is_one_host else last}"


def device_lines(devices: Sequence[LogicalDevice], cores: Sequence[Core]) -> list[str]:
    """Return a table of devices: name, real or virtual, coordinates, and memory if it is known.

    Args:
        devices: the logical device of each core.
        cores: the cores, in the same order.
    """
    return aligned([("name", "kind", "chip", "core", "memory"), *map(_row, devices, cores)])


def numerics_lines(cores: Sequence[Core], width: int = 80) -> list[str]:
    """Return a note on float32 products on cores that are not a TPU's, wrapped; empty on a real TPU.

    Args:
        cores: the cores.
        width: columns of the terminal.
    """
    if cores[0].platform == "tpu":
        return []
    here = "this machine's CPU" if cores[0].virtual else f"the {cores[0].platform.upper()}"
    text = (
        f"float32 products are those of {here}. A TPU rounds their operands to bfloat16; "
        'tpu.connect(..., numerics="tpu") does so here.'
    )
    return ["", *hang("", text, width)]


def reason_lines(reasons: Sequence[Reason], width: int = 80) -> list[str]:
    """Return the other sources of cores and why each has none, wrapped.

    Args:
        reasons: the reasons collected by the resolver.
        width: columns of the terminal.
    """
    longest = max((len(reason.source) for reason in reasons), default=0)
    return [line for reason in reasons for line in hang(f"  {reason.source:<{longest}}  ", reason.why, width)]


def _row(device: LogicalDevice, core: Core) -> tuple[str, ...]:
    chip = ",".join(str(position) for position in core.chip_coordinates)
    unknown = "the CPU's" if core.virtual else "unknown"
    memory = unknown if core.memory_bytes is None else units.format_bytes(core.memory_bytes)
    return device.name, "virtual" if core.virtual else "real", chip, str(core.core_on_chip), memory
