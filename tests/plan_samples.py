"""Plans made by hand, as large and as odd as real ones: what the reports are tried on."""

from __future__ import annotations

import dataclasses
import math

from anytpu.planning.records import (
    Advice,
    Buffer,
    Cost,
    Holding,
    HostLoad,
    MemoryUse,
    OpTime,
    Plan,
    Prediction,
    Price,
    StepTime,
)
from anytpu.planning.records.shardings import Sharding, Shardings
from anytpu.planning.records.target import target_named
from anytpu.sharding import resolve
from anytpu.units import GIB, MIB

BY = "the TPU compiler (libtpu 0.0.51)"
EXAMPLES, EPOCHS = 1_281_167, 90
RETIRED = "retired: not sold to new users"
PRICES = {
    "v2": Price("v2", 1.125, 0.3375, 0.05, "2026-03", "the clouds' catalogue", RETIRED),
    "v3": Price("v3", 2.0, 0.88, 0.05, "2026-03", "the clouds' catalogue", RETIRED),
    "v5e": Price("v5e", 1.2, 0.48, 0.1, "2026-03", "the clouds' catalogue"),
    "v6e": Price("v6e", 2.7, 1.35, 0.2, "2026-03", "the clouds' catalogue"),
}
LAYERS = (
    ("conv1_conv", "resnet.py:41", 2.1),
    *((f"conv2_block{n}_2_conv", f"resnet.py:{60 + n}", 1.4) for n in range(1, 4)),
    *((f"conv3_block{n}_2_conv", f"resnet.py:{70 + n}", 1.0) for n in range(1, 5)),
    *((f"conv4_block{n}_2_conv", f"resnet.py:{80 + n}", 0.8) for n in range(1, 7)),
    *((f"conv5_block{n}_2_conv", f"resnet.py:{90 + n}", 0.9) for n in range(1, 4)),
)


def ops(total_s: float, flops: float, hbm_bytes_per_s: float) -> tuple[OpTime, ...]:
    """Return the operations of a ResNet-50's step: forward and backward convolutions, statistics, a sum."""
    made = []
    weight = sum(part for _, _, part in LAYERS)
    for number, (layer, source, part) in enumerate(LAYERS):
        for is_backward in (False, True):
            share = part / weight * (0.5 if is_backward else 0.25)
            made.append(
                OpTime(
                    f"fusion.{2 * number + is_backward}", "fusion", "matmul", total_s * share, 1,
                    flops * share / 0.75, total_s * share * hbm_bytes_per_s * (0.05 + 0.06 * (number % 9)),
                    layer, source, is_backward, "compute" if number % 3 else "memory",
                )
            )  # fmt: skip
    bn, block = ("conv1_bn", "resnet.py:44"), ("conv4_block1_0_conv", "resnet.py:80")
    made += [
        OpTime("fusion.90", "fusion", "vector", total_s * 0.09, 1, 0.0, 2.1e9, *bn, False, "memory"),
        OpTime("copy.3", "copy", "memory", total_s * 0.06, 1, 0.0, 1.4e9, "", "", False, "memory", "bandwidth"),
        OpTime(
            "all-reduce.1",
            "all-reduce",
            "collective",
            total_s * 0.05,
            bytes=5.1e7,
            bound="network",
            priced_by="network",
        ),
        OpTime("copy-done.7", "copy-done", "copy", total_s * 0.03, 4, 0.0, 3.3e8, *block, False, "memory", "bandwidth"),
        OpTime("dispatch", "host", "host", total_s * 0.02, 1, priced_by="calibration"),
    ]
    return tuple(made)


