from __future__ import annotations

from anytpu.report.devices import device_lines, headline, names_line, numerics_lines, reason_lines
from anytpu.system.cores import Core, LogicalDevice
from anytpu.system.probes import Reason
from anytpu.system.topologies import Topology, row_of_cores, topology_of

NAME = "/job:worker/replica:0/task:{}/device:TPU:{}"


def local(platform: str, count: int) -> Topology:
    cores = tuple(
        Core(i, platform, virtual=False, chip_coordinates=(i, 0, 0), memory_bytes=2**34) for i in range(count)
    )
    return Topology(f"{count} x Made Up", None, (count, 1, 1), 1, cores)


def test_virtual_cores_are_called_virtual():
    assert headline(topology_of("v2-8")) == "v2-8: 8 virtual cores, simulated on this machine's CPU"
    assert headline(row_of_cores(1, kind="virtual")) == (
        "1 virtual core: 1 virtual core, simulated on this machine's CPU"
    )


def test_real_cores_are_not():
    assert headline(local("tpu", 4)) == "4 x Made Up: 4 cores"
    assert headline(local("gpu", 1)) == "1 x Made Up: 1 core, each a GPU in place of a TPU core"


def test_whose_products_they_are():
    assert numerics_lines(topology_of("v2-8").cores, width=100) == [
        "",
        "float32 products are those of this machine's CPU. A TPU rounds their operands to bfloat16;",
        'tpu.connect(..., numerics="tpu") does so here.',
    ]
    assert numerics_lines(local("gpu", 1).cores)[1].startswith("float32 products are those of the GPU.")
    assert numerics_lines(local("tpu", 4).cores) == []


def test_names_over_one_host_and_over_two():
    names = [LogicalDevice(NAME.format(task, core), "TPU") for task in range(2) for core in range(2)]
    assert names_line(names[:1]) == "/job:worker/replica:0/task:0/device:TPU:0"
    assert names_line(names[:2]) == "/job:worker/replica:0/task:0/device:TPU:0 to TPU:1"
    assert names_line(names) == (
        "/job:worker/replica:0/task:0/device:TPU:0 to /job:worker/replica:0/task:1/device:TPU:1"
    )


def test_device_lines_fit_in_80_columns():
    cores = topology_of("v2-8").cores[:2] + local("tpu", 1).cores
    names = [LogicalDevice(NAME.format(0, core), "TPU") for core in range(3)]
    assert device_lines(names, cores) == [
        "name                                       kind     chip   core  memory",
        "/job:worker/replica:0/task:0/device:TPU:0  virtual  0,0,0  0     8 GiB",
        "/job:worker/replica:0/task:0/device:TPU:1  virtual  0,0,0  1     8 GiB",
        "/job:worker/replica:0/task:0/device:TPU:2  real     0,0,0  0     16 GiB",
    ]


def test_reasons_are_wrapped_under_their_beginning():
    reasons = (Reason("TPU_NAME", "'my-tpu' is not the name of a slice"), Reason("GPU", "this machine has none"))
    assert reason_lines(reasons, width=40) == [
        "  TPU_NAME  'my-tpu' is not the name of",
        "            a slice",
        "  GPU       this machine has none",
    ]
    assert reason_lines(()) == []
