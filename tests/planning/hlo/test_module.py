import pytest

from anytpu.planning import hlo
from planning.hlo.saved import module

TUPLE = "(s32[], s32[], f32[8])"


def counted(
    *,
    start: str = "constant(0)",
    bound: str = "constant(10)",
    compare: str = "compare(%i, %n), direction=LT",
    step: str = "add(%j, %one)",
    one: str = "constant(1)",
    carried: str = "constant(10)",
    kept: str = "get-tuple-element(%b), index=1",
) -> hlo.Module:
    """Return a module with one loop over (counter, bound, array), of which a part is written otherwise."""
    return hlo.parse(f"""HloModule counted, is_scheduled=true

%inner (p: s32[], q: s32[]) -> pred[] {{
  %p = s32[] parameter(0)
  %q = s32[] parameter(1)
  ROOT %lt = pred[] compare(%q, %p), direction=GT
}}

%condition (c: {TUPLE}) -> pred[] {{
  %c = {TUPLE} parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %n = s32[] {bound}
  ROOT %root = pred[] {compare}
}}

%body (b: {TUPLE}) -> {TUPLE} {{
  %b = {TUPLE} parameter(0)
  %j = s32[] get-tuple-element(%b), index=0
  %x = f32[8] get-tuple-element(%b), index=2
  %one = s32[] {one}
  %next = s32[] {step}
  %kept = s32[] {kept}
  ROOT %t = {TUPLE} tuple(%next, %kept, %x)
}}

ENTRY %main (x: f32[8], m: s32[]) -> f32[8] {{
  %array = f32[8] parameter(0)
  %m = s32[] parameter(1)
  %first = s32[] {start}
  %last = s32[] {carried}
  %copied = s32[] copy(%last)
  %init = {TUPLE} tuple(%first, %copied, %array)
  %loop = {TUPLE} while(%init), condition=%condition, body=%body
  ROOT %out = f32[8] get-tuple-element(%loop), index=2
}}
""")


def trips(read: hlo.Module) -> int | None:
    return read.trip_count(read.entry.instructions["loop"])


CARRIED = "get-tuple-element(%c), index=1"


@pytest.mark.parametrize(
    ("written", "count"),
    [
        ({}, 10),
        ({"start": "constant(3)"}, 7),
        ({"one": "constant(4)"}, 3),
        ({"start": "constant(12)"}, 0),
        ({"compare": "compare(%i, %n), direction=LE"}, 11),
        ({"compare": "compare(%n, %i), direction=GT"}, 10),
        ({"compare": "compare(%i, %n), direction=NE"}, 10),
        ({"compare": "compare(%i, %n), direction=GT", "start": "constant(20)", "step": "subtract(%j, %one)"}, 10),
        ({"compare": "compare(%i, %n), direction=GE", "start": "constant(20)", "one": "constant(-5)"}, 3),
        ({"step": "add(%one, %j)"}, 10),
        ({"compare": "fusion(%n, %i), kind=kLoop, calls=%inner", "bound": "constant(10)"}, None),
        ({"compare": "fusion(%i, %n), kind=kLoop, calls=%inner", "bound": "constant(10)"}, 10),
        ({"bound": CARRIED}, 10),
        ({"bound": CARRIED, "carried": "constant(6)"}, 6),
        ({"bound": CARRIED, "carried": "parameter(1)"}, None),
        ({"bound": CARRIED, "kept": "add(%j, %one)"}, None),
        ({"start": "parameter(1)"}, None),
        ({"step": "multiply(%j, %one)"}, None),
        ({"one": "constant(0)"}, None),
        ({"one": "get-tuple-element(%b), index=1", "carried": "constant(5)"}, 2),
        ({"compare": "compare(%i, %n), direction=EQ"}, None),
        ({"compare": "and(%i, %n)"}, None),
    ],
)
def test_how_often_a_loop_runs(written: dict[str, str], count: int | None):
    assert trips(counted(**written)) == count


def test_a_loop_in_a_loop():
    read = module("nested_loops_v5e")
    outer = read.entry.instructions["while.23"]
    inner = read.computations[outer.called[1]].instructions["while.24"]
    assert (read.trip_count(outer), read.trip_count(inner)) == (7, 5)


