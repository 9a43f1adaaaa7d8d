import dataclasses
import math

import jax
import jax.numpy as jnp
import pytest
from tests.planning.hlo import saved
from tests.planning.timing.modules import REGION, computation, cycles, module_of

import anytpu as tpu
from anytpu.planning.records.target import target_named
from anytpu.planning.timing import step_time
from anytpu.planning.timing.clock import Clock, user_name
from anytpu.planning.timing.pricing import SCALAR_CYCLES, TRIP_CYCLES, OpPricer
from anytpu.planning.timing.rates import rates_of

V6E = target_named("v6e-1")
US = 1e-6
TRIP_S = (TRIP_CYCLES + 2 * SCALAR_CYCLES) / 1.75e9


def clock_of(module, target=V6E):
    rates = dataclasses.replace(rates_of(target), factor=1.0, excess_share=1.0, early_s=0.0)
    clock = Clock(module, OpPricer(module, target, rates))
    return clock, clock.run()


def work(name, operand, microseconds):
    """Return an instruction in on-chip memory that takes so many microseconds at 1.75 GHz."""
    shape = "f32[64,128]{1,0:T(8,128)S(1)}"
    return f'%{name} = {shape} custom-call(%{operand}), custom_call_target="Work", {cycles(1750 * microseconds)}'


LOOP = (
    computation(
        "turn",
        f"""%t = (s32[], f32[64,128]{{1,0:T(8,128)S(1)}}) parameter(0)
        %i = s32[]{{:T(128)S(6)}} get-tuple-element(%t), index=0
        %x = f32[64,128]{{1,0:T(8,128)S(1)}} get-tuple-element(%t), index=1
        %one = s32[]{{:T(128)S(6)}} constant(1)
        %next = s32[]{{:T(128)S(6)}} add(%i, %one)
        {work("y", "x", 5)}
        ROOT %both = (s32[], f32[64,128]{{1,0:T(8,128)S(1)}}) tuple(%next, %y)""",
    ),
    computation(
        "more",
        """%u = (s32[], f32[64,128]{1,0:T(8,128)S(1)}) parameter(0)
        %j = s32[]{:T(128)S(6)} get-tuple-element(%u), index=0
        %limit = s32[]{:T(128)S(6)} constant(7)
        ROOT %less = pred[]{:T(512)S(6)} compare(%j, %limit), direction=LT""",
    ),
)
START = """%x0 = f32[64,128]{1,0:T(8,128)S(1)} parameter(0)
%zero = s32[]{:T(128)S(6)} constant(0)
%start = (s32[], f32[64,128]{1,0:T(8,128)S(1)}) tuple(%zero, %x0)
%loop = (s32[], f32[64,128]{1,0:T(8,128)S(1)}) while(%start), condition=%more, body=%turn"""


def test_a_loop_counts_as_often_as_it_runs():
    clock, seconds = clock_of(module_of(START, *LOOP))
    assert seconds == pytest.approx(35 * US + 7 * TRIP_S)
    assert [(op.name, op.count) for op in clock.ops] == [("loop", 7), ("less", 7), ("next", 7), ("y", 7)]
    assert clock.ops[-1].time_s == pytest.approx(35 * US)


def test_a_loop_of_keras_is_not_billed_for_its_counter():
    # The first loop of an LSTM with 100 units, as libtpu 0.0.42.1 compiled it for v6e: counter and bound are given no
    # memory of their own, as arrays in the main memory are not.
    module = saved.module("lstm_loop_v6e")
    clock = Clock(module, OpPricer(module, V6E, rates_of(V6E)))
    clock.run()
    scalars = [op for op in clock.ops if op.opcode in ("compare", "add")]
    assert [op.count for op in scalars] == [500, 500, 500]
    assert all(op.time_s < 500 * 20e-9 and op.bytes == 0 for op in scalars)
    (trips,) = (op for op in clock.ops if op.opcode == "while")
    assert trips.time_s == pytest.approx(500 * TRIP_CYCLES / 1.75e9)
    # All that is on the chip is done in less than the compiler's cycles; nothing is charged a wait for the main memory.
    on_chip = [op for op in clock.ops if op.opcode == "fusion" and not op.bytes]
    assert all(op.time_s / op.count < 0.4e-6 for op in on_chip)


def test_a_loop_of_unknown_length_counts_once_and_says_so():
    module = module_of(
        START.replace("%zero = s32[]{:T(128)S(6)} constant(0)", "%zero = s32[]{:T(128)S(6)} parameter(1)"), *LOOP
    )
    clock, seconds = clock_of(module)
    assert seconds == pytest.approx(5 * US + TRIP_S)
    assert clock.unpriced == ["loop: a loop of which nobody knows how often it runs; counted once"]
    assert clock.is_endless
    low_s, high_s = step_time(module, V6E).interval_s
    assert low_s > 0 and math.isinf(high_s)
    assert not clock_of(module_of(START, *LOOP))[0].is_endless


