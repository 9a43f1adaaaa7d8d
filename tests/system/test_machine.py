from __future__ import annotations

import json
import os
import subprocess

from anytpu.system.cores import Address
from anytpu.system.machine import topology_at, topology_of_devices
from forked import python
from system.fake_devices import GPU, TPU, Client

V3_8 = [
    TPU(2 * (2 * y + x) + core, coords=[x, y, 0], core_on_chip=core) for y in (0, 1) for x in (0, 1) for core in (0, 1)
]


def test_a_real_slice_is_known_by_its_shape():
    topology = topology_of_devices(V3_8)
    assert repr(topology) == "Topology('v3-8': 8 cores, 2x2x1 chips, 1 host)"
    assert topology.mesh_shape == (2, 2, 1, 2)
    assert (topology.cores[3].chip_coordinates, topology.cores[3].core_on_chip) == ((1, 0, 0), 1)
    assert (topology.cores[3].device_id, topology.cores[3].memory_bytes) == (3, 1003)


def test_a_part_of_a_slice_has_no_slices_name():
    assert topology_of_devices(V3_8[:3]).name == "3 x TPU v3"
    assert topology_of_devices(V3_8[:3]).mesh_shape == (2, 1, 1, 2)


def test_gpus_stand_in_a_row():
    topology = topology_of_devices([GPU(0), GPU(1)])
    assert repr(topology) == "Topology('2 x NVIDIA H200': 2 cores, 2x1x1 chips, 1 host)"
    assert (topology.chip, topology.cores[1].platform, topology.cores[1].virtual) == (None, "gpu", False)


def test_memory_of_another_hosts_device_is_not_known():
    near, far = TPU(0, process_index=1, client=Client(1)), TPU(1, process_index=0, client=Client(1), core_on_chip=1)
    assert [core.memory_bytes for core in topology_of_devices([near, far]).cores] == [1000, None]


def test_virtual_addresses():
    assert topology_at(Address("virtual", 8, shape="v2-8")).name == "v2-8"
    assert topology_at(Address("virtual", 3)).name == "3 virtual cores"
    assert topology_at(Address("twin", 4)).name == "4 twin cores"
    assert topology_at(Address("twin")).name == "8 twin cores"


def test_a_local_system_of_forced_host_devices():
    program = """
import json
from anytpu.system import Address, running_system
topology = running_system(Address("local", 6)).topology
cores = [(c.platform, c.virtual, c.device_id, c.memory_bytes) for c in topology.cores]
print(json.dumps([topology.name, topology.mesh_shape, cores]))
"""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
    run = subprocess.run([*python(), "-c", program], capture_output=True, text=True, env=os.environ | flags)
    assert run.returncode == 0, run.stderr
    name, shape, cores = json.loads(run.stdout)
    assert (name, shape) == ("6 x cpu", [6, 1, 1, 1])
    assert cores == [["cpu", True, number, None] for number in range(6)]
