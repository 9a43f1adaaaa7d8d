from __future__ import annotations

import dataclasses
import io

import pytest

import plan_samples
from anytpu.planning.page import phrases
from anytpu.planning.page.content import gain_sentence
from anytpu.planning.page.report import PLAN_REPORT
from anytpu.planning.page.terminal import print_plan
from anytpu.planning.records import Advice, MemoryPart, OpTime, Plan
from anytpu.report.terminal import open_console


def printed(plan: Plan, width: int = 80, encoding: str = "utf-8") -> str:
    stream = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    console = open_console(stream)
    console.width = width
    print_plan(console, plan)
    stream.flush()
    text = stream.buffer.getvalue().decode(encoding)  # pyright: ignore[reportAttributeAccessIssue]
    return "\n".join(line.rstrip() for line in text.splitlines())


def test_several_systems():
    text = printed(plan_samples.five())
    assert text.startswith(
        """\
resnet50/train
training, 2,048 examples a step, 1,281,167 examples an epoch, 90 epochs
Predicted, not measured; by the TPU compiler (libtpu 0.0.51).

 system     step          between  examples/s   MFU  memory  of a device
 ───────────────────────────────────────────────────────────────────────────
 v2-8          -                -           -     -   115 %  8.6 of 7.48 GiB
 v3-8     263 ms    226 to 302 ms       7,801  39 %    56 %  8.6 of 15.5 GiB
 v5e-8    187 ms    161 to 215 ms      10,949  17 %    55 %  8.6 of 15.8 GiB
 v6e-8   60.1 ms  51.7 to 69.1 ms      34,099  11 %    28 %  8.6 of 31.2 GiB
 v7x-8   38.3 ms    33 to 44.1 ms      53,452  14 %   9.1 %  8.6 of 94.5 GiB


 system  $/hour  $/epoch   $/run         time  spot $    spot time  save every
 ─────────────────────────────────────────────────────────────────────────────
 v3-8     $8.00    $0.36  $32.84    4 h 6 min  $15.03   4 h 16 min  37 min 2 s
 v5e-8    $9.60    $0.31  $28.08   2 h 56 min  $11.68    3 h 3 min  37 min 2 s
 v6e-8   $21.60    $0.23  $20.29  56 min 21 s  $10.55  58 min 37 s  37 min 2 s

fastest v7x-8, 38.3 ms a step
cheapest v6e-8, $20.29 a run
v2-8     does not fit: a device needs 8.6 GiB of 7.48 GiB, 1.12 GiB too much;
         the largest batch that fits is 1,408.
v5e-8    The batch is split as 256 examples a chip.
v3-8     Retired: not sold to new users.
v7x-8    No price is known.

v2-8  4 chips, 8 cores (v2:2x2), 1.12 GiB too much
"""
    )
    assert text.endswith(
        """\
v7x-8  4 chips, 8 cores (tpu7x:2x2x1), 38.3 ms a step
  time     75 % matrix units, 9.0 % vector units, 6.0 % memory, 5.0 % network,
           3.0 % exposed copies, 2.0 % host
  longest  (outside of layers) 11 %, conv1_bn 9.0 % (resnet.py:44), conv1_conv
           8.8 % (resnet.py:41)
  unpriced custom-call.3: a Pallas kernel without cost_estimate; and 1 more

MFU = FLOPs of the matrix products and convolutions, rematerialised ones not
counted again / (step time x peak rate), of one device.
A run is its steps alone. The start of the machine and the compilation come on
top, assumed as 10 minutes.
Prices: the clouds' catalogue, read in 2026-03.
To rent a TPU, and to give it back: anytpu docs getting_a_tpu
The plan of one system, and the page (--html), also have the longest operations,
the meanings of the kinds of time, and the evidence."""
    )


def test_the_load_of_a_host():
    text = printed(plan_samples.pods())
    assert (
        """
load of one host

 system     hosts  examples/s      input  to slices  checkpoint       write
 ──────────────────────────────────────────────────────────────────────────
 v6e-64        16       4,150  596 MiB/s          -     293 MiB  >= 6.14 ms
 v6e-16         4           -          -          -     293 MiB  >= 6.14 ms
 2xv6e-256    128       3,900  560 MiB/s   2.38 MiB     293 MiB  >= 6.14 ms

A host supplies the rows of its own devices. of network: share of the peak rate
of its network cards that the input takes; to slices: bytes that it sends to
other slices in a step; write: time in which host 0 writes the checkpoint at
that peak rate.

"""
        in text
    )


