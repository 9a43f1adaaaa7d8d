"""Random networks: onnxruntime, the chip and its systolic array give the reference's integers, every one.

This is a sample; scripts/exact_chip.py runs many more, and larger ones.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings

import chip_oracle
import chip_random
from anytpu.chip.graph.nodes import Convolution, Network, Pool, Port, Quantization
from anytpu.chip.quantized import reference


def sample(count: int):
    """Return what runs a test on so many networks, the same ones each time."""
    health = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.differing_executors]
    return settings(max_examples=count, deadline=None, derandomize=True, database=None, suppress_health_check=health)


def assert_same(network: Network, inputs, path: Path, level: chip_oracle.Level = "all") -> None:
    found = chip_oracle.integers(network, inputs, path, level=level)
    wanted = reference.compute(network, inputs)
    assert chip_oracle.differing(wanted, found, list(network.quantizations)) == {}


@pytest.mark.parametrize("level", ["none", "all"])
@sample(40)
@given(case=chip_random.cases())
def test_random_networks(case: chip_random.Case, tmp_path: Path, level: chip_oracle.Level):
    assert_same(case.network, case.inputs, tmp_path / "model.onnx", level)


@pytest.mark.parametrize("design", list(chip_oracle.DESIGNS))
@sample(30)
@given(case=chip_random.cases())
def test_the_chip(case: chip_random.Case, design: str):
    found = chip_oracle.on_chip(case.network, case.inputs, chip_oracle.DESIGNS[design])
    wanted = reference.compute(case.network, case.inputs)
    assert chip_oracle.differing(wanted, found, chip_oracle.chip_outputs(case.network)) == {}


@sample(30)
@given(case=chip_random.cases(most_nodes=3, most_channels=12))
def test_the_systolic_array(case: chip_random.Case):
    found = chip_oracle.on_chip(case.network, case.inputs, chip_oracle.DESIGNS["8 by 8"], literal=True)
    wanted = reference.compute(case.network, case.inputs)
    assert chip_oracle.differing(wanted, found, chip_oracle.chip_outputs(case.network)) == {}


def network_of(node, shape, made, source: Quantization, target: Quantization) -> Network:
    ports = (Port("x", shape),), (Port("y", made),)
    return Network("one", *ports, {"x": shape, "y": made}, {"x": source, "y": target}, (node,))


def test_sums_beyond_24_bits_and_ties(tmp_path: Path):
    random = np.random.default_rng(3)
    weights = random.integers(-127, 128, (1, 1, 3000, 40), np.int8)
    weights[..., :8] = 127
    scales = (2.0 ** -random.integers(1, 12, 40)).astype(np.float32)
    node = Convolution(
        "dense",
        "",
        ("x",),
        "y",
        weights,
        scales,
        np.zeros(40, np.int32),
        (1, 1),
        (1, 1),
        ((0, 0), (0, 0)),
        1,
        -128,
        127,
    )
    network = network_of(node, (1, 1, 3000), (1, 1, 40), Quantization(0.5, -7), Quantization(2.0**12, 3))
    inputs = [np.concatenate([random.normal(0, 30, (20, 3000)), np.full((1, 3000), 99)]).astype(np.float32)]
    assert_same(network, [inputs[0].reshape(-1, 1, 1, 3000)], tmp_path / "model.onnx")


@pytest.mark.parametrize("kind", ["max", "average"])
def test_a_window_outside_of_its_input(tmp_path: Path, kind):
    node = Pool("pool", "", ("x",), "y", kind, (2, 2), (2, 2), ((3, 4), (0, 5)), False)
    target = Quantization(0.5, -9) if kind == "max" else Quantization(0.7, 11)
    network = network_of(node, (3, 3, 5), (5, 4, 5), Quantization(0.5, -9), target)
    x = np.random.default_rng(0).normal(0, 30, (2, 3, 3, 5)).astype(np.float32)
    assert_same(network, [x], tmp_path / "model.onnx")
    empty = reference.compute(network, [x])["y"][:, 0]
    assert (empty == target.zero_point).all()
