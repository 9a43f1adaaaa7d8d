from __future__ import annotations

import dataclasses

import pytest

import plan_samples
from anytpu.planning.page import costs, phrases
from anytpu.planning.records import Cost, Plan, Price
from anytpu.planning.records.target import target_named

PRICE = Price(
    "v3", 2.0, 0.5, None, "2026-03", "a catalogue: somewhere", "an old generation: ask first; nobody says how often"
)


def costing(price: Price, usd_per_hour: float | None = 8.0) -> Plan:
    plan = plan_samples.one()
    cost = Cost(price, usd_per_hour, usd_per_step=0.001)
    return dataclasses.replace(plan, predictions=(dataclasses.replace(plan["v3-8"], cost=cost),))


def test_flags_are_short():
    assert costs.flags(costing(PRICE)["v3-8"].cost) == ["an old generation", "nobody says how often"]
    assert costs.flags(costing(PRICE, None)["v3-8"].cost)[0] == "not listed"
    long = dataclasses.replace(PRICE, note="this goes on for longer than a flag may; never sold: used inside only")
    assert costs.flags(costing(long)["v3-8"].cost) == ["never sold"]
    assert costs.flags(None) == []


def test_remarks_on_prices_say_everything_once():
    assert costs.price_remarks(costing(PRICE)) == [
        ("v3-8", "An old generation: ask first."),
        ("v3-8", "Nobody says how often."),
    ]
    assert costs.price_remarks(costing(dataclasses.replace(PRICE, note=""), None)) == [("v3-8", "Not listed.")]
    noted = dataclasses.replace(PRICE, note="not listed: no public price was found")
    assert costs.price_remarks(costing(noted, None)) == [("v3-8", "Not listed: no public price was found.")]
    assert costs.price_remarks(plan_samples.bare()) == []


def test_sources_of_prices_are_named_once():
    def plan(*places: str) -> Plan:
        found = [dataclasses.replace(PRICE, source=f"a catalogue{place}") for place in places]
        return Plan("job", tuple(costing(price)["v3-8"] for price in found))

    assert (
        costs.price_source(plan(": here", ": there", ": here")) == "Prices: a catalogue: here, there, read in 2026-03."
    )
    assert costs.price_source(plan(": v2-8, here", ": here")) == "Prices: a catalogue: here, read in 2026-03."
    assert costs.price_source(plan("")) == "Prices: a catalogue, read in 2026-03."
    assert costs.price_source(plan_samples.bare()) == ""


def test_the_fastest_of_growing_slices_is_named_by_its_speed():
    plan = plan_samples.swept()
    slices = tuple(prediction for prediction in plan.sweep if prediction.target.name in ("v3-32", "v3-128"))
    grown = Plan("job", (plan["v3-8"], *slices))
    assert grown.fastest is not None and grown.fastest.target.name == "v3-128"
    assert costs.choice(grown)[0][0::2] == ("fastest", "123,229 examples/s")


@pytest.mark.parametrize(
    ("largest", "said"),
    [
        (None, "does not fit: a device needs 8.6 GiB of 7.48 GiB, 1.12 GiB too much."),
        (0, "does not fit: a device needs 8.6 GiB of 7.48 GiB, 1.12 GiB too much; no batch fits."),
        (64, "does not fit: a device needs 8.6 GiB of 7.48 GiB, 1.12 GiB too much; the largest batch that fits is 64."),
    ],
)
def test_what_is_missing(largest: int | None, said: str):
    one = dataclasses.replace(plan_samples.five()["v2-8"], largest_batch=largest)
    assert phrases.shortage(one) == said
    assert phrases.shortage(plan_samples.five()["v3-8"]) == ""


def test_what_a_system_is_made_of():
    plan = plan_samples.five()
    assert [phrases.devices(prediction) for prediction in plan] == [
        "4 chips, 8 cores",
        "4 chips, 8 cores",
        "8 chips",
        "8 chips",
        "4 chips, 8 cores",
    ]
    assert phrases.anchor(dataclasses.replace(plan["v3-8"], target=target_named("v4-8:cores"))) == "v4-8-cores"


def test_a_floor_gives_bounds():
    fits, _, unfit = plan_samples.floors()
    assert phrases.least(fits, "263 ms") == ">= 263 ms"
    assert phrases.most(fits, "7,801") == "<= 7,801"
    assert phrases.least(fits, phrases.UNKNOWN) == phrases.UNKNOWN
    assert phrases.step(fits) == "at least 263 ms a step"
    assert phrases.step(unfit) == "at least 1.12 GiB too much"
    assert (phrases.verdict(fits), fits.fits, unfit.fits) == ("not known", True, False)
    assert phrases.shortage(unfit) == (
        "does not fit: a device needs at least 8.6 GiB of 7.48 GiB, at least 1.12 GiB too much."
    )
    forecast = plan_samples.five()["v3-8"]
    assert (phrases.least(forecast, "1"), phrases.most(forecast, "1")) == ("1", "1")
    assert phrases.step(forecast) == "263 ms a step"
