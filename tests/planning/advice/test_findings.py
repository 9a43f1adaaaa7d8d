"""Each finding: what it says, with which numbers, and that it is silent where there is nothing to gain."""

from __future__ import annotations

from anytpu.planning.advice.findings import findings
from anytpu.planning.records import Memory, OpTime
from planning.predictions import MIB, buffer, prediction


def found(topic: str, one, weights=None) -> list[str]:
    return [line for each in findings(one, weights or {}) if each.topic == topic for line in (each.text, each.evidence)]


def test_nothing_to_say_of_a_good_step():
    assert findings(prediction(), {}) == []


def test_a_batch_that_leaves_rows_empty():
    assert found("batch", prediction(batch_size=1000)) == [
        "Use a batch of 1,024: a multiple of 8 devices x 8 rows.",
        "1,000 examples are 125 a device, and the vector units take 8 rows at a time.",
    ]


def test_room_for_twice_the_batch():
    roomy = prediction(memory=Memory(2 * MIB, 10 * MIB), flops=1e11, peak_flops_per_s=6e13)
    assert found("batch", roomy) == [
        "Try a batch of 2,048, with the learning rate that goes with it.",
        "A step uses 2 MiB of 10 MiB and 17% of the matrix units.",
    ]


def test_features_that_do_not_fill_the_lanes():
    weights = {"conv1/kernel": (3, 3, 64, 80), "conv1/bias": (80,), "dense/kernel": (80, 10)}
    ops = (OpTime("fusion.1", "fusion", "matmul", 0.06, layer="conv1"), OpTime("f.2", "fusion", "vector", 0.04))
    assert found("features", prediction(ops), weights) == [
        "Make the 80 features of 'conv1' a multiple of 128: 128.",
        "'conv1' takes 60% of the step, and 80 features fill 62% of the 128 lanes that they occupy.",
    ]


def test_few_features_are_what_a_layer_is_for():
    weights = {"head/kernel": (80, 10), "conv1/kernel": (3, 3, 3, 32), "conv2/kernel": (3, 3, 32, 63)}
    ops = tuple(OpTime(f"f.{n}", "fusion", "matmul", 0.03, layer=name) for n, name in enumerate(["head", "conv1"]))
    assert found("features", prediction((*ops, OpTime("f.3", "fusion", "matmul", 0.03, layer="conv2"))), weights) == []
    at_least = {"conv2/kernel": (3, 3, 32, 64)}
    assert found("features", prediction((OpTime("f.3", "fusion", "matmul", 0.03, layer="conv2"),)), at_least) != []


def test_a_batch_is_advised_once():
    ops = (OpTime("f.1", "fusion", "matmul", 0.006), OpTime("all-reduce", "all-reduce", "collective", 0.004))
    roomy = prediction(ops, memory=Memory(2 * MIB, 10 * MIB), flops=1e11, peak_flops_per_s=6e13)
    assert [(one.topic, one.batch_size) for one in findings(roomy, {})] == [("collectives", 2048)]


def test_float32_activations():
    buffers = (buffer("f32[128,28,28,32]", 3 * MIB), buffer("bf16[128,10]", MIB), buffer("s32[4]", 9 * MIB))
    assert found("precision", prediction(memory=Memory(9 * MIB, 10 * MIB, buffers=buffers))) == [
        "Compute in bfloat16: cast the batch and the weights with .astype where the step uses them.",
        "75% of the bytes of the largest temporaries are float32; the matrix units round to bfloat16 anyway, and every "
        "such array takes twice the memory and twice the time to move.",
    ]


def test_float32_activations_of_a_keras_model():
    memory = Memory(9 * MIB, 10 * MIB, buffers=(buffer("f32[128,28,28,32]", 3 * MIB),))
    (finding,) = findings(prediction(memory=memory), {}, is_model=True)
    assert finding.text == (
        'Compute in bfloat16: keras.mixed_precision.set_global_policy("mixed_bfloat16") before the model is made.'
    )


def test_steps_shorter_than_a_call_of_the_host():
    ops = (OpTime("f.1", "fusion", "matmul", 0.0003), OpTime("dispatch", "host", "host", 0.0001))
    (finding,) = [one for one in findings(prediction(ops), {}) if one.topic == "steps_per_execution"]
    assert finding.steps_per_execution == 32
    assert finding.text == (
        "Start 32 steps with one call: model.compile(..., steps_per_execution=32), or strategy.run_steps."
    )
    assert finding.evidence == "A step takes 400 µs, and 25% of it is the host's call."


def test_a_tensor_that_is_mostly_padding():
    one = buffer("f32[1024,28,28,1]", 8 * MIB, "images", logical_bytes=MIB)
    assert found("padding", prediction(memory=Memory(9 * MIB, 10 * MIB, buffers=(one,)))) == [
        "Reshape 'images' so that its two fastest dimensions are multiples of 8 and 128.",
        "f32[1024,28,28,1] takes 8 MiB, 8 times its 1 MiB of numbers.",
    ]


def test_communication():
    ops = (OpTime("f.1", "fusion", "matmul", 0.006), OpTime("all-reduce", "all-reduce", "collective", 0.004))
    assert found("collectives", prediction(ops)) == [
        "Give each device more rows, or use fewer devices: the gradients are summed once a step, however large it is.",
        "40% of a step is communication between the chips.",
    ]


def test_an_input_that_is_too_slow():
    ops = (OpTime("f.1", "fusion", "matmul", 0.006), OpTime("input", "input", "input", 0.004))
    assert found("input", prediction(ops)) == [
        "Deliver 170,667 examples/s: more reading workers, records, or smaller images.",
        "40% of a step is waiting for the input pipeline.",
    ]


def test_what_does_not_fit():
    memory = Memory(30 * MIB, 16 * MIB, said="Ran out of memory")
    assert found("memory", prediction(memory=memory, largest_batch=448)) == [
        "Use a batch of 448, the largest that fits.",
        "14 MiB are missing: 30 MiB of 16 MiB.",
    ]
    assert found("memory", prediction(memory=memory, largest_batch=0))[0] == (
        "Use a chip with more memory, or split the state over the devices: not one example a device fits."
    )
    assert found("memory", prediction(memory=memory))[0] == "Use a smaller batch, or a chip with more memory."
