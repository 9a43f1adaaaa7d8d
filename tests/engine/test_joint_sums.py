"""Joint sums over the rows of a batch: the same numbers with fewer all-reduces, and the axis of the rows."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh

from anytpu.engine.joint_sums import RowAxes, with_joint_sums
from anytpu.program.passes import inlined
from forked import python

pytestmark = pytest.mark.optimized


@pytest.fixture(scope="module")
def results() -> dict[str, Any]:
    """The results of a program on four CPU devices."""
    program = Path(__file__).with_name("joint_sums_program.py")
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    ran = subprocess.run([*python(), program], env=environment, capture_output=True, text=True, check=True)
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


def axis_after(function: Callable[..., Any], *shapes: tuple[int, ...]) -> int | None:
    """Return the axis of the rows of the result, for rows along the first axis of the first argument."""
    jaxpr = inlined(jax.make_jaxpr(function)(*[np.ones(shape, "float32") for shape in shapes]).jaxpr)
    axes = RowAxes(4)
    axes.add(jaxpr.invars[0], 0)
    for equation in jaxpr.eqns:
        axes.add_results(equation)
    return axes.of(jaxpr.outvars[0])


@pytest.mark.parametrize(
    ("function", "shapes", "axis"),
    [
        pytest.param(lambda x: x.T * 2, [(8, 3)], 1, id="transpose"),
        pytest.param(lambda x: x.reshape(8, -1), [(8, 3, 5)], 0, id="flatten"),
        pytest.param(lambda x: x.reshape(-1, 5), [(8, 3, 5)], 0, id="merge with the next axis"),
        pytest.param(lambda x: x.reshape(8, 3, 5), [(24, 5)], 0, id="split again"),
        pytest.param(lambda x: x.max(1), [(8, 3)], 0, id="maximum over another axis"),
        pytest.param(lambda x: x.max(0), [(8, 3)], None, id="maximum over the rows"),
        pytest.param(lambda x: jnp.broadcast_to(x, (5, 8, 3)), [(8, 3)], 1, id="broadcast"),
        pytest.param(lambda x: x[:, 0], [(8, 1)], 0, id="squeeze"),
        pytest.param(lambda x, w: x @ w, [(8, 3), (3, 5)], 0, id="product"),
        pytest.param(lambda x, w: w @ x.T, [(8, 3), (5, 3)], 1, id="product on the right"),
        pytest.param(lambda x, y: jnp.einsum("nij,njk->nik", x, y), [(8, 3, 4), (8, 4, 5)], 0, id="batched product"),
        pytest.param(lambda x, y: x.T @ y, [(8, 3), (8, 5)], None, id="product over the rows"),
        pytest.param(lambda x: jax.nn.relu(x) + 1, [(6, 3)], None, id="rows that four pieces do not divide"),
    ],
)
def test_the_axis_moves_with_the_operation(
    function: Callable[..., Any], shapes: list[tuple[int, ...]], axis: int | None
):
    assert axis_after(function, *shapes) == axis