def buffers(batch: int) -> tuple[Buffer, ...]:
    """Return the largest arrays of a batch on one device."""
    size, image, dense = batch * 112 * 112 * 64 * 2, batch * 224 * 224 * 2, 2048 * 4
    shape, last = f"bf16[{batch},112,112,64]", ("predictions", "resnet.py:99")
    return (
        Buffer("conv1_conv output", "temporary", size, size, shape, "conv1_conv", "resnet.py:41"),
        Buffer("conv1_relu output", "temporary", size, size, shape, "conv1_relu", "resnet.py:46"),
        Buffer("images", "batch", image * 16, image * 3, f"bf16[{batch},224,224,3]"),
        Buffer("predictions/kernel", "state", dense * 1024, dense * 1000, "f32[2048,1000]", *last),
        Buffer("predictions/kernel momentum", "state", dense * 1024, dense * 1000, "f32[2048,1000]"),
        Buffer("program", "code", 21 * MIB, 21 * MIB, ""),
    )


def prediction(name: str, batch: int, rate: float, limit_gib: float, **changes) -> Prediction:
    """Return the prediction of a system that computes `rate` examples a second and device at a large batch.

    Args:
        name: "v3-8".
        batch: examples of a step over all devices.
        rate: examples a second of one device, at best.
        limit_gib: memory of one device.
        changes: attributes to set in another way.
    """
    target = target_named(name)
    share = batch / target.devices
    step_s = (share + 8) / rate + 0.0004 * target.devices**0.5
    peak = int(0.35 * GIB + share * 33 * MIB)
    flops = share * 24.6e9
    known = EVIDENCE.get(target.chip.name, ())
    time = StepTime(ops(step_s, flops, target.hbm_bytes_per_s), step_s, (0.86 * step_s, 1.15 * step_s), (), known)
    held = buffers(round(share))
    waste = sum(buffer.bytes - buffer.logical_bytes for buffer in held)
    memory = MemoryUse(peak, int(limit_gib * GIB), int(peak * 1.19), held, waste)
    made = Prediction(
        program="resnet50/train",
        mode="train",
        target=target,
        batch_size=batch,
        predicted_by=BY,
        memory=memory,
        time=time,
        flops=flops,
        peak_flops_per_s=target.flops_per_s,
        compile_s=41.2,
    )
    made = made if memory.fits else unfit(made)
    return dataclasses.replace(made, **{"cost": cost(made), **changes})


EVIDENCE = {
    "v2": ("ResNet-50 at 1,024 images on v2-8, published 228.9 ms: predicted 236.1 ms, 3.1 % above.",),
    "v3": (
        "ResNet-50 at 2,048 images on v3-8, published 122 ms: predicted 118 ms, 3.3 % below.",
        "Transformer LM on v3-8, published 210 ms: predicted 226 ms, 7.6 % above.",
    ),
    "v6e": ("A matrix product of 8192 x 8192 x 8192, published 1.33 ms: predicted 1.41 ms, 6 % above.",),
}


def unfit(one: Prediction) -> Prediction:
    """Return the prediction of a program that the compiler refused."""
    assert one.memory is not None
    memory = dataclasses.replace(one.memory, said="RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm.")
    return dataclasses.replace(one, memory=memory, time=None, flops=None, largest_batch=1408)


def cost(one: Prediction) -> Cost | None:
    """Return what a run costs, by the prices of this file."""
    price = PRICES.get(one.target.chip.name)
    if price is None or one.step_s is None or one.batch_size is None:
        return None
    assert price.usd_per_chip_hour is not None and price.spot_usd_per_chip_hour is not None
    usd_per_hour = price.usd_per_chip_hour * one.target.chips
    usd_per_step = usd_per_hour / 3600 * one.step_s
    steps = EXAMPLES / one.batch_size
    spot = price.spot_usd_per_chip_hour / price.usd_per_chip_hour * 1.04
    run_s = steps * EPOCHS * one.step_s
    usd_per_run = usd_per_step * steps * EPOCHS
    return Cost(
        price=price,
        usd_per_hour=usd_per_hour,
        usd_per_step=usd_per_step,
        usd_per_epoch=usd_per_step * steps,
        usd_per_run=usd_per_run,
        run_s=run_s,
        spot_usd_per_run=spot * usd_per_run,
        spot_run_s=1.04 * run_s,
        checkpoint_every_s=2222.0,
    )


