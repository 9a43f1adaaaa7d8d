"""A compiled program as text, as bytes and as a file; and the checker, when one of its Syncs is taken away."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from anytpu.chip import file
from anytpu.chip.assembly import assemble, disassemble
from anytpu.chip.checking import check
from anytpu.chip.compiler import compile_image
from anytpu.chip.graph.nodes import Network
from anytpu.chip.image.image import Image
from anytpu.chip.isa.instructions import Sync
from anytpu.chip.machine import run
from anytpu.errors import HazardError
from quantized_samples import SMALL, Sketch, inputs_of

SAME = ((1, 1), (1, 1))


def network() -> Network:
    sketch = Sketch(8)
    a = sketch.convolution(sketch.input(6, 5, 3), 12, (3, 3), padding=SAME)
    pooled = sketch.pool("max", a, (2, 2), (2, 2))
    b = sketch.convolution(pooled, 12, (3, 3), padding=SAME)
    last, _ = sketch.lstm(steps=2, units=9, features=5)
    negated = sketch.convolution(sketch.negate_on_host(b), 4)
    return sketch.network(sketch.table(sketch.elementwise("add", pooled, b)), last, negated)


@pytest.fixture(scope="module")
def made() -> tuple[Network, Image]:
    quantized = network()
    return quantized, compile_image(quantized, batch=3, design=SMALL)


def written(path: Path, image: Image, network: Network | None = None) -> bytes:
    return file.write(path, image, network).read_bytes()


def test_text_there_and_back(made: tuple[Network, Image], tmp_path: Path):
    _, image = made
    assert len(image.services) == 1
    text = disassemble(image, weights=True)
    again = assemble(text)
    assert written(tmp_path / "a.tpu", again) == written(tmp_path / "b.tpu", image)
    assert disassemble(again, weights=True) == text


def test_file_there_and_back(made: tuple[Network, Image], tmp_path: Path):
    quantized, image = made
    content = written(tmp_path / "made.tpu", image, quantized)
    again, network_again, _ = file.read(tmp_path / "made.tpu")
    assert network_again is not None
    assert written(tmp_path / "again.tpu", again, network_again) == content
    values = inputs_of(quantized, 3)
    wanted, found = run(image, values), run(again, values)
    assert wanted.keys() == found.keys()
    for tensor, integers in wanted.items():
        assert np.array_equal(found[tensor], integers)
    compiled = compile_image(network_again, batch=3, design=SMALL)
    assert compiled.instructions == image.instructions and np.array_equal(compiled.weights, image.weights)


def test_no_sync_can_be_left_out(made: tuple[Network, Image]):
    _, image = made
    check(image)
    code = image.instructions
    syncs = [number for number, one in enumerate(code) if isinstance(one, Sync)]
    assert len(syncs) > 20
    for number in syncs:
        with pytest.raises(HazardError):
            check(dataclasses.replace(image, instructions=code[:number] + code[number + 1 :]))
