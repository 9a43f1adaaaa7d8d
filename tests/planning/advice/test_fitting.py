"""The changes after which a step fits: whole texts, and silence where the arithmetic does not hold."""

from __future__ import annotations

import dataclasses

import jax
import pytest

from anytpu.planning.advice.facts import Facts
from anytpu.planning.advice.findings import findings
from anytpu.planning.advice.fitting import larger_slices
from anytpu.planning.advice.residuals import Residuals
from anytpu.planning.advice.slices import slices_that_hold
from anytpu.planning.costs.prices import read_prices
from anytpu.planning.memory.batches import MemoryLine, fit_line
from anytpu.planning.records import Holding, MemoryUse
from anytpu.program import of
from anytpu.program.program import Program
from anytpu.units import GIB, MIB
from planning.predictions import prediction

LIMIT = 16 * GIB


def line(fixed_gib: float, growing_gib: float, batch: int = 1024, devices: int = 8) -> MemoryLine:
    """Return a memory that grows by so much at a batch, of at most 16 GiB."""
    return MemoryLine(fixed_gib * GIB, growing_gib * GIB / batch, LIMIT, devices)


def said(
    known: MemoryLine, facts: Facts, largest: int = 256, tpu: str = "v3-8", start: str = ""
) -> list[tuple[str, str]]:
    """Return the text and the evidence of each finding whose text begins so, for a batch of 1,024."""
    need = int(known.fixed_bytes + known.growing_bytes(1024))
    memory = MemoryUse(need, LIMIT, said="Ran out of memory")
    one = prediction(memory=memory, largest_batch=largest, tpu=tpu)
    return [(each.text, each.evidence) for each in findings(one, facts, known) if each.text.startswith(start)]


BLOCKS = Residuals(total_bytes=1000, blocks=24, kept_bytes=120)


def test_rematerialisation_that_makes_it_fit():
    assert said(line(2, 60), Facts(residuals=BLOCKS), start="Remat") == [
        (
            "Rematerialise by block: jax.checkpoint(block)(x, weights) around each of about 24 blocks.",
            "60 GiB grow with the batch; of what the forward pass keeps for the backward pass, 12% would be left: "
            "about 9.2 GiB of 16 GiB, for about a third more computation (estimated from the traced step).",
        )
    ]
    (told,) = said(line(2, 60), Facts(residuals=BLOCKS, is_model=True), start="Remat")
    assert told[0] == (
        "Rematerialise by block: keras.remat(lambda x: block(x))(x), in the call of a layer, around each of about 24 "
        "blocks of layers."
    )


def test_rematerialisation_saves_nothing_of_the_batches():
    # 24 GiB over 8 devices are 3 GiB on each, and the next batch as much.
    facts = Facts(residuals=BLOCKS, batch_bytes=24 * GIB)
    ((_, evidence),) = said(line(2, 60), facts, start="Remat")
    assert evidence.startswith("60 GiB grow with the batch, 6 GiB of it this batch and the next; of what the forward")
    assert "12% would be left: about 14.5 GiB of 16 GiB" in evidence  # 2 + 6 + 54 * 0.12
    assert said(line(2, 60), Facts(residuals=BLOCKS, batch_bytes=240 * GIB), largest=256, start="Remat") == []


def test_the_line_leaves_batches_out_that_the_compiler_made_fit():
    free, full = MemoryUse(int(14.3 * GIB), int(15.7 * GIB)), MemoryUse(int(15.6 * GIB), int(15.7 * GIB))
    missing = MemoryUse(int(20.8 * GIB), int(15.7 * GIB), said="Ran out of memory")
    half = MemoryUse(int(7.5 * GIB), int(15.7 * GIB))
    tried = [(131072, free), (167936, full), (262144, missing)]
    with_half, without = fit_line([*tried, (65536, half)], 1), fit_line(tried, 1)
    assert with_half is not None and without is not None
    assert with_half.growing_bytes(262144) + with_half.fixed_bytes == pytest.approx(27.9 * GIB, rel=0.01)
    assert without.growing_bytes(262144) + without.fixed_bytes == pytest.approx(20.8 * GIB)


