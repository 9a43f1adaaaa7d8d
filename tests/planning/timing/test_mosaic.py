import base64

import pytest
from tests.planning.hlo import saved

from anytpu.planning.timing.mosaic import KernelCode, code_of

GRID = """module {
  func.func @main(%i: i32, %j: i32, %x: memref<128x256xf32, #tpu.memory_space<vmem>>,
      %y: memref<128x256xf32, #tpu.memory_space<vmem>>) attributes {iteration_bounds = array<i64: 4, BOUND>,
      scalar_prefetch = 0 : i64, window_params = [
        {transform_indices = @in, window_bounds = array<i64: 128, 256>},
        {transform_indices = @out, window_bounds = array<i64: 128, 256>}]} {
    %zero = arith.constant 0 : index
    %one = arith.constant 1 : index
    %three = arith.constant 3 : index
    %v = vector.load %x[%zero, %zero] : memref<128x256xf32, #tpu.memory_space<vmem>>, vector<128x256xf32>
    scf.for %n = %zero to LIMIT step %one {
      %w = arith.mulf %v, %v : vector<128x256xf32>
      %e = math.exp %w : vector<128x256xf32>
      vector.store %e, %y[%zero, %zero] : memref<128x256xf32, #tpu.memory_space<vmem>>, vector<128x256xf32>
    }
    return
  }
  func.func @in(%i: i32, %j: i32) -> (i32, i32) {
    return %i, %j : i32, i32
  }
  func.func @out(%i: i32, %j: i32) -> (i32, i32) {
    %zero = arith.constant 0 : i32
    return %i, %zero : i32, i32
  }
}"""


def call(code):
    body = base64.b64encode(code.encode()).decode()
    return f'custom-call(%x), backend_config={{"custom_call_config":{{"body":"{body}"}}}}'


def test_a_product_is_counted_as_often_as_the_grid_has_steps():
    module = saved.module("pallas_product_v5e")
    (kernel,) = (
        instruction for instruction in module.entry.instructions.values() if instruction.opcode == "custom-call"
    )
    code = code_of(kernel.text)
    assert code is not None
    assert (code.flops, code.steps) == (2 * 4096**3, 8 * 4 * 4)


def test_loops_count_as_often_as_they_run_and_blocks_that_stay_once():
    code = code_of(call(GRID.replace("BOUND", "5").replace("LIMIT", "%three")))
    block = 128 * 256
    assert code == KernelCode(0.0, 20 * 3 * 2 * block, 4 * block * (20 + 4), 20, least_bytes=4 * block * (20 + 4))


DIVIDED = """  func.func @in(%i: i32, %j: i32) -> (i32, i32) {
    %two = arith.constant 2 : i32
    %zero = arith.constant 0 : i32
    %head = arith.divsi %i, %two : i32
    %rest = arith.remsi %i, %two : i32
    %first = arith.cmpi eq, %rest, %zero : i32
    %near = arith.minsi %j, %rest : i32
    %block = arith.select %first, %near, %zero : i32
    return %head, %block : i32, i32
  }"""
PLAIN = GRID[GRID.index("  func.func @in") : GRID.index("  func.func @out")]


def test_a_block_is_moved_when_its_index_changes():
    code = code_of(call(GRID.replace(PLAIN, DIVIDED + "\n").replace("BOUND", "5").replace("LIMIT", "%three")))
    block = 4 * 128 * 256
    # Heads 0, 0, 1, 1 and always block 0: the input is moved twice, the output once for each head.
    assert code is not None and (code.bytes, code.least_bytes) == (block * (2 + 4), block * (2 + 4))


def test_an_index_map_with_an_operation_that_is_not_known_is_taken_by_what_it_depends_on():
    unknown = DIVIDED.replace("arith.minsi", "arith.shli")
    code = code_of(call(GRID.replace(PLAIN, unknown + "\n").replace("BOUND", "5").replace("LIMIT", "%three")))
    block = 4 * 128 * 256
    assert code is not None and (code.bytes, code.least_bytes) == (block * (20 + 4), block * (1 + 4))


