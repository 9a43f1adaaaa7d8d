"""Cases of decoders that MaxText trained, from its own tables, and the models that other cases are of."""

from __future__ import annotations

import dataclasses

from plan_cases.attention import Attention
from plan_cases.case import Case
from plan_cases.decoder import Model, Training
from plan_cases.mixture import Mixture
from plan_cases.remat import FULL, MINIMAL, Remat

MAXTEXT = "AI-Hypercomputer/maxtext"

BLOCKS = Attention("splash", block=512, is_backward_fused=True)
LLAMA_8B = Model(32, 4096, 32, 8, 128, 14336, 128256, attention=BLOCKS)
LLAMA_70B = Model(80, 8192, 64, 8, 128, 28672, 128256, attention=BLOCKS)
LLAMA_405B = Model(126, 16384, 128, 8, 128, 53248, 128256, attention=BLOCKS)
LLAMA_2_70B = Model(80, 8192, 64, 8, 128, 28672, 32000, attention=BLOCKS)
GPT3_175B = Model(96, 12288, 96, 96, 128, 49152, 50304, is_gated=False, is_tied=True, has_rope=False, attention=BLOCKS)
MISTRAL_7B = Model(32, 4096, 32, 8, 128, 14336, 32000, attention=BLOCKS)
MIXTRAL_8X7B = dataclasses.replace(MISTRAL_7B, mixture=Mixture())


def flags(text: str) -> dict[str, str]:
    """Return compiler options of "a=true b=1"."""
    return dict(option.removeprefix("--").split("=") for option in text.split())


ASYNC = flags(
    "--xla_tpu_enable_data_parallel_all_reduce_opt=true --xla_tpu_data_parallel_opt_different_sized_ops=true"
    " --xla_tpu_enable_async_collective_fusion=true --xla_tpu_enable_async_collective_fusion_fuse_all_gather=true"
    " --xla_tpu_enable_async_collective_fusion_multiple_steps=true --xla_tpu_overlap_compute_collective_tc=true"
    " --xla_enable_async_all_gather=true"
)
V5P_FLAGS = flags(
    "--xla_tpu_megacore_fusion_allow_ags=false --xla_enable_async_collective_permute=true"
    " --xla_tpu_enable_ag_backward_pipelining=true --xla_tpu_enable_data_parallel_all_reduce_opt=true"
    " --xla_tpu_data_parallel_opt_different_sized_ops=true --xla_tpu_enable_async_collective_fusion=true"
    " --xla_tpu_enable_async_collective_fusion_multiple_steps=true --xla_tpu_overlap_compute_collective_tc=true"
    " --xla_enable_async_all_gather=true"
)
_TABLES = f"{MAXTEXT} at 632f65147 (2023-12-15): MaxText/configs"


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
    stack: str = "JAX 0.4.2x",
    counts_attention: bool = True,
    differs: str = "",
) -> Case:
    flops = operations(training, counts_attention)
    return Case(
        name=f"{name}_{target}",
        family=f"maxtext_table_{target.split('-')[0].split('x')[-1]}",
        kind="step",
        target=target,
        measured_s=flops / (tera * 1e12),
        arithmetic=f"{flops / 1e12:.1f} TFLOP a device, as MaxText counts them, at {tera} TFLOP/s a chip",
        source=f"{_TABLES}/{file}",
        trust="B",
        build=training.build,
        options=options,
        stack=stack,
        year=2023,
        differs=differs,
    )


FLASH = Attention("flash", block=512)


def _v5e(scale: int, per_chip: int, tera: float, slices: int = 1) -> Case:
    training = Training(scaled(scale, FLASH), slices * 256 * per_chip, 2048, fsdp=256, data=slices)
    target = "v5e-256" if slices == 1 else f"{slices}xv5e-256"
    return _table(f"maxtext_{scale}b", "v5e/README.md and its scripts", target, training, tera, ASYNC)


_LLAMA_2_70B_V5E = Training(
    LLAMA_2_70B, 512, 2048, fsdp=256, remat=Remat(offloaded=("query_proj", "key_proj", "value_proj"))
)


def _v5p(scale: int, cores: int, per_chip: int, tensor: int, tera: float) -> Case:
    chips = cores // 2
    training = Training(
        scaled(scale, FLASH), chips * per_chip, 2048, fsdp=chips // tensor, tensor=tensor, remat=MINIMAL
    )
    return _table(f"maxtext_{scale}b", "v5p/README.md and its scripts", f"v5p-{cores}", training, tera, V5P_FLAGS)


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
        stack="JAX 0.4",
        counts_attention=False,
        differs="attention had a bias of relative positions, computed once a layer",
    )


_DOT_22B = Model(48, 6144, 24, 24, 256, 24576, 32768, False, True, True, Attention("dot"), has_rope=False)

CASES = (
    _v4("maxtext_22b", 128, _DOT_22B, 16, 156),
    _v5e(16, 6, 120),
    _v5e(32, 4, 132),
    _v5e(64, 2, 118),
    _v5e(16, 6, 117, slices=2),
    Case(
        name="llama2_70b_v5e-256",
        family="llama2_70b_v5e",
        kind="step",
        target="v5e-256",
        measured_s=operations(_LLAMA_2_70B_V5E) / (0.57 * 197e12),
        arithmetic="57 % of 197 TFLOP/s, operations as MaxText counts them",
        source=f"{MAXTEXT} getting_started/Run_Llama2.md (2024-03-25); MaxText/configs/v5e/llama2_70b.sh",
        trust="B",
        build=_LLAMA_2_70B_V5E.build,
        options=ASYNC,
        stack="JAX 0.4.2x",
        year=2024,
        differs="the share of the peak was printed with two digits",
    ),
    _v5p(32, 128, 8, 4, 328),
    _v5p(64, 128, 4, 4, 323),
    _v5p(128, 256, 2, 8, 315),
)
"""Training steps."""
