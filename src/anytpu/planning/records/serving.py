"""`ServingPlan`, `Serving`: the predicted answers of a language model on TPU slices.

Idea: an answer is one prefill step and a decode step for each token. All numbers follow from the predictions of these
two steps, and from the bytes of weights and cache.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from anytpu.errors import SettingError
from anytpu.planning.records.prediction import Prediction, memory_text
from anytpu.planning.records.shown import ShownRecord
from anytpu.planning.records.target import Target


@dataclasses.dataclass(frozen=True)
class Serving:
    """Answers of a language model on one slice.

    Without the TPU compiler the times are floors, and `largest_batch` is that of the weights and the cache alone.

    Attributes:
        prefill: prediction of the step that computes the prompts.
        decode: prediction of the step that computes one token of each sequence.
        batch_size: number of sequences that are answered at once.
        prompt_tokens: tokens of a prompt.
        new_tokens: tokens of an answer.
        largest_batch: sequences of this length that fit in both steps in this layout, to a 32nd; None if it is not
            known, since no schedule was made in time or none fitted.
        keeps_cache_whole: whether each of several devices holds the whole cache.
    """

    prefill: Prediction
    decode: Prediction
    batch_size: int
    prompt_tokens: int
    new_tokens: int
    largest_batch: int | None
    keeps_cache_whole: bool = False

    @property
    def target(self) -> Target:
        """The slice."""
        return self.decode.target

    @property
    def fits(self) -> bool:
        """Whether both steps fit into the memory."""
        return self.prefill.fits and self.decode.fits

    @property
    def answer_s(self) -> float | None:
        """Predicted time of an answer, seconds: the prefill and all decode steps; None if a step has no time."""
        if self.prefill.step_s is None or self.decode.step_s is None:
            return None
        return self.prefill.step_s + self.new_tokens * self.decode.step_s

    @property
    def answer_interval_s(self) -> tuple[float, float] | None:
        """Bounds of `answer_s`, seconds."""
        prefill, decode = self.prefill.interval_s, self.decode.interval_s
        if prefill is None or decode is None:
            return None
        return prefill[0] + self.new_tokens * decode[0], prefill[1] + self.new_tokens * decode[1]

    @property
    def tokens_per_s(self) -> float | None:
        """New tokens a second of the slice, prefill included."""
        return self.batch_size * self.new_tokens / self.answer_s if self.answer_s else None

    @property
    def usd_per_million_tokens(self) -> float | None:
        """Price of a million new tokens on demand, prefill included, dollars; None without a price."""
        cost = self.decode.cost
        if cost is None or cost.usd_per_hour is None or self.tokens_per_s is None:
            return None
        return 1e6 * cost.usd_per_hour / 3600 / self.tokens_per_s

    @property
    def cache_bytes(self) -> int:
        """Bytes of the cache on one device."""
        return self.decode.memory.bytes_of("cache") if self.decode.memory else 0

    @property
    def weights_bytes(self) -> int:
        """Bytes of the weights on one device."""
        return self.decode.memory.bytes_of("weights", "frozen") if self.decode.memory else 0

    def to_record(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        names = ("batch_size", "prompt_tokens", "new_tokens", "fits", "answer_s", "tokens_per_s")
        others = ("usd_per_million_tokens", "cache_bytes", "largest_batch", "keeps_cache_whole")
        values = {name: getattr(self, name) for name in (*names, *others)}
        return {**values, "prefill": self.prefill.to_record(), "decode": self.decode.to_record()}

    def __repr__(self) -> str:
        """Return a line: the slice, the tokens a second, the memory."""
        speed = f"{self.tokens_per_s:,.0f} tokens/s" if self.tokens_per_s else "does not fit" if not self.fits else "-"
        memory = f"; {memory_text(self.decode.memory)}" if self.decode.memory else ""
        return f"<Serving on {self.target.name}, batch {self.batch_size:,}: {speed}{memory}>"


@dataclasses.dataclass(frozen=True)
class ServingPlan(ShownRecord):
    """Answers of a language model on several slices.

    Attributes:
        job: name of the model.
        servings: one for each slice, in the order of the request.
    """

    report_name = "serving"
    noun = "the plan of answers"

    job: str
    servings: tuple[Serving, ...]

    def __getitem__(self, name: str) -> Serving:
        """Return the answers on a slice, by its name.

        Raises:
            SettingError: it was not planned; the message lists the slices.
        """
        for serving in self.servings:
            if serving.target.name == name:
                return serving
        names = ", ".join(serving.target.name for serving in self.servings)
        raise SettingError(f"no slice is named {name!r}; planned were {names}")

    def __iter__(self) -> Iterator[Serving]:
        """Return an iterator over the slices."""
        return iter(self.servings)

    def __repr__(self) -> str:
        """Return a line for each slice."""
        return "\n".join([f"<ServingPlan of {self.job}:", *map(repr, self.servings), "plan.show() prints it.>"])

    def to_record(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        return {"format": 1, "job": self.job, "servings": [serving.to_record() for serving in self]}
