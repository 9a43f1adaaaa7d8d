from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest

from anytpu.errors import PlanError, UnknownTPUError
from anytpu.planning.compiler import CompiledProgram, compile_program
from anytpu.planning.records.target import limit_bytes, target_named
from anytpu.system import chips
from anytpu.system.topologies import slice_sizes
from anytpu.units import GIB
from compiler_samples import program_of, train

CHIPS = ("v2", "v3", "v4", "v5e", "v5p", "v6e", "v7x")
KNOWN = (
    "The slices are v2-8 to v2-512, v3-8 to v3-2048, v4-8 to v4-8192, v5e-1 to v5e-256, v5p-8 to v5p-12288, v6e-1 to "
    "v6e-256, v7x-2 to v7x-18432; one chip alone is v2-2, v3-2, v4-2, v5e-1, v5p-2, v6e-1, v7x-2; the single cores of "
    'v4 are such as "v4-8:cores", several slices such as "2xv5e-256".'
)


@pytest.mark.parametrize(
    ("name", "compiler_name", "devices", "chips", "hosts", "arguments"),
    [
        ("v2-8", "v2:2x2", 8, 4, 1, {"chips_per_host_bounds": (2, 2, 1)}),
        ("v3-2", "v3:1x1", 2, 1, 1, {"chips_per_host_bounds": (1, 1, 1)}),
        ("v3-2048", "v3:32x32", 2048, 1024, 256, {"chips_per_host_bounds": (2, 2, 1)}),
        ("v4-8", "v4:2x2x1", 4, 4, 1, {"chips_per_host_bounds": (2, 2, 1), "chip_config_name": "megacore"}),
        ("v4-2", "v4:1x1x1", 1, 1, 1, {"chips_per_host_bounds": (1, 1, 1), "chip_config_name": "megacore"}),
        ("v4-8:cores", "v4:2x2x1", 8, 4, 1, {"chips_per_host_bounds": (2, 2, 1)}),
        ("v5e-1", "v5e:1x1", 1, 1, 1, {"chips_per_host_bounds": (1, 1, 1)}),
        ("v5e-8", "v5e:2x4", 8, 8, 1, {"chips_per_host_bounds": (2, 4, 1)}),
        ("V5E-16", "v5e:4x4", 16, 16, 4, {"chips_per_host_bounds": (2, 2, 1)}),
        ("v7x-8", "tpu7x:2x2x1", 8, 4, 1, {"chips_per_host_bounds": (2, 2, 1)}),
        ("2xv5e-256", "v5e:16x16", 512, 512, 128, {"chips_per_host_bounds": (2, 2, 1), "num_slices": 2}),
    ],
)
def test_names(name: str, compiler_name: str, devices: int, chips: int, hosts: int, arguments: dict[str, Any]):
    target = target_named(name)
    assert target.name == name.lower()
    assert (target.compiler_name, target.devices, target.chips, target.hosts) == (compiler_name, devices, chips, hosts)
    assert target.compiler_arguments == arguments


def test_other_names():
    assert target_named("v5litepod-16") == target_named("v5e-16")
    assert target_named("v5e-16").aliases == ("v5litepod-16",)
    assert target_named("tpu7x-8").name == "v7x-8"


