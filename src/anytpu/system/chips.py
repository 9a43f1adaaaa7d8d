"""The TPU chips, one frozen record each, v1 to v7x.

Idea: this module is the only source of chip figures, such as core counts, memory sizes and rates.

Rule: each number carries its source on its line. All are per chip unless the name says otherwise. The sources:

- docs: the page of that chip under https://cloud.google.com/tpu/docs (v3, v4, v5e, v5p, v6e, tpu7x)
- jax: `jax/_src/pallas/mosaic/tpu_info.py` of jax 0.10.2, whose numbers are per TensorCore
- J17: Jouppi et al., "In-Datacenter Performance Analysis of a Tensor Processing Unit", ISCA 2017, sections 1, 2,
  table 2
- J20: Jouppi et al., "A Domain-Specific Supercomputer for Training Deep Neural Networks", CACM 63(7), 2020
- J21: Jouppi et al., "Ten Lessons From Three Generations Shaped Google's TPUv4i", ISCA 2021
- book: Austin et al., "How to Scale Your Model", part 2, https://jax-ml.github.io/scaling-book/tpus
- prices: skypilot-org/skypilot-catalog, catalogs/v8/gcp/vms.csv, US regions on demand, read in 2026
- (derived): arithmetic on the numbers beside it; (unchecked): cited from memory, the named source was not available
"""

from __future__ import annotations

import dataclasses

from anytpu.errors import UnknownTPUError
from anytpu.units import GIB, MIB


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chip:
    """Datasheet of one TPU chip generation.

    Attributes:
        name: generation name, such as "v2"; the part of a slice's name before the dash.
        device_kinds: names of the chip's devices in JAX.
        cores: number of TensorCores on the chip.
        is_megacore: True when JAX sees the chip's cores as one device, so that one replica runs on the whole chip.
        mxus_per_core: number of matrix units in a core.
        mxu_side: number of rows, and of columns, of a matrix unit. From v6e on a unit computes two products of this
            size in a cycle.
        clock_hz: clock frequency.
        bf16_flops_per_s: peak rate for bfloat16, or None if the chip has no floating point.
        int8_ops_per_s: peak rate for 8-bit integers; None if it is no faster than bfloat16, or is not stated.
        fp8_flops_per_s: peak rate for 8-bit floating point, or None if not supported.
        hbm_bytes: capacity of the HBM (v1: of the DDR3 weight memory).
        hbm_bytes_per_s: bandwidth of that memory.
        vmem_bytes_per_core: on-chip memory of a core, read by the vector and matrix units (v1: the unified buffer).
        ici_link_bytes_per_s: bandwidth of one link in one direction, or None.
        dcn_bytes_per_s: a chip's share of its host's network cards, one way, or None.
        torus_rank: number of dimensions of the network between chips, 2 or 3, or 0 if there is none.
        pod_chips: number of chips in the largest pod, or 1.
        usd_per_chip_hour: price on demand, or None if it is not sold or not listed.
    """

    name: str
    device_kinds: tuple[str, ...]
    cores: int
    is_megacore: bool
    mxus_per_core: int
    mxu_side: int
    clock_hz: float
    bf16_flops_per_s: float | None
    int8_ops_per_s: float | None
    fp8_flops_per_s: float | None
    hbm_bytes: int
    hbm_bytes_per_s: float
    vmem_bytes_per_core: int
    ici_link_bytes_per_s: float | None
    dcn_bytes_per_s: float | None
    torus_rank: int
    pod_chips: int
    usd_per_chip_hour: float | None

    @property
    def replicas(self) -> int:
        """Number of replicas on one chip: the number of cores, or 1 for a megacore."""
        return 1 if self.is_megacore else self.cores


V1 = Chip(
    name="v1",
    device_kinds=(),
    cores=1,  # J17
    is_megacore=False,
    mxus_per_core=1,  # J17
    mxu_side=256,  # J17: 65,536 8-bit multipliers
    clock_hz=700e6,  # J17
    bf16_flops_per_s=None,  # J17: integers only
    int8_ops_per_s=92e12,  # J17
    fp8_flops_per_s=None,
    hbm_bytes=8 * GIB,  # J17: DDR3 weight memory
    hbm_bytes_per_s=34e9,  # J17
    vmem_bytes_per_core=24 * MIB,  # J17: unified buffer; 4 MiB of accumulators besides
    ici_link_bytes_per_s=None,
    dcn_bytes_per_s=None,
    torus_rank=0,
    pod_chips=1,
    usd_per_chip_hour=None,  # not sold
)

