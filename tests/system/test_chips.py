from __future__ import annotations

import re
from pathlib import Path

import pytest

from anytpu.errors import UnknownTPUError
from anytpu.system import chips
from anytpu.system.chips import CHIPS, chip_named, chip_of_kind


def test_the_generations():
    assert list(CHIPS) == ["v1", "v2", "v3", "v4i", "v4", "v5e", "v5p", "v6e", "v7x"]


@pytest.mark.parametrize("name", ["v2", "v3", "v4i", "v4", "v5e", "v5p", "v6e", "v7x"])
def test_peak_is_what_the_matrix_units_give(name: str):
    chip = CHIPS[name]
    products = 2 if chip.mxu_side == 256 else 1
    peak = chip.cores * chip.mxus_per_core * products * 2 * chip.mxu_side**2 * chip.clock_hz
    assert chip.bf16_flops_per_s == pytest.approx(peak, rel=0.005)


def test_peak_of_v1():
    assert CHIPS["v1"].int8_ops_per_s == pytest.approx(2 * 256**2 * 700e6, rel=0.005)


@pytest.mark.parametrize("name", [name for name, chip in CHIPS.items() if chip.device_kinds])
def test_agrees_with_jax(name: str):
    """Where JAX has a number, ours is within a few per cent; the exceptions are named in the table."""
    from jax._src.pallas.mosaic import tpu_info

    chip = CHIPS[name]
    version = tpu_info.chip_version_from_device_kind(chip.device_kinds[0])
    assert version is not None
    cores = 2 if chip.is_megacore else 1
    info = tpu_info.get_tpu_info_for_chip(version, cores)
    assert chip.cores == version.num_physical_tensor_cores_per_chip
    assert chip.is_megacore == version.supports_megacore
    assert (chip.mxus_per_core, chip.mxu_side) == (info.num_mxus, info.mxu_column_size)
    assert chip.vmem_bytes_per_core == info.vmem_capacity_bytes
    assert chip.hbm_bytes == pytest.approx(info.hbm_capacity_bytes * chip.cores, rel=0.08)
    assert chip.hbm_bytes_per_s == pytest.approx(info.mem_bw_bytes_per_second * chip.cores, rel=0.13)
    assert chip.bf16_flops_per_s == pytest.approx(info.bf16_ops_per_second * chip.cores, rel=0.13)


def test_each_number_has_its_source():
    text = Path(chips.__file__).with_name("chips.toml").read_text()
    lines = re.findall(r"^(\w+) = ([^#\n]*[1-9][^#\n]*?) *(#.*)?$", text, re.MULTILINE)
    assert [(name, value) for name, value, source in lines if not source] == [("pod_chips", "1")]
    assert len(lines) > 90


def test_replicas():
    assert {name: chip.replicas for name, chip in CHIPS.items() if name in ("v2", "v4", "v5e", "v5p", "v7x")} == {
        "v2": 2,
        "v4": 1,
        "v5e": 1,
        "v5p": 1,
        "v7x": 2,
    }


def test_look_up():
    assert chip_named("v5e") is CHIPS["v5e"]
    assert chip_of_kind("TPU v5 lite") is CHIPS["v5e"]
    assert chip_of_kind("NVIDIA H200") is None
    with pytest.raises(UnknownTPUError) as error:
        chip_named("v8")
    assert str(error.value) == "'v8' is not a TPU chip; the chips are v1, v2, v3, v4i, v4, v5e, v5p, v6e, v7x"