def test_the_network_of_hosts_of_one_slice():
    pods = plan_samples.pods()
    text = printed(dataclasses.replace(pods, sweep=()))
    assert (
        """
 system  hosts  examples/s      input  of network  checkpoint       write
 ────────────────────────────────────────────────────────────────────────
 v6e-64     16       4,150  596 MiB/s       1.2 %     293 MiB  >= 6.14 ms
 v6e-16      4           -          -           -     293 MiB  >= 6.14 ms
"""
        in text
    )
    assert "load of one host" not in printed(dataclasses.replace(pods, predictions=pods.predictions[:1], sweep=()))


def test_one_system():
    text = printed(plan_samples.one())
    assert (
        """
v3-8  4 chips, 8 cores (v3:2x2), 263 ms a step

  where the time goes
  matrix units    ████████████████████████████▌  75 %  197 ms
  vector units    ███▍  9.0 %  23.6 ms
  memory          ██▎  6.0 %  15.8 ms
  network         █▉  5.0 %  13.1 ms
  exposed copies  █▏  3.0 %  7.88 ms
  host            ▊  2.0 %  5.25 ms
  matrix units: products and convolutions at the speed of the units that
  multiply matrices; vector units: other arithmetic (sums, activations, softmax,
  products with one row) at the speed of its units; memory: operations, products
  included, that mostly wait for the device's main memory (HBM); network:
  exchange between devices; exposed copies: copies between main and on-chip
  memory that no computation overlaps; host: calls by the host computer.

  longest layers
  (outside of layers)                                             11 %   28.9 ms
  conv1_bn                                resnet.py:44           9.0 %   23.6 ms
"""
        in text
    )
    assert (
        """
  longest operations
  fusion.90 conv1_bn                      resnet.py:44           9.0 %   23.6 ms
  copy.3                                                         6.0 %   15.8 ms
  fusion.1 conv1_conv, backward           resnet.py:41           5.9 %   15.5 ms
"""
        in text
    )
    assert text.endswith(
        """
  largest buffers of a device, with the factor of their padding
  conv1_conv output bf16[256,112,112,64]  resnet.py:41                   392 MiB
  conv1_relu output bf16[256,112,112,64]  resnet.py:46                   392 MiB
  images bf16[256,224,224,3]                                    5.33 x   392 MiB
  predictions/kernel f32[2048,1000]       resnet.py:99          1.02 x     8 MiB
  prediction...l momentum f32[2048,1000]                        1.02 x     8 MiB
  program                                                                 21 MiB
  8.6 GiB at the peak, of 15.5 GiB; padding wastes 319 MiB. Without reuse of
  memory between buffers: 10.2 GiB.

  advice
  > Raise the batch to 2,048.
    The matrix units are busy 61 % of the time; memory is free up to 2,304.
    Tried with batch_size=2048: 121 ms a step, 1.18 times the examples a second.
  > Feed images of 4 channels.
    3 channels take 16 lanes: 5.3 times the size.

  evidence
  - ResNet-50 at 2,048 images on v3-8, published 122 ms: predicted 118 ms, 3.3 %
    below.
  - Transformer LM on v3-8, published 210 ms: predicted 226 ms, 7.6 % above.

MFU = FLOPs of the matrix products and convolutions, rematerialised ones not
counted again / (step time x peak rate), of one device.
A run is its steps alone. The start of the machine and the compilation come on
top, assumed as 10 minutes.
Prices: the clouds' catalogue, read in 2026-03.
To rent a TPU, and to give it back: anytpu docs getting_a_tpu"""
    )


def test_a_sweep():
    text = printed(plan_samples.swept())
    assert (
        """
scaling of v3

 system     batch    step        between  examples/s  of ideal  memory
 ─────────────────────────────────────────────────────────────────────
 v3-8       2,048  263 ms  226 to 302 ms       7,801     100 %    56 %
 v3-32      8,192  264 ms  227 to 303 ms      31,072     100 %    56 %
 v3-128    32,768  266 ms  229 to 306 ms     123,229      99 %    56 %
 v3-512   131,072  270 ms  233 to 311 ms     484,667      97 %    56 %
 v3-2048  524,288  279 ms  240 to 321 ms   1,875,887      94 %    56 %
"""
        in text
    )
    assert [line for line in text.splitlines() if line.startswith("batches")] == [
        "batches of v2-8",
        "batches of v3-8",
        "batches of v6e-8",
    ]


@pytest.mark.parametrize("name", ["five", "one", "swept", "bare", "floors"])
def test_80_columns_hold_it(name: str):
    lines = printed(getattr(plan_samples, name)()).splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "…" in line]


