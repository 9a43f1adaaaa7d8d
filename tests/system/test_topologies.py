from __future__ import annotations

import dataclasses
import math

import pytest

from anytpu.errors import UnknownTPUError
from anytpu.system.topologies import Topology, known_slices, row_of_cores, slice_sizes, topology_of

# (host, chip, core) of each core, as `jax.experimental.topologies.get_topology_desc` gives them with libtpu 0.0.51.
LIBTPU = {
    "v2-8": [(0, (x, y, 0), core) for y in (0, 1) for x in (0, 1) for core in (0, 1)],
    "v3-32": [
        (host, (x0 + x, y0 + y, 0), core)
        for host, (x0, y0) in enumerate([(0, 0), (2, 0), (0, 2), (2, 2)])
        for y in (0, 1)
        for x in (0, 1)
        for core in (0, 1)
    ],
    "v5e-16": [
        *[(0, (0, 0, 0), 0), (0, (1, 0, 0), 0), (0, (0, 1, 0), 0), (0, (1, 1, 0), 0)],
        *[(1, (2, 0, 0), 0), (1, (3, 0, 0), 0), (1, (2, 1, 0), 0), (1, (3, 1, 0), 0)],
        *[(2, (0, 2, 0), 0), (2, (1, 2, 0), 0), (2, (0, 3, 0), 0), (2, (1, 3, 0), 0)],
        *[(3, (2, 2, 0), 0), (3, (3, 2, 0), 0), (3, (2, 3, 0), 0), (3, (3, 3, 0), 0)],
    ],
    "v4-32": [(z, (x, y, z), 0) for z in range(4) for y in (0, 1) for x in (0, 1)],
    "v7x-16": [(z, (x, y, z), core) for z in (0, 1) for y in (0, 1) for x in (0, 1) for core in (0, 1)],
}


@pytest.mark.parametrize("name", list(LIBTPU))
def test_cores_lie_as_in_a_real_slice(name: str):
    cores = topology_of(name).cores
    assert [(core.host, core.chip_coordinates, core.core_on_chip) for core in cores] == LIBTPU[name]
    assert [core.index for core in cores] == list(range(len(cores)))
    assert all(core.virtual and core.platform == "cpu" for core in cores)


@pytest.mark.parametrize(
    ("name", "cores", "chips", "hosts"),
    [
        ("v2-8", 8, (2, 2, 1), 1),
        ("v2-512", 512, (16, 16, 1), 64),
        ("v3-64", 64, (4, 8, 1), 8),
        ("v3-2048", 2048, (32, 32, 1), 256),
        ("v4-8", 4, (2, 2, 1), 1),
        ("v4-128", 64, (4, 4, 4), 16),
        ("v5e-1", 1, (1, 1, 1), 1),
        ("v5e-8", 8, (2, 4, 1), 1),
        ("v5e-256", 256, (16, 16, 1), 64),
        ("v5p-8", 4, (2, 2, 1), 1),
        ("v5p-8960", 4480, (8, 20, 28), 1120),
        ("v6e-8", 8, (2, 4, 1), 1),
        ("v7x-8", 8, (2, 2, 1), 1),
    ],
)
def test_sizes(name: str, cores: int, chips: tuple[int, int, int], hosts: int):
    topology = topology_of(name)
    assert (len(topology.cores), topology.chip_bounds, topology.num_tasks) == (cores, chips, hosts)
    assert topology.num_tpus_per_task == cores // hosts


