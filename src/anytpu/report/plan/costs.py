"""What systems cost beside each other: in which unit, in which columns, and which of them is cheapest.

Idea: steps of different batches are not the same work, and one step costs next to nothing; so, without a whole run,
systems are compared by what a million examples cost.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from anytpu.planning.records import Cost, Holding, Memory, Plan, Prediction
from anytpu.report.plan import phrases

_LEAST_USD = 0.01
_SIZES = ((1e6, "million"), (1e9, "billion"), (1e12, "trillion"))


class Unit(NamedTuple):
    """An amount of work that systems are compared by.

    Attributes:
        size: examples, or steps where somewhere the examples of a step are not known.
        name: "a million examples".
        is_examples: whether it is examples.
    """

    size: float
    name: str
    is_examples: bool

    def amounts(self, one: Prediction) -> tuple[float | None, float | None]:
        """Return (seconds, USD on demand) of this much work on one system."""
        steps = self.size / (one.batch_size or 1) if self.is_examples else self.size
        usd = one.cost.usd_per_step if one.cost else None
        return (
            one.step_s * steps if one.step_s is not None else None,
            usd * steps if usd is not None else None,
        )


class Column(NamedTuple):
    """A column of a table of costs.

    Attributes:
        short: its title in the terminal.
        long: its title on a page.
        cells: a text for each system with a price.
    """

    short: str
    long: str
    cells: list[str]


def priced(plan: Plan) -> list[Prediction]:
    """Return the systems of which some cost is known."""
    return [one for one in plan.predictions if one.cost is not None]


def unit(plan: Plan) -> Unit:
    """Return the smallest amount of work that costs a cent or more on every system."""
    known = [one for one in priced(plan) if one.cost and one.cost.usd_per_step]
    is_examples = all(one.batch_size for one in known)
    noun = "examples" if is_examples else "steps"
    units = [Unit(size, f"a {word} {noun}", is_examples) for size, word in _SIZES]
    return next((one for one in units if all((one.amounts(p)[1] or 0) >= _LEAST_USD for p in known)), units[-1])


def columns(plan: Plan) -> list[Column]:
    """Return the columns that have a number for at least one system; no other is worth its room."""
    known = [(one, one.cost) for one in plan.predictions if one.cost is not None]
    work = unit(plan)
    has_run = any(cost.usd_per_run is not None for _, cost in known)

    def money(of: Callable[[Prediction, Cost], float | None]) -> list[str]:
        return [phrases.at_least(one, phrases.usd(of(one, cost))) for one, cost in known]

    def time(of: Callable[[Cost], float | None]) -> list[str]:
        return [phrases.at_least(one, phrases.seconds(of(cost))) for one, cost in known]

    every = [
        Column("$/hour", "an hour", [phrases.usd(cost.usd_per_hour) for _, cost in known]),
        Column(f"$ {work.name}", work.name, money(lambda one, _: None if has_run else work.amounts(one)[1])),
        Column("$/epoch", "an epoch", money(lambda _, cost: cost.usd_per_epoch)),
        Column("$/run", "a run", money(lambda _, cost: cost.usd_per_run)),
        Column("time", "takes", time(lambda cost: cost.run_s)),
        Column("spot $", "spot run", money(lambda _, cost: cost.spot_usd_per_run)),
        Column("time", "takes on spot", time(lambda cost: cost.spot_run_s)),
        Column("save every", "save every", [phrases.seconds(cost.checkpoint_every_s) for _, cost in known]),
    ]
    return [column for column in every if set(column.cells) - {phrases.UNKNOWN}]


HOLDING = (
    "The smallest slice of each chip that would hold it. Reckoned, not compiled; a step and its cost are floors, at "
    "the peak of the chip."
)
"""What is said of slices that would hold what does not fit."""


def holding(plan: Plan) -> list[Holding]:
    """Return the slices that would hold what fits nowhere, the cheapest first; none where it fits somewhere."""
    if any(one.fits for one in plan.predictions):
        return []
    slices = {each.target.name: each for one in plan.predictions for each in one.holding}
    return sorted(slices.values(), key=lambda one: (one.least_usd_per_step or math.inf, one.target.chips))


def holding_columns(plan: Plan) -> list[Column]:
    """Return the columns of the table of `holding`, each with a number for at least one slice."""
    slices = holding(plan)
    is_examples = all(one.batch_size for one in slices)
    noun = "examples" if is_examples else "steps"

    def usd(one: Holding) -> float | None:
        each = one.least_usd_per_step
        return None if each is None else 1e6 * each / (one.batch_size or 1 if is_examples else 1)

    every = [
        Column("chips", "chips", [f"{one.target.chips:,}" for one in slices]),
        Column("needs about", "needs about", [_memory(one) for one in slices]),
        Column("$/hour", "an hour", [phrases.usd(one.usd_per_hour) for one in slices]),
        Column("step", "step", [_floor(phrases.seconds(one.least_step_s)) for one in slices]),
        Column(f"$ a million {noun}", f"a million {noun}", [_floor(phrases.usd(usd(one))) for one in slices]),
    ]
    return [column for column in every if set(column.cells) - {phrases.UNKNOWN}]


def _memory(one: Holding) -> str:
    return phrases.used(Memory(one.need_bytes, one.limit_bytes))


def _floor(text: str) -> str:
    return text if text == phrases.UNKNOWN else f">= {text}"


def wanted(plan: Plan) -> str:
    """Say what has to be given for the cost of a run; "" where it is given, or where there is no price."""
    missing = [word for word in ("examples", "epochs") if getattr(plan, word) is None]
    if not missing or not any(one.cost and one.cost.usd_per_step for one in plan.predictions):
        return ""
    return f"Add {' and '.join(missing)} for the cost of a run."


def choice(plan: Plan) -> list[tuple[str, Prediction, str]]:
    """Return the fastest and the cheapest system, each as (what it is, its prediction, why)."""
    fastest, cheapest = plan.fastest, plan.cheapest
    chosen: list[tuple[str, Prediction, str]] = []
    if fastest is not None:
        many = len({one.batch_size for one in plan.predictions}) > 1 and fastest.examples_per_s is not None
        rate = phrases.most(fastest, phrases.rate(fastest.examples_per_s))
        step = phrases.at_least(fastest, phrases.seconds(fastest.step_s))
        chosen.append(("fastest", fastest, f"{rate} examples/s" if many else f"{step} a step"))
    if cheapest is not None:
        chosen.append(("cheapest", cheapest, phrases.at_least(cheapest, _price(plan, cheapest))))
    if fastest is not None and fastest is cheapest:
        chosen = [("fastest and cheapest", fastest, ", ".join(why for _, _, why in chosen))]
    return [(name, one, why if one.is_bounded else f"{why}; none has an upper bound") for name, one, why in chosen]


def _price(plan: Plan, one: Prediction) -> str:
    """Write the price on demand of the run, or of an epoch, or of a million examples, the first that is known."""
    if one.cost is not None and one.cost.usd_per_run is not None:
        return f"{phrases.usd(one.cost.usd_per_run)} a run"
    if one.cost is not None and one.cost.usd_per_epoch is not None:
        return f"{phrases.usd(one.cost.usd_per_epoch)} an epoch"
    work = unit(plan)
    return f"{phrases.usd(work.amounts(one)[1])} {work.name}"
