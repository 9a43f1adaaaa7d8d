"""`plan_serving`: the speed, the memory and the price of the answers of a language model on TPU slices.

Idea: an answer is one prefill step and a decode step for each token. The plan compiles both steps for each slice; all
numbers follow from their times and from the bytes of weights and cache.

Rule: all sequences of a batch start and end together, and the cache is full in each decode step. A server that adds
sequences one at a time, with a cache in pages, may do better. The largest batch is computed, and not compiled.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from anytpu._calls import explain_arguments
from anytpu.errors import SettingError
from anytpu.planning.costs.waits import settings_of
from anytpu.planning.forecasts.forecast import predict
from anytpu.planning.jobs.job import PlanJob, jobs_of
from anytpu.planning.jobs.settings import PlanSettings, check_positive_integer
from anytpu.planning.plans.planner import run_together
from anytpu.planning.records import MemoryUse, Prediction
from anytpu.planning.records.prediction import memory_text
from anytpu.planning.records.target import Target, targets_named
from anytpu.planning.serving.decoding import decoding_steps
from anytpu.planning.shardings.depth import restricted
from anytpu.planning.shardings.search import find_layouts
from anytpu.program.program import Program, state_names
from anytpu.sharding import ModelLayout
from anytpu.showing import report

_FIXED = ("weights", "frozen", "state", "code")
"""Kinds of arrays whose size does not depend on the batch."""

_COMPILED = 3
"""Layouts of the decode step that are compiled for a slice of several devices."""


@dataclasses.dataclass(frozen=True)
class Serving:
    """Answers of a language model on one slice.

    Attributes:
        prefill: prediction of the step that computes the prompts.
        decode: prediction of the step that computes one token of each sequence.
        batch_size: number of sequences that are answered at once.
        prompt_tokens: tokens of a prompt.
        new_tokens: tokens of an answer.
    """

    prefill: Prediction
    decode: Prediction
    batch_size: int
    prompt_tokens: int
    new_tokens: int

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
        parts = self.decode.memory.parts if self.decode.memory else ()
        return next((part.bytes for part in parts if part.kind == "cache"), 0)

    @property
    def largest_batch(self) -> int | None:
        """Sequences of this length that fit, computed: all but the weights and the code grows with the batch.

        It is the lower number of the two steps, or None if the memory of one is not known.
        """
        steps = [step.memory for step in (self.prefill, self.decode)]
        return (
            min((_largest(memory, self.batch_size) for memory in steps if memory), default=None) if all(steps) else None
        )

    def to_record(self) -> dict[str, Any]:
        """Return every field as JSON values."""
        names = ("batch_size", "prompt_tokens", "new_tokens", "fits", "answer_s", "tokens_per_s")
        others = ("usd_per_million_tokens", "cache_bytes", "largest_batch")
        values = {name: getattr(self, name) for name in (*names, *others)}
        return {**values, "prefill": self.prefill.to_record(), "decode": self.decode.to_record()}

    def __repr__(self) -> str:
        """Return a line: the slice, the tokens a second, the memory."""
        speed = f"{self.tokens_per_s:,.0f} tokens/s" if self.tokens_per_s else "does not fit" if not self.fits else "-"
        memory = f"; {memory_text(self.decode.memory)}" if self.decode.memory else ""
        return f"<Serving on {self.target.name}, batch {self.batch_size:,}: {speed}{memory}>"


def _largest(memory: MemoryUse, batch_size: int) -> int:
    # Linear in the batch: everything but the fixed kinds grows with it.
    fixed = sum(part.bytes for part in memory.parts if part.kind in _FIXED)
    growing = memory.peak_bytes - fixed
    return max(int((memory.limit_bytes - fixed) / growing * batch_size), 0) if growing > 0 else 0


@dataclasses.dataclass(frozen=True)
class ServingPlan:
    """Answers of a language model on several slices.

    Attributes:
        job: name of the model.
        servings: one for each slice, in the order of the request.
    """

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

    def show(self) -> None:
        """Print the plan."""
        report("serving").show(self)


@explain_arguments
def plan_serving(
    model: Any,
    batch_size: int,
    tpu: str | Sequence[str] = "v5e-1",
    *,
    prompt_tokens: int = 1024,
    new_tokens: int = 256,
    layout: Any = None,
    mesh: Mapping[str, int] | None = None,
    prices: str | Path | None = None,
    timeout_s: float = 600.0,
    use_cache: bool = True,
    progress: Callable[[str], None] | None = None,
) -> ServingPlan:
    """Predict how fast a language model answers on a TPU, whether it fits, and what a million tokens cost.

    Args:
        model: a CausalLM of KerasHub, such as that of `language_model`; also one without values.
        batch_size: number of sequences that are answered at once.
        tpu: one slice or several.
        prompt_tokens: tokens of a prompt.
        new_tokens: tokens of an answer.
        layout: how weights and cache lie over the devices. "data": whole weights, and the sequences are split; or a
            layout as `plan` takes it. None: for several devices the best that `shard` finds for the decode step.
        mesh: as `plan` takes it.
        prices: a file of prices that replaces the included table; see `anytpu docs prices`.
        timeout_s: time limit of one compilation, seconds.
        use_cache: whether to reuse compilations from the disk.
        progress: called with one line before each step of the work.

    Raises:
        UnknownTPUError: no such TPU; the message names the nearest.
        ProgramError: the model has no `call_with_cache`.
        SettingError: a number is not a positive integer, or no layout fits.

    Example:
        >>> model, _ = tpu.language_model("gemma3_1b")  # doctest: +SKIP
        >>> tpu.plan_serving(model, 8, "v5e-1")["v5e-1"].tokens_per_s  # doctest: +SKIP
        1876.0
    """
    for name, value in (("batch_size", batch_size), ("prompt_tokens", prompt_tokens), ("new_tokens", new_tokens)):
        check_positive_integer(name, value)
    targets = targets_named(tpu)
    # 1. The two steps.
    prefill, decode = decoding_steps(model, batch_size, prompt_tokens, new_tokens)
    settings = settings_of(prefill, prices=prices, timeout_s=timeout_s, use_cache=use_cache, progress=progress)
    servings = []
    # 2. Each slice: a layout of the decode step, which prefill follows, and two compilations.
    for target in targets:
        own = _layout_for(decode, target, settings) if layout is None and target.devices > 1 else layout
        steps = [_job_on(program, target, own, mesh) for program in (prefill, decode)]
        first, each = run_together([_task(job, target, settings) for job in steps])
        servings.append(Serving(first, each, batch_size, prompt_tokens, new_tokens))
    return ServingPlan(model.name, tuple(servings))


def _layout_for(decode: Program, target: Target, settings: PlanSettings) -> ModelLayout:
    found = find_layouts(
        decode,
        target.name,
        mode="infer",
        compile=_COMPILED,
        timeout_s=settings.timeout_s,
        use_cache=settings.use_cache,
        progress=settings.progress,
    )
    return found.layout


def _job_on(program: Program, target: Target, layout: Any, mesh: Mapping[str, int] | None) -> PlanJob:
    """Return the job of a step; a layout has rules for the arrays of the decode step, of which prefill has a part."""
    if layout == "data":
        layout = {"^cache/": ("data",)} if "cache" in program.state_kinds else "data"
    if isinstance(layout, ModelLayout) and layout.specs:
        layout = restricted(layout, state_names(program))
    return jobs_of(PlanJob(program), layout, mesh)(target.devices)


def _task(job: PlanJob, target: Target, settings: PlanSettings) -> Callable[[], Prediction]:
    return lambda: predict(job, None, target, settings)
