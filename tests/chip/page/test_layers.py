from __future__ import annotations

import dataclasses

import pytest

import chip_page_samples
from anytpu.chip.image.image import Tag
from anytpu.chip.page.lanes import with_titles
from anytpu.chip.page.layers import grouped_layers, grouped_parts, layers


def test_what_instructions_say_of_layers():
    page = chip_page_samples.digits()
    conv1, pool1, conv2, dense, softmax = page.layers
    assert (conv1.title, conv1.passes, conv1.rows, conv1.way, conv1.weight_bytes) == ("conv1", 1, 2048, "packed", 288)
    assert conv1.utilisation == pytest.approx(conv1.macs / (2048 * 65536))
    assert (conv2.passes, conv2.rows, conv2.way) == (9, 9 * 1568, "native")
    assert (dense.passes, dense.way, dense.shape) == (2, "", (1, 1, 10))
    assert (pool1.passes, pool1.utilisation, pool1.sqnr_db) == (0, None, 38.2)
    assert [layer.on_host for layer in page.layers] == [False, False, False, False, True]
    assert softmax.note == "on the host: it divides one tensor by another"


def test_without_a_network_shapes_and_weights_are_not_known():
    image = chip_page_samples.digits().image
    found = layers(image)
    assert [layer.shape for layer in found] == [None] * 5
    assert [layer.weight_bytes for layer in found] == [0] * 5
    assert found[2].passes == 9


def test_weights_of_several_parts_count_once():
    page = chip_page_samples.digits()
    assert page.network is not None
    first = page.network.nodes[2]
    again = dataclasses.replace(first, name="conv2/again", output="c3")
    network = dataclasses.replace(
        page.network, nodes=(*page.network.nodes, again), shapes={**page.network.shapes, "c3": (14, 14, 64)}
    )
    image = dataclasses.replace(page.image, tags=(*page.image.tags, Tag("conv2/again", "conv2", "convolution")))
    found = layers(image, network, page.summary)
    assert [(layer.title, layer.weight_bytes) for layer in (found[2], found[5])] == [
        ("conv2/convolution", 18432),
        ("conv2/again", 0),
    ]
    assert (found[2].sqnr_db, found[5].sqnr_db) == (None, 31.5)


def test_parts_are_called_as_briefly_as_tells_them_apart():
    timing = chip_page_samples.timing()
    names = ("conv/convolution", "dense/dense", "dense/softmax", "alone", "")
    parts = tuple(dataclasses.replace(part, name=name) for part, name in zip(timing.parts, names, strict=True))
    assert [part.name for part in with_titles(dataclasses.replace(timing, parts=parts)).parts] == [
        "conv",
        "dense/dense",
        "dense/softmax",
        "alone",
    ]
    waits = dataclasses.replace(parts[4], other_cycles=7.0)
    titled = with_titles(dataclasses.replace(timing, parts=(*parts[:4], waits)))
    assert titled.parts[4].name == "(before the first layer)"


def test_grouping_adds_up():
    page = chip_page_samples.digits()
    assert grouped_layers(page.layers, 5) == list(page.layers)
    steps = [dataclasses.replace(page.layers[n % 4], name=f"lstm/step/{n}") for n in range(40)]
    (one, host) = grouped_layers([*steps, page.layers[4]], 5)
    assert host is page.layers[4]
    assert (one.title, one.kind, one.sqnr_db) == ("lstm (40 parts)", "several", 29.9)
    for field in ("macs", "weight_bytes", "passes", "rows"):
        assert getattr(one, field) == sum(getattr(step, field) for step in steps)
    cells = sum(step.rows for step in steps) * 65536
    assert one.utilisation == pytest.approx(one.macs / cells)
    parts = [dataclasses.replace(page.timing.parts[n % 4], name=f"lstm/step/{n}") for n in range(40)]
    (part,) = grouped_parts(parts, 5)
    assert part.stall_cycles == sum(other.stall_cycles for other in parts)
    assert part.macs == sum(other.macs for other in parts)
