"""What was read from a program is run beside it before anything is made of it."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from anytpu.chip.network import read
from anytpu.chip.network.nodes import Convolution
from anytpu.chip.proving import prove
from anytpu.errors import QuantizationError
from anytpu.program import of

X = np.linspace(-1, 1, 15, dtype=np.float32).reshape(5, 3)


def predict(weights: Any, x: Any) -> Any:
    return weights, x @ weights


@pytest.fixture(scope="module")
def program() -> Any:
    return of(predict, (np.ones((3, 2), np.float32), np.zeros((8, 3), np.float32)), "infer", True)


def test_a_network_that_was_read_rightly(program: Any):
    prove(program, read(program), [X])
    prove(program, read(program), [X[:1]])


def test_a_network_that_was_not(program: Any):
    network = read(program)
    (node,) = network.nodes
    assert isinstance(node, Convolution)
    wrong = dataclasses.replace(network, name="net", nodes=(dataclasses.replace(node, weights=node.weights * 0.99),))
    with pytest.raises(QuantizationError) as caught:
        prove(program, wrong, [X])
    assert str(caught.value) == (
        f"net was read wrongly: on the examples its output {node.output!r} is off by 0.0257, where the model's largest "
        "is 2.57. This is a fault of anytpu: please report it, with the model. Nothing was compiled."
    )
