import pytest
from tests.planning.timing.modules import computation
from tests.planning.timing.test_pricing import price

from anytpu.planning.records.target import target_named

V5E, V2 = target_named("v5e-1"), target_named("v2-8")
LESS = """%less (a: f32[], b: f32[], c: s32[], d: s32[]) -> pred[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  %c = s32[] parameter(2)
  %d = s32[] parameter(3)
  ROOT %smaller = pred[] compare(%a, %b), direction=LT
}
"""


def sort(rows, columns, layout="0,1", space="S(1)"):
    shape, places = f"[{rows},{columns}]", f"{{{layout}:T(8,128){space}}}"
    return f"""%x = f32{shape}{places} parameter(0)
    %i = s32{shape}{places} parameter(1)
    ROOT %r = (f32{shape}{places}, s32{shape}{places}) sort(%x, %i), dimensions={{1}}, to_apply=%less"""


def test_a_sort_passes_over_its_numbers_once_for_every_stage():
    found = price(sort(512, 8192), LESS, target=V5E)
    # 8192 = 2^13: 13 x 14 / 2 stages; 4,096 vectors of keys and as many of what is sorted along, a store each.
    assert found.time_s == pytest.approx(91 * 4096 * 2 / 1.5e9)
    assert found.time_s > 300e-6
    assert (found.kind, found.bound, found.priced_by, found.bytes) == ("vector", "compute", "stages", 0)
    assert found.remark == "the compiler gives no cycles; counted by its stages"


def test_a_sort_along_the_lanes_of_a_vector_takes_longer():
    across, along = (price(sort(512, 8192, layout), LESS, target=V5E) for layout in ("0,1", "1,0"))
    assert along.time_s > 1.5 * across.time_s


def test_a_comparison_of_many_steps_bounds_a_sort_where_there_are_few_units():
    steps = "".join(f"  %n{n} = f32[] negate(%a)\n" for n in range(17))
    long = LESS.replace("  ROOT", f"{steps}  ROOT")
    v5e, v2 = (price(sort(512, 8192), long, target=target) for target in (V5E, V2))
    assert v5e.time_s == pytest.approx(91 * 4096 * (18 / 2 + 2) / 4 / 1.5e9)
    assert v2.time_s == pytest.approx(91 * 4096 * (18 / 2 + 2) / 2 / 0.7e9)


def test_a_top_k_costs_less_than_a_sort_and_more_for_more():
    def top(kept):
        return price(
            f"""%x = f32[512,32768]{{0,1:T(8,128)S(1)}} parameter(0)
            ROOT %r = (f32[512,{kept}]{{0,1:T(8,128)}}, s32[512,{kept}]{{0,1:T(8,128)}}) custom-call(%x), """
            'custom_call_target="TopK"',
            target=V5E,
        )

    whole, few, many = price(sort(512, 32768), LESS, target=V5E), top(8), top(64)
    assert few.time_s < many.time_s < whole.time_s
    # Runs of 64 are sorted in 6 x 7 / 2 stages, and merged twice in 7 each.
    assert many.time_s == pytest.approx((21 + 2 * 7) * 16384 * 2 / 1.5e9)
    assert many.priced_by == "stages"


TABLE, FEW = "f32[100000,512]{1,0:T(8,128)}", "f32[8192,512]{1,0:T(8,128)}"
INDICES = "s32[8192]{0:T(1024)S(1)}"
ROWS = "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,512}"


def gathered(table=TABLE, scratch=524288):
    body = computation(
        "rows",
        f"""%p0 = {table} parameter(0)
        %p1 = {INDICES} parameter(1)
        ROOT %g = {FEW} gather(%p0, %p1), {ROWS}""",
    )
    lines = f"""%x = {table} parameter(0)
    %i = {INDICES} parameter(1)
    ROOT %r = {FEW} fusion(%x, %i), kind=kCustom, calls=%rows, backend_config={{"used_scoped_memory_configs":"""
    return lines + f'[{{"memory_space":"1","offset":"0","size":"{scratch}"}}]}}', body


