"""Joint sums over the rows of a batch: the same numbers with fewer all-reduces."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from anytpu.engine.joint_sums import with_joint_sums


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """The results of a program on four CPU devices."""
    program = Path(__file__).with_name("joint_sums_program.py")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    ran = subprocess.run([sys.executable, program], env=environment, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


@pytest.mark.parametrize(
    ("name", "joint", "alone"),
    [
        pytest.param("gradients", 2, 6, id="one of float32, and one for the integer of the metric"),
        pytest.param("two cores", 2, 6, id="two cores send each other one message"),
        pytest.param("normalization", 6, 12, id="mean, variance, and their gradients come one after the other"),
    ],
)
def test_sums_are_joint_and_the_numbers_are_those_of_one_device(
    results: dict[str, Any], name: str, joint: int, alone: int
):
    found = results[name]

    assert (found["joint"], found["alone"]) == (joint, alone)
    assert found["error"] < 1e-6


def test_a_wrong_axis_gives_the_same_sums(results: dict[str, Any]):
    assert results["wrong axis"] < 1e-6


def test_rows_that_the_cores_do_not_divide_are_left_to_xla(results: dict[str, Any]):
    assert results["uneven is unchanged"]


def test_a_function_with_side_effects_is_unchanged():
    def step(x: Any) -> Any:
        jax.debug.print("{}", x.sum())
        return x.sum()

    closed = jax.make_jaxpr(step)(np.ones(8, "float32"))

    assert with_joint_sums(closed, [0], Mesh(np.array(jax.devices()[:1]), ("replica",))) is closed
