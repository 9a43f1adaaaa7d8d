"""Plans of the answers of a language model with KerasHub's interface, by the TPU compiler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import pytest
from keras import ops

import anytpu as tpu
from anytpu.errors import ProgramError, SettingError

layers = keras.layers
WIDTH, HEADS, WORDS, LAYERS = 256, 4, 1024, 2
CACHE_BYTES = LAYERS * 2 * 512 * WIDTH * 4
"""Keys and values of a sequence of 512 tokens."""

WEIGHTS_BYTES = 4 * (WORDS * WIDTH + LAYERS * 4 * (WIDTH * WIDTH + WIDTH))


class Attention(layers.Layer):
    """Attention with a cache of keys and values, `(batch, length, heads, width)`."""

    def build(self, shape: Any) -> None:
        self.query, self.key, self.value, self.out = (layers.Dense(WIDTH, name=name) for name in "qkvo")
        for layer in (self.query, self.key, self.value, self.out):
            layer.build(shape)

    def call(self, x: Any, cache: Any = None, index: Any = 0) -> Any:
        q, k, v = (ops.reshape(layer(x), (*x.shape[:2], HEADS, -1)) for layer in (self.query, self.key, self.value))
        keys, values = (ops.slice_update(old, (0, index, 0, 0), new) for old, new in zip(cache, (k, v), strict=True))
        length = keys.shape[1]
        mask = ops.arange(length)[None, :] <= index + ops.arange(x.shape[1])[:, None]
        scores = ops.where(mask, ops.einsum("bqhd,bkhd->bhqk", q, keys), -1e9)
        attended = ops.einsum("bhqk,bkhd->bqhd", ops.softmax(scores), values)
        return x + self.out(ops.reshape(attended, x.shape)), (keys, values)


class Model(keras.Model):
    """A decoder with the methods that KerasHub's CausalLM has."""

    def __init__(self) -> None:
        super().__init__(name="words")
        self.embedding = layers.Embedding(WORDS, WIDTH)
        self.attentions = [Attention(name=f"attention_{index}") for index in range(LAYERS)]

    def build(self, shape: Any) -> None:
        self.embedding.build(shape)
        for attention in self.attentions:
            attention.build((*shape, WIDTH))

    def call_with_cache(self, token_ids: Any, cache: Any, cache_update_index: Any) -> Any:
        x, caches = self.embedding(token_ids), []
        for attention, old in zip(self.attentions, cache, strict=True):
            x, new = attention(x, cache=old, index=cache_update_index)
            caches.append(new)
        return ops.matmul(x, ops.transpose(self.embedding.embeddings)), x, tuple(caches)

    def _build_cache(self, token_ids: Any) -> Any:
        shape = (*token_ids.shape, HEADS, WIDTH // HEADS)
        empty = tuple((ops.zeros(shape), ops.zeros(shape)) for _ in self.attentions)
        _, hidden, cache = self.call_with_cache(token_ids, empty, 0)
        return hidden, cache


def words() -> Model:
    with tpu.shapes_only():
        model = Model()
        model.build((1, 16))
    return model


def test_answers_on_one_device(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    plan = tpu.plan_serving(words(), 8, "v5e-1", prompt_tokens=384, new_tokens=128)
    serving = plan["v5e-1"]
    assert serving.fits
    # Keys and values of each layer in float32, as the specs say.
    assert serving.cache_bytes == 8 * CACHE_BYTES
    assert serving.answer_s == serving.prefill.step_s + 128 * serving.decode.step_s
    assert serving.tokens_per_s == 8 * 128 / serving.answer_s
    # The weights and the cache are read once, at 819 GB/s at most.
    weights = next(part.bytes for part in serving.decode.memory.parts if part.kind == "frozen")
    assert serving.decode.interval_s[1] > (weights + serving.cache_bytes) / 819e9
    assert serving.usd_per_million_tokens == pytest.approx(1e6 * 1.2 / 3600 / serving.tokens_per_s)
    # Weights and cache alone would leave room for 8,060 sequences.
    assert 7000 < serving.largest_batch < 8060
    with pytest.raises(SettingError) as caught:
        plan["v5e-8"]
    assert str(caught.value) == "no slice is named 'v5e-8'; planned were v5e-1"
    assert "Serving on v5e-1, batch 8" in repr(plan)
    assert plan.to_html(tmp_path / "answers.html").read_text(encoding="utf-8").count("<tr>") == 2
    plan.show()
    shown = capsys.readouterr().out
    assert "Answers of words: 8 sequences at once, prompts of 384 tokens, 128 new tokens" in shown
    assert serving.to_record()["tokens_per_s"] == serving.tokens_per_s


def test_without_the_compiler_shapes_tell_the_cache_and_the_largest_batch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("anytpu._env.libtpu_version", lambda: None)
    largest = set()
    for batch, tpus in ((8, ["v5e-1", "v5e-4"]), (64, ["v5e-1"])):
        plan = tpu.plan_serving(words(), batch, tpus, prompt_tokens=384, new_tokens=128)
        serving = plan["v5e-1"]
        assert serving.decode.is_floor and serving.fits
        assert serving.cache_bytes == batch * CACHE_BYTES
        assert serving.weights_bytes == WEIGHTS_BYTES
        largest.add(serving.largest_batch)
        # A token of each sequence is an input beside its keys and values.
        each = CACHE_BYTES + 4
        room_bytes = serving.decode.memory.limit_bytes - WEIGHTS_BYTES
        assert serving.largest_batch == int(room_bytes / each)
    assert len(largest) == 1


def test_the_largest_batch_does_not_depend_on_the_batch():
    few, many = (tpu.plan_serving(words(), batch, prompt_tokens=384, new_tokens=128)["v5e-1"] for batch in (1, 64))
    assert few.largest_batch == many.largest_batch
    # With pages, the cache is the mean over an answer, and it is read once at the peak rate.
    mean = (384 + 129 / 2) / 512
    assert few.paged_cache_bytes == pytest.approx(mean * few.cache_bytes)
    assert few.paged_token_s == pytest.approx((few.weights_bytes + few.paged_cache_bytes) / 819e9)
    assert many.largest_batch < many.paged_batch


def test_sequences_are_split_over_devices():
    one = tpu.plan_serving(words(), 8, "v5e-1", prompt_tokens=384, new_tokens=128)["v5e-1"]
    split = tpu.plan_serving(words(), 8, "v5e-4", prompt_tokens=384, new_tokens=128, layout="data")["v5e-4"]
    assert split.cache_bytes == one.cache_bytes // 4
    assert split.decode.layout.startswith("mesh data=4")


def test_a_layout_is_found():
    serving = tpu.plan_serving(words(), 8, "v5e-4", prompt_tokens=384, new_tokens=128)["v5e-4"]
    assert serving.fits and serving.decode.layout.startswith("mesh ")


def test_a_cache_that_does_not_fit():
    serving = tpu.plan_serving(words(), 4096, "v5e-1", prompt_tokens=4096, new_tokens=128)["v5e-1"]
    assert not serving.fits and serving.tokens_per_s is None
    assert serving.largest_batch < 4096
    assert repr(serving).startswith("<Serving on v5e-1, batch 4,096: does not fit; ")


def test_what_is_refused():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2)], name="plain")
    with pytest.raises(ProgramError) as error:
        tpu.plan_serving(model, 8)
    assert str(error.value) == (
        "'plain' has no call_with_cache, which computes tokens with a cache. Give a CausalLM of KerasHub, such as that "
        "of tpu.language_model, or plan your own decode step with tpu.plan"
    )
    with pytest.raises(SettingError) as wrong:
        tpu.plan_serving(words(), 8, new_tokens=0)
    assert str(wrong.value) == "new_tokens must be a positive integer, not 0"
