from __future__ import annotations

import dataclasses
import io

from anytpu.planning.calibration import LocalCalibration, LocalFactor, calibrate
from anytpu.planning.runs import MeasuredRun
from anytpu.report.calibration import factor_lines, print_calibration
from anytpu.report.terminal import open_console

RUN = MeasuredRun("a", "2026-11-21T06:00:00+00:00", "net/train", "p", "v3", "v3-8", 8, 1024, 10, 0.11, 20, {}, 0.1)


def shown(calibration: LocalCalibration) -> str:
    stream = io.StringIO()
    print_calibration(open_console(stream), calibration)
    return stream.getvalue()


def test_runs_by_chip():
    runs = [RUN, dataclasses.replace(RUN, run="b", chip="v5e", system="v5e-8", predicted_s=None, batch_size=None)]
    text = shown(calibrate(runs))
    lines = [line.split() for line in text.splitlines() if "net/train" in line]
    assert lines == [
        ["net/train", "v3-8", "2026-11-21", "1,024", "110", "ms", "100", "ms", "-9.1%"],
        ["net/train", "v5e-8", "2026-11-21", "-", "110", "ms", "-", "-"],
    ]
    assert "v3: 1 run\n" in text
    assert "v5e: 1 run\n" in text


def test_the_newest_runs_are_shown():
    runs = [dataclasses.replace(RUN, run=str(number), name=f"net {number}/train") for number in range(30)]
    text = shown(calibrate(runs))
    assert "v3: 30 runs" in text
    assert "net 29/train" in text
    assert "net 17/train" not in text


def test_corrections_are_told():
    factors = (LocalFactor("v3", 1.07, 0.1, 4, 12), LocalFactor("v5e", 0.9, 0.1, 1, 1))
    assert factor_lines(LocalCalibration((RUN,), factors), 200) == [
        (
            "From now on, predictions for v3 are multiplied by 1.07, from 12 runs of 4 programs; with few runs the "
            "factor is shrunk towards 1."
        ),
        (
            "From now on, predictions for v5e are multiplied by 0.90, from 1 run of 1 program; with few runs the "
            "factor is shrunk towards 1."
        ),
    ]


def test_runs_that_were_never_planned():
    runs = [dataclasses.replace(RUN, predicted_s=None)]
    assert factor_lines(calibrate(runs), 200) == [
        "None of these runs was planned, so nothing is corrected: plan the same model, batch and system first."
    ]


def test_no_runs_yet():
    assert shown(calibrate([])) == (
        "No run of yours is recorded yet. A run on a real TPU or GPU records its step\n"
        "time after some calls; plan the same model, batch and system, and type anytpu\n"
        "plan --calibrate again.\n"
    )
