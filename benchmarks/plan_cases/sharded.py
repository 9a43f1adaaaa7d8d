"""Published steps of sharded decoders, for predictions by `tpu.plan(layout=, mesh=)`. None of them is fitted.

Idea: each step is written without shardings of its inputs. Its layout is a dictionary of patterns, as a user writes it.
So a prediction rests on the whole way from a layout to a time: slots that follow their weights, the constraints that
`plan` inserts, the compiler, and the model of time. Attention is a Pallas kernel in `jax.shard_map`, which names the
mesh; no compiler splits a kernel by itself.

Rule: calibration never sees these cases. `differs` says what is not as it was measured.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jax.sharding import PartitionSpec as P

from plan_cases.attention import Attention
from plan_cases.decoder import Model, Training
from plan_cases.maxtext import (
    ASYNC,
    FLASH,
    GPT3_175B,
    LLAMA_2_70B,
    LLAMA_8B,
    LLAMA_70B,
    MAXTEXT,
    V5P_FLAGS,
    flags,
    operations,
    scaled,
)
from plan_cases.recipes import (
    HOST,
    LLAMA_70B_V7X,
    LLAMA_405B_V5P,
    OFFLOAD,
    OFFLOAD_OUT,
    RECIPES,
    SIMPLE,
    SMALL_BLOCKS,
    TRILLIUM,
    UNWINDOWED,
    V7X,
)
from plan_cases.remat import FULL, MINIMAL, Remat


@dataclasses.dataclass(frozen=True)
class ShardedCase:
    """A published step of a decoder over a mesh.

    Attributes:
        name: "llama3_8b_v6e-16".
        target: the slice.
        training: the run.
        measured_s: seconds of a step, as published.
        arithmetic: how `measured_s` follows from what was published.
        source: address, revision and date.
        options: options of the compiler.
        kin: whether another slice of the same program was fitted.
        differs: what is not as it was measured.
    """

    name: str
    target: str
    training: Training
    measured_s: float
    arithmetic: str
    source: str
    options: Mapping[str, str]
    kin: bool = False
    differs: str = ""

    @property
    def mesh(self) -> dict[str, int]:
        """The mesh, as `tpu.plan` takes it."""
        return {"data": self.training.data, "fsdp": self.training.fsdp, "tensor": self.training.tensor}

    @property
    def layout(self) -> dict[str, P]:
        """The layout, as `tpu.plan` takes it."""
        model = self.training.model
        layout = {
            "weights/layers/(query|key|value|up)$": P(None, "fsdp", "tensor"),
            "weights/layers/out$": P(None, "tensor", None, "fsdp"),
            "weights/layers/down$": P(None, "tensor", "fsdp"),
            "weights/layers/norm": P(None, "fsdp"),
            "weights/embedding$": P("tensor", "fsdp"),
            "weights/norm$": P("fsdp"),
        }
        if model.is_gated:
            layout["weights/layers/gate$"] = P(None, "fsdp", "tensor")
        if not model.is_tied:
            layout["weights/logits$"] = P("fsdp", "tensor")
        return layout


_RECIPES = f"https://github.com/{RECIPES.split()[0]}, c8cfe2f (2026-08-07), training"
_MAXTEXT = f"https://github.com/{MAXTEXT}, e591f30 (2026-08-22), src/maxtext/configs/tpu"


def _trillium(
    name: str, folder: str, training: Training, seconds: float, options: Mapping[str, str], kin: bool
) -> ShardedCase:
    return ShardedCase(
        name=f"{name}_v6e-{training.fsdp}",
        target=f"v6e-{training.fsdp}",
        training=training,
        measured_s=seconds,
        arithmetic="seconds of a completed step in the recipe's log",
        source=f"{_RECIPES}/trillium/{folder}/README.md",
        options=options,
        kin=kin,
        differs=SMALL_BLOCKS,
    )


def _table(
    scale: int,
    target: str,
    per_chip: int,
    tera: float,
    options: Mapping[str, str],
    tensor: int = 1,
    remat: Remat = FULL,
) -> ShardedCase:
    chips = int(target.split("-")[1]) // (2 if target.startswith("v5p") else 1)
    training = Training(scaled(scale, FLASH), chips * per_chip, 2048, fsdp=chips // tensor, tensor=tensor, remat=remat)
    flops = operations(training)
    chip = target.split("-")[0]
    return ShardedCase(
        name=f"maxtext_{scale}b_{target}",
        target=target,
        training=training,
        measured_s=flops / (tera * 1e12),
        arithmetic=f"{flops / 1e12:.1f} TFLOP a device, as MaxText counts them, at {tera} TFLOP/s a chip",
        source=f"{_MAXTEXT}/{chip}/README.md and {scale}b.sh",
        options=options,
        kin=True,
    )


def _v4(target: str, model: Model, per_chip: int, tera: float, kin: bool, slices: int = 1) -> ShardedCase:
    chips = int(target.split("-")[1]) // 2
    training = Training(
        model, slices * chips * per_chip, 1024, fsdp=chips, data=slices, remat=FULL, is_embedding_product=False
    )
    flops = operations(training, counts_attention=False)
    scale = round(model.parameters() / 1e9)
    return ShardedCase(
        name=f"maxtext_{scale}b_{target}",
        target=target,
        training=training,
        measured_s=flops / (tera * 1e12),
        arithmetic=f"{flops / 1e12:.1f} TFLOP a device, as MaxText counted them, at {tera} TFLOP/s a chip",
        source=f"https://github.com/{MAXTEXT}, 632f65147 (2023-12-15), MaxText/configs/v4/README.md and {scale}b.sh",
        options=flags("--xla_enable_async_all_gather=true"),
        kin=kin,
        differs="attention had a bias of relative positions, computed once a layer",
    )


_DOT = Attention("dot")
_22B = Model(48, 6144, 24, 24, 256, 24576, 32768, False, True, True, _DOT, has_rope=False)
_52B = Model(32, 12288, 32, 32, 256, 49152, 32768, False, True, True, _DOT, has_rope=False)
_QKV_OFFLOADED = Remat(offloaded=("query_proj", "key_proj", "value_proj"))
_8B = "Llama3.1-8B-MaxText"
_70B = "Llama3.1-70B-MaxText"

CASES = (
    _v4("2xv4-128", _22B, 16, 152, True, slices=2),
    _v4("v4-384", _52B, 10, 154, True),
    _trillium(
        "llama3_8b", f"{_8B}/v6e-16", Training(LLAMA_8B, 48, 8192, 16, remat=OFFLOAD_OUT), 3.393, UNWINDOWED, True
    ),
    _table(64, "v5e-256", 2, 118, ASYNC),
    _table(256, "v5p-1024", 1, 308, V5P_FLAGS, tensor=8, remat=MINIMAL),
    _trillium(
        "llama2_70b",
        "Llama2-70B-MaxText",
        Training(LLAMA_2_70B, 512, 4096, 256, remat=_QKV_OFFLOADED),
        9.052,
        SIMPLE,
        False,
    ),
    _table(128, "v5e-256", 1, 110, ASYNC, tensor=16, remat=_QKV_OFFLOADED),
    _trillium("gpt3_175b", "GPT3-175B-MaxText/bf16", Training(GPT3_175B, 768, 2048, 256), 17.182, SIMPLE, False),
    _table(512, "v5p-1024", 2, 294, V5P_FLAGS, tensor=8),
    _trillium(
        "llama3_70b", f"{_70B}/v6e-64", Training(LLAMA_70B, 128, 8192, 64, remat=OFFLOAD), 18.688, TRILLIUM, False
    ),
    _table(1024, "v5p-4096", 2, 297, V5P_FLAGS, tensor=16),
    ShardedCase(
        "llama3_70b_v7x-512",
        "v7x-512",
        LLAMA_70B_V7X,
        12.27,
        "the step time in the recipes' table",
        f"{_RECIPES}/ironwood/README.md and llama3.1-70b/8k-bf16-tpu7x-4x8x8",
        V7X,
        True,
        SMALL_BLOCKS,
    ),
    ShardedCase(
        "llama3_405b_v5p-1024",
        "v5p-1024",
        LLAMA_405B_V5P,
        131.474,
        "seconds of a completed step in the recipe's log",
        f"{_RECIPES}/v5p/Llama3.1-405B-MaxText/README.md",
        SIMPLE | HOST,
        False,
        SMALL_BLOCKS,
    ),
    _trillium(
        "llama3_8b", f"{_8B}/v6e-64", Training(LLAMA_8B, 320, 8192, 64, remat=OFFLOAD_OUT), 5.652, TRILLIUM, True
    ),
    _trillium(
        "llama3_70b", f"{_70B}/v6e-256", Training(LLAMA_70B, 1280, 8192, 256, remat=OFFLOAD), 42.656, TRILLIUM, False
    ),
    _table(128, "v5p-512", 1, 316, V5P_FLAGS, tensor=8, remat=MINIMAL),
)
"""Steps of FSDP, and of FSDP with tensor parallelism."""