@pytest.mark.parametrize("chip", ["v2", "v3", "v4", "v5e", "v5p", "v6e", "v7x"])
def test_every_slice_is_whole(chip: str):
    for number, bounds in slice_sizes(chip).items():
        topology = topology_of(f"{chip}-{number}")
        assert math.prod(topology.mesh_shape) == len(topology.cores), topology
        assert topology.mesh_shape[:3] == bounds
        places = {(core.chip_coordinates, core.core_on_chip) for core in topology.cores}
        assert len(places) == len(topology.cores)
        per_host = len(topology.cores) // topology.num_tasks
        assert [core.host for core in topology.cores] == [i // per_host for i in range(len(topology.cores))]


# Boxes of the large slices, from AI-Hypercomputer/maxtext, accelerator_to_spec_map.py.
@pytest.mark.parametrize(
    ("number", "bounds"),
    [
        (128, (4, 4, 4)),
        (384, (4, 4, 12)),
        (1152, (4, 12, 12)),
        (2816, (4, 8, 44)),
        (4608, (12, 12, 16)),
        (7680, (12, 16, 20)),
        (7808, (4, 4, 244)),
        (8064, (12, 12, 28)),
        (9984, (8, 12, 52)),
        (12288, (16, 16, 24)),
    ],
)
def test_boxes_of_cubes(number: int, bounds: tuple[int, int, int]):
    assert slice_sizes("v5p")[number] == bounds


@pytest.mark.parametrize("number", [8576, 9088, 9344, 10112, 10624, 11392])
def test_no_box_is_too_long(number: int):
    assert number not in slice_sizes("v5p")


def test_other_names():
    assert topology_of("v5litepod-16") is topology_of("v5e-16")
    assert topology_of("tpu7x-8") is topology_of("v7x-8")
    assert topology_of(" V2-8 ") is topology_of("v2-8")


def test_as_the_old_topology_was_read():
    topology = topology_of("v3-32")
    assert topology.mesh_shape == (4, 4, 1, 2)
    coordinates = topology.device_coordinates
    assert coordinates.shape == (4, 8, 4)
    assert coordinates[1, 3].tolist() == [3, 0, 0, 1]


def test_a_row_of_cores():
    row = row_of_cores(3)
    assert row.mesh_shape == (3, 1, 1, 1)
    assert (row.name, row.chip, row.num_tasks, row.is_virtual) == ("3 virtual cores", None, 1, True)
    assert [core.chip_coordinates for core in row.cores] == [(0, 0, 0), (1, 0, 0), (2, 0, 0)]


def test_it_says_that_it_is_virtual():
    assert repr(topology_of("v3-32")) == "Topology('v3-32': 32 virtual cores, 4x4x1 chips, 4 hosts)"
    assert repr(row_of_cores(1)) == "Topology('1 virtual core': 1 virtual core, 1x1x1 chips, 1 host)"
    real = tuple(dataclasses.replace(core, virtual=False, platform="tpu") for core in topology_of("v5e-4").cores)
    topology = Topology("v5e-4", topology_of("v5e-4").chip, (2, 2, 1), 1, real)
    assert repr(topology) == "Topology('v5e-4': 4 cores, 2x2x1 chips, 1 host)"


def test_known_slices():
    assert known_slices() == (
        "v2-8 to v2-512, v3-8 to v3-2048, v4-8 to v4-8192, v5e-1 to v5e-256, v5p-8 to v5p-12288, v6e-1 to v6e-256, "
        "v7x-2 to v7x-18432"
    )


@pytest.mark.parametrize("name", ["v9-8", "v1-1", "v4i-4", "v2", "", "v2-", "v2-8-8", "TPU", "v2-1234567890"])
def test_what_is_no_slice(name: str):
    with pytest.raises(UnknownTPUError) as error:
        topology_of(name)
    assert str(error.value) == (
        f"{name!r} is not a TPU that exists. The slices are {known_slices()}. "
        'Write the name of one for a virtual TPU of that shape, or "local" for the TPU or GPU of this machine.'
    )


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("v5e8", '"v5e-8"'),
        ("v5-8", '"v5e-8" or "v5p-8"'),
        ("v5-4", '"v5e-4"'),
        ("TPU v6-8", '"v6e-8"'),
        ("v2_8", '"v2-8"'),
        ("v5litepod16", '"v5e-16"'),
    ],
)
def test_a_name_that_is_nearly_one(name: str, meant: str):
    with pytest.raises(UnknownTPUError) as error:
        topology_of(name)
    assert str(error.value) == (
        f"{name!r} is not a TPU that exists. Did you mean {meant}? The slices are {known_slices()}. "
        'Write the name of one for a virtual TPU of that shape, or "local" for the TPU or GPU of this machine.'
    )


@pytest.mark.parametrize(
    ("name", "counted", "nearest"),
    [
        ("v2-16", "TensorCores", 'are "v2-8" and "v2-32"'),
        ("v2-0", "TensorCores", 'is "v2-8"'),
        ("v5litepod-12", "chips", 'are "v5e-8" and "v5e-16"'),
        ("v5p-8576", "TensorCores", 'are "v5p-8448" and "v5p-8704"'),
        ("v6e-512", "chips", 'is "v6e-256"'),
    ],
)
def test_a_size_that_does_not_exist(name: str, counted: str, nearest: str):
    with pytest.raises(UnknownTPUError) as error:
        topology_of(name)
    assert str(error.value) == (
        f"{name!r} is not a TPU that exists: the number counts {counted}, and the nearest {nearest}. "
        'For any number of virtual cores write "virtual" and give cores.'
    )