V2 = Chip(
    name="v2",
    device_kinds=("TPU v2",),  # jax
    cores=2,  # jax
    is_megacore=False,  # jax
    mxus_per_core=1,  # jax
    mxu_side=128,  # jax
    clock_hz=700e6,  # J20; libtpu 0.0.42 prices matmuls at 696 MHz (derived)
    bf16_flops_per_s=46e12,  # jax; 2 x 128 x 128 x 2 x 700 MHz = 45.9 (derived)
    int8_ops_per_s=None,  # jax
    fp8_flops_per_s=None,  # jax
    hbm_bytes=16 * GIB,  # jax says 16e9; libtpu lets a core use 7.48 of its 8 GiB
    hbm_bytes_per_s=716e9,  # jax
    vmem_bytes_per_core=16 * MIB,  # jax
    ici_link_bytes_per_s=62e9,  # J20 (unchecked): 496 Gbit/s
    dcn_bytes_per_s=3.1e9,  # (unchecked): 100 Gbit/s a host of four chips
    torus_rank=2,  # book
    pod_chips=256,  # J20; v2-512 is the largest slice listed
    usd_per_chip_hour=1.125,  # prices: v2-8 at 4.50
)

V3 = Chip(
    name="v3",
    device_kinds=("TPU v3",),  # jax
    cores=2,  # docs
    is_megacore=False,  # jax
    mxus_per_core=2,  # docs
    mxu_side=128,  # jax
    clock_hz=940e6,  # J20; libtpu 0.0.42 prices matmuls at 937 MHz (derived)
    bf16_flops_per_s=123e12,  # docs, J21; jax and book say 140
    int8_ops_per_s=None,  # jax
    fp8_flops_per_s=None,  # jax
    hbm_bytes=32 * GIB,  # docs
    hbm_bytes_per_s=900e9,  # docs, J21; jax says 825
    vmem_bytes_per_core=16 * MIB,  # jax
    ici_link_bytes_per_s=82e9,  # J20 (unchecked): 656 Gbit/s; book says 100
    dcn_bytes_per_s=3.1e9,  # (unchecked): as v2
    torus_rank=2,  # docs
    pod_chips=1024,  # docs
    usd_per_chip_hour=2.00,  # prices: v3-8 at 8.00
)

V4I = Chip(
    name="v4i",
    device_kinds=("TPU v4 lite",),  # jax
    cores=1,  # J21
    is_megacore=False,  # jax
    mxus_per_core=4,  # J21
    mxu_side=128,  # J21
    clock_hz=1.05e9,  # J21
    bf16_flops_per_s=138e12,  # J21; jax says 137
    int8_ops_per_s=138e12,  # J21 (unchecked): the same as bfloat16
    fp8_flops_per_s=None,  # jax
    hbm_bytes=8 * GIB,  # jax: 8.59e9
    hbm_bytes_per_s=614e9,  # J21
    vmem_bytes_per_core=16 * MIB,  # jax
    ici_link_bytes_per_s=50e9,  # J21 (unchecked): 400 Gbit/s
    dcn_bytes_per_s=3.1e9,  # (unchecked): as v2
    torus_rank=0,  # J21: four chips on a board
    pod_chips=4,  # J21
    usd_per_chip_hour=None,  # not sold
)

V4 = Chip(
    name="v4",
    device_kinds=("TPU v4",),  # jax
    cores=2,  # docs
    is_megacore=True,  # jax
    mxus_per_core=4,  # docs
    mxu_side=128,  # jax
    clock_hz=1.05e9,  # J21; 275e12 / 262144 = 1.049 GHz (derived)
    bf16_flops_per_s=275e12,  # docs
    int8_ops_per_s=275e12,  # docs
    fp8_flops_per_s=None,  # jax
    hbm_bytes=32 * GIB,  # docs
    hbm_bytes_per_s=1200e9,  # docs; jax says 1230
    vmem_bytes_per_core=16 * MIB,  # jax
    ici_link_bytes_per_s=45e9,  # book
    dcn_bytes_per_s=3.1e9,  # (unchecked): as v2
    torus_rank=3,  # docs
    pod_chips=4096,  # docs
    usd_per_chip_hour=3.22,  # prices
)

V5E = Chip(
    name="v5e",
    device_kinds=("TPU v5 lite", "TPU v5e"),  # jax
    cores=1,  # docs
    is_megacore=False,  # jax
    mxus_per_core=4,  # docs
    mxu_side=128,  # jax
    clock_hz=1.5e9,  # book
    bf16_flops_per_s=197e12,  # docs
    int8_ops_per_s=393e12,  # docs
    fp8_flops_per_s=None,  # jax
    hbm_bytes=16 * GIB,  # docs: 16 GB; jax: 17.2e9
    hbm_bytes_per_s=819e9,  # docs; one revision says 800 GiB/s
    vmem_bytes_per_core=128 * MIB,  # jax, book
    ici_link_bytes_per_s=50e9,  # docs: 400 GB/s both ways over 4 ports; book agrees
    dcn_bytes_per_s=3.1e9,  # docs: 6.4 Tbit/s a pod of 256
    torus_rank=2,  # docs
    pod_chips=256,  # docs
    usd_per_chip_hour=1.20,  # prices
)