ADVICE = (
    Advice(
        "batch", "Raise the batch to 2,048.", "The matrix units are busy 61 % of the time; memory is free up to 2,304.",
        "batch_size=2048", 0.121, 1.18,
    ),
    Advice("padding", "Feed images of 4 channels.", "3 channels take 16 lanes: 5.3 times the size."),
)  # fmt: skip


def five() -> Plan:
    """Return a plan of five systems: one does not fit, two are retired, one has no price."""
    v2 = prediction("v2-8", 2048, 580, 7.48)
    v3 = prediction("v3-8", 2048, 1010, 15.48, advice=ADVICE)
    v5e = prediction("v5e-8", 2048, 1420, 15.75, notes=("The batch is split as 256 examples a chip.",))
    v6e = prediction("v6e-8", 2048, 4480, 31.25, advice=ADVICE[:1])
    v7x = prediction("v7x-8", 2048, 7100, 94.5)
    assert v7x.time is not None
    unpriced = ("custom-call.3: a Pallas kernel without cost_estimate", "while.2: the number of its turns is not known")
    v7x = dataclasses.replace(v7x, time=dataclasses.replace(v7x.time, unpriced=unpriced))
    return Plan("resnet50/train", (v2, v3, v5e, v6e, v7x), examples=EXAMPLES, epochs=EPOCHS)


def one() -> Plan:
    """Return a plan of one system."""
    return Plan("resnet50/train", (five()["v3-8"],), examples=EXAMPLES, epochs=EPOCHS)


def holding() -> tuple[Holding, ...]:
    """Return three slices that would hold a step, of one no price is known."""
    v5e, v6e = (
        Price(chip, usd, None, None, "2026-03", "the clouds' catalogue") for chip, usd in (("v5e", 1.2), ("v6e", 2.7))
    )
    return (
        Holding(target_named("v7x-2"), 2048, int(8.6 * GIB), int(94.5 * GIB), 0.02),
        Holding(target_named("v6e-4"), 2048, int(17.2 * GIB), int(31.25 * GIB), 0.01, v6e),
        Holding(target_named("v5e-16"), 2048, int(8.6 * GIB), int(15.75 * GIB), 0.0075, v5e),
    )


def swept() -> Plan:
    """Return a plan of three systems with a sweep of the batch and of the cores of one."""
    plan = five()
    batches = [
        prediction(name, batch, rate, limit)
        for name, rate, limit in (("v2-8", 580, 7.48), ("v3-8", 1010, 15.48), ("v6e-8", 4480, 31.25))
        for batch in (256, 512, 1024, 4096, 8192)
    ]
    scaled = [prediction(f"v3-{cores}", 256 * cores, 1010, 15.48) for cores in (32, 128, 512, 2048)]
    chosen = (plan["v2-8"], plan["v3-8"], plan["v6e-8"])
    return dataclasses.replace(plan, predictions=chosen, sweep=(*batches, *scaled))


def without_run() -> Plan:
    """Return a plan of two slices with a batch each, of which nobody said how long the run is."""
    slices = (prediction("v3-8", 2048, 1010, 15.48), prediction("v3-32", 8192, 1010, 15.48))
    costs = [(predicted, cost(predicted)) for predicted in slices]
    short = [
        dataclasses.replace(predicted, cost=Cost(known.price, known.usd_per_hour, known.usd_per_step))
        for predicted, known in costs
        if known is not None
    ]
    return Plan("resnet50/train", tuple(short))


def pods() -> Plan:
    """Return a plan of slices of one host and of several, on one of which the step does not fit, and of joined ones."""
    loads = {
        "v6e-8": None,
        "v6e-64": HostLoad(5e10, 4150.0, 6.25e8, 307_000_000, 0.00614),
        "v6e-16": HostLoad(5e10, None, None, 307_000_000, 0.00614),
    }
    made = [prediction(name, 32768, 4480, 31.25, host=load) for name, load in loads.items()]
    joined = prediction(
        "2xv6e-256", 32768, 4480, 31.25, host=HostLoad(5e10, 3900.0, 5.87e8, 307_000_000, 0.00614, 2.5e6)
    )
    return Plan("resnet50/train", tuple(made), sweep=(joined,))


