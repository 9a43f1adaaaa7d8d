"""Cases of Llamas that other frameworks than MaxText trained: Levanter and torchprime."""

from __future__ import annotations

import dataclasses

import jax.numpy as jnp

from plan_cases.attention import Attention
from plan_cases.case import Case
from plan_cases.decoder import Model, Training
from plan_cases.maxtext import LLAMA_8B, MIXTRAL_8X7B, flags
from plan_cases.optimizers import adafactor, adam

_BLOCKS = Attention("splash", block=512)
LEVANTER = Training(
    Model(16, 2048, 16, 8, 128, 7168, 128256, attention=_BLOCKS),
    256,
    4096,
    fsdp=16,
    optimizer=adam(2e-3, 0.9, 0.98, 0.2),
    is_embedding_product=False,
)
_FLASH = Attention("flash", block=512)
_TORCHPRIME_FLAGS = flags(
    "--xla_tpu_scoped_vmem_limit_kib=98304 --xla_enable_async_all_gather=true"
    " --xla_tpu_overlap_compute_collective_tc=true --xla_tpu_enable_async_collective_fusion_multiple_steps=true"
    " --xla_tpu_enable_async_collective_fusion=true --xla_tpu_enable_async_collective_fusion_fuse_all_gather=true"
)


def _torchprime(name: str, model: Model, benchmark: str, seconds: float, runs: int, tensor: int = 1) -> Case:
    training = Training(
        model,
        8,
        8192,
        fsdp=4 // tensor,
        tensor=tensor,
        optimizer=adafactor(),
        is_embedding_product=False,
        dtype=jnp.bfloat16,
    )
    return Case(
        name=f"torchprime_{name}_v6e-4",
        family="torchprime_mixtral_v6e" if model.mixture else "torchprime_llama_v6e",
        kind="step",
        target="v6e-4",
        measured_s=seconds,
        arithmetic=f"the mean of {runs} runs, each the median of a profile's steps",
        source=f"AI-Hypercomputer/torchprime e2e_testing/step_time_bounds.yaml (2025-06-05), {benchmark}; "
        ".github/workflows/e2e_test.yml; torchprime/launcher/Dockerfile",
        trust="A",
        build=training.build,
        options=_TORCHPRIME_FLAGS,
        timed_on="device",
        stack="torch_xla nightly",
        year=2025,
        differs="layers are scanned; attention has blocks of 512; that there were four chips follows from the mesh",
    )


CASES = (
    Case(
        name="levanter_1.4b_v5p-32",
        family="levanter_v5p",
        kind="step",
        target="v5p-32",
        measured_s=54527.10330390734 / 22888,
        arithmetic="54527.1 s, the sum of all steps' durations, over 22888 steps",
        source="marin-community/marin experiments/speedrun/adamw_llama_scaling/1_2b; lib/marin/src/marin/speedrun",
        trust="A",
        build=LEVANTER.build,
        stack="JAX 0.5 to 0.6",
        year=2025,
        differs="every tenth step took norms of all gradients and weights; attention has blocks of 512",
    ),
    _torchprime("llama3_8b_splash", LLAMA_8B, "llama-3_1-8b-sa", 2.4068, 428),
    _torchprime("llama3_8b_flash", dataclasses.replace(LLAMA_8B, attention=_FLASH), "llama-3-8b", 2.7352, 427),
    _torchprime("llama3_8b_2d", dataclasses.replace(LLAMA_8B, attention=_FLASH), "llama-3-8b-2d", 3.3384, 428, 2),
    _torchprime(
        "mixtral_16", dataclasses.replace(MIXTRAL_8X7B, layers=16, attention=_FLASH), "mixtral-8x7b", 3.1462, 427
    ),
)
"""Training steps."""
