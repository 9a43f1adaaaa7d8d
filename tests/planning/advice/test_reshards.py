"""Exchanges of data that a layout's author did not mean."""

import dataclasses

import plan_samples
from anytpu.planning.advice.facts import Facts, facts_of
from anytpu.planning.advice.reshards import find_reshards
from anytpu.planning.records import OpTime
from anytpu.program.program import ROWS, Placement, Program

FSDP = Facts(is_placed=True, gathered_bytes=frozenset([7 * 2**20]))


def with_collectives(*ops):
    """Return a prediction whose step is these exchanges and as much time of products."""
    prediction = plan_samples.prediction("v5e-8", 1024, 2000.0, 15.7)
    work = OpTime("fusion.1", "fusion", "matmul", sum(op.time_s for op in ops))
    time = dataclasses.replace(prediction.time, ops=(work, *ops), step_s=2 * work.time_s)
    return dataclasses.replace(prediction, time=time)


def exchange(kind, size_bytes, time_s=1e-3, count=1, layer="block1/dense", source="model.py:12"):
    return OpTime(
        f"{kind}.1", kind, "collective", time_s, count, 0.0, size_bytes * count, layer, source, collective=kind
    )


def test_a_moved_activation_is_named_with_its_line_bytes_and_time():
    found = find_reshards(
        with_collectives(exchange("all-to-all", 2**25, 3e-3, count=2), exchange("all-gather", 2**24)), FSDP
    )
    assert found.topic == "collectives"
    assert found.text == (
        "Constrain the value at block1/dense (model.py:12) with jax.lax.with_sharding_constraint, or split another "
        "axis of its weight: the layout moves it between devices inside the step."
    )
    assert found.evidence == (
        "50% of a step is 2 such exchanges. The longest is an all-to-all of 32 MiB, 2 times, 3 ms."
    )


def test_data_between_the_cores_of_a_chip_crosses_no_link():
    found = find_reshards(with_collectives(exchange("all-gather", 0, 2e-6)), FSDP)
    assert found.evidence == (
        "50% of a step is 1 such exchange. The longest is an all-gather between the cores of a chip, 2 µs."
    )


def test_gathers_of_stored_weights_and_sums_are_meant():
    meant = [
        exchange("all-gather", 7 * 2**20),
        exchange("all-gather", 7 * 2**19, count=3),
        exchange("all-gather", 7.5 * 2**20),
        exchange("all-reduce", 2**26),
        exchange("reduce-scatter", 2**26),
    ]
    assert find_reshards(with_collectives(*meant), FSDP) is None


def test_a_program_without_a_placement_and_short_exchanges_get_no_advice():
    moved = with_collectives(exchange("all-to-all", 2**25))
    assert find_reshards(moved, Facts()) is None
    short = with_collectives(exchange("all-reduce", 2**25, 1e-3), exchange("all-to-all", 2**10, 1e-5))
    assert find_reshards(short, FSDP) is None


def test_the_gathers_of_a_placement_are_those_over_the_axes_of_its_batch():
    import jax

    specs = jax.ShapeDtypeStruct((64, 32), "float32"), jax.ShapeDtypeStruct((16, 64), "float32")
    axes = (("data", 4), ("model", 2))
    rows = (("data",), ())

    def gathered(spec):
        placement = Placement(axes, (spec, rows))
        program = Program("p", lambda w, x: (w, x @ w), *specs, ROWS, placement=placement)
        return facts_of(program, False, 8).gathered_bytes

    assert gathered((("data",), ())) == {64 * 32 * 4 * 3 / 4}
    assert gathered((("data",), ("model",))) == {64 * 32 * 4 / 2 * 3 / 4}
    assert gathered(((), ("model",))) == set()
