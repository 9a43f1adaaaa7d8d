"""Each finding: what it says, with which numbers, and that it is silent where there is nothing to gain."""

from __future__ import annotations

import dataclasses

from anytpu.planning.advice.facts import Facts
from anytpu.planning.advice.findings import findings
from anytpu.planning.records import BatchPadding, MemoryUse, OpTime, StepTime
from anytpu.units import GIB
from planning.predictions import MIB, buffer, prediction


def found(topic: str, one, weights=None, **facts) -> list[str]:
    known = Facts(weights or {}, **facts)
    return [line for each in findings(one, known) if each.topic == topic for line in (each.text, each.evidence)]


def test_nothing_to_say_of_a_good_step():
    assert findings(prediction(), Facts()) == []


PADDED = BatchPadding(rows=13, unit=8, share=0.17, largest="f32[13,512]")


def test_a_batch_whose_rows_the_memory_pads():
    assert found("batch", prediction(batch_size=104, batch_padding=PADDED)) == [
        "Use a batch of 128: a multiple of 8 devices x 8 rows.",
        "104 examples are 13 a device. The memory takes arrays such as f32[13,512] by 8 rows, and 17% of the bytes "
        "that the operations of a step take and return are padding for it.",
    ]


def test_rows_that_no_layout_pads_are_no_fault():
    assert found("batch", prediction(batch_size=104)) == []
    little = dataclasses.replace(PADDED, share=0.04)
    assert found("batch", prediction(batch_size=104, batch_padding=little)) == []
    # Eleven times the batch is another training.
    lanes = dataclasses.replace(PADDED, rows=12, unit=128)
    assert found("batch", prediction(batch_size=96, batch_padding=lanes)) == []


def test_a_batch_that_the_devices_do_not_divide():
    assert found("batch", prediction(batch_size=12)) == [
        "Use a batch of 16: a multiple of 8 devices.",
        "12 examples are 1.5 a device. A step takes as long as one of 16 examples: the last devices take fewer.",
    ]


def test_a_batch_that_is_split_in_fewer_parts_than_devices():
    assert found("batch", prediction(batch_size=12), batch_parts=1) == []
    assert found("batch", prediction(batch_size=13, batch_padding=PADDED), batch_parts=1)[0] == (
        "Use a batch of 16: a multiple of 8 rows."
    )
    assert found("batch", prediction(batch_size=52, batch_padding=PADDED), batch_parts=4) == [
        "Use a batch of 64: a multiple of 4 parts of the batch x 8 rows.",
        "52 examples in 4 parts are 13 a device. The memory takes arrays such as f32[13,512] by 8 rows, and 17% of the "
        "bytes that the operations of a step take and return are padding for it.",
    ]
    roomy = prediction(batch_size=12, memory=MemoryUse(2 * MIB, 10 * MIB), flops=1e11, peak_flops_per_s=6e13)
    assert found("batch", roomy, batch_parts=1)[::2] == [
        "Try a batch of 24, with the learning rate that goes with it.",
    ]


def test_room_for_twice_the_batch():
    roomy = prediction(memory=MemoryUse(2 * MIB, 10 * MIB), flops=1e11, peak_flops_per_s=6e13)
    assert found("batch", roomy) == [
        "Try a batch of 2,048, with the learning rate that goes with it.",
        "A step uses 2 MiB of 10 MiB and 17% of the peak of the matrix units.",
    ]
    # Padding that takes next to nothing asks for no more rows.
    little = dataclasses.replace(PADDED, share=0.01)
    assert found("batch", dataclasses.replace(roomy, batch_size=104, batch_padding=little))[0].startswith(
        "Try a batch of 208,"
    )
    # Inference has no learning rate.
    (text, _) = found("batch", dataclasses.replace(roomy, mode="infer"))
    assert text == "Try a batch of 2,048."
    # Nor has a step that was not told to be inference, and has no backward pass.
    ops = (OpTime("fusion.1", "fusion", "matmul", 0.01, flops=1e11, source="decode.py:7"),)
    decode = dataclasses.replace(roomy, time=StepTime(ops, 0.01, (0.009, 0.011)))
    assert found("batch", decode)[0] == "Try a batch of 2,048."


def test_a_batch_is_advised_once():
    ops = (OpTime("f.1", "fusion", "matmul", 0.006), OpTime("all-reduce", "all-reduce", "collective", 0.004))
    roomy = prediction(ops, memory=MemoryUse(2 * MIB, 10 * MIB), flops=1e11, peak_flops_per_s=6e13)
    assert [(finding.topic, finding.batch_size) for finding in findings(roomy, Facts())] == [("collectives", 2048)]


WIDE = MemoryUse(
    9 * MIB,
    10 * MIB,
    buffers=(buffer("f32[128,28,28,32]", 3 * MIB), buffer("bf16[128,10]", MIB), buffer("s32[4]", 9 * MIB)),
)


