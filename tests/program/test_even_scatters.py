"""Scatters over a mesh of two axes: of rows that the mesh does not divide, and steps that stay as they are."""

from __future__ import annotations

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from anytpu.program import ROWS, Placement, Program
from anytpu.program.even_scatters import with_even_scatters
from mesh_checks import failures_of_child
from program.even_scatters_child import CHECKS


@pytest.fixture(scope="module")
def failures() -> dict[str, str]:
    return failures_of_child(Path(__file__).with_name("even_scatters_child.py"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("check", CHECKS)
def test_equal_to_one_device(check: str, failures: dict[str, str]):
    assert check not in failures, failures[check]


def constraints(rows: int, axes: tuple[tuple[str, int], ...]) -> int:
    """Return the number of constraints that the step of a lookup's gradient gets over a mesh."""

    def step(table, ids):
        return table.at[ids].add(1.0), {}

    state, batch = jax.ShapeDtypeStruct((20, 8), "float32"), jax.ShapeDtypeStruct((rows,), "int32")
    placement = Placement(axes, ((), ((axes[0][0],),)))
    program = Program("count", step, state, batch, ROWS, placement=placement)
    return str(jax.make_jaxpr(with_even_scatters(program))(jnp.zeros((20, 8)), jnp.zeros(rows, "int32"))).count(
        "sharding_constraint["
    )


@pytest.mark.parametrize(
    ("rows", "axes", "expected"),
    [
        (16, (("data", 4), ("model", 2)), 0),
        (10, (("data", 8),), 0),
        (10, (("data", 8), ("model", 1)), 0),
        (12, (("data", 4), ("model", 2)), 2),
        (10, (("data", 4), ("model", 2)), 2),
    ],
)
def test_a_step_that_fills_the_mesh_is_unchanged(rows: int, axes: tuple, expected: int):
    assert constraints(rows, axes) == expected


def test_a_step_without_a_placement_is_itself():
    spec = jax.ShapeDtypeStruct((4,), "float32")
    program = Program("add", lambda state, batch: (state + batch, {}), spec, spec, ROWS)
    assert with_even_scatters(program) is program.step