def test_single_cores_have_half_a_chip():
    joined, single = target_named("v4-8"), target_named("v4-8:cores")
    assert single.flops_per_s == joined.flops_per_s / 2 == 137.5e12
    assert single.hbm_bytes_per_s == joined.hbm_bytes_per_s / 2


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("v9-8", f"'v9-8' is not a TPU that can be planned for. {KNOWN}"),
        ("v5e8", f"'v5e8' is not a TPU that can be planned for. Did you mean \"v5e-8\"? {KNOWN}"),
        (
            "v5e-8, v6e-8",
            "'v5e-8, v6e-8' is not a TPU that can be planned for. For several slices pass a list, ['v5e-8', 'v6e-8']; "
            f"in a shell, --tpu v5e-8,v6e-8. {KNOWN}",
        ),
        ("v5e", f"'v5e' is not a TPU that can be planned for. Add the size of the slice: \"v5e-8\". {KNOWN}"),
        (
            "v2-8 v3-8",
            "'v2-8 v3-8' is not a TPU that can be planned for. For several slices pass a list, ['v2-8', 'v3-8']; in a "
            f"shell, --tpu v2-8,v3-8. {KNOWN}",
        ),
        ("TPU v5e-8", f"'TPU v5e-8' is not a TPU that can be planned for. Did you mean \"v5e-8\"? {KNOWN}"),
        ("", f"'' is not a TPU that can be planned for. {KNOWN}"),
        ("v4i-4", f"'v4i-4' is not a TPU that can be planned for. {KNOWN}"),
        ("0xv5e-4", f"'0xv5e-4' is not a TPU that can be planned for. {KNOWN}"),
        (
            "v3-16",
            "'v3-16' is not a TPU that exists: the number counts TensorCores, and the nearest are \"v3-8\" and "
            '"v3-32".',
        ),
        ("v5e-512", "'v5e-512' is not a TPU that exists: the number counts chips, and the nearest is \"v5e-256\"."),
        (
            "v3-8:cores",
            "'v3-8:cores' is not a TPU that exists: only v4 runs its cores both joined and one by one. Leave ':cores' "
            "out.",
        ),
    ],
)
def test_what_does_not_exist(name: str, message: str):
    with pytest.raises(UnknownTPUError) as error:
        target_named(name)
    assert str(error.value) == message


@pytest.mark.parametrize("chip", CHIPS)
def test_the_compiler_knows_one_chip_and_the_largest_slice(
    chip: str, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
):
    monkeypatch.setenv("ANYTPU_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    one = 1 if chip in ("v5e", "v6e") else 2
    # The compiler takes v7x-18432 too, and half a minute for it.
    for number in (one, max(size for size in slice_sizes(chip) if chip != "v7x" or size < 1000)):
        target = target_named(f"{chip}-{number}")
        answer = compile_program(program_of(train), target)
        assert isinstance(answer, CompiledProgram)
        assert f"num_partitions={target.devices}" in answer.hlo or target.devices == 1
        assert target.devices == math.prod(target.chip_bounds) * target.chip.replicas


@pytest.mark.parametrize(
    ("name", "said"),
    [("v4-8:cores", ["num_partitions=8"]), ("2xv5e-4", ["num_partitions=4", "f32[8,64]", "xla_megascale_runtime"])],
)
def test_the_compiler_knows_single_cores_and_several_slices(
    name: str, said: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
):
    monkeypatch.setenv("ANYTPU_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    answer = compile_program(program_of(train), target_named(name))
    assert isinstance(answer, CompiledProgram)
    assert [text for text in said if text not in answer.hlo] == []


@pytest.mark.parametrize("name", ["gpu", "local", "cuda", "GPU"])
def test_a_gpu_is_no_tpu(name: str):
    with pytest.raises(UnknownTPUError) as caught:
        target_named(name)
    assert str(caught.value) == (
        f"{name!r} is not a TPU, and plans are for TPUs. Name the one that you would rent, such as tpu='v5e-8' (--tpu "
        "v5e-8); none has to be at hand. To time a job on the GPU of this machine, run it there: anytpu compare."
    )


@pytest.mark.parametrize(
    ("name", "gib"),
    [
        ("v2-8", 7.48),
        ("v3-8", 15.48),
        ("v4-8", 30.75),
        ("v5e-8", 15.75),
        ("v5p-8", 95.74),
        ("v6e-8", 31.25),
        ("v7x-8", 94.75),
    ],
)
def test_what_the_compiler_says_beside_its_refusal(name: str, gib: float):
    assert limit_bytes(target_named(name)) / GIB == pytest.approx(gib, abs=0.006)


def test_a_core_of_v4_alone_has_half():
    single = dataclasses.replace(target_named("v4-8"), chip_config=None)
    assert limit_bytes(single) / GIB == pytest.approx(15.25, abs=0.006)


def test_a_chip_whose_limit_is_not_known():
    with pytest.raises(PlanError) as caught:
        limit_bytes(dataclasses.replace(target_named("v2-8"), chip=chips.CHIPS["v1"]))
    assert str(caught.value) == (
        "what the TPU compiler lets a program use of a v1 is not known; it is for v2, v3, v4, v5e, v5p, v6e, v7x"
    )
