"""Cases of decoders that MaxText trained: its own tables, and the recipes for Trillium, v5p and Ironwood."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from plan_cases.attention import SPLASH, Attention
from plan_cases.case import Case
from plan_cases.decoder import Model, Training
from plan_cases.optimizers import adam
from plan_cases.remat import FULL, MINIMAL, Remat

_RECIPES = "AI-Hypercomputer/tpu-recipes training"
_MAXTEXT = "AI-Hypercomputer/maxtext"

_BLOCKS = Attention("splash", block=512, is_backward_fused=True)
_SMALL_BLOCKS = "attention has blocks of 512 in place of 2048, which compile minutes faster; it prices the same"
LLAMA_8B = Model(32, 4096, 32, 8, 128, 14336, 128256, attention=_BLOCKS)
LLAMA_70B = Model(80, 8192, 64, 8, 128, 28672, 128256, attention=_BLOCKS)
LLAMA_405B = Model(126, 16384, 128, 8, 128, 53248, 128256, attention=_BLOCKS)
LLAMA_2_70B = Model(80, 8192, 64, 8, 128, 28672, 32000, attention=_BLOCKS)
GPT3_175B = Model(96, 12288, 96, 96, 128, 49152, 50304, is_gated=False, is_tied=True, has_rope=False, attention=_BLOCKS)
MISTRAL_7B = Model(32, 4096, 32, 8, 128, 14336, 32000, attention=_BLOCKS)

_OFFLOAD = Remat(offloaded=("decoder_layer_input", "query_proj", "key_proj", "value_proj"))
_OFFLOAD_OUT = Remat(offloaded=(*_OFFLOAD.offloaded, "out_proj"))


def flags(text: str) -> dict[str, str]:
    """Return compiler options of "a=true b=1"."""
    return dict(one.removeprefix("--").split("=") for one in text.split())


_TRILLIUM = flags(
    "--xla_tpu_scoped_vmem_limit_kib=98304 --xla_tpu_use_minor_sharding_for_major_trivial_input=true"
    " --xla_tpu_relayout_group_size_threshold_for_reduce_scatter=1 --xla_tpu_assign_all_reduce_scatter_layout=true"
    " --xla_tpu_enable_data_parallel_all_reduce_opt=true --xla_tpu_data_parallel_opt_different_sized_ops=true"
    " --xla_tpu_enable_async_collective_fusion=true --xla_tpu_enable_async_collective_fusion_fuse_all_gather=true"
    " --xla_tpu_enable_async_collective_fusion_multiple_steps=true --xla_tpu_overlap_compute_collective_tc=true"
    " --xla_enable_async_all_gather=true --xla_tpu_enable_all_experimental_scheduler_features=true"
    " --xla_tpu_enable_scheduler_memory_pressure_tracking=true --xla_tpu_host_transfer_overlap_limit=24"
    " --xla_tpu_aggressive_opt_barrier_removal=ENABLED --xla_lhs_prioritize_async_depth_over_stall=ENABLED"
    " --xla_tpu_enable_ag_backward_pipelining=true --xla_should_allow_loop_variant_parameter_in_chain=ENABLED"
    " --xla_should_add_loop_invariant_op_in_chain=ENABLED --xla_max_concurrent_host_send_recv=100"
    " --xla_tpu_scheduler_percent_shared_memory_limit=100 --xla_latency_hiding_scheduler_rerun=2"
)
_NO_WINDOWED = flags("--xla_jf_spmd_threshold_for_windowed_einsum_mib=1000000")


def _trillium(
    folder: str,
    name: str,
    model: Model,
    chips: int,
    per_chip: int,
    seconds: float,
    remat: Remat,
    length: int = 8192,
    options: dict[str, str] = _TRILLIUM,
) -> Case:
    return Case(
        name=f"{name}_v6e-{chips}",
        family=f"{name}_v6e",
        kind="step",
        target=f"v6e-{chips}",
        measured_s=seconds,
        arithmetic="seconds of a completed step in the recipe's log",
        source=f"{_RECIPES}/trillium/{folder}; {_MAXTEXT} benchmarks/maxtext_trillium_model_configs.py",
        trust="A",
        build=Training(model, per_chip * chips, length, fsdp=chips, remat=remat).build,
        options=options,
        stack="JAX 0.5 to 0.6, 2025",
        differs=_SMALL_BLOCKS,
    )


_ASYNC = flags(
    "--xla_tpu_enable_data_parallel_all_reduce_opt=true --xla_tpu_data_parallel_opt_different_sized_ops=true"
    " --xla_tpu_enable_async_collective_fusion=true --xla_tpu_enable_async_collective_fusion_fuse_all_gather=true"
    " --xla_tpu_enable_async_collective_fusion_multiple_steps=true --xla_tpu_overlap_compute_collective_tc=true"
    " --xla_enable_async_all_gather=true"
)
_V5P = flags(
    "--xla_tpu_megacore_fusion_allow_ags=false --xla_enable_async_collective_permute=true"
    " --xla_tpu_enable_ag_backward_pipelining=true --xla_tpu_enable_data_parallel_all_reduce_opt=true"
    " --xla_tpu_data_parallel_opt_different_sized_ops=true --xla_tpu_enable_async_collective_fusion=true"
    " --xla_tpu_enable_async_collective_fusion_multiple_steps=true --xla_tpu_overlap_compute_collective_tc=true"
    " --xla_enable_async_all_gather=true"
)
_TABLES = f"{_MAXTEXT} at 632f65147 (2023-12-15): MaxText/configs"


def scaled(scale: int, attention: Attention) -> Model:
    """Return MaxText's own decoder of December 2023, some `scale` billion parameters.

    Heads and hidden features, then the width, then the layers are doubled in turn, from 8 heads, 2560 and 16.
    """
    thirds, left = divmod(scale.bit_length() - 1, 3)
    heads, width, layers = (2 ** (thirds + more) for more in (left > 0, left > 1, 0))
    sizes = (16 * layers, 2560 * width, 8 * heads, 8 * heads, 256, 8192 * heads, 32768)
    return Model(*sizes, is_gated=False, is_parallel=True, is_tied=True, attention=attention)


def operations(training: Training, counts_attention: bool = True) -> float:
    """Return the operations of a step on one device as MaxText counted them then: causal attention once."""
    model, devices = training.model, training.fsdp * training.tensor * training.data
    tokens = training.batch * training.length / devices
    attention = 6 * model.heads * model.head * model.layers * training.length * counts_attention
    return tokens * (6 * model.parameters() + attention)


def _table(
    name: str,
    file: str,
    target: str,
    training: Training,
    tera: float,
    options: dict[str, str],
    stack: str = "JAX 0.4.2x, 2023",
    counts_attention: bool = True,
    differs: str = "",
) -> Case:
    flops = operations(training, counts_attention)
    return Case(
        name=f"{name}_{target}",
        family=f"maxtext_table_{target.split('-')[0]}",
        kind="step",
        target=target,
        measured_s=flops / (tera * 1e12),
        arithmetic=f"{flops / 1e12:.1f} TFLOP a device, as MaxText counts them, at {tera} TFLOP/s a chip",
        source=f"{_TABLES}/{file}",
        trust="B",
        build=training.build,
        options=options,
        stack=stack,
        differs=differs,
    )


_FLASH = Attention("flash", block=512)


def _v5e(scale: int, per_chip: int, tera: float) -> Case:
    training = Training(scaled(scale, _FLASH), 256 * per_chip, 2048, fsdp=256)
    return _table(f"maxtext_{scale}b", "v5e/README.md and its scripts", "v5e-256", training, tera, _ASYNC)


def _v5p(scale: int, cores: int, per_chip: int, tensor: int, tera: float) -> Case:
    chips = cores // 2
    training = Training(
        scaled(scale, _FLASH), chips * per_chip, 2048, fsdp=chips // tensor, tensor=tensor, remat=MINIMAL
    )
    return _table(f"maxtext_{scale}b", "v5p/README.md and its scripts", f"v5p-{cores}", training, tera, _V5P)


def _v4(name: str, cores: int, model: Model, per_chip: int, tera: float) -> Case:
    chips = cores // 2
    training = Training(model, chips * per_chip, 1024, fsdp=chips, remat=FULL, is_embedding_product=False)
    return _table(
        name,
        "v4/README.md; the figures stand in README.md since April 2023, when a sequence had 1024 tokens",
        f"v4-{cores}",
        training,
        tera,
        flags("--xla_enable_async_all_gather=true"),
        stack="JAX 0.4, 2023",
        counts_attention=False,
        differs="attention had a bias of relative positions, computed once a layer",
    )


_LLAMA = "Llama3.1-8B-MaxText"
_DOT_22B = Model(48, 6144, 24, 24, 256, 24576, 32768, False, True, True, Attention("dot"), has_rope=False)

_LLAMA_70B = "Llama3.1-70B-MaxText"
_SIMPLE = {**flags("--xla_tpu_scoped_vmem_limit_kib=98304"), **_ASYNC}
_ON_DEVICE = Remat(saved=("decoder_layer_input", "context", "query_proj", "key_proj", "value_proj"))
_V7X = flags(
    "--xla_tpu_scoped_vmem_limit_kib=61440 --xla_tpu_bf16_emission_mode=NATIVE_EMISSION"
    " --xla_tpu_enable_sparse_core_collective_offload_all_reduce=true"
    " --xla_tpu_use_single_sparse_core_for_all_gather_offload=true"
)


def _ironwood(name: str, folder: str, cores: int, training: Training, seconds: float) -> Case:
    return Case(
        name=f"{name}_v7x-{cores}",
        family=f"{name}_v7x",
        kind="step",
        target=f"v7x-{cores}",
        measured_s=seconds,
        arithmetic="the step time in the recipes' table",
        source=f"{_RECIPES}/ironwood/README.md and {folder}",
        trust="A",
        build=training.build,
        options=_V7X,
        stack="JAX 0.8, 2025",
        differs=_SMALL_BLOCKS,
    )


def _llama_70b_v7x(cores: int) -> Training:
    optimizer = adam(first_dtype=jnp.bfloat16)
    return Training(LLAMA_70B, 2 * cores, 8192, fsdp=cores, remat=_ON_DEVICE, optimizer=optimizer)


_LLAMA_2_70B_V5P = Training(
    dataclasses.replace(LLAMA_2_70B, attention=SPLASH),
    512 * 4,
    4096,
    fsdp=512,
    remat=Remat(saved=("query_proj", "key_proj", "value_proj", "out_proj", "mlpwo")),
)

CASES = (
    _v4("maxtext_22b", 128, _DOT_22B, 16, 156),
    _v5e(16, 6, 120),
    _v5e(32, 4, 132),
    _v5e(64, 2, 118),
    _v5p(32, 128, 8, 4, 328),
    _v5p(64, 128, 4, 4, 323),
    _v5p(128, 256, 2, 8, 315),
    Case(
        name="llama2_70b_v5p-1024",
        family="llama2_70b_v5p",
        kind="step",
        target="v5p-1024",
        measured_s=4 * 4096 / 692,
        arithmetic="4 sequences of 4096 tokens a chip at 692 tokens/s a chip",
        source=f"{_MAXTEXT} docs/reference/models/tiering.md; benchmarks/maxtext_v5p_model_configs.py",
        trust="B",
        build=_LLAMA_2_70B_V5P.build,
        options=_ASYNC,
        stack="JAX 0.4 to 0.6, 2025",
    ),
    _trillium(_LLAMA, "llama3_8b", LLAMA_8B, 8, 3, 3.443, _OFFLOAD_OUT),
    _trillium(_LLAMA, "llama3_8b", LLAMA_8B, 32, 3, 3.495, _OFFLOAD_OUT),
    _trillium(_LLAMA, "llama3_8b", LLAMA_8B, 256, 4, 4.546, _OFFLOAD_OUT),
    _trillium("Mistral-7B-MaxText", "mistral_7b", MISTRAL_7B, 8, 6, 6.320, _OFFLOAD_OUT),
    _trillium(_LLAMA_70B, "llama3_70b", LLAMA_70B, 32, 2, 17.790, _OFFLOAD),
    _trillium(_LLAMA_70B, "llama3_70b", LLAMA_70B, 256, 5, 42.656, _OFFLOAD),
    _trillium("GPT3-175B-MaxText/bf16", "gpt3_175b", GPT3_175B, 256, 3, 17.182, FULL, length=2048, options=_SIMPLE),
    _ironwood("llama3_70b", "llama3.1-70b/8k-bf16-tpu7x-4x4x4", 128, _llama_70b_v7x(128), 12.20),
    _ironwood("llama3_70b", "llama3.1-70b/8k-bf16-tpu7x-4x8x8", 512, _llama_70b_v7x(512), 12.27),
)
"""Training steps."""
