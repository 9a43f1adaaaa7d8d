"""Cases of one operation each: matrix products, copies and collectives, timed on the device or on the host."""

from __future__ import annotations

import functools

from plan_cases.case import Case
from plan_cases.micro import all_gather, all_reduce, copy, matmul

_RECIPES = "AI-Hypercomputer/tpu-recipes microbenchmarks"
_IRONWOOD = f"{_RECIPES}/ironwood"
_VMEM = {"xla_tpu_scoped_vmem_limit_kib": "65536"}
# Side of the square bfloat16 matrices: TFLOP/s of one device (a core).
_V7X_MATMULS = {
    512: 105.0783466,
    1024: 349.7270639,
    2048: 679.284728,
    4096: 892.9445127,
    16384: 950.1286983,
    32768: 956.3824592,
}
# Bytes of the array: GB/s of one core, reading and writing counted.
_V7X_COPIES = {
    8388608: 2246.129937,
    33554432: 3009.83593,
    134217728: 3176.50274,
    1073741824: 3198.414211,
    8589934592: 3210.480912,
}
# Rows of `(rows, 8, 128)` float32 on each device: GB/s of one chip.
_V7X_GATHERS = {64: 71.7703034, 256: 129.1869148, 1024: 161.9040742, 4096: 174.765465, 16384: 178.7714158}


def _v7x_matmul(side: int, tera: float) -> Case:
    return Case(
        name=f"matmul_{side}_v7x",
        family="micro_v7x",
        kind="matmul",
        target="v7x-8",
        measured_s=2 * side**3 / (tera * 1e12),
        arithmetic=f"2 x {side}^3 operations at {tera} TFLOP/s a device",
        source=f"{_IRONWOOD}/README.md, GEMM; AI-Hypercomputer/accelerator-microbenchmarks benchmark_gemm.py",
        trust="A",
        build=functools.partial(matmul, side, side, side, devices=8),
        options=_VMEM,
        timed_on="device",
        stack="JAX",
        year=2025,
    )


def _v7x_copy(size_bytes: int, giga: float) -> Case:
    return Case(
        name=f"copy_{size_bytes >> 20}MiB_v7x",
        family="micro_v7x",
        kind="copy",
        target="v7x-8",
        measured_s=2 * size_bytes / (giga * 1e9),
        arithmetic=f"{size_bytes} bytes read and written at {giga} GB/s",
        source=f"{_IRONWOOD}/hbm/hbm.md; AI-Hypercomputer/accelerator-microbenchmarks benchmark_hbm.py",
        trust="A",
        build=functools.partial(copy, size_bytes // 2, devices=8),
        options=_VMEM,
        timed_on="device",
        stack="JAX",
        year=2025,
    )


def _v7x_gather(rows: int, giga: float, target: str, chips: tuple[int, ...]) -> Case:
    shard_bytes = rows * 8 * 128 * 4
    return Case(
        name=f"all_gather_{shard_bytes >> 10}KiB_{target}",
        family="micro_v7x",
        kind="collective",
        target=target,
        measured_s=6 * shard_bytes / (giga * 1e9),
        arithmetic=f"3 shards of {shard_bytes} bytes to each of a chip's 2 cores at {giga} GB/s a chip",
        source=f"{_IRONWOOD}/collectives/all_gather.md; AI-Hypercomputer/accelerator-microbenchmarks",
        trust="A",
        build=functools.partial(all_gather, (rows, 8, 128), chips),
        options={"xla_tpu_enable_sparse_core_collective_offload_all_gather": "false", **_VMEM},
        timed_on="device",
        stack="JAX",
        year=2025,
        differs="not by SparseCore, as the recipe has it: JAX cannot print what the compiler then makes",
    )


CASES = (
    Case(
        name="matmul_8192_v6e",
        family="micro_v6e",
        kind="matmul",
        target="v6e-1",
        measured_s=1.328756094e-3,
        arithmetic="the median that the profiler saw, 827.5 TFLOP/s",
        source=f"{_RECIPES}/README.md, Matmul",
        trust="A",
        build=functools.partial(matmul, 8192, 8192, 8192),
        options=_VMEM,
        timed_on="device",
        stack="JAX",
        year=2024,
    ),
    Case(
        name="matmul_8192_v6e_host",
        family="micro_v6e",
        kind="matmul",
        target="v6e-1",
        measured_s=1.457810401916504e-3,
        arithmetic="the same product timed on the host: the median, with the call and the wait for it",
        source=f"{_RECIPES}/README.md, Matmul",
        trust="A",
        build=functools.partial(matmul, 8192, 8192, 8192),
        options=_VMEM,
        stack="JAX",
        year=2024,
    ),
    Case(
        name="copy_32MiB_v6e",
        family="micro_v6e",
        kind="copy",
        target="v6e-1",
        measured_s=0.049359414e-3,
        arithmetic="the median that the profiler saw, 1359.6 GB/s",
        source=f"{_RECIPES}/README.md, HBM bandwidth",
        trust="A",
        build=functools.partial(copy, 16777216),
        timed_on="device",
        stack="JAX",
        year=2024,
    ),
    Case(
        name="all_reduce_606MB_v6e-256",
        family="micro_v6e",
        kind="collective",
        target="v6e-256",
        measured_s=0.606076928 * 2 * 255 / 256 / 235.7595345022845,
        arithmetic="0.606076928 GB x 2 x 255/256 at 235.76 GB/s",
        source=f"{_RECIPES}/trillium/collectives/README.md; accelerator-microbenchmarks, branch trillium-collectives",
        trust="A",
        build=functools.partial(all_reduce, 17408, 256),
        stack="JAX 0.5.2",
        year=2025,
    ),
    *(_v7x_matmul(side, tera) for side, tera in _V7X_MATMULS.items()),
    *(_v7x_copy(size_bytes, giga) for size_bytes, giga in _V7X_COPIES.items()),
    *(_v7x_gather(rows, giga, "v7x-8", (2, 2)) for rows, giga in _V7X_GATHERS.items()),
)
"""One operation each."""
