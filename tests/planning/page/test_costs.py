from __future__ import annotations

import dataclasses

import plan_samples
from anytpu.planning.page import costs
from anytpu.planning.records import Plan


def scaled(by: float) -> Plan:
    """Return a plan without a run, in which everything is cheaper by a factor."""
    plan = plan_samples.without_run()
    cheaper = []
    for predicted in plan:
        assert predicted.cost is not None and predicted.cost.usd_per_step is not None
        cost = dataclasses.replace(predicted.cost, usd_per_step=by * predicted.cost.usd_per_step)
        cheaper.append(dataclasses.replace(predicted, cost=cost))
    return dataclasses.replace(plan, predictions=tuple(cheaper))


def test_columns_that_have_values():
    five, without_run = costs.table(plan_samples.five()), costs.table(plan_samples.without_run())
    assert five is not None and without_run is not None
    assert five.titles == ("system", "$/hour", "$/epoch", "$/run", "time", "spot $", "spot time", "save every")
    assert without_run.titles == ("system", "$/hour", "$ a million examples")
    assert costs.table(plan_samples.bare()) is None
    assert five.within(38).titles == ("system", "$/hour", "$/epoch", "$/run")


def test_the_unit_makes_amounts_readable():
    assert costs.unit(scaled(1.0)).name == "a million examples"
    assert costs.unit(scaled(1e-3)).name == "a billion examples"
    assert costs.unit(scaled(1e-30)).name == "a trillion examples"
    plan = plan_samples.without_run()
    steps = Plan("job", tuple(dataclasses.replace(predicted, batch_size=None) for predicted in plan))
    assert costs.unit(steps).name == "a million steps"


def test_steps_of_different_batches_are_compared_by_their_examples():
    plan = plan_samples.without_run()
    work = costs.unit(plan)
    one = plan["v3-32"]
    assert one.cost is not None and one.cost.usd_per_step is not None and one.step_s is not None
    assert work.amounts(one) == (one.step_s * (1e6 / 8192), one.cost.usd_per_step * (1e6 / 8192))
    table = costs.table(plan)
    assert table is not None and [row[2] for row in table.rows] == ["$0.28", "$0.29"]


def test_what_is_wanted_for_the_cost_of_a_run():
    plan = plan_samples.without_run()
    assert costs.wanted(plan) == "Add examples and epochs for the cost of a run."
    assert costs.wanted(dataclasses.replace(plan, examples=1000)) == "Add epochs for the cost of a run."
    assert costs.wanted(plan_samples.five()) == costs.wanted(plan_samples.bare()) == ""