CHOSEN = """  func.func @in(%i: i32, %j: i32, %next: memref<5xi32, #tpu.memory_space<smem>>) -> (i32, i32) {
    %at = arith.index_cast %j : i32 to index
    %block = memref.load %next[%at] : memref<5xi32, #tpu.memory_space<smem>>
    return %i, %block : i32, i32
  }
"""


def test_blocks_that_an_array_chooses_are_those_of_its_values():
    prefetched = GRID.replace("%j: i32, %x", "%j: i32, %next: memref<5xi32, #tpu.memory_space<smem>>, %x", 1)
    text = call(
        prefetched.replace("scalar_prefetch = 0", "scalar_prefetch = 1")
        .replace(PLAIN, CHOSEN)
        .replace("BOUND", "5")
        .replace("LIMIT", "%three")
    )
    unknown, known = code_of(text), code_of(text, ["{ 0, 0, 1, 1, 1 }"])
    block = 4 * 128 * 256
    assert unknown is not None and known is not None
    assert (unknown.bytes, unknown.least_bytes) == (block * (20 + 4), block * (4 + 4))
    assert known.bytes == known.least_bytes == block * (4 * 2 + 4)


def test_a_grid_whose_size_is_not_known_is_that_of_one_step():
    code = code_of(call(GRID.replace("BOUND", str(-(2**63))).replace("LIMIT", "%three")))
    assert code == KernelCode(0.0, 3 * 2 * 128 * 256, 0.0, None, is_endless=True)


DYNAMIC = (
    GRID.replace("BOUND", "5")
    .replace("LIMIT", "%limit")
    .replace(
        "%zero = arith.constant 0 : index",
        "%zero = arith.constant 0 : index\n%limit = arith.index_cast %i : i32 to index",
        1,
    )
)
WHILE = (
    DYNAMIC.replace("scf.for %n = %zero to %limit step %one {", "scf.while : () -> () {\nCONDITION\n} do {")
    .replace("CONDITION", "%more = arith.cmpi slt, %i, %j : i32\nscf.condition(%more)")
    .replace("    }\n    return", "    scf.yield\n    }\n    return")
)


@pytest.mark.parametrize("code", [DYNAMIC, WHILE])
def test_a_loop_of_unknown_length_counts_once_and_has_no_end(code):
    read, block = code_of(call(code)), 128 * 256
    assert read is not None
    assert (read.vector_operations >= 20 * 2 * block, read.bytes, read.is_endless) == (True, 4 * block * (20 + 4), True)


OPERANDS = "(vector<128x64xf32>, vector<64x256xf32>, vector<128x256xf32>)"
PRODUCT = f'"stable_mosaic.tpu.matmul"(%a, %b, %c) : {OPERANDS} -> vector<128x256xf32>'
BRANCH = (
    GRID.replace("BOUND", "5")
    .replace("scf.for %n = %zero to LIMIT step %one {", f"%p = {PRODUCT}\nscf.if %flag {{\n%q = {PRODUCT}")
    .replace(
        "%three = arith.constant 3 : index",
        """%flag = arith.cmpi slt, %i, %j : i32
        %a = arith.constant dense<0.0> : vector<128x64xf32>
        %b = arith.constant dense<0.0> : vector<64x256xf32>
        %c = arith.constant dense<0.0> : vector<128x256xf32>""",
    )
)


def test_products_of_a_branch_count_in_the_steps_in_which_it_runs():
    read, product = code_of(call(BRANCH)), 2 * 128 * 64 * 256
    assert read is not None
    # Of 4 x 5 steps 10 are above the diagonal.
    assert (read.flops, read.least_flops, read.busy_steps) == (30 * product, 30 * product, 15)


def test_products_of_a_branch_with_an_unknown_condition_count_but_are_not_among_the_least():
    unknown = BRANCH.replace("cmpi slt, %i, %j", "cmpi slt, %i, %k").replace(
        "%flag =", "%k = arith.shli %i, %j : i32\n%flag ="
    )
    read, product = code_of(call(unknown)), 2 * 128 * 64 * 256
    assert read is not None
    assert (read.flops, read.least_flops, read.busy_steps) == (40 * product, 20 * product, 20)


def test_what_cannot_be_read_is_nothing():
    assert code_of(call("no code")) is None
    assert code_of('custom-call(%x), custom_call_target="tpu_custom_call"') is None
