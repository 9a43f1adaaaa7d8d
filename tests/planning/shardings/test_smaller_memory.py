"""Steps that do not fit: rematerialisation, and a smaller batch. With the real TPU compiler."""

import jax
import jax.numpy as jnp
import pytest

import anytpu as tpu
from anytpu import program as programs
from anytpu.errors import SettingError
from anytpu.planning.shardings import find_layouts
from anytpu.planning.shardings.automatic import choose_layout
from anytpu.sharding import resolve

WIDTH, BLOCKS = 256, 3


def step(weights, x):
    def loss(weights):
        y = x
        for up, down in weights:
            y = y + jnp.tanh(jnp.sin(y @ up) ** 2) @ down
        return (y**2).mean()

    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), {"loss": value}


def specs(rows):
    spec = jax.ShapeDtypeStruct
    block = spec((WIDTH, 8 * WIDTH), "float32"), spec((8 * WIDTH, WIDTH), "float32")
    return [block] * BLOCKS, spec((rows, WIDTH), "float32")


@pytest.fixture(scope="module")
def said():
    return []


@pytest.fixture(scope="module")
def rematerialised(said):
    return find_layouts(step, "v5e-1", input_specs=specs(2**19), progress=said.append)


def test_a_step_that_does_not_fit_is_compiled_with_rematerialisation(rematerialised, said):
    best = rematerialised.best
    assert best.layout.remat == "by block"
    assert best.title == "data (data=1), rematerialised (by block)"
    assert best.prediction.fits
    assert any(op.is_recomputed for op in best.prediction.time.ops)
    assert said[-1].startswith("data (data=1), rematerialised (by block) on v5e-1: ")


def test_the_answer_says_what_to_write(rematerialised, capsys):
    assert rematerialised.best.remat_code == (
        "Rematerialise by block: jax.checkpoint(block)(x, weights) around each of about 3 blocks."
    )
    rematerialised.show()
    lines = capsys.readouterr().out.splitlines()
    assert any("remat" in line.split() for line in lines[:5])
    assert "remat: computations that the backward pass repeats." in " ".join(lines)


def test_a_plan_of_the_layout_rematerialises_too(rematerialised, tmp_path):
    path = rematerialised.to_json(tmp_path / "layouts.json")
    assert resolve(str(path), None, 1).remat == "by block"
    planned = tpu.plan(step, tpu="v5e-1", input_specs=specs(2**19), layout=str(path))
    assert planned["v5e-1"].step_s == rematerialised.best.step_s


def test_the_automatic_layout_rematerialises_if_no_other_form_fits(rematerialised):
    chosen = choose_layout(programs.of(step, specs(2**19)), "v5e-1", lambda line: None)
    assert (chosen.layout.name, chosen.layout.remat) == ("data", "by block")


def test_a_batch_that_fits_in_no_layout_has_a_part_that_does():
    found = find_layouts(step, "v5e-1", input_specs=specs(2**22))
    with pytest.raises(SettingError) as error:
        _ = found.best
    note = found.notes[-1]
    assert note in str(error.value)
    assert note.startswith("A batch of ")
    assert "fits with data (data=1), rematerialised (by block): " in note
    assert " accumulation steps of it make the whole batch; the sum of the gradients takes at most 12 MiB more." in note
