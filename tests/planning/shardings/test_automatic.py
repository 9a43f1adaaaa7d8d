"""The layout of `layout="auto"`: by the estimate alone, and by the real TPU compiler."""

import re

import jax
import pytest

from anytpu import program as programs
from anytpu.errors import SettingError
from anytpu.planning.records.target import target_named
from anytpu.planning.shardings.automatic import by_estimate, choose_layout, search_of


def network(width: int, rows: int):
    """Return the training step of two layers whose weights have shapes and no values."""

    def step(weights, x):
        def loss(weights):
            return ((jax.nn.relu(x @ weights[0]) @ weights[1]) ** 2).mean()

        slopes = jax.grad(loss)(weights)
        return jax.tree.map(lambda weight, slope: weight - 0.1 * slope, weights, slopes), ()

    weights = jax.ShapeDtypeStruct((width, 4 * width), "float32"), jax.ShapeDtypeStruct((4 * width, width), "float32")
    return programs.of(step, (weights, jax.ShapeDtypeStruct((rows, width), "float32")))


def test_a_small_network_with_many_examples_is_data_parallel():
    program, target = network(128, 65536), target_named("v2-8")
    chosen = by_estimate(search_of(program, target), "the reason")
    assert chosen.layout.name == "data"
    assert chosen.why.startswith("about the shortest estimate of ")
    assert chosen.why.endswith(" layouts that fit, by FLOPs and bytes alone; the reason")
    again = by_estimate(search_of(program, target), "the reason")
    assert (again.layout.specs, again.why) == (chosen.layout.specs, chosen.why)


def test_weights_that_are_larger_than_a_core_are_split():
    chosen = by_estimate(
        search_of(network(24576, 64), target_named("v2-8")), ""
    )  # 18 GiB of weights, 7.5 GiB of a core
    assert any(chosen.layout.specs.values())


def test_a_network_that_fits_in_no_layout_is_refused():
    with pytest.raises(SettingError) as error:
        by_estimate(search_of(network(65536, 64), target_named("v2-8")), "")  # 128 GiB of weights over 8 cores
    assert str(error.value).partition(" the smallest, ")[0] == (
        "layout=\"auto\" finds no layout of 'step/train' for v2-8:"
    )
    assert str(error.value).endswith(
        " takes 16 GiB of a device for the state and the batch, and it has 7.48 GiB. Use a larger slice"
    )


def test_the_compiler_chooses_among_a_few():
    """37 rows are padded to 40, because the compiler takes no remainder."""
    lines = []
    chosen = choose_layout(network(256, 37), "v5e-8", lines.append)
    assert lines == ["layout=\"auto\" compiles up to 3 layouts of 'step/train' for v5e-8"]
    assert re.search(r" a step is predicted, .* of \d compiled layouts of \d", chosen.why)
    assert choose_layout(network(256, 37), "v5e-8", lines.append).why == chosen.why