def test_rematerialisation_that_makes_a_larger_batch_fit():
    ((_, evidence),) = said(line(2, 400), Facts(residuals=BLOCKS), largest=64, start="Remat")
    assert "12% would be left: a batch of about 256 then fits, where 64 fit today, for" in evidence


def test_rematerialisation_that_helps_little_is_not_told():
    assert said(line(2, 400), Facts(residuals=BLOCKS), largest=256, start="Remat") == []
    assert said(line(15.9, 60), Facts(residuals=BLOCKS), largest=0, start="Remat") == []
    assert said(line(2, 60), Facts(residuals=Residuals(1000, 4, 950)), start="Remat") == []
    assert said(line(2, 60), Facts(), start="Remat") == []


def test_flash_attention():
    saved = Residuals(1000, 24, 900, attention_bytes=800, attention="float32[64,16,1024,1024]")
    assert said(line(2, 60), Facts(residuals=saved), start="Use flash") == [
        (
            "Use flash attention: flash_attention(q, k, v) of jax.experimental.pallas.ops.tpu.flash_attention.",
            "80% of what the forward pass keeps for the backward pass are products of queries and keys, such as "
            "float32[64,16,1024,1024], which flash attention never keeps: about 14 GiB of 16 GiB (estimated from the "
            "traced step).",
        )
    ]
    ((text, _),) = said(line(2, 60), Facts(residuals=saved, is_model=True), start="Use flash")
    assert text == "Use flash attention: keras.config.enable_flash_attention() before the model is made."
    little = Residuals(1000, 24, 900, 100, "float32[8,8,128,128]")
    assert said(line(2, 60), Facts(residuals=little), start="Use flash") == []


def test_accumulation():
    known = Facts(state_bytes=1536 * MIB)
    assert said(line(2, 40), known, start="Accumulate") == [
        (
            "Accumulate gradients: jax.lax.scan over 4 micro-batches of 256, then one update with the sum of their "
            "gradients.",
            "A batch of 256 needs about 12 GiB, the sum of the gradients at most 1.5 GiB: 13.5 GiB of 16 GiB "
            "(estimated from two compiled batches). Batch statistics, as of BatchNorm, are then those of 256 examples.",
        )
    ]
    ((text, _),) = said(line(2, 40), Facts(state_bytes=1536 * MIB, is_model=True), start="Accumulate")
    assert text == "Accumulate gradients: gradient_accumulation_steps=4 in the optimizer, and batches of 256."


def test_accumulation_whose_sum_does_not_fit_is_not_told():
    assert said(line(2, 40), Facts(state_bytes=5 * GIB), start="Accumulate") == []
    assert said(line(20, 40), Facts(state_bytes=GIB), largest=0, start="Accumulate") == []


STATE = Facts({"w1": (8192, 32768), "w2": (32768, 8192), "m/w1": (8192, 32768), "bias": (8192,)}, state_bytes=12 * GIB)


def test_splitting_the_state():
    assert said(line(18, 2), STATE, largest=0, start="Split") == [
        (
            'Split the state over the 8 devices: layout="fsdp" (--layout fsdp).',
            "12 GiB of the state are whole on each device, 1.5 GiB if they are split: about 13.5 GiB of 16 GiB "
            "(estimated, with the largest array whole while it is used).",
        )
    ]


def test_splitting_that_does_not_make_it_fit_is_not_told():
    assert said(line(40, 2), STATE, largest=0, start="Split") == []
    assert said(line(18, 2), Facts({"w": (8191, 8191)}, state_bytes=12 * GIB), largest=0, start="Split") == []
    assert said(line(18, 2, devices=1), STATE, largest=0, tpu="v5e-1", start="Split") == []