def test_of_a_conditional_the_longest_branch_counts():
    branches = [
        computation(f"branch{n}", f"%q = f32[64,128]{{1,0:T(8,128)S(1)}} parameter(0)\nROOT {work(f'b{n}', 'q', n)}")
        for n in (2, 9, 4)
    ]
    module = module_of(
        """%which = s32[]{:T(128)S(6)} parameter(0)
        %x = f32[64,128]{1,0:T(8,128)S(1)} parameter(1)
        ROOT %c = f32[64,128]{1,0:T(8,128)S(1)} conditional(%which, %x, %x, %x), """
        "branch_computations={%branch2, %branch9, %branch4}",
        *branches,
    )
    clock, seconds = clock_of(module)
    assert seconds == pytest.approx(9 * US)
    assert [op.name for op in clock.ops] == ["b9"]
    assert clock.ops[0].optional_s == pytest.approx(7 * US)
    assert clock.unpriced == ["c: between 2 µs and 9 µs; the longest branch is counted"]
    with_host = step_time(module, V6E)
    host_s = with_host.step_s - sum(op.time_s for op in with_host.ops if op.name == "b9")
    assert with_host.interval_s[0] < host_s + 2 * US


def chosen(skips):
    """Return the time of a step that skips a product of 4096 x 4096 where its result is not finite, or does not."""

    def step(weight, x):
        update = jax.lax.cond(jnp.isfinite(x.sum()), lambda: weight @ x, lambda: weight if skips else (weight @ x).T)
        return update, {}

    spec = jax.ShapeDtypeStruct((4096, 4096), "bfloat16")
    time = tpu.plan(step, input_specs=(spec, spec), tpu="v5e-1")["v5e-1"].time
    assert time is not None
    return time


def test_no_more_is_certain_than_the_cheapest_branch_takes():
    product_s = 2 * 4096**3 / 197e12
    time = chosen(skips=True)
    assert time.interval_s[0] < product_s < time.step_s
    assert [sentence.endswith("; the longest branch is counted") for sentence in time.unpriced] == [True]
    assert product_s < chosen(skips=False).interval_s[0]


def copied(between):
    return module_of(
        f"""%a = f32[4096,4096]{{1,0:T(8,128)}} parameter(0)
        %x = f32[64,128]{{1,0:T(8,128)S(1)}} parameter(1)
        %s = (f32[4096,4096]{{1,0:T(8,128)S(1)}}, f32[4096,4096]{{1,0:T(8,128)}}, u32[]{{:S(2)}}) copy-start(%a)
        {work("w", "x", between)}
        ROOT %d = f32[4096,4096]{{1,0:T(8,128)S(1)}} copy-done(%s)"""
    )


def test_of_a_copy_only_what_is_not_hidden_counts():
    copy_s = 2**26 / rates_of(V6E).streaming_bytes_per_s
    _, seconds = clock_of(copied(10))
    assert seconds == pytest.approx(copy_s)
    clock, seconds = clock_of(copied(100))
    assert seconds == pytest.approx(100 * US)
    assert [(op.name, op.kind, op.time_s) for op in clock.ops if op.kind == "copy"] == [("d", "copy", 0.0)]


def test_copies_that_are_under_way_together_share_the_memory():
    module = module_of(
        """%a = f32[4096,4096]{1,0:T(8,128)} parameter(0)
        %b = f32[4096,4096]{1,0:T(8,128)} parameter(1)
        %s = (f32[4096,4096]{1,0:T(8,128)S(1)}, f32[4096,4096]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%a)
        %t = (f32[4096,4096]{1,0:T(8,128)S(1)}, f32[4096,4096]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%b)
        %d = f32[4096,4096]{1,0:T(8,128)S(1)} copy-done(%s)
        ROOT %e = f32[4096,4096]{1,0:T(8,128)S(1)} copy-done(%t)"""
    )
    assert clock_of(module)[1] == pytest.approx(2 * 2**26 / rates_of(V6E).streaming_bytes_per_s)


def test_a_copy_shares_the_memory_with_the_operations_beside_it():
    module = module_of(
        f"""%a = f32[4096,4096]{{1,0:T(8,128)}} parameter(0)
        %b = f32[2048,4096]{{1,0:T(8,128)}} parameter(1)
        %s = (f32[4096,4096]{{1,0:T(8,128)S(1)}}, f32[4096,4096]{{1,0:T(8,128)}}, u32[]{{:S(2)}}) copy-start(%a)
        %w = f32[64,128]{{1,0:T(8,128)S(1)}} custom-call(%b), custom_call_target="Work", {cycles(1750)}
        ROOT %d = f32[4096,4096]{{1,0:T(8,128)S(1)}} copy-done(%s)"""
    )
    assert clock_of(module)[1] == pytest.approx(1.5 * 2**26 / rates_of(V6E).streaming_bytes_per_s)


