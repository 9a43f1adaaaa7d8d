from __future__ import annotations

import dataclasses
import io

from rich.console import Console

import chip_page_samples
from anytpu.chip.page.record import ChipPage
from anytpu.chip.page.text import print_page, print_timing
from anytpu.report.terminal import open_console


def program(page: ChipPage, width: int = 80) -> str:
    file = io.StringIO()
    print_page(Console(file=file, width=width, markup=False, highlight=False, emoji=False), page)
    return file.getvalue()


def timing(page: ChipPage, width: int = 80, encoding: str = "utf-8") -> str:
    file = io.TextIOWrapper(io.BytesIO(), encoding=encoding, newline="\n")
    console = open_console(file)
    console.width = width
    print_timing(console, page.timing)
    file.flush()
    return file.buffer.getvalue().decode(encoding)  # type: ignore[attr-defined]


def rows(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line.strip()]


def test_what_a_program_is():
    text = program(chip_page_samples.digits())
    assert text.startswith(
        "digits\n5 layers, 1 of them on the host; 25 instructions for a batch of 8. 448 KiB of 8\n"
        "GiB Weight Memory, at most 245 KiB of 24 MiB Unified Buffer.\n"
        "A virtual chip: results are exact by the meaning of the instructions, times are\npredicted.\n"
    )
    found = rows(text)
    assert ["layer", "kind", "result", "MACs", "weights", "passes", "used", "SQNR"] in found
    lines = [line.strip() for line in text.splitlines()]
    assert "conv1    conv           28x28x32  1.81 M    288 B  1 packed  1.3 %  38.2 dB" in lines
    assert "conv2    conv           14x14x64  28.9 M   18 KiB  9 native  3.1 %  31.5 dB" in lines
    assert ["pool1", "max", "pool", "14x14x32", "38.2", "dB"] in found
    assert "softmax: on the host: it divides one tensor by another" in text


def test_columns_by_width():
    page = chip_page_samples.digits()
    titles = ("block_13_expansion/first", "pool", "block_13_expansion/second", "dense", "softmax")
    named = [dataclasses.replace(layer, title=title) for layer, title in zip(page.layers, titles, strict=True)]
    named[0] = dataclasses.replace(named[0], kind="convolution + leaky relu")
    page = dataclasses.replace(page, layers=tuple(named))
    found = {width: program(page, width).splitlines() for width in (60, 80, 100, 120)}
    heads = {width: next(line.split() for line in lines if line.startswith(" layer")) for width, lines in found.items()}
    assert heads == {
        60: ["layer", "kind", "result", "MACs", "SQNR"],
        80: ["layer", "kind", "result", "MACs", "weights", "SQNR"],
        100: ["layer", "kind", "result", "MACs", "weights", "passes", "used", "SQNR"],
        120: ["layer", "kind", "result", "MACs", "weights", "passes", "used", "SQNR"],
    }
    for width in (80, 100, 120):
        rows_of = [line for line in found[width] if " 28x28x32 " in line or " 14x14x64 " in line]
        assert len(rows_of) == 2 and all(len(line) <= width for line in found[width])
    assert any(" conv + leaky relu  28x28x32 " in line for line in found[80])
    assert any(" convolution + leaky relu  28x28x32 " in line for line in found[120])


def test_where_the_cycles_go():
    text = timing(chip_page_samples.digits())
    assert "Predicted by the time model, not measured: no such chip was run.\n" in text
    assert "Not in that time, as the host does it: softmax.\n" in text
    found = rows(text)
    assert ["layer", "cycles", "active", "stall", "shift", "non-matrix", "TOPS", "MACs/B", "mostly"] in found
    assert [row[-1] for row in found if row[0] == "conv2"] == ["active"]
    for line in text.splitlines():
        assert len(line) <= 80


def test_bars_are_as_long_as_their_shares():
    text = timing(chip_page_samples.digits())
    found = {line[:12].strip(): line for line in text.splitlines() if line[:38].endswith(" cycles")}
    shares = chip_page_samples.timing()
    assert list(found) == ["array active", "weight stall", "weight shift", "non-matrix"]
    full = [line.count("█") for line in found.values()]
    assert full == [
        int(38 * cycles / shares.cycles)
        for cycles in (shares.active_cycles, shares.stall_cycles, shares.shift_cycles, shares.other_cycles)
    ]


def test_ascii_only():
    text = timing(chip_page_samples.digits(), encoding="ascii")
    assert "us a batch" in text and "#" in text


def test_a_bare_program():
    page = chip_page_samples.bare()
    assert program(page).splitlines()[1].startswith("3 instructions for a batch of 1. 64 KiB of 8 GiB")
    assert rows(timing(page))[-3][:6] == ["weight", "stall", "84", "%", "1,349", "cycles"]


def test_hostile_names_do_not_reach_the_terminal():
    for text in (program(chip_page_samples.hostile()), timing(chip_page_samples.hostile())):
        assert "\x07" not in text and "alert('x')" in text


def test_hundreds_of_layers_are_cut_and_counted():
    page = chip_page_samples.digits()
    layers = [dataclasses.replace(page.layers[0], name=f"{n}/dense", title=str(n)) for n in range(255)]
    assert "195 more layers not shown" in program(dataclasses.replace(page, layers=tuple(layers)))
    parts = [dataclasses.replace(page.timing.parts[0], name=f"{n}/dense") for n in range(255)]
    run = dataclasses.replace(page.timing, parts=tuple(parts))
    assert "the 60 of 255 layers that take longest" in timing(dataclasses.replace(page, timing=run))


def test_the_many_parts_of_a_layer_are_one_row():
    page = chip_page_samples.digits()
    steps = [dataclasses.replace(page.layers[2], name=f"lstm/cell/dense_{n}", title="lstm") for n in range(100)]
    found = rows(program(dataclasses.replace(page, layers=(*steps, page.layers[4])), width=100))
    assert [" ".join(row) for row in found if row[0] == "lstm"] == [
        "lstm (100 parts) several 14x14x64 2.89 G 1.76 MiB 900 native 3.1 % 31.5 dB"
    ]
    assert ["softmax", "softmax", "on", "the", "host", "10", "-"] in found
    parts = [dataclasses.replace(page.timing.parts[2], name=f"lstm/cell/dense_{n}") for n in range(100)]
    run = dataclasses.replace(page.timing, parts=tuple(parts))
    (row,) = [cells for cells in rows(timing(dataclasses.replace(page, timing=run))) if cells[0] == "lstm"]
    cycles = sum(getattr(parts[0], f"{cause}_cycles") for cause in ("active", "stall", "shift", "other"))
    assert row[:5] == ["lstm", "(100", "parts)", f"{100 * cycles / 1e6:.3g}", "M"]
    assert row[-1] == "active"


def test_a_program_without_work_for_the_chip():
    page = chip_page_samples.idle()
    assert timing(page) == (
        "idle, a batch of 1\nPredicted by the time model, not measured: no such chip was run.\n"
        "This program has no work for the chip: none of its instructions takes a cycle.\n"
    )
    run = dataclasses.replace(page.timing, host_steps=("softmax", "gather"))
    text = timing(dataclasses.replace(page, timing=run))
    assert text.endswith("takes a cycle.\nThe host does all of it: softmax, gather.\n")