def test_each_row_that_is_gathered_from_the_main_memory_is_a_transfer_of_its_own():
    found = price(*gathered(), target=V5E)
    # 0.43 us from memory to memory, 16 at a time; its bytes alone would take 47 us.
    assert found.time_s == pytest.approx(8192 / 16 * 0.43e-6)
    assert (found.priced_by, found.bytes) == ("rows", 2 * 8192 * 512 * 4)
    assert found.least_s == pytest.approx(2 * 8192 * 512 * 4 / 819e9)
    assert found.remark == "the compiler gives no cycles; counted by its rows"


@pytest.mark.parametrize(("table", "scratch"), [("f32[5000,512]{1,0:T(8,128)S(1)}", 0), ("f32[5000,512]{1,0}", 2**24)])
def test_a_row_in_the_memory_on_the_chip_takes_some_cycles(table, scratch):
    found = price(*gathered(table, scratch), target=V5E)
    assert found.time_s == pytest.approx(max(8192 * 9 / 1.5e9, 2.2e-6 + found.bytes / 819e9 / 0.877), rel=0.01)
    assert found.priced_by == "rows"


def scattered(space=""):
    table = TABLE.replace("100000", "5000").replace(")}", f"){space}}}")
    found = price(
        f"""%x = {table} parameter(0)
        %i = {INDICES} parameter(1)
        %u = {FEW} parameter(2)
        ROOT %r = {table} scatter(%x, %i, %u), update_window_dims={{1}}, inserted_window_dims={{0}}, to_apply=%less""",
        LESS,
        target=V5E,
    )
    return found


def test_a_scatter_takes_one_row_after_another():
    found = scattered()
    # vllm-project/vllm#15242: 507 ms on v6e, most of it for 32 x 128,256 numbers.
    assert found.time_s == pytest.approx(8192 * 0.507 / (32 * 128256), rel=0.02)
    assert (found.priced_by, found.bytes) == ("updates", 2 * 8192 * 512 * 4)
    assert found.remark == "the compiler gives no cycles; counted by its updates"


def test_a_scatter_on_the_chip_takes_some_cycles():
    assert scattered("S(1)").time_s == pytest.approx(8192 * 30 / 1.5e9)


def test_a_window_over_a_whole_axis_is_a_maximum_that_is_made_once():
    # What the compiler makes of a softmax: each number less the largest of its row, 8,192 wide.
    def windows(size, pad):
        return price(
            f"""%x = f32[512,8192]{{1,0:T(8,128)S(1)}} parameter(0)
            %least = f32[]{{:T(128)}} constant(-inf)
            ROOT %r = f32[512,8192]{{1,0:T(8,128)S(1)}} reduce-window(%x, %least), """
            f"window={{size=1x{size} pad=0_0x{pad}_{pad}}}, to_apply=%less",
            target=V5E,
        )

    whole, part = windows(16383, 8191), windows(3, 1)
    assert part.time_s == pytest.approx(3 * whole.time_s)
    assert whole.time_s == pytest.approx(4096 * 5.4 / 1.5e9)


def test_the_gradient_of_pooling_searches_every_window():
    found = price(
        """%x = f32[128,112,112,64]{0,3,2,1:T(8,128)} parameter(0)
        %g = f32[128,56,56,64]{0,3,2,1:T(8,128)S(1)} parameter(1)
        %zero = f32[]{:T(128)} constant(0)
        ROOT %r = f32[128,112,112,64]{0,3,2,1:T(8,128)} select-and-scatter(%x, %g, %zero), """
        "window={size=1x3x3x1 stride=1x2x2x1 pad=0_0x0_1x0_1x0_0}, select=%less, scatter=%less",
        LESS,
        target=V5E,
    )
    # The compiler's own cycles for the pooling itself, 1,211,296 on v5e, and the same again to add to what was found.
    assert found.time_s == pytest.approx(2 * 1211296 / 1.5e9, rel=0.01)
    assert (found.priced_by, found.bytes) == ("windows", 2 * 128 * 112 * 112 * 64 * 4)
