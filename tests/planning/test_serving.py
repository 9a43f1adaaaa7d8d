"""Plans of the answers of a language model with KerasHub's interface, by the TPU compiler."""

from __future__ import annotations

import json
import types
from pathlib import Path
from typing import Any

import keras
import pytest
from keras import ops

import anytpu as tpu
from anytpu.errors import NoAnswerError, PlanError, ProgramError, SettingError
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records import MemoryUse
from anytpu.planning.records.target import target_named
from anytpu.planning.serving import serving
from anytpu.planning.serving.decoding import decoding_steps
from anytpu.planning.shardings.automatic import search_of
from anytpu.sharding.searched import to_record

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


class Stacked(Model):
    """The same with one array as its cache, as those of KerasHub's models are."""

    def call_with_cache(self, token_ids: Any, cache: Any, cache_update_index: Any) -> Any:
        each = ops.unstack(cache, axis=1)
        logits, x, caches = super().call_with_cache(
            token_ids, list(zip(each[::2], each[1::2], strict=True)), cache_update_index
        )
        return logits, x, ops.stack([array for pair in caches for array in pair], axis=1)

    def _build_cache(self, token_ids: Any) -> Any:
        shape = (token_ids.shape[0], 2 * LAYERS, token_ids.shape[1], HEADS, WIDTH // HEADS)
        _, hidden, cache = self.call_with_cache(token_ids, ops.zeros(shape), 0)
        return hidden, cache


def words() -> Model:
    with tpu.shapes_only():
        model = Model()
        model.build((1, 16))
    return model


def test_answers_on_one_device(capsys: pytest.CaptureFixture[str], tmp_path: Path):
    plan = tpu.plan_serving(words(), 8, "v5e-1", prompt_tokens=384, new_tokens=128)
    answers = plan["v5e-1"]
    assert answers.fits
    # Keys and values of each layer in float32, as the specs say.
    assert answers.cache_bytes == 8 * CACHE_BYTES
    assert answers.answer_s == answers.prefill.step_s + 128 * answers.decode.step_s
    assert answers.tokens_per_s == 8 * 128 / answers.answer_s
    # The weights and the cache are read once, at 819 GB/s at most.
    weights = next(part.bytes for part in answers.decode.memory.parts if part.kind == "frozen")
    assert answers.decode.interval_s[1] > (weights + answers.cache_bytes) / 819e9
    assert answers.usd_per_million_tokens == pytest.approx(1e6 * 1.2 / 3600 / answers.tokens_per_s)
    # Weights and cache alone would leave room for 8,060 sequences.
    assert 7000 < answers.largest_batch < 8060
    with pytest.raises(SettingError) as caught:
        plan["v5e-8"]
    assert str(caught.value) == "no slice is named 'v5e-8'; planned were v5e-1"
    assert "Serving on v5e-1, batch 8" in repr(plan)
    assert plan.to_html(tmp_path / "answers.html").read_text(encoding="utf-8").count("<tr>") == 2
    plan.show()
    shown = capsys.readouterr().out
    assert "Answers of words: 8 sequences at once, prompts of 384 tokens, 128 new tokens" in shown
    assert answers.to_record()["tokens_per_s"] == answers.tokens_per_s


def test_without_the_compiler_shapes_tell_the_cache_and_the_largest_batch(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("anytpu._env.libtpu_version", lambda: None)
    largest = set()
    for batch, tpus in ((8, ["v5e-1", "v5e-4"]), (64, ["v5e-1"])):
        plan = tpu.plan_serving(words(), batch, tpus, prompt_tokens=384, new_tokens=128)
        answers = plan["v5e-1"]
        assert answers.decode.is_floor and answers.fits
        assert answers.cache_bytes == batch * CACHE_BYTES
        assert answers.weights_bytes == WEIGHTS_BYTES
        largest.add(answers.largest_batch)
        # A token of each sequence is an input beside its keys and values.
        each = CACHE_BYTES + 4
        room_bytes = answers.decode.memory.limit_bytes - WEIGHTS_BYTES
        assert answers.largest_batch == int(room_bytes / each)
    assert len(largest) == 1


def test_the_largest_batch_does_not_depend_on_the_batch_by_more_than_a_32nd():
    few, many = (tpu.plan_serving(words(), batch, prompt_tokens=384, new_tokens=128)["v5e-1"] for batch in (1, 64))
    assert few.largest_batch == pytest.approx(many.largest_batch, rel=1 / 32)


def searched(monkeypatch: pytest.MonkeyPatch, bytes_of: Any, planned: int, parts: int = 1) -> int | None:
    """Return the largest batch of steps with these bytes, of a million; by their shapes it is 8,000."""

    def step_of(batch: int) -> Any:
        memory = MemoryUse(int(bytes_of(batch)), 1_000_000)
        return types.SimpleNamespace(memory=memory, fits=memory.fits)

    monkeypatch.setattr(serving, "_task", lambda batch, target, settings: batch)
    monkeypatch.setattr(serving, "run_together", lambda batches: [step_of(batch) for batch in batches])
    steps = [step_of(planned)]
    target = target_named("v5e-1")
    return serving._by_schedules(lambda batch: [batch], target, PlanSettings(), 8000, parts, (planned, steps))


def crashing(batch: int) -> float:
    if batch > 300:
        raise PlanError("crash")
    return 124 * batch


def too_slow(batch: int) -> float:
    if batch > 300:
        raise NoAnswerError("time")
    return 124 * batch


@pytest.mark.parametrize(
    ("bytes_of", "planned", "largest"),
    [
        (lambda batch: 900_000 + 124 * batch, 1, 806),
        (lambda batch: 900_000 + 124 * batch, 2000, 806),
        (lambda batch: 990_000 + 1000 * batch, 1, 10),
        (lambda batch: 100 * batch + batch**2 / 50, 8, 5000),
        (lambda batch: 900_000 if batch <= 8 else 2_000_000, 8, 8),
        (crashing, 1, 300),
    ],
)
def test_the_largest_batch_is_found_by_bisection(
    monkeypatch: pytest.MonkeyPatch, bytes_of: Any, planned: int, largest: int
):
    found = searched(monkeypatch, bytes_of, planned)
    assert found is not None and largest * 31 / 32 - 1 <= found <= largest


def test_a_largest_batch_that_no_schedule_showed_is_not_known(monkeypatch: pytest.MonkeyPatch):
    assert searched(monkeypatch, too_slow, 8) is None
    # Not one sequence fits.
    assert searched(monkeypatch, lambda batch: 2_000_000, 8) == 0
    assert searched(monkeypatch, lambda batch: 124 * batch, 4096, parts=4) % 4 == 0


def test_sequences_are_split_over_devices():
    one = tpu.plan_serving(words(), 8, "v5e-1", prompt_tokens=384, new_tokens=128)["v5e-1"]
    split = tpu.plan_serving(words(), 8, "v5e-4", prompt_tokens=384, new_tokens=128, layout="data")["v5e-4"]
    assert split.cache_bytes == one.cache_bytes // 4
    assert split.decode.layout.startswith("mesh data=4")


def test_layouts_of_a_search_and_patterns_of_the_cache_are_taken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
):
    monkeypatch.setattr("anytpu._env.libtpu_version", lambda: None)
    model = words()
    decode = decoding_steps(model, 8, 384, 128)[1]
    searched = next(
        each.layout for each in search_of(decode, target_named("v5e-8")).shardings if each.layout.name == "fsdp"
    )
    path = tmp_path / "found.json"
    path.write_text(json.dumps({"candidates": [{"layout": to_record(searched)}]}), encoding="utf-8")
    cache = {"^cache/": ("data",)}
    for layout, parts in ((searched, None), (str(path), None), (cache, 8), ("data", 8), ({"embeddings": ("data",)}, 1)):
        plan = tpu.plan_serving(model, 8, "v5e-8", prompt_tokens=384, new_tokens=128, layout=layout)
        answers = plan["v5e-8"]
        assert parts is None or answers.cache_bytes == 8 * CACHE_BYTES // parts
        assert answers.keeps_cache_whole == (answers.cache_bytes == 8 * CACHE_BYTES)
        assert answers.largest_batch % 8 == 0 or answers.keeps_cache_whole
    plan.show()
    assert 'Each device keeps the whole cache; layout="data" splits it.' in " ".join(capsys.readouterr().out.split())
    with pytest.raises(SettingError, match="the pattern '\\^cahce/' of the layout matches no weight of 'words/decode'"):
        tpu.plan_serving(model, 8, "v5e-8", prompt_tokens=384, new_tokens=128, layout={"^cahce/": ("data",)})


def test_a_cache_in_one_array_is_split(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("anytpu._env.libtpu_version", lambda: None)
    with tpu.shapes_only():
        model = Stacked()
        model.build((1, 16))
    answers = tpu.plan_serving(model, 8, "v5e-4", prompt_tokens=384, new_tokens=128, layout="data")["v5e-4"]
    assert answers.cache_bytes == 8 * CACHE_BYTES // 4 and not answers.keeps_cache_whole


def test_a_layout_is_found():
    answers = tpu.plan_serving(words(), 8, "v5e-4", prompt_tokens=384, new_tokens=128)["v5e-4"]
    assert answers.fits and answers.decode.layout.startswith("mesh ")


def test_a_cache_that_does_not_fit():
    answers = tpu.plan_serving(words(), 4096, "v5e-1", prompt_tokens=4096, new_tokens=128)["v5e-1"]
    assert not answers.fits and answers.tokens_per_s is None
    assert answers.largest_batch < 4096
    assert repr(answers).startswith("<Serving on v5e-1, batch 4,096: does not fit; ")


def test_what_is_refused():
    model = keras.Sequential([keras.Input((4,)), layers.Dense(2)], name="plain")
    with pytest.raises(ProgramError) as error:
        tpu.plan_serving(model, 8)
    assert str(error.value) == (
        "'plain' has no call_with_cache, which computes tokens with a cache. Give a CausalLM of KerasHub, such as that "
        "of tpu.language_model, or plan your own decode step with tpu.plan"
    )
    for name, value in (("new_tokens", 0), ("prompt_tokens", None), ("batch_size", 2**70)):
        with pytest.raises(SettingError) as wrong:
            tpu.plan_serving(words(), **{"batch_size": 8, name: value})
        assert str(wrong.value) == f"{name} must be a positive integer below 2**31, not {value!r}"
