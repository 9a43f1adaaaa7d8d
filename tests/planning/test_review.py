"""The search for the largest batch in a plan, when a compilation in it fails; with the real compiler."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

import anytpu as tpu
from anytpu.errors import NoAnswerError
from anytpu.planning.compiler import compilation
from anytpu.planning.records import Prediction

SPECS = (jax.ShapeDtypeStruct((64, 4096), "float32"), jax.ShapeDtypeStruct((2**24, 64), "float32"))


def step(state: Any, batch: Any) -> Any:
    """Return a sum of products: it needs 16 KiB an example."""
    wide = jnp.tanh(batch @ state)
    return state + batch.T @ wide, wide.sum()


def plan_with(finished: int, monkeypatch: pytest.MonkeyPatch) -> Prediction:
    """Return the prediction of a compiler that finishes so many programs, and no more."""
    answers: list[Any] = []

    def ask(request: Any, timeout_s: float, job: str) -> Any:
        if len(answers) == finished:
            raise NoAnswerError("It took too long.")
        answers.append(compiled(request, timeout_s, job))
        return answers[-1]

    compiled = compilation.ask_child
    monkeypatch.setattr(compilation, "ask_child", ask)
    (prediction,) = tpu.plan(step, tpu="v2-8", input_specs=SPECS, batch_axis=0, use_cache=False)
    assert len(answers) == finished
    return prediction


def test_a_timeout_at_the_end_of_the_search_keeps_the_largest_batch(monkeypatch: pytest.MonkeyPatch):
    prediction = plan_with(3, monkeypatch)
    assert prediction.largest_batch is not None and 6_000_000 < prediction.largest_batch < 7_400_000
    assert prediction.notes == (
        f"The search for the largest batch ended early; a batch larger than {prediction.largest_batch:,} may fit. "
        "It took too long.",
    )
    assert prediction.holding
    assert prediction.advice[0].text == f"Use a batch of {prediction.largest_batch:,}, the largest that fits."


def test_a_timeout_before_a_batch_fits_keeps_the_memory(monkeypatch: pytest.MonkeyPatch):
    prediction = plan_with(2, monkeypatch)
    assert prediction.largest_batch is None
    assert prediction.notes == ("The largest batch that fits was not found: It took too long.",)
    assert prediction.holding


def test_a_timeout_after_the_search_keeps_the_largest_batch(monkeypatch: pytest.MonkeyPatch):
    prediction = plan_with(4, monkeypatch)
    assert prediction.largest_batch is not None and 6_000_000 < prediction.largest_batch < 7_400_000
    assert prediction.notes == ("The memory of a smaller batch is not known: It took too long.",)
    assert prediction.holding


def test_max_batch_size_has_no_answer_when_the_search_ends_early(monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: Any) -> Any:
        raise NoAnswerError("It took too long.")

    monkeypatch.setattr(compilation, "ask_child", refuse)
    with pytest.raises(NoAnswerError, match=r"^It took too long\.$"):
        tpu.max_batch_size(step, "v2-8", input_specs=SPECS, use_cache=False)
