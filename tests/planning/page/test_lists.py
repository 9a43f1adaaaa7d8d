"""Lists of the report of a plan: rows of blocks that repeat, exchanges by type, and the note on narrow sums."""

import jax

from anytpu import program as programs
from anytpu.planning.forecasts.forecast import sum_notes, sums_are_gradients
from anytpu.planning.page.lists import exchanges, layers, operations
from anytpu.planning.records import OpTime, StepTime
from anytpu.planning.records.target import target_named
from anytpu.sharding import place, resolve
from anytpu.units import MIB


def time_of(*ops):
    return StepTime(ops, sum(op.time_s for op in ops), (0.0, 1.0))


def test_blocks_that_repeat_are_one_row():
    blocks = [
        OpTime(f"fusion.{n}", "fusion", "matmul", 168e-6, layer=f"net/decoder_block_{n}/ffw", source="net.py:7")
        for n in range(26)
    ]
    adds = [OpTime(f"add.{n}", "fusion", "vector", 1e-6, layer=f"net/decoder_block_{n}") for n in range(26)]
    # Layers whose numbers are no blocks, and blocks of which there are few, keep their rows.
    others = [OpTime(f"dot.{n}", "fusion", "matmul", 1e-6, layer=layer) for n, layer in enumerate(
        [*(f"dense_{n}" for n in range(6)), *(f"stage_{n}/pool" for n in range(3))])]  # fmt: skip
    time = time_of(*blocks, *adds, *others)
    rows = [(row.name, row.detail, row.amount, row.source) for row in layers(time)]
    assert rows[:2] == [
        ("net/decoder_block_*/ffw", "26 x 168 µs", "4.37 ms", "net.py:7"),
        ("net/decoder_block_*", "26 x 1 µs", "26 µs", ""),
    ]
    assert len(rows) == 2 + 6 + 3
    first = operations(time.ops)[0]
    assert (first.name, first.detail, first.amount) == ("26 x fusion", "net/decoder_block_*/ffw", "4.37 ms")


def test_exchanges_have_their_type_and_narrow_sums_of_gradients_a_note():
    time = time_of(
        OpTime("a", "all-reduce", "collective", 3e-3, 2, bytes=12 * MIB, layer="up", is_backward=True,
               collective="all-reduce", dtype="bf16"),
        OpTime("b", "all-reduce", "collective", 1e-3, bytes=4 * MIB, layer="down", is_backward=True,
               collective="all-reduce", dtype="f32"),
        OpTime("c", "fusion", "matmul", 4e-3),
    )  # fmt: skip
    assert [(row.name, row.detail, row.amount) for row in exchanges(time)] == [
        ("all-reduce of bf16", "2 x, 12 MiB", "3 ms"),
        ("all-reduce of f32", "1 x, 4 MiB", "1 ms"),
    ]
    assert sum_notes(target_named("v5e-8"), time) == [
        "Gradients are summed over the devices in bfloat16 (12 MiB a step, most by 'up'): each of the sums over 8 "
        "devices is rounded to 8 bits. In float32 they take twice the bytes."
    ]
    assert sum_notes(target_named("v5e-8"), time_of(*time.ops[1:])) == sum_notes(target_named("v5e-8"), None) == []
    small = OpTime("a", "all-reduce", "collective", 1e-3, is_backward=True, collective="all-reduce", dtype="bf16")
    assert sum_notes(target_named("v5e-8"), time_of(small)) == []


def test_sums_are_of_gradients_only_if_nothing_but_examples_is_split():
    def step(weights, x):
        return weights, ((x @ weights["up"]) @ weights["down"]).sum()

    shapes = {"up": (1024, 2048), "down": (2048, 16)}
    weights = {name: jax.ShapeDtypeStruct(shape, "float32") for name, shape in shapes.items()}
    program = programs.of(step, (weights, jax.ShapeDtypeStruct((8, 1024), "float32")), batch_axis=0)
    assert sums_are_gradients(program) and sums_are_gradients(place(program, resolve("data", None, 8)))
    layouts = (("fsdp", None), ({"up": (None, "model")}, {"data": 4, "model": 2}))
    assert not any(sums_are_gradients(place(program, resolve(layout, mesh, 8))) for layout, mesh in layouts)
