"""A StableHLO file as a Program."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from anytpu.errors import ProgramError
from anytpu.program import REPLICATED, ROWS, Placement, lower, of, write
from anytpu.program.stablehlo_file import read_stablehlo

W, X = np.arange(4, dtype="float32"), np.arange(12, dtype="float32").reshape(3, 4)


def step(x, w):
    return x @ w, w - x.mean(0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.mlir"
    path.write_text(jax.jit(step, donate_argnums=1).lower(X, W).as_text())
    return path


def error_of(job, *arguments, **options) -> str:
    with pytest.raises(ProgramError) as caught:
        of(job, *arguments, **options)
    return str(caught.value)


@pytest.mark.parametrize("kind", [str, Path])
def test_what_is_donated_is_state(file: Path, kind):
    program = of(kind(file))
    assert (program.name, program.mode, program.rows, program.placement) == ("net/train", "train", None, None)
    assert program.state_names == ("argument 1",)
    assert [leaf.shape for leaf in jax.tree.leaves((program.state, program.batch))] == [(4,), (3, 4)]
    (state,), (output,) = program.step((W,), (X,))
    np.testing.assert_allclose(state, W - X.mean(0))
    np.testing.assert_allclose(output, X @ W)


def test_nothing_donated_is_a_prediction(tmp_path: Path):
    (tmp_path / "net.mlir").write_text(jax.jit(step).lower(X, W).as_text())
    program = of(tmp_path / "net.mlir", mode="infer")
    assert (program.name, program.state, len(program.batch)) == ("net/infer", (), 2)
    state, outputs = program.step((), (X, W))
    assert state == () and len(outputs) == 2


def test_rows_that_the_user_says_are_split(file: Path):
    program = of(file, input_specs={0: ROWS})
    assert (program.layout, program.rows) == ((ROWS,), 3)


def test_it_goes_on_as_a_program_file(file: Path, tmp_path: Path):
    write(of(file), tmp_path / "net.anytpu")
    (state,), _ = of(tmp_path / "net.anytpu").step((W,), (X,))
    np.testing.assert_allclose(state, W - X.mean(0))
    assert lower(of(file), "tpu").platforms == ("tpu",)


def test_its_mesh_is_kept(tmp_path: Path):
    mesh = AbstractMesh((2, 4), ("data", "model"))
    x, w = (
        jax.ShapeDtypeStruct(one.shape, one.dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))
        for one, spec in ((np.zeros((8, 4), "float32"), ("data",)), (W, ("model",)))
    )
    text = jax.export.export(jax.jit(step), platforms=["tpu"])(x, w).mlir_module()
    (tmp_path / "net.mlir").write_text(text)
    placement = Placement((("data", 2), ("model", 4)), ((("data",), ()), (("model",),)))
    assert of(tmp_path / "net.mlir").placement == placement
    assert placement.devices == 8


def test_layouts_that_do_not_fit(file: Path):
    start = f"The StableHLO file {str(file)!r} cannot be used. "
    for given in ((ROWS, REPLICATED), {0: "rows"}, (X, W)):
        assert error_of(file, given) == start + (
            "Its shapes are fixed; input_specs can only say which of its arguments lie split over the devices, as "
            f"{{number: anytpu.program.ROWS}}, and not {given!r}."
        )
    assert error_of(file, {2: ROWS}) == start + "It has no argument 2: its 2 arguments count from 0."
    assert error_of(file, {1: ROWS}) == start + (
        "Its argument 1 is state, whose memory a result takes: that is REPLICATED."
    )
    file.write_text("func.func @main(%a: tensor<f32>) -> tensor<f32> { return %a : tensor<f32> }")
    assert error_of(file, {0: ROWS}) == start + "Its argument 0 has the shape () and no rows to split."


def test_what_it_does_not_have(file: Path):
    start = f"The StableHLO file {str(file)!r} "
    assert error_of(file, tensors=True) == start + "holds no values of a state: leave tensors out."
    assert error_of(file, batch_size=8) == start + (
        "has one batch and one precision, and cannot be made again with batch_size=8. Give the model or the function "
        "that it was made of in its place: anytpu.program.of(model, batch_size=8)."
    )
    assert error_of(file, mode="infer") == "The program 'net/train' is one for mode 'train'; it has none for 'infer'."


def test_a_file_that_is_none(tmp_path: Path):
    missing, cut = tmp_path / "missing.mlir", tmp_path / "cut.mlir"
    assert error_of(missing) == f"The StableHLO file {str(missing)!r} cannot be read: No such file or directory."
    cut.write_text("\n")
    assert error_of(cut) == (
        f"The StableHLO file {str(cut)!r} cannot be used. The file is empty: write jax.jit(step).lower(...).as_text() "
        "into it."
    )
    cut.write_text("module {")
    assert error_of(cut) == (
        f"The StableHLO file {str(cut)!r} cannot be used. It is not StableHLO: line 1, column 7: expected operation "
        "name in quotes."
    )
    with pytest.raises(ProgramError):
        read_stablehlo(cut)