@pytest.mark.parametrize("name", ["five", "one", "swept", "hostile", "bare", "floors"])
def test_ascii(name: str):
    text = printed(getattr(plan_samples, name)(), encoding="ascii")
    assert text.isascii()
    assert "##" in text or name not in ("one", "bare")


def test_a_wide_terminal_shows_more():
    text = printed(plan_samples.five(), width=110)
    assert "7,801  39 %    56 %  8.6 of 15.5 GiB  4 chips, 8 cores (v3:2x2)" in text


def test_every_piece_of_advice_is_named_beside_other_systems():
    text = printed(plan_samples.five())
    assert (
        """
  advice   Raise the batch to 2,048. Tried with batch_size=2048: 121 ms a step,
           1.18 times the examples a second.
           Feed images of 4 channels.
"""
        in text
    )


def test_activations_are_explained_where_systems_differ():
    plan = plan_samples.five()
    assert phrases.ACTIVATIONS not in printed(plan, 300)
    sizes = [2**26 * (index == 0) for index in range(len(plan))]
    different = [
        dataclasses.replace(each, memory=dataclasses.replace(each.memory, parts=(MemoryPart("activations", size),)))
        for each, size in zip(plan, sizes, strict=True)
    ]
    assert phrases.ACTIVATIONS in printed(dataclasses.replace(plan, predictions=tuple(different)), 300)


def test_a_note_is_printed_once():
    plan = plan_samples.one()
    one = dataclasses.replace(plan["v3-8"], notes=("8 devices do not divide a batch of 100.",))
    text = printed(dataclasses.replace(plan, predictions=(one,)))
    assert text.count("do not divide") == 1


def test_without_the_length_of_a_run():
    text = printed(plan_samples.without_run())
    assert (
        """
 system  $/hour  $ a million examples
 ────────────────────────────────────
 v3-8     $8.00                 $0.28
 v3-32   $32.00                 $0.29

Add examples and epochs for the cost of a run.
fastest v3-32, 31,072 examples/s
cheapest v3-8, $0.28 a million examples
"""
        in text
    )


def test_ascii_keeps_what_it_says():
    plan = plan_samples.one()
    single = plan["v3-8"]
    assert single.time is not None
    op = dataclasses.replace(single.time.ops[0], layer="größe", time_s=2e-6, source="µ.py:1")
    time = dataclasses.replace(single.time, ops=(op,))
    plan = dataclasses.replace(plan, predictions=(dataclasses.replace(single, time=time),))
    text = printed(plan, encoding="ascii")
    assert "  fusion.0 gr\\xf6\\xdfe" in text
    assert "2 us" in text
    assert " ------" in text


def test_no_escape_reaches_the_terminal():
    plan = plan_samples.hostile()
    one = plan.predictions[0]
    assert one.time is not None
    time = dataclasses.replace(one.time, unpriced=("custom-call.1\x1b[2J\x1b]0;title\x07",), evidence=())
    one = dataclasses.replace(one, time=time, notes=("\x1b[31mred",), program="p\x1b[0m")
    text = printed(dataclasses.replace(plan, job="job\x1b[2J\nsecond line", predictions=(one,)))
    assert "\x1b" not in text and "\x07" not in text
    assert text.startswith("job?[2J second line\n")


def test_nothing_fits():
    plan = plan_samples.five()
    text = printed(dataclasses.replace(plan, predictions=(plan["v2-8"],)))
    assert "\nit does not fit\n" in text
    assert "spot" not in text


def test_operations_that_differ_in_a_number_are_one_row():
    one = plan_samples.one()["v3-8"]
    ops = tuple(OpTime(f"fusion.{n}", "fusion", "vector", 0.01, source="decode.py:17") for n in range(12))
    time = dataclasses.replace(one.time, ops=(*ops, OpTime("copy.3", "copy", "memory", 0.03)))
    text = printed(Plan("decode.py:step", (dataclasses.replace(one, time=time),)))
    assert (
        """
  longest operations
  12 x fusion                             decode.py:17            80 %    120 ms
  copy.3                                                          20 %     30 ms
"""
        in text
    )