def test_copies_to_the_host_do_not_hold_up_the_memory():
    module = module_of(
        """%a = f32[4096,4096]{1,0:T(8,128)} parameter(0)
        %b = f32[1024,1024]{1,0:T(8,128)} parameter(1)
        %s = (f32[4096,4096]{1,0:T(8,128)S(5)}, f32[4096,4096]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%a)
        %t = (f32[1024,1024]{1,0:T(8,128)S(1)}, f32[1024,1024]{1,0:T(8,128)}, u32[]{:S(2)}) copy-start(%b)
        %e = f32[1024,1024]{1,0:T(8,128)S(1)} copy-done(%t)
        ROOT %d = f32[4096,4096]{1,0:T(8,128)S(5)} copy-done(%s)"""
    )
    clock, seconds = clock_of(module)
    rates = rates_of(V6E)
    assert clock.ops[0].time_s == pytest.approx(2**22 / rates.streaming_bytes_per_s)
    assert seconds == pytest.approx(2**26 / rates.host_bytes_per_s)


def offloaded(between):
    table, rows, places = "f32[100000,128]{1,0:T(8,128)}", "f32[65536,128]{1,0:T(8,128)}", "s32[65536]{0:T(1024)}"
    return module_of(
        f"""%t = {table} parameter(0)
        %i = {places} parameter(1)
        %u = {rows} parameter(2)
        %x = f32[64,128]{{1,0:T(8,128)S(1)}} parameter(3)
        %s = (({table}, {places}, {rows}, token[]), {table}) call-start(%t, %i, %u), """
        f"""async_execution_thread="sparsecore", to_apply=%add
        {work("w", "x", between)}
        ROOT %d = {table} call-done(%s)""",
        REGION,
    )


def test_what_sparse_cores_do_is_the_bytes_of_its_rows_and_a_floor():
    rows_s = 2 * (2**25 + 2**18) / rates_of(V6E).streaming_bytes_per_s
    clock, seconds = clock_of(offloaded(10))
    assert seconds == pytest.approx(rows_s)
    assert [(op.priced_by, op.time_s) for op in clock.ops if op.name == "d"] == [
        ("floor", pytest.approx(rows_s - 10 * US))
    ]
    assert clock.unpriced == ["d: done by SparseCores; counted as the bytes of its rows, a floor"]
    assert clock_of(offloaded(100))[0].unpriced == []


FOUR = "channel_id=1, replica_groups=[1,4]<=[4], dimensions={0}"


def gathered(between):
    return module_of(
        f"""%a = f32[1024,1024]{{1,0:T(8,128)}} parameter(0)
        %x = f32[64,128]{{1,0:T(8,128)S(1)}} parameter(1)
        %s = (f32[1024,1024]{{1,0:T(8,128)}}, f32[4096,1024]{{1,0:T(8,128)}}) all-gather-start(%a), {FOUR}
        {work("w", "x", between)}
        ROOT %d = f32[4096,1024]{{1,0:T(8,128)}} all-gather-done(%s)""",
        REGION,
        partitions=4,
    )


def test_of_a_collective_only_what_is_not_hidden_counts():
    target = target_named("v6e-4")
    clock, seconds = clock_of(gathered(0), target)
    assert [(op.kind, op.collective) for op in clock.ops if op.time_s] == [("collective", "all-gather")]
    hidden, longer_s = clock_of(gathered(1000), target)
    assert seconds < longer_s == pytest.approx(1000 * US)
    assert sum(op.time_s for op in hidden.ops if op.kind == "collective") == 0


def test_operations_know_their_layer_and_direction():
    name = 'metadata={op_name="jit(step)/transpose(jvp(conv1))/neg"}'
    module = module_of(
        f"""%x = f32[64,128]{{1,0:T(8,128)S(1)}} parameter(0)
        ROOT %r = f32[64,128]{{1,0:T(8,128)S(1)}} negate(%x), {name}, {cycles(1750)}"""
    )
    clock, _ = clock_of(module)
    assert [(op.layer, op.is_backward) for op in clock.ops] == [("conv1", True)]


def called(metadata: str, name: str = "fusion.312") -> str:
    module = module_of(
        f"""%a = f32[1024,256]{{1,0:T(8,128)}} parameter(0)
        ROOT %{name} = f32[1024,256]{{1,0:T(8,128)}} negate(%a){metadata}"""
    )
    return user_name(module, module.entry.instructions[name])


def test_the_primitive_and_the_layer():
    assert called(', metadata={op_name="jit(step)/jvp(router)/sort"}') == "sort of 'router'"
    assert called(', metadata={op_name="jit(step)/transpose(jvp(router))/scatter-add"}') == (
        "scatter-add of 'router', backward"
    )
    assert called(', metadata={op_name="jit(step)/router/bd,df->bf"}') == "fusion.312 of 'router'"


def test_the_name_of_the_compiler_where_no_other_is_known():
    assert called("") == "fusion.312"