def test_float32_activations():
    assert found("precision", prediction(memory=WIDE), float32_share=1.0) == [
        "Compute in bfloat16: cast the batch and the weights with .astype where the step uses them.",
        "100% of the products multiply float32, which the matrix units round to bfloat16 anyway, and 75% of the bytes "
        "of the largest activations are float32: twice the memory, and twice the time to move them.",
    ]


def test_float32_activations_of_a_keras_model():
    assert found("precision", prediction(memory=WIDE), float32_share=0.9, is_model=True)[0] == (
        'Compute in bfloat16: keras.mixed_precision.set_global_policy("mixed_bfloat16") before the model is made.'
    )


def test_a_program_that_multiplies_bfloat16_computes_in_it_already():
    assert found("precision", prediction(memory=WIDE), float32_share=0.02) == []
    assert found("precision", prediction(memory=WIDE), float32_share=None) == []


def test_gradients_of_weights_are_no_activations():
    gradients = MemoryUse(9 * MIB, 10 * MIB, buffers=(buffer("f32[512,2048]", 4 * MIB), buffer("bf16[128,512]", MIB)))
    known = {"dense/kernel": (512, 2048)}
    assert found("precision", prediction(memory=gradients), known, float32_share=1.0) == []


def test_steps_shorter_than_a_call_of_the_host():
    ops = (OpTime("f.1", "fusion", "matmul", 0.0003), OpTime("dispatch", "host", "host", 0.0001))
    assert found("steps_per_execution", prediction(ops)) == [
        "Start 32 steps with one call: jax.lax.scan(step, state, batches) over 32 batches, or strategy.run_steps.",
        "The devices need 300 µs a step, and a call takes the host 100 µs; 25% of the step is waiting for it.",
    ]
    (finding,) = findings(prediction(ops), Facts(is_model=True))
    assert finding.steps_per_execution == 32
    assert (
        finding.text == "Start 32 steps with one call: model.compile(..., steps_per_execution=32), or leave it to fit."
    )


def test_a_tensor_that_is_mostly_padding():
    one = buffer("f32[1024,28,28,1]", 8 * MIB, "images", logical_bytes=MIB)
    assert found("padding", prediction(memory=MemoryUse(9 * MIB, 10 * MIB, buffers=(one,)))) == [
        "Reshape 'images' so that its two fastest dimensions are multiples of 8 and 128.",
        "f32[1024,28,28,1] takes 8 MiB, 8 times its 1 MiB of numbers.",
    ]


def test_weights_and_their_gradients_have_the_shape_of_their_layer():
    narrow = [
        buffer("f32[15000,32]", 8 * MIB, "embedding gradient", logical_bytes=2 * MIB),
        buffer("f32[15000,32]", 8 * MIB, "copy.3", logical_bytes=2 * MIB),
        buffer("f32[15000,32]", 8 * MIB, "embedding/embeddings", use="state", logical_bytes=2 * MIB),
    ]
    memory = MemoryUse(30 * MIB, 40 * MIB, buffers=tuple(narrow))
    assert found("padding", prediction(memory=memory), {"embedding/embeddings": (15000, 32)}) == []


def test_communication():
    ops = (OpTime("f.1", "fusion", "matmul", 0.006), OpTime("all-reduce", "all-reduce", "collective", 0.004))
    assert found("collectives", prediction(ops)) == [
        "Give each device more rows, or use fewer devices: the gradients are summed once a step, however large it is.",
        "40% of a step is communication between the chips.",
    ]
    # Where a mesh splits weights, what is summed are activations.
    split = Facts(batch_parts=1)
    assert [each for each in findings(prediction(ops), split) if each.topic == "collectives"] == []


def test_an_input_that_is_too_slow():
    ops = (OpTime("f.1", "fusion", "matmul", 0.006), OpTime("input", "input", "input", 0.004))
    assert found("input", prediction(ops)) == [
        "Deliver 170,667 examples/s: more reading workers, records, or smaller images.",
        "40% of a step is waiting for the input pipeline.",
    ]


def test_what_does_not_fit():
    memory = MemoryUse(30 * GIB, 15 * GIB, said="Ran out of memory")
    assert found("memory", prediction(memory=memory, largest_batch=448)) == [
        "Use a batch of 448, the largest that fits.",
        "15 GiB are missing: 30 GiB of 15 GiB.",
    ]


def test_nothing_is_said_of_what_no_chip_holds():
    memory = MemoryUse(200 * GIB, 15 * GIB, said="Ran out of memory")
    assert found("memory", prediction(memory=memory)) == []


def test_what_does_not_fit_is_not_told_to_be_faster():
    ops = (OpTime("f.1", "fusion", "matmul", 0.006), OpTime("all-reduce", "all-reduce", "collective", 0.004))
    memory = MemoryUse(30 * MIB, 16 * MIB, said="Ran out of memory")
    one = prediction(ops, memory=memory, batch_size=1000, largest_batch=448)
    assert {finding.topic for finding in findings(one, Facts())} == {"memory"}
