"""Language models by the names of their presets. KerasHub is not installed for the tests: scripts/check_frameworks
runs the others."""

from __future__ import annotations

import argparse
import importlib.util
import re
import subprocess
from pathlib import Path
from typing import Any

import jax
import keras
import pytest

import anytpu as tpu
from anytpu.errors import SettingError
from anytpu.planning.commands.planning import job_and_settings, job_named
from anytpu.planning.serving.language_models import language_models, nearest_language_model
from anytpu.program.placed import parts_of
from anytpu.sharding import resolve
from forked import python
from source_tree import ROOT

# `Variable.numpy()` of Keras 3.15 does this with NumPy 2; its `__array__` takes no `copy`.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

HAS_HUB = importlib.util.find_spec("keras_hub") is not None
with_hub = pytest.mark.skipif(not HAS_HUB, reason="KerasHub is not installed")

KNOWN = ", ".join(language_models())


def text_of(*arguments: Any, **settings: Any) -> str:
    with pytest.raises(SettingError) as error:
        tpu.language_model(*arguments, **settings)
    return str(error.value)


def test_an_unknown_preset_names_the_nearest():
    another = "For another one: make KerasHub's model from its sizes in tpu.shapes_only()"
    assert text_of("gemma3_27b") == (
        f"'gemma3_27b' is not a known language model. The nearest is 'gemma3_27b_text'. Known: {KNOWN}. {another}"
    )
    assert text_of("zzz") == f"'zzz' is not a known language model. Known: {KNOWN}. {another}"
    assert text_of(7) == "preset must be the name of a language model, such as 'gemma3_1b', not 7"
    assert nearest_language_model("qwen3_8b_instruct_en") == "qwen3_8b_en"
    assert nearest_language_model("deepseek_v3") == "qwen3_moe_235b_a22b_en"
    assert nearest_language_model("mixtral_8x7b") == "mixtral_8_7b_en"
    assert nearest_language_model("gemma4_31b") == nearest_language_model("google/Gemma-4-31B") == "gemma4_31b_text"
    assert nearest_language_model("DeepSeek-V3") == "qwen3_moe_235b_a22b_en"


def test_wrong_settings():
    assert text_of("gemma3_1b", 0) == "sequence_length must be a positive integer, not 0"
    assert text_of("gemma3_1b", lora_rank=-1) == "lora_rank must be a positive integer, not -1"
    assert text_of("gemma3_1b", dtype="int8") == "dtype must be 'bfloat16', 'mixed_bfloat16' or 'float32', not 'int8'"


@pytest.mark.skipif(HAS_HUB, reason="KerasHub is installed")
def test_without_keras_hub():
    assert text_of("gemma3_1b") == (
        "language models are made by KerasHub, which is not installed: pip install 'anytpu[hub]'"
    )


@with_hub
@pytest.mark.parametrize("preset", language_models())
def test_the_sizes_are_those_that_keras_hub_publishes(preset: str):
    model, (x, y) = tpu.language_model(preset, 16)
    entry = language_models()[preset]
    assert model.backbone.count_params() == entry["params"]
    published = type(model.backbone).presets.get(preset)
    # KerasHub publishes Qwen 2.5 7B without its output layer, and Llama 3.2 with one beside its embedding.
    if published is not None and preset not in ("qwen2.5_7b_en", "llama3.2_1b", "llama3.2_3b"):
        assert published["metadata"]["params"] == entry["params"]
    assert x["token_ids"].shape == y.shape == (1, 16)


@with_hub
def test_an_adapted_model_is_planned_with_its_blocks():
    model, specs = tpu.language_model("gemma3_instruct_270m", 64, lora_rank=4)
    repeats = tpu.program.makers.repeats_of(model)
    assert (repeats.count, repeats.period) == (3, 6)
    small, whole = (tpu.program.of(job, specs, batch_size=2) for job in (repeats.with_count(1), model))
    assert set(small.state_names) < set(whole.state_names)
    trained = [v.path for v in model.trainable_variables]
    assert trained and all("lora" in path for path in trained)
    assert jax.tree.leaves(whole.batch)[0].shape == (2, 64)


@with_hub
def test_the_command_line_makes_a_named_model_in_the_precision():
    arguments = argparse.Namespace(job="gemma3_270m", sequence=16, lora=None, precision="float32")
    model, settings = job_and_settings(arguments)
    assert {variable.dtype for variable in model.trainable_variables} == {"float32"}
    assert settings["precision"] is None
    model, _ = job_named(argparse.Namespace(**{**vars(arguments), "precision": None}))
    assert {variable.dtype for variable in model.trainable_variables} == {"bfloat16"}


@with_hub
def test_the_page_fine_tunes_a_small_model(tmp_path: Path):
    page = (ROOT / "docs/language_models.md").read_text(encoding="utf-8")
    (program,), (output,) = (re.findall(rf"```{form}\n(.*?)```", page, re.DOTALL) for form in ("python", "text"))
    (tmp_path / "tune.py").write_text(program)
    done = subprocess.run([*python(), "tune.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == output, done.stderr
    assert (tmp_path / "adapters.lora.h5").stat().st_size > 10_000


def test_the_links_of_the_page_lead_somewhere():
    page = (ROOT / "docs/language_models.md").read_text(encoding="utf-8")
    assert all((ROOT / "docs" / link).exists() for link in re.findall(r"\]\((?!http)([^)#]+)", page))


SMALLEST = {entry["family"]: name for name, entry in reversed(language_models().items())}


@with_hub
@pytest.mark.parametrize("preset", SMALLEST.values())
def test_a_layout_map_splits_an_adapted_model_as_keras_does(preset: str):
    model, _ = tpu.language_model(preset, 16, lora_rank=4)
    devices = [f"cpu:{index}" for index in range(8)]
    layouts = keras.distribution.LayoutMap(keras.distribution.DeviceMesh((1, 8), ("batch", "model"), devices))
    # As in the notebook that fine-tunes Gemma: kernels of attention and embeddings, by their last axis.
    paths = {re.sub(r"\d+", r"\\d+", variable.path): len(variable.shape) for variable in model.variables}
    for key in (key for key in paths if re.fullmatch(r".*(query|key|value|embedding).*(kernel|embeddings)", key)):
        layouts[key] = (None,) * (paths[key] - 1) + ("model",)
    parallel = keras.distribution.ModelParallel(layout_map=layouts, batch_dim_name="batch")
    layout = resolve(parallel, None, 8)
    ours = {variable.path: layout.spec_of(variable.path, tuple(variable.shape)) for variable in model.variables}
    for variable in model.variables:
        theirs = parts_of(parallel.get_variable_layout(variable).axes)
        assert (ours[variable.path] or ()) == (theirs if any(theirs) else ()), variable.path
    adapters = [path for path in ours if "lora" in path]
    assert adapters and not any(ours[path] for path in adapters)
    assert any(spec and any(spec) for spec in ours.values())
