"""Layouts that were found for one model, used for others."""

import jax.numpy as jnp
import pytest

from anytpu import program as programs
from anytpu.errors import SettingError
from anytpu.planning.shardings.candidates import candidates
from anytpu.sharding import place, trace_step


def program_of(*names, width=512):
    weights = {name: jnp.zeros((width, 512)) for name in names}

    def step(weights, x):
        return weights, sum((x @ weights[name]).sum() for name in names)

    return programs.of(step, (weights, jnp.zeros((16, width))))


@pytest.fixture(scope="module")
def fsdp():
    return next(
        candidate for candidate in candidates(trace_step(program_of("a[z-b]", "c")), 8) if candidate.name == "fsdp"
    )


def test_names_are_no_regular_expressions(fsdp):
    assert all(any(spec) for spec in place(program_of("a[z-b]", "c"), fsdp).placement.specs)


def test_another_name_in_the_same_place_is_the_same_array(fsdp):
    assert all(any(spec) for spec in place(program_of("d", "e"), fsdp).placement.specs)


def test_another_model_is_refused(fsdp):
    with pytest.raises(SettingError, match="matches no weight of 'step/train'"):
        place(program_of("d", "e", width=256), fsdp)
