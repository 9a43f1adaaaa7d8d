"""`language_model`: a language model of KerasHub by the name of its preset, without weights, to plan it.

Idea: a preset's configuration lies beside its weights, in a download. A table of the published sizes replaces it.

Source: the number of parameters that KerasHub publishes with each preset; `scripts/check_frameworks` compares them.
"""

from __future__ import annotations

import difflib
import functools
import json
import re
from importlib import resources
from typing import Any, Literal

from anytpu._calls import explain_arguments
from anytpu.errors import SettingError
from anytpu.planning.jobs.settings import check_positive_integer
from anytpu.program.shapes_only import shapes_only

_KIN = {"deepseek": "qwen3_moe_235b_a22b_en", "kimi": "qwen3_moe_235b_a22b_en"}
"""Families that KerasHub lacks, by the first letters of their names, and the preset whose design is the nearest."""


@explain_arguments
def language_model(
    preset: str,
    sequence_length: int = 1024,
    *,
    lora_rank: int | None = None,
    dtype: Literal["bfloat16", "mixed_bfloat16", "float32"] = "bfloat16",
    optimizer: Any = "adam",
) -> tuple[Any, Any]:
    """Return a compiled language model of KerasHub without weights, and the specs of its batch, for `plan` and `shard`.

    Nothing is downloaded, and the weights take no memory.

    Args:
        preset: KerasHub's name: "gemma3_27b_text", "llama3.1_8b", "qwen2.5_7b_en". A name with "instruct" has the sizes
            of the same name without it.
        sequence_length: tokens of an example.
        lora_rank: rank of the LoRA adapters, which alone are trained; None: all weights are trained.
        dtype: the type of the weights and of the computation; "mixed_bfloat16": float32 weights.
        optimizer: a Keras optimizer that is not built, or its name.

    Returns:
        The model, and a batch of one example: ({"token_ids", "padding_mask", ...}, targets), each (1, sequence_length)
        of int32. `plan` takes them as `input_specs`, with a `batch_size`.

    Raises:
        SettingError: no such preset; the message names the nearest. A length or a rank that is not a positive integer.
            KerasHub is not installed.

    Example:
        >>> model, specs = tpu.language_model("gemma3_1b", lora_rank=8)  # doctest: +SKIP
        >>> tpu.plan(model, batch_size=8, input_specs=specs, tpu="v5e-8", layout="fsdp").show()  # doctest: +SKIP
    """
    import jax

    entry = _entry_of(preset)
    check_positive_integer("sequence_length", sequence_length)
    check_positive_integer("lora_rank", lora_rank)
    if dtype not in ("bfloat16", "mixed_bfloat16", "float32"):
        raise SettingError(f"dtype must be 'bfloat16', 'mixed_bfloat16' or 'float32', not {dtype!r}")
    backbone_class, model_class = _classes_of(entry["family"])
    import keras

    with shapes_only():
        backbone = backbone_class(**entry["backbone"], dtype=dtype, name=f"{entry['family']}_backbone")
        if lora_rank is not None:
            backbone.enable_lora(lora_rank)
        model = model_class(backbone=backbone, preprocessor=None, name=preset.replace(".", "_"))
        # Without the sampler, KerasHub's own compile makes one with a random seed.
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True), sampler="greedy")
    tokens = jax.ShapeDtypeStruct((1, sequence_length), "int32")
    # Gemma 4 also takes "position_ids".
    return model, (dict.fromkeys(backbone.input, tokens), tokens)


def is_language_model(name: str) -> bool:
    """Return whether a name is that of a preset, with "instruct" or without."""
    return _sizes_name(name) in language_models()


def nearest_language_model(name: str) -> str | None:
    """Return the preset with the most similar name, or None if none is similar."""
    # Names as others write them: "DeepSeek-V3", "google/gemma-4".
    name = _sizes_name(name.lower().rpartition("/")[2].replace("-", "_"))
    name = re.sub(r"^([a-z]+)_(?=\d(\.\d)?(_|$))", r"\1", name)
    family = re.match(r"[a-z]+", name)
    longer = [preset for preset in language_models() if preset.startswith(name)]
    near = difflib.get_close_matches(name, language_models(), n=1, cutoff=0.5)
    kin = next((like for start, like in _KIN.items() if family and family[0] == start), None)
    return next(iter(longer), kin or next(iter(near), None))


@functools.cache
def language_models() -> dict[str, Any]:
    """Return family, number of parameters and arguments of the backbone for each preset."""
    return json.loads(
        resources.files("anytpu.planning.serving").joinpath("language_models.json").read_text(encoding="utf-8")
    )


def _sizes_name(name: str) -> str:
    """Return the name in the table: a model that was tuned for instructions has the sizes of the other."""
    # KerasHub's names: gemma3_instruct_1b, gemma2_instruct_2b_en, llama3.2_instruct_1b, qwen2.5_instruct_0.5b_en.
    return name.replace("_instruct", "")


def _entry_of(preset: Any) -> dict[str, Any]:
    table = language_models()
    if not isinstance(preset, str):
        raise SettingError(f"preset must be the name of a language model, such as 'gemma3_1b', not {preset!r}")
    entry = table.get(_sizes_name(preset))
    if entry is None:
        nearest = nearest_language_model(preset)
        hint = f"The nearest is {nearest!r}. " if nearest else ""
        raise SettingError(
            f"{preset!r} is not a known language model. {hint}Known: {', '.join(table)}. For another one: "
            "make KerasHub's model from its sizes in tpu.shapes_only()"
        )
    return entry


def _classes_of(family: str) -> tuple[Any, Any]:
    try:
        from keras_hub import models  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise SettingError(
            "language models are made by KerasHub, which is not installed: pip install 'anytpu[hub]'"
        ) from error
    name = "".join(word.capitalize() for word in family.split("_"))
    return getattr(models, f"{name}Backbone"), getattr(models, f"{name}CausalLM")
