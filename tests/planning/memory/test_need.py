import dataclasses

import jax
import jax.numpy as jnp
import pytest

from anytpu.errors import PlanError
from anytpu.planning import hlo
from anytpu.planning.compiler.answer import CompiledProgram, OutOfMemory
from anytpu.planning.memory import memory_of, need_bytes, with_next_batch
from anytpu.planning.records import Buffer, MemoryUse
from anytpu.planning.records.target import target_named
from anytpu.program.program import REPLICATED, ROWS, Program
from anytpu.units import GIB, MIB
from planning.hlo.saved import module

V3 = target_named("v3-8")
# What the compiler gave for the module "cnn_v3_entry".
CNN = CompiledProgram(
    hlo="",
    argument_bytes=11707392,
    output_bytes=2074624,
    alias_bytes=2072576,
    temp_bytes=209545216,
    code_bytes=7489536,
    peak_bytes=220966912,
    compiler="libtpu 0.0.51",
    compile_s=63.3,
)


def spec(*shape: int, dtype=jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def cnn() -> Program:
    kernels = [spec(7, 7, 3, 64), spec(3, 3, 64, 64), spec(3, 3, 64, 64), spec(3, 3, 64, 128), spec(3, 3, 128, 128)]
    state = [*kernels, spec(128, 1000)]
    batch = {"image": spec(1024, 112, 112, 3, dtype=jnp.bfloat16), "label": spec(1024, dtype=jnp.int32)}
    names = tuple(f"conv{place}/kernel" for place in range(5))
    return Program(
        name="cnn/train",
        step=lambda state, batch: (state, batch),
        state=state,
        batch=batch,
        layout={"image": ROWS, "label": ROWS},
        state_names=(*names, "head/kernel"),
    )


@pytest.fixture(scope="module")
def of_cnn() -> MemoryUse:
    return memory_of(CNN, module("cnn_v3_entry"), cnn(), V3)


def test_peak_limit_and_upper_bound(of_cnn: MemoryUse):
    assert of_cnn.peak_bytes == 220966912 + 7489536
    assert of_cnn.upper_bound_bytes == 11707392 + 2074624 - 2072576 + 209545216 + 7489536
    assert (of_cnn.limit_bytes / GIB, of_cnn.fits, of_cnn.missing_bytes) == (pytest.approx(15.48, abs=0.006), True, 0)


def test_the_largest_buffers_have_the_names_that_people_use(of_cnn: MemoryUse):
    named = {buffer.name: buffer for buffer in of_cnn.buffers}
    assert [buffer.bytes for buffer in of_cnn.buffers] == sorted(
        (buffer.bytes for buffer in of_cnn.buffers), reverse=True
    )
    activation = of_cnn.buffers[0]
    assert (activation.use, activation.shape, activation.bytes) == ("temporary", "bf16[128,56,56,64]", 51380224)
    assert (activation.name, activation.layer) == ("conv0 output", "conv0")
    image, kernel, code = named["batch/image"], named["conv3/kernel"], named["program code"]
    assert (image.use, image.shape, image.logical_bytes) == ("batch", "bf16[128,112,112,3]", 128 * 112 * 112 * 3 * 2)
    assert (kernel.use, kernel.shape, kernel.bytes, kernel.layer) == ("state", "f32[3,3,64,128]", 294912, "")
    assert (code.use, code.bytes) == ("code", 7489536)
    assert named["batch/label"].use == "batch"


def test_padding_is_told_per_buffer_and_in_sum(of_cnn: MemoryUse):
    (first,) = (buffer for buffer in of_cnn.buffers if buffer.name == "conv0/kernel")
    assert (first.logical_bytes, first.bytes) == (7 * 7 * 3 * 64 * 4, 7 * 3 * 8 * 128 * 4)
    assert first.padding_factor == pytest.approx(16 / 7)
    known = sum(buffer.bytes - buffer.logical_bytes for buffer in of_cnn.buffers)
    assert 0 < of_cnn.padding_waste_bytes <= known + 4096


def test_what_takes_turns_counts_once():
    # On chips with more memory beside the units the compiler's peak also counts that: then the sum is less.
    assert need_bytes(dataclasses.replace(CNN, peak_bytes=10**9)) == 221254656 + 7489536
    assert need_bytes(dataclasses.replace(CNN, peak_bytes=None)) == 221254656 + 7489536
    assert need_bytes(CNN) == 220966912 + 7489536


def test_what_the_compiler_accepted_fits():
    tight = dataclasses.replace(CNN, temp_bytes=17 * GIB, peak_bytes=17 * GIB)
    memory = memory_of(tight, module("cnn_v3_entry"), cnn(), V3)
    assert (memory.peak_bytes, memory.fits) == (memory.limit_bytes, True)


TOY = """HloModule toy, is_scheduled=true, num_partitions=8

FileNames
1 "/u/model.py"

FunctionNames
1 "block"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=3 end_column=3}

StackFrames
1 {file_location_id=1 parent_frame_id=1}


ENTRY %main (p1: f32[1024], p0: f32[1024]) -> (f32[1024], f32[2048], f32[1024]) {
  %p1 = f32[1024]{0} parameter(0), metadata={op_name="leaves[2]"}
  %p0 = f32[1024]{0} parameter(1), metadata={op_name="leaves[0]"}
  %p2 = f32[2048]{0} parameter(2), metadata={op_name="leaves[1]"}
  %made = f32[4096]{0} negate(%p1), metadata={op_name="jit(f)/transpose(jvp(block1))/neg" stack_frame_id=1}
  %moved = f32[4096]{0} copy(%made)
  %other = f32[512]{0} slice(%moved)
  %new = f32[1024]{0} fusion(%other, %p0), kind=kLoop, calls=%body, metadata={op_name="jit(f)/sgd/sub"}
  %loss = f32[1024]{0} fusion(%new, %other), kind=kLoop, calls=%body, metadata={op_name="jit(f)/jvp(loss)/sum"}
  ROOT %t = (f32[1024]{0}, f32[2048]{0}, f32[1024]{0}) tuple(%new, %p2, %loss)
}
"""


def toy() -> Program:
    state, batch = {"w": spec(1024), "v": spec(2048)}, (spec(1024), {"more": [spec(8)]})
    layout = (ROWS, {"more": [REPLICATED]})
    names = ("dense/kernel", "dense/bias")
    return Program("toy/train", lambda state, batch: (state, batch), state, batch, layout, state_names=names)


def buffers_of(text: str, program: Program) -> dict[str, tuple[str, str, str]]:
    memory = memory_of(CNN, hlo.parse(text), program, V3)
    return {buffer.name: (buffer.use, buffer.layer, buffer.source) for buffer in memory.buffers if buffer.use != "code"}


def test_arguments_by_position_temporaries_by_what_made_them():
    assert buffers_of(TOY, toy()) == {
        "dense/kernel": ("state", "", ""),
        "dense/bias": ("state", "", ""),
        "batch/0": ("batch", "", ""),
        "block1 gradient": ("temporary", "block1", "model.py:12"),
    }


def test_results_are_outputs():
    late = TOY.replace("negate(%p1)", "slice(%p1)").replace("f32[4096]", "f32[8]")
    assert buffers_of(late, toy()) == {
        "dense/kernel": ("state", "", ""),
        "dense/bias": ("state", "", ""),
        "batch/0": ("batch", "", ""),
        "other": ("temporary", "", ""),
        "dense/kernel, updated": ("output", "sgd", ""),
        "loss output": ("output", "loss", ""),
    }


def test_a_state_without_names_and_arguments_nobody_knows():
    nameless = dataclasses.replace(toy(), state_names=())
    assert {"state/0", "batch/0"} <= set(buffers_of(TOY, nameless))
    assert "argument 9" in buffers_of(TOY.replace("leaves[2]", "leaves[9]"), toy())


def test_a_program_that_does_not_fit():
    said = "Ran out of memory on HBM, the total memory required for HLO temporaries (24.00G) exceeds available HBM"
    answer = OutOfMemory(
        needed_bytes=24 * GIB,
        limit_bytes=15 * GIB,
        said=said,
        allocations=(
            (65536, "f32[1024]{0}", "leaves[0]"),
            (131072, "f32[128,1]{1,0:T(8,128)}", "jit(f)/jvp(block1)/mul"),
            (4096, "u32[]", ""),
        ),
        compiler="libtpu 0.0.51",
        compile_s=0.9,
    )
    memory = memory_of(answer, None, toy(), V3)
    assert (memory.peak_bytes, memory.limit_bytes, memory.said) == (24 * GIB, 15 * GIB, said)
    assert (memory.fits, memory.missing_bytes) == (False, 9 * GIB)
    assert [
        (buffer.name, buffer.use, buffer.bytes, buffer.logical_bytes, buffer.layer) for buffer in memory.buffers
    ] == [
        ("block1 output", "temporary", 131072, 512, "block1"),
        ("dense/kernel", "state", 65536, 4096, ""),
        ("u32[]", "temporary", 4096, 4, ""),
    ]


def test_a_compiled_program_needs_its_module():
    with pytest.raises(PlanError) as caught:
        memory_of(CNN, None, toy(), V3)
    assert str(caught.value) == ("the memory of 'toy/train' needs its compiled module: hand over hlo.parse(answer.hlo)")


def test_where_the_compiler_lists_no_buffers_the_arguments_are_shown():
    answer = OutOfMemory(24 * GIB, 15 * GIB, "Ran out of memory on HBM.", (), "libtpu 0.0.51", 0.9)

    def step(state, batch):
        image, _ = batch.values()
        return [state[0] + jnp.sin(image.astype(jnp.float32)).sum(), *state[1:]], {}

    memory = memory_of(answer, None, dataclasses.replace(cnn(), step=step), V3)
    assert memory.said == (
        "Ran out of memory on HBM.\n"
        "(The compiler lists no buffers. Those shown are the arguments of the step, without padding.)"
    )
    assert (memory.peak_bytes, memory.missing_bytes) == (24 * GIB, 9 * GIB)
    assert {"head/kernel", "conv4/kernel"} <= {buffer.name for buffer in memory.buffers}
    largest, arguments_bytes = memory.buffers[0], sum(buffer.bytes for buffer in memory.buffers[1:])
    assert (largest.name, largest.use) == ("temporaries and padding, together", "temporary")
    assert largest.bytes == largest.logical_bytes == 24 * GIB - arguments_bytes


WEIGHT = jax.ShapeDtypeStruct((64, 64), "float32")
IMAGES = jax.ShapeDtypeStruct((8192, 1024, 64), "float32")  # 2 GiB, 256 MiB a device
MASK = jax.ShapeDtypeStruct((8, 64), "float32")
SPLIT = Program("net/train", lambda s, b: (s, b), WEIGHT, (IMAGES, MASK), (ROWS, REPLICATED), state_names=("w",))


def test_what_is_split_travels_and_what_each_device_holds_does_not():
    memory = with_next_batch(MemoryUse(2 * GIB, 4 * GIB, 3 * GIB), SPLIT, V3)
    assert (memory.peak_bytes, memory.upper_bound_bytes) == (2 * GIB + 256 * MIB, 3 * GIB + 256 * MIB)
    assert memory.buffers == (Buffer("the next batch", "batch", 256 * MIB, 256 * MIB, ""),)


def test_it_is_padded_as_the_compiler_lays_it():
    padded = Buffer("batch/0", "batch", 512 * MIB, 256 * MIB, "f32[1024,1024,64]")
    memory = with_next_batch(MemoryUse(2 * GIB, 4 * GIB, buffers=(padded,)), SPLIT, V3)
    assert (memory.peak_bytes, memory.upper_bound_bytes) == (2 * GIB + 512 * MIB, None)


def test_what_fits_alone_may_not_fit_with_it():
    alone = MemoryUse(4 * GIB - MIB, 4 * GIB)
    assert alone.fits
    assert with_next_batch(alone, SPLIT, V3).missing_bytes == 255 * MIB


def test_code_without_rows_has_no_next_batch():
    memory = MemoryUse(2 * GIB, 4 * GIB)
    assert with_next_batch(memory, dataclasses.replace(SPLIT, layout=(REPLICATED, REPLICATED)), V3) == memory
