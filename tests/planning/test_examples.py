"""The examples in the docstrings of `anytpu.planning` run, and print what they say."""

from __future__ import annotations

import dataclasses
import doctest
import importlib
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from anytpu.planning.costs.prices import read_prices
from anytpu.planning.jobs.settings import PlanSettings
from anytpu.planning.records.target import target_named
from anytpu.program.program import ROWS, Layout, Placement, Program


def step(weight: Any, x: Any) -> tuple[Any, Any]:
    value, slope = jax.value_and_grad(lambda w: ((x @ w) ** 2).mean())(weight)
    return weight - slope, value


PROGRAM = Program(
    "sgd/train",
    step,
    jax.ShapeDtypeStruct((128, 128), jnp.float32),
    jax.ShapeDtypeStruct((64, 128), jnp.float32),
    ROWS,
)


@pytest.mark.parametrize(
    "name",
    [
        "records.target",
        "jobs.job",
        "costs.cost",
        "costs.prices",
        "costs.waits",
        "commands.plan",
        "forecasts.extrapolation",
        "forecasts.forecast",
        "floor.floor",
        "floor.work",
        "hlo.collectives",
        "advice.facts",
        "memory.arguments",
        "records.lock",
        "records.lock_check",
        "memory.batches",
        "compiler.answer",
        "compiler.parent",
        "shardings.candidates",
    ],
)
def test_examples(name: str):
    names = {
        "program": PROGRAM,
        "target_named": target_named,
        "read_prices": read_prices,
        "dataclasses": dataclasses,
        "jax": jax,
        "Program": Program,
        "Layout": Layout,
        "Placement": Placement,
        "ROWS": ROWS,
        "PlanSettings": PlanSettings,
        "jnp": jnp,
    }
    result = doctest.testmod(importlib.import_module(f"anytpu.planning.{name}"), extraglobs=names)
    assert result.attempted > 0
    assert result.failed == 0
