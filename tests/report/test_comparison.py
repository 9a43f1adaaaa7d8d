from __future__ import annotations

import io

from rich.console import Console

from anytpu.report.comparison import bar_lines, print_comparison
from anytpu.system.comparison import Comparison, Measurement
from anytpu.system.probes import Reason

ONE = Measurement("1 virtual core", 1, True, 3.0, (0.5, 0.4, 0.6), 100, {"loss": 0.25, "accuracy": 0.9})
EIGHT = Measurement("8 virtual cores", 8, True, 3.5, (0.5, 0.5, 0.5), 100, {"loss": 0.25, "accuracy": 0.9})
GPU = Measurement("1 GPU", 1, False, 4.0, (0.1, 0.1, 0.3), 100, {"loss": 0.2, "accuracy": 0.91})
COMPARISON = Comparison("Read digits", 64, (ONE, EIGHT, GPU), (Reason("TPU", "this machine has no TPU chip"),))


def test_in_a_pipe():
    stream = io.StringIO()
    print_comparison(Console(file=stream, width=80, _environ={}), COMPARISON)
    lines = [line.rstrip() for line in stream.getvalue().splitlines()]
    assert (
        "\n".join(lines)
        == """\
Read digits
100 examples an epoch, 64 a step

 where             first epoch    epoch   example    speed     loss   accuracy
 ─────────────────────────────────────────────────────────────────────────────
 1 virtual core            3 s   500 ms      5 ms   1.00 x   0.2500     0.9000
 8 virtual cores         3.5 s   500 ms      5 ms   1.00 x   0.2500     0.9000
 1 GPU                     4 s   100 ms      1 ms   5.00 x   0.2000     0.9100

1 virtual core   █████████  200 examples/s
8 virtual cores  █████████  200 examples/s
1 GPU            █████████████████████████████████████████████  1,000 examples/s

The first epoch includes compilation. The others: the median of 3 epochs, with
the systems alternating.
Virtual cores are simulated on this machine's CPU: 8 of them are no faster than
1. They show that a program gives the same results on 8.
Not on this machine:
  TPU  this machine has no TPU chip"""
    )


def test_bars_of_a_narrow_terminal():
    lines = [line.plain for line in bar_lines(COMPARISON, width=50)]
    assert lines == [
        "1 virtual core   ███  200 examples/s",
        "8 virtual cores  ███  200 examples/s",
        "1 GPU            ███████████████  1,000 examples/s",
    ]
