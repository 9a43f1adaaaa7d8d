"""Comparison of costs of systems: unit of work, table columns, cheapest system, remarks on prices.

Idea: steps of different batches are different work, and a single step costs almost nothing. So without a whole run,
systems are compared by the cost of a million examples.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import NamedTuple

from anytpu.planning.costs.cost import RESTART_S
from anytpu.planning.page import phrases
from anytpu.planning.page.text_table import TextTable
from anytpu.planning.records import Cost, Holding, MemoryUse, Plan, Prediction

_MIN_USD = 0.01
_LONGEST_FLAG = 28
_MACHINE = re.compile(r"v\d+[a-z]?-\d+")
_SIZES = ((1e6, "million"), (1e9, "billion"), (1e12, "trillion"))


class WorkUnit(NamedTuple):
    """An amount of work by which systems are compared.

    Attributes:
        size: number of examples, or of steps if a system's batch size is not known.
        name: name in texts, such as "a million examples".
        is_examples: whether `size` counts examples.
    """

    size: float
    name: str
    is_examples: bool

    def amounts(self, prediction: Prediction) -> tuple[float | None, float | None]:
        """Return the time in seconds and the cost in USD on demand of this work on a system."""
        steps = self.size / (prediction.batch_size or 1) if self.is_examples else self.size
        usd = prediction.cost.usd_per_step if prediction.cost else None
        return (
            prediction.step_s * steps if prediction.step_s is not None else None,
            usd * steps if usd is not None else None,
        )


def priced(plan: Plan) -> list[Prediction]:
    """Return the systems with a known cost."""
    return [prediction for prediction in plan.predictions if prediction.cost is not None]


def unit(plan: Plan) -> WorkUnit:
    """Return the smallest amount of work that costs a cent or more on every system."""
    known = [prediction for prediction in priced(plan) if prediction.cost and prediction.cost.usd_per_step]
    is_examples = all(prediction.batch_size for prediction in known)
    noun = "examples" if is_examples else "steps"
    units = [WorkUnit(size, f"a {word} {noun}", is_examples) for size, word in _SIZES]
    return next(
        (candidate for candidate in units if all((candidate.amounts(p)[1] or 0) >= _MIN_USD for p in known)), units[-1]
    )


def table(plan: Plan) -> TextTable | None:
    """Return the table of costs, with the columns that have a number for a system; None if no price is known."""
    known = [(prediction, prediction.cost) for prediction in plan.predictions if prediction.cost is not None]
    work = unit(plan)
    has_run = any(cost.usd_per_run is not None for _, cost in known)

    def money(amount: Callable[[Prediction, Cost], float | None]) -> list[str]:
        return [phrases.at_least(prediction, phrases.usd(amount(prediction, cost))) for prediction, cost in known]

    def time(duration_s: Callable[[Cost], float | None]) -> list[str]:
        return [phrases.at_least(prediction, phrases.seconds(duration_s(cost))) for prediction, cost in known]

    return _table(
        "system",
        [prediction.target.name for prediction, _ in known],
        {
            "$/hour": [phrases.usd(cost.usd_per_hour) for _, cost in known],
            f"$ {work.name}": money(lambda prediction, _: None if has_run else work.amounts(prediction)[1]),
            "$/epoch": money(lambda _, cost: cost.usd_per_epoch),
            "$/run": money(lambda _, cost: cost.usd_per_run),
            "time": time(lambda cost: cost.run_s),
            "spot $": money(lambda _, cost: cost.spot_usd_per_run),
            "spot time": time(lambda cost: cost.spot_run_s),
            "save every": [phrases.seconds(cost.checkpoint_every_s) for _, cost in known],
        },
    )


def _table(noun: str, names: list[str], columns: dict[str, list[str]]) -> TextTable | None:
    shown = {title: cells for title, cells in columns.items() if set(cells) - {phrases.UNKNOWN}}
    rows = list(zip(names, *shown.values(), strict=True))
    return TextTable((noun, *shown), rows, left=(noun,)) if shown else None


HOLDING = (
    "The smallest slice of each chip on which the program would fit. Estimated, not compiled; the step time and the "
    "cost are lower bounds, at the peak rate of the chip."
)
"""Remark on the slices on which a program would fit that fits on no planned system."""


def holding(plan: Plan) -> list[Holding]:
    """Return the slices on which the program would fit, the cheapest first; none if it fits on a planned system."""
    if any(prediction.fits for prediction in plan.predictions):
        return []
    slices = {each.target.name: each for prediction in plan.predictions for each in prediction.holding}
    return sorted(slices.values(), key=lambda slice_: (slice_.least_usd_per_step or math.inf, slice_.target.chips))


def holding_table(plan: Plan) -> TextTable | None:
    """Return the table of `holding`; None if the program fits on a planned system."""
    slices = holding(plan)
    is_examples = all(slice_.batch_size for slice_ in slices)
    noun = "examples" if is_examples else "steps"

    def usd(slice_: Holding) -> float | None:
        step_usd = slice_.least_usd_per_step
        return None if step_usd is None else 1e6 * step_usd / (slice_.batch_size or 1 if is_examples else 1)

    return _table(
        "slice",
        [slice_.target.name for slice_ in slices],
        {
            "chips": [f"{slice_.target.chips:,}" for slice_ in slices],
            "needs about": [_memory(slice_) for slice_ in slices],
            "$/hour": [phrases.usd(slice_.usd_per_hour) for slice_ in slices],
            "step": [_floor(phrases.seconds(slice_.least_step_s)) for slice_ in slices],
            f"$ a million {noun}": [_floor(phrases.usd(usd(slice_))) for slice_ in slices],
        },
    )


def _memory(slice_: Holding) -> str:
    return phrases.used(MemoryUse(slice_.need_bytes, slice_.limit_bytes))


def _floor(text: str) -> str:
    return text if text == phrases.UNKNOWN else f">= {text}"


def wanted(plan: Plan) -> str:
    """Return a sentence on the arguments missing for the cost of a run; "" if none is missing or no price is known."""
    missing = [word for word in ("examples", "epochs") if getattr(plan, word) is None]
    if not missing or not any(prediction.cost and prediction.cost.usd_per_step for prediction in plan.predictions):
        return ""
    return f"Add {' and '.join(missing)} for the cost of a run."


def run_meaning(plan: Plan) -> str:
    """Return a sentence on what a run leaves out; "" without a run."""
    if not any(prediction.cost and prediction.cost.run_s for prediction in plan.predictions):
        return ""
    start = f"assumed as {RESTART_S / 60:.0f} minutes"
    return f"A run is its steps alone. The start of the machine and the compilation come on top, {start}."


def choice(plan: Plan) -> list[tuple[str, Prediction, str]]:
    """Return the fastest and the cheapest system, each as (title, prediction, reason)."""
    fastest, cheapest = plan.fastest, plan.cheapest
    chosen: list[tuple[str, Prediction, str]] = []
    if fastest is not None:
        many = (
            len({prediction.batch_size for prediction in plan.predictions}) > 1 and fastest.examples_per_s is not None
        )
        rate = phrases.most(fastest, phrases.rate(fastest.examples_per_s))
        step = phrases.at_least(fastest, phrases.seconds(fastest.step_s))
        chosen.append(("fastest", fastest, f"{rate} examples/s" if many else f"{step} a step"))
    if cheapest is not None:
        chosen.append(("cheapest", cheapest, phrases.at_least(cheapest, _price(plan, cheapest))))
    if fastest is not None and fastest is cheapest:
        chosen = [("fastest and cheapest", fastest, ", ".join(why for _, _, why in chosen))]
    return [
        (name, prediction, why if prediction.is_bounded else f"{why}; none has an upper bound")
        for name, prediction, why in chosen
    ]


def _price(plan: Plan, prediction: Prediction) -> str:
    """Format the price on demand of the run, an epoch or a million examples: the first that is known."""
    if prediction.cost is not None and prediction.cost.usd_per_run is not None:
        return f"{phrases.usd(prediction.cost.usd_per_run)} a run"
    if prediction.cost is not None and prediction.cost.usd_per_epoch is not None:
        return f"{phrases.usd(prediction.cost.usd_per_epoch)} an epoch"
    work = unit(plan)
    return f"{phrases.usd(work.amounts(prediction)[1])} {work.name}"


def flags(cost: Cost | None) -> list[str]:
    """Return short remarks on a chip, at most 28 characters each: "not listed", "an old generation"."""
    if cost is None:
        return []
    heads = [re.split("[,:(]", part)[0].strip() for part in cost.price.note.split(";")]
    listed = [] if cost.usd_per_hour is not None else ["not listed"]
    return list(dict.fromkeys([*listed, *(head for head in heads if 0 < len(head) <= _LONGEST_FLAG)]))


def price_remarks(plan: Plan) -> list[tuple[str, str]]:
    """Return the remarks on prices, each as (systems, sentence)."""
    said: dict[str, list[str]] = {}
    has_prices = any(prediction.cost is not None for prediction in plan.predictions)
    for prediction in plan.predictions:
        if prediction.cost is None:
            if has_prices and prediction.fits:
                said.setdefault("no price is known", []).append(prediction.target.name)
            continue
        notes = [note.strip() for note in prediction.cost.price.note.split(";") if note.strip()]
        if prediction.cost.usd_per_hour is None and not any("not listed" in note for note in notes):
            notes.append("not listed")
        for note in notes:
            said.setdefault(note, []).append(prediction.target.name)
    ordered = sorted(said.items(), key=lambda item: len(item[1]))
    return [(", ".join(names), f"{note[:1].upper()}{note[1:]}.") for note, names in ordered]


def price_source(plan: Plan) -> str:
    """Return the sources and dates of the prices; "" if there are none."""
    places: dict[tuple[str, str], list[str]] = {}
    prices = [prediction.cost.price for prediction in plan.predictions if prediction.cost is not None]
    known = prices or [
        each.price for prediction in plan.predictions for each in prediction.holding if each.price is not None
    ]
    for price in known:
        if price.source:
            catalogue, _, place = price.source.partition(": ")
            # The name of a machine would repeat the row of the table, so it is left out.
            named = [part for part in place.split(", ") if part and not _MACHINE.fullmatch(part)]
            places.setdefault((catalogue, price.date), []).extend(named)
    written = [
        f"{catalogue}{': ' if regions else ''}{', '.join(dict.fromkeys(regions))}, read in {date}"
        for (catalogue, date), regions in places.items()
    ]
    return f"Prices: {'. '.join(written)}." if written else ""
