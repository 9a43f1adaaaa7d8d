from tests.planning.timing.modules import computation, module_of

from anytpu.planning.timing.traffic import traffic_of

MIB = 2**20


def of(module, name):
    return traffic_of(module.entry.instructions[name]).bytes


def test_what_goes_in_and_out_is_counted_once_with_padding():
    module = module_of(
        """%a = f32[1024,100]{1,0:T(8,128)} parameter(0)
        ROOT %b = f32[1024,100]{1,0:T(8,128)} negate(%a)"""
    )
    assert of(module, "b") == 2 * 1024 * 128 * 4


def test_memory_on_the_chip_crosses_nothing():
    module = module_of(
        """%a = f32[1024,256]{1,0:T(8,128)S(1)} parameter(0)
        ROOT %b = f32[1024,256]{1,0:T(8,128)} negate(%a)"""
    )
    assert of(module, "b") == MIB


def test_names_for_what_is_there_cross_nothing():
    module = module_of(
        """%a = f32[1024,256]{1,0:T(8,128)} parameter(0)
        ROOT %b = f32[256,1024]{1,0:T(8,128)} bitcast(%a)"""
    )
    assert of(module, "a") == of(module, "b") == 0


def test_a_fusion_that_takes_a_slice_reads_the_slice():
    body = computation(
        "sliced",
        """%p0 = f32[64,1024,256]{2,1,0:T(8,128)} parameter(0)
        %p1 = s32[] parameter(1)
        %zero = s32[] constant(0)
        %cut = f32[1,1024,256]{2,1,0:T(8,128)} dynamic-slice(%p0, %p1, %zero, %zero), dynamic_slice_sizes={1,1024,256}
        ROOT %flat = f32[1024,256]{1,0:T(8,128)} bitcast(%cut)""",
    )
    module = module_of(
        """%a = f32[64,1024,256]{2,1,0:T(8,128)} parameter(0)
        %i = s32[]{:T(128)S(6)} parameter(1)
        ROOT %b = f32[1024,256]{1,0:T(8,128)} fusion(%a, %i), kind=kLoop, calls=%sliced""",
        body,
    )
    assert of(module, "b") == 2 * MIB


CACHE = "bf16[8,12,2048,64]{2,3,1,0:T(8,128)(2,1)}"
TOKEN = "bf16[8,12,1,64]{3,1,0,2:T(8,128)(2,1)S(1)}"


def put(cache: str = CACHE, token: str = TOKEN):
    return module_of(
        f"""%cache = {cache} parameter(0)
        %token = {token} parameter(1)
        %i = s32[]{{:T(128)S(6)}} parameter(2)
        ROOT %put = {cache} dynamic-update-slice(%cache, %token, %i, %i, %i, %i)"""
    )


def test_a_token_put_into_a_cache_reads_and_writes_the_tiles_that_it_lies_in():
    # Positions lie along the lanes: 4 tiles of 16 x 128 for each head, of which a token is one column.
    tiles = 8 * 12 * 64 * 128 * 2
    assert of(put(), "put") == 2 * tiles
    # Where whole tiles are written, none is read; the token is read from where it is.
    whole = "bf16[8,12,128,64]{2,3,1,0:T(8,128)(2,1)}"
    assert of(put(token=whole), "put") == 2 * tiles
    assert of(put(token=whole.replace("(2,1)}", "(2,1)S(1)}")), "put") == tiles


def test_a_token_put_into_a_cache_on_the_chip_crosses_nothing():
    assert of(put(CACHE.replace("(2,1)}", "(2,1)S(1)}")), "put") == 0


def test_a_slice_that_is_brought_to_the_chip_is_read():
    module = module_of(
        """%a = f32[64,1024,256]{2,1,0:T(8,128)} parameter(0)
        %i = s32[]{:T(128)S(6)} parameter(1)
        ROOT %b = f32[1,1024,256]{2,1,0:T(8,128)S(1)} dynamic-slice(%a, %i, %i, %i), dynamic_slice_sizes={1,1024,256}"""
    )
    assert of(module, "b") == MIB


def test_a_fusion_that_updates_in_place_reads_and_writes_the_update():
    body = computation(
        "updated",
        """%p0 = f32[64,1024,256]{2,1,0:T(8,128)} parameter(0)
        %p1 = f32[1,1024,256]{2,1,0:T(8,128)} parameter(1)
        %p2 = s32[] parameter(2)
        %zero = s32[] constant(0)
        ROOT %put = f32[64,1024,256]{2,1,0:T(8,128)} dynamic-update-slice(%p0, %p1, %p2, %zero, %zero)""",
    )
    module = module_of(
        """%a = f32[64,1024,256]{2,1,0:T(8,128)} parameter(0)
        %u = f32[1,1024,256]{2,1,0:T(8,128)} parameter(1)
        %i = s32[]{:T(128)S(6)} parameter(2)
        ROOT %b = f32[64,1024,256]{2,1,0:T(8,128)} fusion(%a, %u, %i), kind=kLoop, calls=%updated""",
        body,
    )
    assert of(module, "b") == 2 * MIB


