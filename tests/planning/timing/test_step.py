import pytest
from tests.planning.timing.modules import cycles, module_of

from anytpu.planning.costs.waits import add_input_wait
from anytpu.planning.records.target import target_named
from anytpu.planning.timing import step_time
from anytpu.planning.timing.rates import rates_of

MODULE = module_of(
    f"""%x = bf16[16384,1024]{{1,0:T(8,128)(2,1)}} parameter(0)
    ROOT %r = bf16[16384,1024]{{1,0:T(8,128)(2,1)}} copy(%x), {cycles(178016)}"""
)
V6E = target_named("v6e-1")


def test_the_step_is_the_sum_of_its_operations():
    time = step_time(MODULE, V6E)
    assert time.step_s == pytest.approx(sum(op.time_s for op in time.ops))
    assert [op.kind for op in time.ops] == ["memory", "host"]
    assert time.interval_s[0] < time.step_s < time.interval_s[1]


def test_a_call_of_many_steps_is_dispatched_once():
    one, ten = step_time(MODULE, V6E), step_time(MODULE, V6E, steps_per_execution=10)
    assert one.step_s - ten.step_s == pytest.approx(0.9 * rates_of(V6E).dispatch_s)


def test_input_that_comes_too_slowly_is_waited_for():
    slow = add_input_wait(step_time(MODULE, V6E), 1000, 10)
    assert slow.step_s == pytest.approx(10e-3)
    assert slow.ops[-1].kind == "input"
    fast = add_input_wait(step_time(MODULE, V6E), 1e9, 10)
    assert fast.step_s == pytest.approx(step_time(MODULE, V6E).step_s)


@pytest.mark.parametrize("name", ["v2-8", "v3-8", "v4-8", "v5e-4", "v5p-8", "v6e-4", "v7x-8"])
def test_every_chip_has_a_time_and_evidence(name):
    time = step_time(MODULE, target_named(name))
    assert time.step_s > 0
    assert time.evidence
    assert all(sentence.endswith(".") for sentence in time.evidence)