def test_slices_that_would_hold_what_fits_nowhere():
    plan = plan_samples.five()
    v2 = dataclasses.replace(plan["v2-8"], holding=plan_samples.holding())
    text = printed(dataclasses.replace(plan, predictions=(v2,)))
    assert (
        """
The smallest slice of each chip on which the program would fit. Estimated, not
compiled; the step time and the cost are lower bounds, at the peak rate of the
chip.

 slice   chips       needs about  $/hour       step  $ a million examples
 ────────────────────────────────────────────────────────────────────────
 v6e-4       4  17.2 of 31.2 GiB  $10.80   >= 10 ms             >= $0.015
 v5e-16     16   8.6 of 15.8 GiB  $19.20  >= 7.5 ms             >= $0.020
 v7x-2       1   8.6 of 94.5 GiB       -   >= 20 ms                     -
"""
        in text
    )
    # Where it fits somewhere, that is what to rent.
    assert "would fit" not in printed(dataclasses.replace(plan, predictions=(v2, plan["v3-8"])))


def test_fastest_and_cheapest_are_one():
    assert "\nfastest and cheapest v6e-8, 60.1 ms a step, $20.29 a run\n" in printed(plan_samples.swept())


def test_no_batch_fits():
    plan = plan_samples.five()
    none = dataclasses.replace(plan["v2-8"], largest_batch=0)
    text = printed(dataclasses.replace(plan, predictions=(none,)))
    assert "does not fit: a device needs 8.6 GiB of 7.48 GiB, 1.12 GiB too much; no\n         batch fits." in text


def test_shows_on_standard_output(capsys: pytest.CaptureFixture[str]):
    plan_samples.one().show()
    assert capsys.readouterr().out.startswith("resnet50/train\n")


def test_the_plan_finds_its_report():
    from anytpu.showing import report

    assert report("plan") is PLAN_REPORT


def test_what_has_no_upper_bound_says_so():
    five = plan_samples.five()
    plan = dataclasses.replace(five, predictions=(plan_samples.unbounded(five["v3-8"]), five["v6e-8"]))
    lines = printed(plan).splitlines()
    assert [line for line in lines if line.startswith(" v3-8 ")] == [
        " v3-8    >= 263 ms  at least 226 ms    <= 7,801  39 %    56 %  8.6 of 15.5 GiB",
        " v3-8     $8.00  >= $0.36  >= $32.84  >= 4 h 6 min  >= $15.03  >= 4 h 16 min",
    ]
    assert "fastest and cheapest v6e-8, 60.1 ms a step, $20.29 a run" in lines
    endless = dataclasses.replace(five, predictions=tuple(map(plan_samples.unbounded, (five["v3-8"], five["v6e-8"]))))
    said = "fastest and cheapest v6e-8, >= 60.1 ms a step, >= $20.29 a run; none has an upper bound"
    assert said in printed(endless, width=100).splitlines()


def test_floors_say_that_they_are():
    text = printed(plan_samples.floors())
    assert text.startswith(
        """\
resnet50/train
training, 2,048 examples a step, 1,281,167 examples an epoch, 90 epochs
Predicted, not measured; by a floor.

 system        step           between  examples/s  MFU    memory
 ───────────────────────────────────────────────────────────────
 v3-8     >= 263 ms   at least 263 ms    <= 7,801    -   >= 56 %
 v6e-8   >= 60.1 ms  at least 60.1 ms   <= 34,099    -   >= 28 %
 v2-8             -                 -           -    -  >= 115 %


 system  $/hour   $/epoch      $/run            time     spot $       spot time
 ──────────────────────────────────────────────────────────────────────────────
 v3-8     $8.00  >= $0.36  >= $32.84    >= 4 h 6 min  >= $15.03   >= 4 h 16 min
 v6e-8   $21.60  >= $0.23  >= $20.29  >= 56 min 21 s  >= $10.55  >= 58 min 37 s

v3-8, v6e-8, v2-8: The TPU compiler, libtpu, is not installed: pip install
'anytpu[plan]'
v3-8, v6e-8, v2-8: This is a floor, not a forecast.
v2-8     does not fit: a device needs at least 8.6 GiB of 7.48 GiB, at least
         1.12 GiB too much.
v3-8     Retired: not sold to new users.

v3-8  4 chips, 8 cores (v3:2x2), at least 263 ms a step
  evidence The products of the step take that.
"""
    )
    assert "fastest" not in text and "cheapest" not in text


def test_a_gain_that_was_reckoned_and_not_compiled():
    reckoned = Advice("steps_per_execution", "Start 8 steps with one call.", "The host bounds.", "", 0.001, 4.0)
    assert gain_sentence(reckoned) == "Estimated, not compiled: 1 ms a step, 4 times the examples a second."
    assert gain_sentence(Advice("padding", "Reshape it.", "It is padded.")) == ""
