"""Cases of decoders that MaxText trained, from the recipes for Trillium, v5p and Ironwood."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from plan_cases.attention import SPLASH
from plan_cases.case import Case
from plan_cases.decoder import Model, Training
from plan_cases.maxtext import (
    ASYNC,
    GPT3_175B,
    LLAMA_2_70B,
    LLAMA_8B,
    LLAMA_70B,
    LLAMA_405B,
    MAXTEXT,
    MISTRAL_7B,
    MIXTRAL_8X7B,
    flags,
)
from plan_cases.optimizers import adam
from plan_cases.remat import FULL, Remat

RECIPES = "AI-Hypercomputer/tpu-recipes training"
SMALL_BLOCKS = "attention has blocks of 512 in place of 2048, which compile minutes faster; it prices the same"
_LLAMA = "Llama3.1-8B-MaxText"
OFFLOAD = Remat(offloaded=("decoder_layer_input", "query_proj", "key_proj", "value_proj"))
OFFLOAD_OUT = Remat(offloaded=(*OFFLOAD.offloaded, "out_proj"))


HOST = flags(
    "--xla_tpu_enable_all_experimental_scheduler_features=true"
    " --xla_tpu_enable_scheduler_memory_pressure_tracking=true --xla_tpu_host_transfer_overlap_limit=24"
    " --xla_tpu_aggressive_opt_barrier_removal=ENABLED --xla_lhs_prioritize_async_depth_over_stall=ENABLED"
    " --xla_tpu_enable_ag_backward_pipelining=true --xla_should_allow_loop_variant_parameter_in_chain=ENABLED"
    " --xla_should_add_loop_invariant_op_in_chain=ENABLED --xla_max_concurrent_host_send_recv=100"
    " --xla_tpu_scheduler_percent_shared_memory_limit=100 --xla_latency_hiding_scheduler_rerun=2"
)
TRILLIUM = HOST | flags(
    "--xla_tpu_scoped_vmem_limit_kib=98304 --xla_tpu_use_minor_sharding_for_major_trivial_input=true"
    " --xla_tpu_relayout_group_size_threshold_for_reduce_scatter=1 --xla_tpu_assign_all_reduce_scatter_layout=true"
    " --xla_tpu_enable_data_parallel_all_reduce_opt=true --xla_tpu_data_parallel_opt_different_sized_ops=true"
    " --xla_tpu_enable_async_collective_fusion=true --xla_tpu_enable_async_collective_fusion_fuse_all_gather=true"
    " --xla_tpu_enable_async_collective_fusion_multiple_steps=true --xla_tpu_overlap_compute_collective_tc=true"
    " --xla_enable_async_all_gather=true"
)
# The name of the recipe ends in "no-collective-matmul": its last flag.
UNWINDOWED = TRILLIUM | flags("--xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000")


def _trillium(
    folder: str,
    name: str,
    model: Model,
    chips: int,
    per_chip: int,
    seconds: float,
    remat: Remat,
    length: int = 8192,
    options: dict[str, str] = TRILLIUM,
) -> Case:
    return Case(
        name=f"{name}_v6e-{chips}",
        family=f"{name}_v6e",
        kind="step",
        target=f"v6e-{chips}",
        measured_s=seconds,
        arithmetic="seconds of a completed step in the recipe's log",
        source=f"{RECIPES}/trillium/{folder}; {MAXTEXT} benchmarks/maxtext_trillium_model_configs.py",
        trust="A",
        build=Training(model, per_chip * chips, length, fsdp=chips, remat=remat).build,
        options=options,
        stack="JAX 0.5 to 0.6",
        year=2025,
        differs=SMALL_BLOCKS,
    )


_LLAMA_70B = "Llama3.1-70B-MaxText"
SIMPLE = ASYNC | flags("--xla_tpu_scoped_vmem_limit_kib=98304")
_ON_DEVICE = Remat(saved=("decoder_layer_input", "context", "query_proj", "key_proj", "value_proj"))
V7X = flags(
    "--xla_tpu_scoped_vmem_limit_kib=61440 --xla_tpu_bf16_emission_mode=NATIVE_EMISSION"
    " --xla_tpu_enable_sparse_core_collective_offload_all_reduce=true"
    " --xla_tpu_use_single_sparse_core_for_all_gather_offload=true"
)

_VMEM_64 = flags("--xla_tpu_scoped_vmem_limit_kib=65536")


def _ironwood(
    name: str, folder: str, cores: int, training: Training, seconds: float, options: dict[str, str] = V7X
) -> Case:
    return Case(
        name=f"{name}_v7x-{cores}",
        family=f"{name}_v7x",
        kind="step",
        target=f"v7x-{cores}",
        measured_s=seconds,
        arithmetic="the step time in the recipes' table",
        source=f"{RECIPES}/ironwood/README.md and {folder}",
        trust="A",
        build=training.build,
        options=options,
        stack="JAX 0.8",
        year=2025,
        differs=SMALL_BLOCKS,
    )


def _llama_70b_v7x(cores: int) -> Training:
    optimizer = adam(first_dtype=jnp.bfloat16)
    return Training(LLAMA_70B, 2 * cores, 8192, fsdp=cores, remat=_ON_DEVICE, optimizer=optimizer)


LLAMA_70B_V7X = _llama_70b_v7x(512)

_LLAMA_2_70B_V5P = Training(
    dataclasses.replace(LLAMA_2_70B, attention=SPLASH),
    512 * 4,
    4096,
    fsdp=512,
    remat=Remat(saved=("query_proj", "key_proj", "value_proj", "out_proj", "mlpwo")),
)

_LLAMA_405B_V7X = Training(
    LLAMA_405B,
    3 * 512,
    8192,
    fsdp=512,
    remat=Remat(saved=("key_proj", "value_proj"), offloaded=("decoder_layer_input", "mlpwo")),
    optimizer=adam(first_dtype=jnp.bfloat16),
    vocabulary_tiles=4,
)
LLAMA_405B_V5P = Training(
    dataclasses.replace(LLAMA_405B, attention=SPLASH),
    2 * 512,
    8192,
    fsdp=512,
    remat=Remat(offloaded=("context", "mlpwo")),
    vocabulary_tiles=4,
)

CASES = (
    Case(
        name="llama2_70b_v5p-1024",
        family="llama2_70b_v5p",
        kind="step",
        target="v5p-1024",
        measured_s=4 * 4096 / 692,
        arithmetic="4 sequences of 4096 tokens a chip at 692 tokens/s a chip",
        source=f"{MAXTEXT} docs/reference/models/tiering.md; benchmarks/maxtext_v5p_model_configs.py",
        trust="B",
        build=_LLAMA_2_70B_V5P.build,
        options=ASYNC,
        stack="JAX 0.4 to 0.6",
        year=2025,
    ),
    _trillium(_LLAMA, "llama3_8b", LLAMA_8B, 8, 3, 3.443, OFFLOAD_OUT, options=UNWINDOWED),
    _trillium(_LLAMA, "llama3_8b", LLAMA_8B, 32, 3, 3.495, OFFLOAD_OUT, options=UNWINDOWED),
    _trillium(_LLAMA, "llama3_8b", LLAMA_8B, 256, 4, 4.546, OFFLOAD_OUT),
    _trillium("Mistral-7B-MaxText", "mistral_7b", MISTRAL_7B, 8, 6, 6.320, OFFLOAD_OUT),
    _trillium(
        "Mixtral-8x7B-MaxText",
        "mixtral_8x7b",
        MIXTRAL_8X7B,
        256,
        12,
        13.484,
        OFFLOAD_OUT,
        length=4096,
        options=ASYNC | flags("--xla_tpu_scoped_vmem_limit_kib=81920"),
    ),
    _trillium(_LLAMA_70B, "llama3_70b", LLAMA_70B, 32, 2, 17.790, OFFLOAD, options=UNWINDOWED),
    _trillium(_LLAMA_70B, "llama3_70b", LLAMA_70B, 256, 5, 42.656, OFFLOAD),
    _trillium("GPT3-175B-MaxText/bf16", "gpt3_175b", GPT3_175B, 256, 3, 17.182, FULL, length=2048, options=SIMPLE),
    _ironwood("llama3_70b", "llama3.1-70b/8k-bf16-tpu7x-4x4x4", 128, _llama_70b_v7x(128), 12.20),
    _ironwood("llama3_70b", "llama3.1-70b/8k-bf16-tpu7x-4x8x8", 512, LLAMA_70B_V7X, 12.27),
    _ironwood("llama3_405b", "llama3.1-405b/8k-bf16-tpu7x-4x8x8", 512, _LLAMA_405B_V7X, 98.34, V7X | _VMEM_64),
    Case(
        name="llama3_405b_v5p-1024",
        family="llama3_405b_v5p",
        kind="step",
        target="v5p-1024",
        measured_s=131.474,
        arithmetic="seconds of a completed step in the recipe's log",
        source=f"{RECIPES}/v5p/Llama3.1-405B-MaxText; {MAXTEXT} benchmarks/maxtext_v5p_model_configs.py",
        trust="A",
        build=LLAMA_405B_V5P.build,
        options=SIMPLE | HOST,
        stack="JAX 0.7",
        year=2025,
        differs=SMALL_BLOCKS,
    ),
)
"""Training steps."""
