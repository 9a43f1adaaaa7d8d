"""The whole way: a function becomes a program of the chip, and the program shows itself."""

from __future__ import annotations

import gzip
import itertools
import json
from pathlib import Path

import numpy as np
import pytest

from anytpu import chip
from anytpu.chip.page.first_tile import first_tile
from anytpu.chip.page.lanes import LANES, lane_of
from anytpu.chip.page.multiplication import wave_of
from anytpu.chip.page.page import page
from anytpu.chip.page.record import page_of
from anytpu.chip.page.report import CHIP_REPORT
from anytpu.chip.quantized import reference
from anytpu.showing import report


@pytest.fixture(scope="module")
def program() -> chip.ChipProgram:
    import jax
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    state = {
        "kernel": rng.normal(0, 0.3, (3, 3, 2, 8)).astype(np.float32),
        "dense": rng.normal(0, 0.1, (6 * 6 * 8, 5)).astype(np.float32),
    }

    def small(state, x):
        y = jax.lax.conv_general_dilated(x, state["kernel"], (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
        y = jax.nn.relu(y)
        return jax.nn.softmax(jnp.reshape(y, (len(x), -1)) @ state["dense"])

    x = rng.normal(size=(16, 6, 6, 2)).astype(np.float32)
    return chip.compile(small, calibration=x, state=state, batch=4)


def test_the_report_is_found_by_its_name():
    assert report("chip") is CHIP_REPORT


def test_layers_are_those_of_the_program(program: chip.ChipProgram):
    shown = page_of(program)
    assert sum(layer.macs for layer in shown.layers) == 4 * (36 * 18 * 8 + 36 * 8 * 5)
    assert sum(layer.weight_bytes for layer in shown.layers) == 3 * 3 * 2 * 8 + 36 * 8 * 5
    assert [layer.on_host for layer in shown.layers].count(True) == 1
    assert any(layer.sqnr_db is not None and layer.sqnr_db > 20 for layer in shown.layers)


def test_the_first_tile_has_the_users_own_numbers(program: chip.ChipProgram):
    shown = page_of(program)
    assert shown.first_tile is not None and shown.first_tile.is_example
    assert wave_of(shown.first_tile).is_right
    network = program.network
    assert network is not None
    quantization = network.quantizations[network.inputs[0].tensor]
    own = quantization.quantize(program.example[network.inputs[0].tensor][:4])
    assert set(np.unique(shown.first_tile.numbers)) <= {*np.unique(own).tolist(), quantization.zero_point, 0}


def test_finished_sums_become_the_integers_of_the_specification(program: chip.ChipProgram):
    shown, network = page_of(program), program.network
    assert shown.first_tile is not None and network is not None
    finished = shown.first_tile.finished
    assert finished is not None and not finished.table
    scaled = np.rint((finished.sums + finished.bias).astype(np.float32) * finished.multiplier) + finished.zero_point
    assert (np.clip(scaled, finished.low, finished.high) == finished.results).all()
    node = next(node for node in network.nodes if node.name == shown.first_tile.node)
    example = np.resize(program.example[network.inputs[0].tensor], (4, 6, 6, 2))
    made = reference.compute(network, [example])[node.output]
    assert (made.transpose(1, 2, 0, 3).reshape(-1, 8) == finished.results).all()


def test_events_of_a_lane_follow_one_another(program: chip.ChipProgram):
    timing = program.time(events=True)
    for number in range(len(LANES)):
        own = sorted(
            (event for event in timing.events if lane_of(event) == number), key=lambda event: event.start_cycles
        )
        assert all(a.start_cycles <= a.stop_cycles <= b.start_cycles + 1e-6 for a, b in itertools.pairwise(own))
        assert own, LANES[number].name


def test_it_shows_itself(program: chip.ChipProgram, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    program.show()
    printed = capsys.readouterr().out
    assert "A virtual chip: results are exact" in printed and "Predicted by the time model" in printed
    text = program.to_html(tmp_path / "chip.html").read_text(encoding="utf-8")
    assert "the numbers that come in are those of your first examples" in text
    trace = json.loads(gzip.decompress(program.trace(tmp_path / "trace.json.gz").read_bytes()))
    assert {"weight FIFO", "Unified Buffer"} <= {event["name"] for event in trace["traceEvents"]}
    assert len(program.to_svg(tmp_path / "svg")) == 5
    assert program._repr_html_().startswith('<div class="anytpu-report">')


def test_a_loaded_program_has_no_examples(program: chip.ChipProgram, tmp_path: Path):
    loaded = chip.load(program.save(tmp_path / "small.tpu"))
    shown = page_of(loaded)
    assert shown.summary is None and shown.first_tile is not None and not shown.first_tile.is_example
    assert "drawn at random" in loaded.to_html(tmp_path / "chip.html").read_text(encoding="utf-8")


def test_what_the_host_does_first_is_done_for_the_first_tile():
    import jax.numpy as jnp

    rng = np.random.default_rng(0)
    state = {"table": rng.normal(size=(20, 16)).astype(np.float32), "dense": np.ones((16, 3), np.float32)}

    def words(state, x):
        return jnp.tanh(jnp.take(state["table"], x[:, 0], axis=0) @ state["dense"])

    x = rng.integers(0, 20, (16, 1)).astype(np.int32)
    shown = page_of(chip.compile(words, calibration=x, state=state, batch=4, activation_bits=16))
    tile = shown.first_tile
    assert tile is not None and tile.is_example and tile.is_half and tile.depth >= 16
    assert tile.numbers.min() >= 0 and len(np.unique(tile.numbers)) > 20
    assert (tile.weights[:16, :3] != 0).all() and wave_of(tile).is_right
    assert tile.finished is not None and tile.finished.table and "looked up in the table" in page(shown)
    invented = first_tile(shown.image, shown.network, {})
    assert invented is not None and not invented.is_example
