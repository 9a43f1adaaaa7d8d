"""The report of the answers of a language model: a table with a row for each slice."""

from __future__ import annotations

import math

from anytpu import units
from anytpu.planning.page.text_table import Remark, TableReport, TextTable
from anytpu.planning.records import Serving, ServingPlan
from anytpu.planning.records.prediction import memory_text

_TITLES = ("system", "prefill", "a token", "tokens/s", "between", "memory", "batch", "$ a M")
_MEANING = (
    "Predicted, not measured. prefill: time to the first token of all prompts; a token: time of a decode step with a "
    "full cache; tokens/s: new tokens of all sequences, prefill included; memory: of the decode step, on a device; "
    "batch: sequences of this length that fit in this layout; $ a M: price of a million new tokens."
)


class ServingReport(TableReport):
    """The renderer of `ServingPlan`."""

    def caption(self, record: ServingPlan) -> str:
        """Return the model and the sizes of its answers."""
        first = record.servings[0]
        return (
            f"Answers of {record.job}: {first.batch_size:,} sequences at once, prompts of {first.prompt_tokens:,} "
            f"tokens, {first.new_tokens:,} new tokens"
        )

    def table(self, record: ServingPlan) -> TextTable:
        """Return the table with a row for each slice."""
        return TextTable(_TITLES, [_cells(serving) for serving in record], left=("system",))

    def after(self, record: ServingPlan) -> list[Remark]:
        """Return the meanings of the columns, and the memory and the layout of each slice."""
        texts = [Remark(f"{_memory(serving)}{_layout(serving)}", f"{serving.target.name}  ") for serving in record]
        return [Remark(_MEANING, is_dim=True), *texts]


SERVING_REPORT = ServingReport()
"""The renderer that `showing.report("serving")` returns."""


def _cells(serving: Serving) -> list[str]:
    memory = serving.decode.memory
    cost, largest = serving.usd_per_million_tokens, serving.largest_batch
    return [
        serving.target.name,
        _time(serving.prefill.step_s) if serving.prefill.fits else "does not fit",
        _time(serving.decode.step_s) if serving.decode.fits else "does not fit",
        f"{serving.tokens_per_s:,.0f}" if serving.tokens_per_s else "-",
        _between(serving),
        units.format_bytes(memory.peak_bytes) if memory else "-",
        "not known" if largest is None else f"{largest:,}",
        f"${cost:,.2f}" if cost is not None else "-",
    ]


def _memory(serving: Serving) -> str:
    memory = serving.decode.memory
    cache = units.format_bytes(serving.cache_bytes)
    return f"{memory_text(memory)}, of which the cache takes {cache}; " if memory else ""


def _between(serving: Serving) -> str:
    """Return the bounds of the tokens a second."""
    bounds = serving.answer_interval_s
    if bounds is None:
        return "-"
    most, least = (serving.batch_size * serving.new_tokens / bound_s for bound_s in bounds)
    return f"{least:,.0f}-{most:,.0f}" if math.isfinite(bounds[1]) else f"at most {most:,.0f}"


def _time(time_s: float | None) -> str:
    return "-" if time_s is None else units.format_seconds(time_s)


def _layout(serving: Serving) -> str:
    layout = serving.decode.layout or "one device"
    floors = [name for name, step in (("prefill", serving.prefill), ("decode", serving.decode)) if step.is_floor]
    floor = f" A floor, not a forecast: {' and '.join(floors)}." if floors else ""
    whole = ' Each device keeps the whole cache; layout="data" splits it.' if serving.keeps_cache_whole else ""
    return f"layout: {layout}.{floor}{whole}"
