"""NVIDIA GPUs as a roofline knows them, one frozen record each.

Rule: peak rates without sparsity, products summed in float32, from NVIDIA's data sheets of each card and its
architecture white papers (Volta, Turing, Ampere GA100 and GA102, Ada, Hopper). What a card has no tensor cores for runs
on its ordinary units: that rate stands there then.
"""

from __future__ import annotations

import dataclasses

from anytpu.errors import PlanError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Gpu:
    """One model of GPU.

    Attributes:
        name: what its device kind contains: "H100 PCIe".
        bf16_flops_per_s: products of bfloat16.
        f16_flops_per_s: products of float16.
        tf32_flops_per_s: products of float32 at JAX's default precision, as TF32 where there is such a thing.
        f32_flops_per_s: products of float32 in full precision.
        hbm_bytes_per_s: bandwidth of its memory.
    """

    name: str
    bf16_flops_per_s: float
    f16_flops_per_s: float
    tf32_flops_per_s: float
    f32_flops_per_s: float
    hbm_bytes_per_s: float


def _gpu(name: str, bf16: float, f16: float, tf32: float, f32: float, gigabytes_per_s: float) -> Gpu:
    return Gpu(
        name=name,
        bf16_flops_per_s=bf16 * 1e12,
        f16_flops_per_s=f16 * 1e12,
        tf32_flops_per_s=tf32 * 1e12,
        f32_flops_per_s=f32 * 1e12,
        hbm_bytes_per_s=gigabytes_per_s * 1e9,
    )


# TFLOP/s for bfloat16, float16, TF32 and float32, then GB/s. The first whose name is in a device kind is that device.
GPUS = (
    _gpu("B200", 2250, 2250, 1100, 75, 8000),
    _gpu("GH200", 989, 989, 494, 67, 4000),
    _gpu("H200", 989, 989, 494, 67, 4800),
    _gpu("H100 PCIe", 756, 756, 378, 51, 2000),
    _gpu("H100 NVL", 835, 835, 417, 60, 3900),
    _gpu("H100", 989, 989, 494, 67, 3350),
    _gpu("A100-SXM4-80GB", 312, 312, 156, 19.5, 2039),
    _gpu("A100 80GB PCIe", 312, 312, 156, 19.5, 1935),
    _gpu("A100", 312, 312, 156, 19.5, 1555),
    _gpu("L40S", 362, 362, 183, 91.6, 864),
    _gpu("L4", 121, 121, 60, 30.3, 300),
    _gpu("A10G", 70, 70, 35, 31.2, 600),
    _gpu("A10", 125, 125, 62.5, 31.2, 600),
    _gpu("T4", 8.1, 65, 8.1, 8.1, 320),  # Turing: tensor cores for float16, none for bfloat16 and TF32
    _gpu("V100", 15.7, 125, 15.7, 15.7, 900),  # Volta: the same
    _gpu("RTX 4090", 165.2, 165.2, 82.6, 82.6, 1008),
    _gpu("RTX 3090", 71, 71, 35.6, 35.6, 936),
)
"""The GPUs that are known; more exact names first."""


def gpu_of_kind(device_kind: str) -> Gpu:
    """Return the GPU that JAX calls by `device_kind`: "NVIDIA H100 80GB HBM3".

    Raises:
        PlanError: its rates are not known.

    Example:
        >>> gpu_of_kind("NVIDIA H100 80GB HBM3").hbm_bytes_per_s, gpu_of_kind("Tesla T4").name
        (3350000000000.0, 'T4')
    """
    words = f" {device_kind.replace('-', ' ')} "
    for gpu in GPUS:
        if f" {gpu.name.replace('-', ' ')} " in words:
            return gpu
    known = ", ".join(gpu.name for gpu in GPUS)
    raise PlanError(
        f"the peak rates of the GPU {device_kind!r} are not known, so no roofline can be drawn for it; those that are: "
        f"{known}. Plan for a TPU instead, such as tpu='v5e-8' (--tpu v5e-8)"
    )