def test_slices_outside_of_fusions():
    module = module_of(
        """%a = f32[64,1024,256]{2,1,0:T(8,128)} parameter(0)
        %u = f32[1,1024,256]{2,1,0:T(8,128)} parameter(1)
        %i = s32[]{:T(128)S(6)} parameter(2)
        %cut = f32[1,1024,256]{2,1,0:T(8,128)} dynamic-slice(%a, %i, %i, %i), dynamic_slice_sizes={1,1024,256}
        ROOT %put = f32[64,1024,256]{2,1,0:T(8,128)} dynamic-update-slice(%a, %u, %i, %i, %i)"""
    )
    assert of(module, "cut") == of(module, "put") == 2 * MIB


def test_an_operand_is_read_through_a_fusion_that_only_renames_it():
    renamed = computation(
        "renamed",
        """%p0 = f32[1024,256]{1,0:T(8,128)} parameter(0)
        ROOT %same = f32[1024,256]{1,0:T(8,128)} bitcast(%p0)""",
    )
    body = computation(
        "negated",
        """%p0 = f32[1024,256]{1,0:T(8,128)} parameter(0)
        %inner = f32[1024,256]{1,0:T(8,128)} fusion(%p0), kind=kLoop, calls=%renamed
        ROOT %out = f32[1024,256]{1,0:T(8,128)} negate(%inner)""",
    )
    module = module_of(
        """%a = f32[1024,256]{1,0:T(8,128)} parameter(0)
        ROOT %b = f32[1024,256]{1,0:T(8,128)} fusion(%a), kind=kOutput, calls=%negated""",
        renamed,
        body,
    )
    assert of(module, "b") == 2 * MIB


TILED = (
    computation(
        "tiled",
        """%q = bf16[64,1024,256]{2,1,0:T(16,128)(2,1)} parameter(0)
        ROOT %r = bf16[64,1024,256]{2,1,0:T(8,128)(2,1)} copy(%q)""",
    ),
    computation(
        "sliced",
        """%p0 = bf16[64,1024,256]{2,1,0:T(16,128)(2,1)} parameter(0)
        %p1 = s32[] parameter(1)
        %zero = s32[] constant(0)
        %other = bf16[64,1024,256]{2,1,0:T(8,128)(2,1)} fusion(%p0), kind=kLoop, calls=%tiled
        ROOT %cut = bf16[1,1024,256]{2,1,0:T(8,128)(2,1)} dynamic-slice(%other, %p1, %zero, %zero)""",
    ),
)


def test_a_slice_of_what_a_fusion_tiles_anew_reads_the_slice():
    module = module_of(
        """%a = bf16[64,1024,256]{2,1,0:T(16,128)(2,1)} parameter(0)
        %i = s32[]{:T(128)S(6)} parameter(1)
        ROOT %b = bf16[1,1024,256]{2,1,0:T(8,128)(2,1)} fusion(%a, %i), kind=kLoop, calls=%sliced""",
        *TILED,
    )
    assert of(module, "b") == 2 * 1024 * 256 * 2


def test_a_fusion_that_is_a_copy_reads_and_writes_all():
    module = module_of(
        """%a = bf16[64,1024,256]{2,1,0:T(16,128)(2,1)} parameter(0)
        ROOT %b = bf16[64,1024,256]{2,1,0:T(8,128)(2,1)} fusion(%a), kind=kLoop, calls=%tiled""",
        TILED[0],
    )
    assert of(module, "b") == 2 * 64 * 1024 * 256 * 2


def test_single_numbers_cross_nothing_wherever_they_are_placed():
    module = module_of(
        """%a = s32[]{:T(128)} parameter(0)
        %b = f32[1,1]{1,0:T(1,128)} parameter(1)
        ROOT %c = s32[]{:T(128)} add(%a, %a)
        %d = f32[1,1]{1,0:T(1,128)} negate(%b)"""
    )
    assert of(module, "c") == of(module, "d") == 0


def test_a_scatter_reads_and_writes_the_rows_that_it_adds_to():
    body = computation(
        "scattered",
        """%p0 = f32[4096,256]{1,0:T(8,128)} parameter(0)
        %p1 = s32[1024]{0:T(1024)S(1)} parameter(1)
        %p2 = f32[1024,256]{1,0:T(8,128)S(1)} parameter(2)
        ROOT %s = f32[4096,256]{1,0:T(8,128)} scatter(%p0, %p1, %p2), update_window_dims={1}, to_apply=%add""",
    )
    module = module_of(
        """%a = f32[4096,256]{1,0:T(8,128)} parameter(0)
        %i = s32[1024]{0:T(1024)S(1)} parameter(1)
        %u = f32[1024,256]{1,0:T(8,128)S(1)} parameter(2)
        ROOT %b = f32[4096,256]{1,0:T(8,128)} fusion(%a, %i, %u), kind=kCustom, calls=%scattered""",
        body,
    )
    moved = traffic_of(module.entry.instructions["b"])
    assert (moved.read, moved.written, moved.ways) == (MIB, MIB, 2)