def hostile() -> Plan:
    """Return a plan in which every word of a user is markup, a quotation or a control character."""
    evil = "</style></title><script>alert('x')</script>\"'><img src=http://evil.test/x onerror=alert(1)>&amp;\x07é日本"
    single = five()["v3-8"]
    assert single.time is not None and single.memory is not None
    time = dataclasses.replace(
        single.time,
        ops=tuple(
            dataclasses.replace(op, name=evil, layer=evil, source=evil, opcode=evil) for op in single.time.ops[:3]
        ),
        unpriced=(evil,),
        evidence=(evil,),
    )
    held = tuple(dataclasses.replace(b, name=evil, shape=evil, layer=evil, source=evil) for b in single.memory.buffers)
    target = dataclasses.replace(single.target, name=evil, compiler_name=evil)
    one = dataclasses.replace(
        single, program=evil, target=target, predicted_by=evil, time=time, notes=(evil,),
        memory=dataclasses.replace(single.memory, buffers=held),
        advice=(Advice(evil, evil, evil, evil, 0.1, 1.1),),
    )  # fmt: skip
    return Plan(evil, (one, five()["v2-8"]))


def bare() -> Plan:
    """Return a plan of one system of which neither memory nor price is known."""
    single = dataclasses.replace(five()["v5e-8"], cost=None, memory=None, advice=())
    return Plan("step", (single,))


def floors() -> Plan:
    """Return a plan of three systems that the compiler gave no answer for: one of them does not fit."""
    why = "The TPU compiler, libtpu, is not installed: pip install 'anytpu[plan]'"
    fits = [floor(predicted, why) for predicted in (five()["v3-8"], five()["v6e-8"])]
    v2 = dataclasses.replace(five()["v2-8"], largest_batch=None, compile_s=None)
    return Plan("resnet50/train", (*fits, floor(v2, why)), examples=EXAMPLES, epochs=EPOCHS)


def unbounded(one: Prediction) -> Prediction:
    """Return a prediction as it is where a loop of the step runs nobody knows how often."""
    assert one.time is not None
    time = dataclasses.replace(one.time, interval_s=(one.time.interval_s[0], math.inf))
    return dataclasses.replace(one, time=time)


def floor(one: Prediction, why: str) -> Prediction:
    """Return the floor of a system, with the time that its prediction has."""
    time = None
    if one.step_s is not None:
        op = OpTime("the whole step", "floor", "matmul", one.step_s, flops=1e12, bytes=1e9, priced_by="floor")
        time = StepTime((op,), one.step_s, (one.step_s, math.inf), (), ("The products of the step take that.",))
    assert one.memory is not None
    memory = dataclasses.replace(one.memory, padding_waste_bytes=0, said="")
    note = "This is a floor, not a forecast."
    return dataclasses.replace(
        one, memory=memory, time=time, advice=(), notes=(why, note), predicted_by="a floor", basis="floor"
    )


def layouts() -> Shardings:
    """Return two compiled layouts, one of which does not fit, and one that is only estimated."""
    compiled, target = prediction("v5e-8", 1024, 2000.0, 15.7), target_named("v5e-8")
    fsdp, data = resolve("fsdp", None, 8), resolve("data", None, 8)
    specs, shapes = {"w": (("model",),)}, {"w": (8,)}
    whole = resolve("data", {"data": 4, "model": 2}, 8)
    tensor = dataclasses.replace(whole, name="tensor=2", specs=specs, shapes=shapes, patterns=("w",))
    full = dataclasses.replace(compiled, time=None)
    return Shardings(
        "net/train",
        (
            Sharding(tensor, target, 0.1, 2**30, compiled),
            Sharding(fsdp, target, 0.3, 2**28, None, "not compiled, because 2 layouts have a shorter estimate."),
            Sharding(data, target, 0.2, 2**31, full, "it needs 20 GiB a device."),
        ),
        notes=("A note.",),
    )