SPEC = jax.ShapeDtypeStruct
# A product of 1e15 FLOPs.
STEP = of(
    lambda w, x: (w, x @ w), (SPEC((100_000, 100_000), "bfloat16"), SPEC((50_000, 100_000), "bfloat16")), "infer",
    batch_axis=0,
)  # fmt: skip


def held(
    known: MemoryLine | None, tpu: str = "v3-8", need_gib: float = 62, step: Program | None = STEP
) -> tuple[Holding, ...]:
    """Return the slices that would hold a step of 1,024 examples."""
    one = prediction(memory=MemoryUse(int(need_gib * GIB), LIMIT, said="Ran out of memory"), tpu=tpu)
    return slices_that_hold(one, known, read_prices(), step)


def named(holding: tuple[Holding, ...]) -> list[tuple[str, str]]:
    """Return the text and the evidence of each slice that is advised."""
    one = dataclasses.replace(prediction(memory=MemoryUse(62 * GIB, LIMIT, said="Ran out of memory")), holding=holding)
    return [(each.text, each.evidence) for each in larger_slices(one)]


def test_the_smallest_slice_of_each_chip_that_holds_it():
    holding = {slice_.target.chip.name: slice_ for slice_ in held(line(2, 60))}
    assert [slice_.target.name for slice_ in holding.values()] == [
        "v7x-8",
        "v5p-16",
        "v3-64",
        "v4-64",
        "v6e-32",
        "v5e-64",
    ]
    v5p = holding["v5p"]
    assert v5p.usd_per_hour == 33.6 and v5p.least_step_s == pytest.approx(1e15 / (459e12 * 8))
    assert v5p.need_bytes == 62 * GIB <= v5p.limit_bytes
    # Nobody published a price of v7x.
    assert (holding["v7x"].usd_per_hour, holding["v7x"].least_usd_per_step) == (None, None)


def test_the_slice_that_costs_least_and_the_fastest_are_advised():
    # v5p-16 has the fewest chips; v6e-32 does a step for less, and sooner.
    assert named(held(line(2, 60))) == [
        (
            "Use v6e-32 (32 chips, $86.40 an hour): of the smallest slices that hold it, a step costs least and takes "
            "least time there.",
            "With 32 examples a device it needs about 17 GiB of 31.2 GiB (estimated, not compiled). At the peak of its "
            "chips, a floor: 34 ms a step and $0.80 a million examples.",
        )
    ]


def test_the_fastest_is_advised_beside_the_one_that_costs_least():
    v5p, v6e = (slice_ for slice_ in held(line(2, 60)) if slice_.target.chip.name in ("v5p", "v6e"))
    slow = dataclasses.replace(v6e, least_step_s=0.28)
    dear = dataclasses.replace(v5p, price=dataclasses.replace(read_prices()["v5p"], usd_per_chip_hour=40.0))
    assert [text for text, _ in named((dear, slow))] == [
        "Use v6e-32 (32 chips, $86.40 an hour): of the smallest slices that hold it, a step costs least there.",
        "Use v5p-16 (8 chips, $320.00 an hour): of the smallest slices that hold it, a step takes least time there.",
    ]


def test_a_slice_alone_is_the_smallest():
    assert named(held(line(2, 60))[1:2])[0][0] == (
        "Use v5p-16 (8 chips, $33.60 an hour), the smallest slice of v5p that holds it."
    )


def test_without_a_line_as_many_devices_of_another_chip():
    assert [slice_.target.name for slice_ in held(None)] == ["v7x-8", "v5p-16"]
    # A program with a mesh of its own is for one number of devices, whatever its batch.
    assert [slice_.target for slice_ in held(line(2, 60), step=None)] == [slice_.target for slice_ in held(None)]


def test_no_slice_is_told_where_none_holds_it():
    assert held(line(300, 1)) == held(None, need_gib=200) == ()
    assert said(line(300, 1), Facts(), largest=0) == []


def test_a_program_with_a_mesh_of_its_own_stays_on_its_devices():
    assert said(line(2, 60), Facts(is_placed=True), start="Use v") == []