V5P = Chip(
    name="v5p",
    device_kinds=("TPU v5", "TPU v5p"),  # jax
    cores=2,  # docs
    is_megacore=True,  # jax
    mxus_per_core=4,  # docs
    mxu_side=128,  # jax
    clock_hz=1.75e9,  # 459e12 / 262144 = 1.751 GHz (derived)
    bf16_flops_per_s=459e12,  # docs
    int8_ops_per_s=918e12,  # jax, book
    fp8_flops_per_s=None,  # jax; docs give 459, by way of bfloat16
    hbm_bytes=95 * GIB,  # docs; jax: 103e9; libtpu lets a chip use 95.74 GiB
    hbm_bytes_per_s=2765e9,  # docs; jax says 2460
    vmem_bytes_per_core=64 * MIB,  # jax
    ici_link_bytes_per_s=100e9,  # docs: 1200 GB/s both ways over 6 links; book agrees
    dcn_bytes_per_s=6.25e9,  # docs: 50 Gbit/s a chip
    torus_rank=3,  # docs
    pod_chips=8960,  # docs; the largest job has 6144
    usd_per_chip_hour=4.20,  # prices, book
)

V6E = Chip(
    name="v6e",
    device_kinds=("TPU v6 lite", "TPU v6e"),  # jax
    cores=1,  # jax
    is_megacore=False,  # jax
    mxus_per_core=2,  # jax
    mxu_side=256,  # jax, book
    clock_hz=1.75e9,  # 918e12 / 524288 = 1.751 GHz, with two products a unit and cycle (derived)
    bf16_flops_per_s=918e12,  # docs
    int8_ops_per_s=1836e12,  # docs
    fp8_flops_per_s=918e12,  # docs of tpu7x
    hbm_bytes=32 * GIB,  # docs
    hbm_bytes_per_s=1638e9,  # docs
    vmem_bytes_per_core=128 * MIB,  # jax
    ici_link_bytes_per_s=100e9,  # docs: 800 GB/s both ways over 4 ports; book agrees
    dcn_bytes_per_s=12.5e9,  # docs: 25.6 Tbit/s a pod of 256
    torus_rank=2,  # docs
    pod_chips=256,  # docs
    usd_per_chip_hour=2.70,  # prices
)

V7X = Chip(
    name="v7x",
    device_kinds=("TPU7x",),  # jax
    cores=2,  # docs
    is_megacore=False,  # jax
    mxus_per_core=2,  # jax
    mxu_side=256,  # jax
    clock_hz=2.2e9,  # 1153.5e12 / 524288 = 2.200 GHz a core (derived)
    bf16_flops_per_s=2307e12,  # docs
    int8_ops_per_s=None,  # jax
    fp8_flops_per_s=4614e12,  # docs
    hbm_bytes=192 * GIB,  # docs
    hbm_bytes_per_s=7380e9,  # AI-Hypercomputer/accelerator-microbenchmarks; jax says 7400
    vmem_bytes_per_core=64 * MIB,  # jax
    ici_link_bytes_per_s=100e9,  # docs: 1200 GB/s both ways over 6 links
    dcn_bytes_per_s=12.5e9,  # (unchecked): 100 Gbit/s a chip
    torus_rank=3,  # docs
    pod_chips=9216,  # docs
    usd_per_chip_hour=None,  # not in the catalogue
)

CHIPS: dict[str, Chip] = {chip.name: chip for chip in (V1, V2, V3, V4I, V4, V5E, V5P, V6E, V7X)}
"""The chips by name, oldest first."""


def chip_named(name: str) -> Chip:
    """Return the chip with this name.

    Raises:
        UnknownTPUError: no chip has this name.

    Example:
        >>> chip_named("v2").cores
        2
    """
    if name not in CHIPS:
        raise UnknownTPUError(f"{name!r} is not a TPU chip; the chips are {', '.join(CHIPS)}")
    return CHIPS[name]


def chip_of_kind(device_kind: str) -> Chip | None:
    """Return the chip with JAX's `device_kind` ("TPU v5 lite"), or None if it is not a known TPU."""
    return next((chip for chip in CHIPS.values() if device_kind in chip.device_kinds), None)
