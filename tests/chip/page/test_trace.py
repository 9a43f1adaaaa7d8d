from __future__ import annotations

import dataclasses
import gzip
import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import chip_page_samples
from anytpu.chip.page.figures import cycles_of
from anytpu.chip.page.report import CHIP_REPORT
from anytpu.chip.timing.record import Timing
from anytpu.errors import SettingError
from refusals import refusal

THREADS = ["layer", "host to chip", "weight fetch", "weight shift", "matrix unit", "activation unit", "chip to host"]


def traced(timing: Timing, path: Path, **more: Any) -> dict[str, Any]:
    assert CHIP_REPORT.to_trace(timing, path, **more) == path
    return json.loads(path.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    page = chip_page_samples.digits()
    return traced(page.timing, tmp_path_factory.mktemp("trace") / "digits.json", image=page.image)


def slices(trace: dict[str, Any], thread: str) -> list[dict[str, Any]]:
    number = next(
        event["tid"]
        for event in trace["traceEvents"]
        if event["name"] == "thread_name" and event["args"]["name"] == thread
    )
    return [event for event in trace["traceEvents"] if event["ph"] == "X" and event["tid"] == number]


def cycles(events: list[dict[str, Any]], *names: str) -> float:
    return sum(
        event["args"]["stop_cycles"] - event["args"]["start_cycles"] for event in events if event["name"] in names
    )


def test_its_form_is_that_of_the_trace_event_format(trace: dict[str, Any]):
    assert set(trace) == {"displayTimeUnit", "otherData", "traceEvents"}
    required = {"X": {"ts", "dur", "tid", "cat", "args"}, "C": {"ts", "args"}, "M": {"args"}}
    for event in trace["traceEvents"]:
        assert {"ph", "pid", "name"} | required[event["ph"]] <= set(event)
        assert event["pid"] == 1 and event.get("ts", 0) >= 0 and event.get("dur", 0) >= 0
        assert event["ph"] != "C" or all(isinstance(value, float) for value in event["args"].values())


def test_each_unit_is_a_named_thread(trace: dict[str, Any]):
    named = [event for event in trace["traceEvents"] if event["ph"] == "M"]
    names = {event["tid"]: event["args"]["name"] for event in named if event["name"] == "thread_name"}
    order = {event["tid"]: event["args"]["sort_index"] for event in named if event["name"] == "thread_sort_index"}
    assert sorted(names.values(), key=lambda name: next(order[tid] for tid in names if names[tid] == name)) == THREADS
    process = next(event["args"]["name"] for event in named if event["name"] == "process_name")
    assert process == "digits on a virtual TPU v1 (predicted)"


@pytest.mark.parametrize("thread", THREADS)
def test_slices_of_a_thread_do_not_overlap(trace: dict[str, Any], thread: str):
    found = slices(trace, thread)
    assert found
    ends = [0.0, *(event["ts"] + event["dur"] for event in found)]
    assert all(event["ts"] >= end - 1e-9 for event, end in zip(found, ends, strict=False))


def test_slices_add_up_to_the_counters(trace: dict[str, Any]):
    timing = chip_page_samples.timing()
    matrix = slices(trace, "matrix unit")
    assert cycles(matrix, "MatrixMultiply", "Convolve") == pytest.approx(timing.active_cycles)
    assert cycles(matrix, "stall") == pytest.approx(timing.stall_cycles)
    assert cycles(slices(trace, "weight shift"), "shift") == pytest.approx(timing.shift_cycles)
    assert trace["otherData"]["cycles"] == timing.cycles
    assert trace["otherData"]["note"] == "Predicted by the time model, not measured: no such chip was run."


def test_times_are_microseconds_of_the_clock(trace: dict[str, Any]):
    (read,) = slices(trace, "host to chip")
    assert (read["ts"], read["dur"]) == (0, pytest.approx(3000 / 700))
    assert read["args"] == {"start_cycles": 0.0, "stop_cycles": 3000.0, "layer": "conv1", "instruction": 1}


def test_layers_follow_one_another(trace: dict[str, Any]):
    timing = chip_page_samples.timing()
    found = slices(trace, "layer")
    assert [event["name"] for event in found] == ["conv1", "pool1", "conv2", "dense"]
    assert found[-1]["args"]["stop_cycles"] == timing.cycles
    for event, following in itertools.pairwise(found):
        assert event["args"]["stop_cycles"] == following["args"]["start_cycles"]


def test_a_layer_is_as_long_as_the_table_says(trace: dict[str, Any]):
    found = slices(trace, "layer")
    for part in chip_page_samples.timing().parts:
        assert cycles(found, part.name) == pytest.approx(cycles_of(part))


def test_counters_rise_and_fall(trace: dict[str, Any]):
    counters: dict[str, list[float]] = {}
    for event in trace["traceEvents"]:
        if event["ph"] == "C":
            counters.setdefault(event["name"], []).extend(event["args"].values())
    assert sorted(counters) == ["Unified Buffer", "weight FIFO"]
    assert counters["weight FIFO"][-1] == 0 and min(counters["weight FIFO"]) == 0 and max(counters["weight FIFO"]) > 1
    assert max(counters["Unified Buffer"]) == 28 * 28 * 8 * 32 + 14 * 14 * 8 * 32
    assert counters["Unified Buffer"][-1] == 0


def test_without_the_image_there_is_no_counter_of_the_buffer(tmp_path: Path):
    found = traced(chip_page_samples.timing(), tmp_path / "t.json")
    assert {event["name"] for event in found["traceEvents"] if event["ph"] == "C"} == {"weight FIFO"}


def test_a_name_in_gz_is_compressed_and_the_same_each_time(tmp_path: Path):
    timing = chip_page_samples.timing(repeats=50)
    plain = CHIP_REPORT.to_trace(timing, tmp_path / "t.json")
    packed = CHIP_REPORT.to_trace(timing, tmp_path / "t.json.gz")
    again = CHIP_REPORT.to_trace(timing, tmp_path / "again.json.gz")
    assert gzip.decompress(packed.read_bytes()) == plain.read_bytes()
    assert packed.stat().st_size < plain.stat().st_size / 8
    assert packed.read_bytes() == again.read_bytes()


def test_hostile_names_are_texts(tmp_path: Path):
    found = traced(chip_page_samples.hostile().timing, tmp_path / "t.json")
    assert {event["name"] for event in slices(found, "layer")} >= {chip_page_samples.EVIL, "conv2"}


def test_a_timing_without_events_is_refused(tmp_path: Path):
    timing = dataclasses.replace(chip_page_samples.timing(), events=())
    assert refusal(SettingError, CHIP_REPORT.to_trace, timing, tmp_path / "t.json") == (
        "the timing of 'digits' has no events, so there is nothing to trace: ask for them with "
        "program.time(events=True)"
    )


def test_a_place_that_cannot_be_written(tmp_path: Path):
    path = tmp_path / "missing" / "t.json"
    assert (
        refusal(SettingError, CHIP_REPORT.to_trace, chip_page_samples.timing(), path)
        == f"the trace cannot be written to {str(path)!r}: No such file or directory"
    )


def test_a_program_without_work_for_the_chip(tmp_path: Path):
    assert refusal(SettingError, CHIP_REPORT.to_trace, chip_page_samples.idle().timing, tmp_path / "t.json") == (
        "'idle' has no work for the chip, so there is nothing to trace: none of its instructions takes a cycle"
    )
