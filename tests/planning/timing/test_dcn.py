import dataclasses
import doctest

import pytest
from tests.planning.timing.modules import cycles, module_of

from anytpu.planning.target import target_named
from anytpu.planning.timing import dcn, step_time
from anytpu.planning.timing.rates import rates_of

ATTRIBUTES = (
    'is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",'
    '_xla_host_transfer_rendezvous="all-reduce.7_0",_xla_megascale_transfer_type="ALL_REDUCE"}'
)
ARRAY = "f32[256,1024,128]{2,1,0:T(8,128)}"
BYTES = 256 * 1024 * 128 * 4
TWO = target_named("2xv5e-16")


def module_with(*, work=0, is_answered=True, is_waited_for=True):
    """Return a module that exchanges one array with another slice while it works so many microseconds at 1.5 GHz."""
    recv = f"%r = ({ARRAY}, u32[], token[]) recv(%t), channel_id=1, {ATTRIBUTES}\n" if is_answered else ""
    done = f"%rd = ({ARRAY}, token[]) recv-done(%r), channel_id=1, {ATTRIBUTES}\n" if is_waited_for else ""
    return module_of(
        f"""%a = {ARRAY} parameter(0)
        %x = f32[64,128]{{1,0:T(8,128)S(1)}} parameter(1)
        %t = token[] after-all()
        %s = ({ARRAY}, u32[], token[]) send(%a, %t), channel_id=2, {ATTRIBUTES}
        {recv}%w = f32[64,128]{{1,0:T(8,128)S(1)}} custom-call(%x), custom_call_target="Work", {cycles(1500 * work)}
        %sd = token[] send-done(%s), channel_id=2, {ATTRIBUTES}
        {done}ROOT %end = (token[]) tuple(%sd)"""
    )


def exchanged(module, target=TWO):
    rates = dataclasses.replace(rates_of(target), factor=1.0, excess_share=1.0, early_s=0.0)
    return [op for op in step_time(module, target, rates=rates).ops if op.kind == "collective"]


def test_what_slices_exchange_takes_its_bytes_over_the_hosts_network():
    (op,) = exchanged(module_with())
    assert op.time_s == pytest.approx(dcn.START_S + BYTES / (0.33 * 3.1e9))
    assert (op.name, op.bound, op.priced_by, op.bytes) == ("rd", "network", "network", BYTES)


def test_of_an_exchange_only_what_is_not_hidden_counts():
    whole_s, half_s = exchanged(module_with())[0].time_s, exchanged(module_with(work=50_000))[0].time_s
    assert half_s == pytest.approx(whole_s - 0.05)
    assert exchanged(module_with(work=500_000))[0].time_s == 0


def test_what_nobody_answers_is_waited_for_where_it_was_sent():
    (op,) = exchanged(module_with(is_answered=False, is_waited_for=False))
    assert (op.name, op.time_s) == ("sd", pytest.approx(dcn.START_S + BYTES / (0.33 * 3.1e9)))


def test_many_slices_pass_almost_twice_as_much():
    two, many = (exchanged(module_with(), target_named(name))[0] for name in ("2xv5e-16", "32xv5e-16"))
    assert many.bytes == pytest.approx(two.bytes * 2 * 31 / 32)


def test_an_exchange_that_began_elsewhere_is_listed():
    module = module_of(
        f"""%r = ({ARRAY}, u32[], token[]) parameter(0)
        ROOT %rd = ({ARRAY}, token[]) recv-done(%r), channel_id=1, {ATTRIBUTES}"""
    )
    said = "rd: an exchange between slices that began elsewhere; taken for hidden"
    assert step_time(module, TWO).unpriced == (said,)


def test_several_slices_are_surer_of_less_and_say_so():
    one, two = (step_time(module_with(work=500_000), target_named(name)) for name in ("v5e-16", "2xv5e-16"))
    assert two.interval_s[1] / two.step_s > one.interval_s[1] / one.step_s
    said = "No step over several slices was fitted"
    assert two.evidence[-1].startswith(said)
    assert not any(sentence.startswith(said) for sentence in one.evidence)


@pytest.mark.parametrize(("name", "rate"), [("2xv6e-256", 4.1e9), ("2xv5e-16", 1.0e9), ("2xv3-8", 0.5e9)])
def test_a_device_has_its_part_of_the_card(name, rate):
    assert dcn.dcn_bytes_per_s(target_named(name)) == pytest.approx(rate, rel=0.03)


def test_the_example_of_the_docstring_runs():
    assert doctest.testmod(dcn).failed == 0