def test_a_bound_that_came_through_the_loop_around():
    inner = counted(bound=CARRIED)
    assert trips(inner) == 10
    outer = """HloModule around, is_scheduled=true

%inner_condition (c: (s32[], s32[])) -> pred[] {
  %c = (s32[], s32[]) parameter(0)
  %ci = s32[] get-tuple-element(%c), index=0
  %cn = s32[] get-tuple-element(%c), index=1
  ROOT %clt = pred[] compare(%ci, %cn), direction=LT
}

%inner_body (b: (s32[], s32[])) -> (s32[], s32[]) {
  %b = (s32[], s32[]) parameter(0)
  %bi = s32[] get-tuple-element(%b), index=0
  %bn = s32[] get-tuple-element(%b), index=1
  %bone = s32[] constant(1)
  %bnext = s32[] add(%bi, %bone)
  ROOT %bt = (s32[], s32[]) tuple(%bnext, %bn)
}

%condition (d: (s32[], s32[])) -> pred[] {
  %d = (s32[], s32[]) parameter(0)
  %di = s32[] get-tuple-element(%d), index=0
  %dn = s32[] constant(3)
  ROOT %dlt = pred[] compare(%di, %dn), direction=LT
}

%body (e: (s32[], s32[])) -> (s32[], s32[]) {
  %e = (s32[], s32[]) parameter(0)
  %ei = s32[] get-tuple-element(%e), index=0
  %en = s32[] get-tuple-element(%e), index=1
  %eone = s32[] constant(1)
  %ezero = s32[] constant(0)
  %einit = (s32[], s32[]) tuple(%ezero, %en)
  %eloop = (s32[], s32[]) while(%einit), condition=%inner_condition, body=%inner_body
  %enext = s32[] add(%ei, %eone)
  ROOT %et = (s32[], s32[]) tuple(%enext, %en)
}

ENTRY %main (x: f32[]) -> s32[] {
  %x = f32[] parameter(0)
  %zero = s32[] constant(0)
  %many = s32[] constant(17)
  %init = (s32[], s32[]) tuple(%zero, %many)
  %loop = (s32[], s32[]) while(%init), condition=%condition, body=%body
  ROOT %out = s32[] get-tuple-element(%loop), index=0
}
"""
    read = hlo.parse(outer)
    assert (trips(read), read.trip_count(read.computations["body"].instructions["eloop"])) == (3, 17)


def test_counts_that_depend_on_values_are_not_guessed():
    read = module("dynamic_loops_v5e")
    found = [
        read.trip_count(instruction)
        for instruction in read.entry.instructions.values()
        if instruction.opcode == "while"
    ]
    assert found == [None, None]


def donated(header: str) -> dict[int, int]:
    return hlo.parse(header + "\n\nENTRY %main () -> () {\n  ROOT %t = () tuple()\n}\n").donated


@pytest.mark.parametrize(("first", "literal"), [("{ 0, 1 }", "{ 0, 1 }"), ("{...}", None), ("{ 1, 1 }", None)])
def test_a_constant_that_a_loop_copies_to_another_element(first: str, literal: str | None):
    read = hlo.parse(f"""HloModule loops, is_scheduled=true

%condition (c: (s32[], s8[2], s8[2])) -> pred[] {{
  %c = (s32[], s8[2], s8[2]) parameter(0)
  %i = s32[] get-tuple-element(%c), index=0
  %n = s32[] constant(3)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}}

%body (b: (s32[], s8[2], s8[2])) -> (s32[], s8[2], s8[2]) {{
  %b = (s32[], s8[2], s8[2]) parameter(0)
  %j = s32[] get-tuple-element(%b), index=0
  %near = s8[2] get-tuple-element(%b), index=1
  %far = s8[2] get-tuple-element(%b), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%j, %one)
  %copy = s8[2] copy(%far)
  ROOT %turn = (s32[], s8[2], s8[2]) tuple(%next, %copy, %far)
}}

ENTRY %main (x: s8[2]) -> s8[2] {{
  %x = s8[2] parameter(0)
  %zero = s32[] constant(0)
  %first = s8[2] constant({first})
  %mask = s8[2] constant({"{...}" if "." in first else "{ 0, 1 }"})
  %start = (s32[], s8[2], s8[2]) tuple(%zero, %first, %mask)
  ROOT %loop = (s32[], s8[2], s8[2]) while(%start), condition=%condition, body=%body
}}
""")
    assert read.literal(read.computations["body"].instructions["near"]) == literal
    assert read.literal(read.entry.instructions["x"]) is None


def test_donated_arguments():
    header = (
        "HloModule jit_f, input_output_alias={ {0}: (0, {}, may-alias), {4}: (2, {}, must-alias) }, "
        "buffer_donor={ (3, {}) }, entry_computation_layout={(f32[2]{0})->f32[2]{0}}"
    )
    assert donated(header) == {0: 0, 4: 2}
    assert donated("HloModule jit_f, input_output_alias={ {}: (1, {}, may-alias) }") == {0: 1}
    assert donated("HloModule jit_f, is_scheduled=true") == {}
    assert module("cnn_v3_entry").donated == {place: place for place in range(6)}
