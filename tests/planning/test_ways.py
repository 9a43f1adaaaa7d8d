"""`tpu.ways_to_fit`: changed training steps, compiled by the TPU compiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import pytest

import anytpu as tpu
from anytpu.errors import PlanError, ProgramError, SettingError

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy:DeprecationWarning")

layers = keras.layers
LENGTH, WIDTH = 128, 256


def language_model() -> keras.Model:
    ids = keras.Input((None,), dtype="int32")
    x = layers.Embedding(2048, WIDTH)(ids)
    for _ in range(3):
        y = layers.LayerNormalization()(x)
        x = x + layers.MultiHeadAttention(4, WIDTH // 4)(y, y)
        x = x + layers.Dense(WIDTH)(layers.Dense(4 * WIDTH, "gelu")(x))
    model = keras.Model(ids, layers.Dense(2048)(x), name="words")
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return model


@pytest.fixture(scope="module")
def changes() -> Any:
    ids = jax.ShapeDtypeStruct((32, LENGTH), "int32")
    return tpu.ways_to_fit(language_model(), 32, "v5e-1", input_specs=(ids, ids), lora_rank=4)


def test_changes_of_a_language_model(changes: Any):
    first, names = changes.rows[0], [row.change for row in changes.rows]
    assert names == [
        "as it is",
        "remat, products kept",
        "remat, by block",
        "accumulation over 4",
        "half the sequence",
        "slots in bfloat16",
        "LoRA of rank 4",
        "flash attention",
    ]
    memory = {row.change: row.memory_bytes for row in changes.rows}
    assert memory["remat, by block"] < first.memory_bytes and memory["half the sequence"] < 0.6 * first.memory_bytes
    # 5 M weights of float32 have two slots, which take half in bfloat16.
    assert first.memory_bytes - memory["slots in bfloat16"] > 10e6
    assert changes["remat, by block"].batch_s > first.batch_s > changes["half the sequence"].batch_s
    assert changes["accumulation over 4"].steps == 4 and changes["accumulation over 4"].prediction.batch_size == 8
    assert memory["flash attention"] is None and "attention's products" in changes["flash attention"].reason
    kinds = {part.kind: part.bytes for part in changes["LoRA of rank 4"].prediction.memory.parts}
    assert kinds["frozen"] > 10 * kinds["slots"]


def test_the_cheapest_slice_comes_first(changes: Any):
    prices = [choice.holding.usd_per_hour for choice in changes.slices if choice.holding.usd_per_hour is not None]
    assert prices == sorted(prices) and changes.slices[0].change == "as it is"
    assert changes.slices[0].holding.target.name == "v5e-1"


def test_a_step_that_fits_only_with_a_change():
    inputs = keras.Input((4096,))
    x = inputs
    for _ in range(12):
        x = layers.Dense(4096, "relu")(x)
    model = keras.Model(inputs, x, name="deep")
    model.compile("sgd", "mse")
    changes = tpu.ways_to_fit(model, 150_000, "v5e-1")
    assert not changes.rows[0].fits and changes.rows[0].batch_s is None
    fitting = [row.change for row in changes.rows if row.fits]
    assert "accumulation over 4" in fitting
    choice = changes.slices[0]
    assert (choice.holding.target.name, choice.change) == ("v5e-1", "accumulation over 4")


def test_the_text(changes: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path):
    changes.show()
    text = capsys.readouterr().out
    assert text.splitlines()[0] == "Changes of words/train on v5e-1, 32 examples a step, predicted"
    assert "\nThe smallest slice of each chip that holds it, the lowest price first:\n  v5e-1, $" in text
    assert repr(changes).endswith("6 of 6 compiled changes fit; changes.show() prints them>")
    record = json.loads(changes.to_json(tmp_path / "a.json").read_text())
    assert [row["change"] for row in record["rows"]] == [row.change for row in changes.rows]
    assert "<p><b>Changes of words/train" in changes._repr_html_()
    with pytest.raises(SettingError) as caught:
        changes["no change"]
    assert str(caught.value).startswith("no row is named 'no change'; the rows are as it is, remat, products kept,")


def test_a_step_of_jax():
    def step(state: Any, batch: Any) -> Any:
        gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(batch @ w)))(state)
        return state - gradient, {}

    specs = jax.ShapeDtypeStruct((256, 256), "float32"), jax.ShapeDtypeStruct((63, 256), "float32")
    changes = tpu.ways_to_fit(step, tpu="v5e-1", input_specs=specs)
    reasons = {row.change: row.reason for row in changes.rows if row.reason}
    assert reasons["slots in bfloat16"] == (
        "it is not known which arrays of the state are optimizer slots, or there are none."
    )
    assert set(reasons) >= {"accumulation over 3", "LoRA of rank 8", "slots in bfloat16"}


def test_bad_arguments():
    model = language_model()
    for name, message in {
        "batch_size": "batch_size must be a positive integer, not 0",
        "lora_rank": "lora_rank must be a positive integer, not 0",
    }.items():
        with pytest.raises(SettingError) as caught:
            tpu.ways_to_fit(model, **{"batch_size": 8, name: 0})
        assert str(caught.value).startswith(message)
    model.compile()
    with pytest.raises((ProgramError, PlanError)):
        tpu.ways_to_fit(model, 8, "v5e-1")
