"""A StableHLO file as a Program."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType, NamedSharding, PartitionSpec

from anytpu.errors import ProgramError
from anytpu.program import REPLICATED, ROWS, Placement, lower, of, stablehlo_file, write
from anytpu.program.stablehlo_file import read_stablehlo
from error_texts import error_text

W, X = np.arange(4, dtype="float32"), np.arange(12, dtype="float32").reshape(3, 4)


def step(x, w):
    return x @ w, w - x.mean(0)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "net.mlir"
    path.write_text(jax.jit(step, donate_argnums=1).lower(X, W).as_text())
    return path


error_of = functools.partial(error_text, of, kind=ProgramError)


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
    mesh = AbstractMesh((2, 4), ("data", "model"), axis_types=(AxisType.Auto, AxisType.Auto))
    x, w = (
        jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(mesh, PartitionSpec(*spec)))
        for array, spec in ((np.zeros((8, 4), "float32"), ("data",)), (W, ("model",)))
    )
    text = jax.export.export(jax.jit(step), platforms=["tpu"])(x, w).mlir_module()
    (tmp_path / "net.mlir").write_text(text)
    placement = Placement((("data", 2), ("model", 4)), ((("data",), ()), (("model",),)))
    assert of(tmp_path / "net.mlir").placement == placement
    assert placement.devices == 8


def test_examples_lie_along_the_axis_that_its_mesh_splits(tmp_path: Path):
    mesh = AbstractMesh((8,), ("data",))
    shapes = (((3, 3, 8, 8), ()), ((24, 24, 8, 64), (None, None, None, "data")), ((64,), ("data",)))
    specs = [
        jax.ShapeDtypeStruct(shape, "float32", sharding=NamedSharding(mesh, PartitionSpec(*spec)))
        for shape, spec in shapes
    ]
    traced = jax.jit(lambda w, x, y: (w + x.sum(), y.sum()), donate_argnums=0).trace(*specs)
    lowered = traced.lower(lowering_platforms=("tpu",))
    (tmp_path / "net.mlir").write_text(lowered.as_text())
    program = of(tmp_path / "net.mlir")
    assert ([leaf_layout.axis for leaf_layout in program.layout], program.rows, program.notes) == ([None, 3, 0], 64, ())


def test_layouts_that_do_not_fit(file: Path):
    start = f"The StableHLO file {str(file)!r} cannot be used. "
    for given in ((ROWS, REPLICATED), {0: "rows"}, (X, W)):
        assert error_of(file, given) == start + (
            "Its shapes are fixed; input_specs can only name the arguments that are split over the devices, as "
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
        "has one batch and one precision, and cannot be changed to batch_size=8. Give the model or the function "
        "instead: anytpu.program.of(model, batch_size=8)."
    )
    assert error_of(file, mode="infer") == "The program 'net/train' has the mode 'train', not 'infer'."


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


def test_a_module_that_ends_the_parser(tmp_path: Path):
    """Brackets of such a depth overflow its stack."""
    path = tmp_path / "deep.mlir"
    path.write_text("func.func @main(%a: " + "tuple<" * 200_000 + "i1" + ">" * 200_000 + ") { return }")
    said = error_of(path)
    assert said.startswith(
        f"The StableHLO file {str(path)!r} cannot be used. It is damaged: MLIR's parser was ended by SIG"
    )
    assert said.endswith(". Write it again, with jax.jit(step).lower(...).as_text().")


def test_the_child_refuses_in_the_words_of_this_process(tmp_path: Path):
    path = tmp_path / "net.mlir"
    path.write_text("hello")
    assert error_of(path) == (
        f"The StableHLO file {str(path)!r} cannot be used. It is not StableHLO: line 1, column 1: custom op 'hello' is "
        "unknown (tried 'builtin.hello' as well)."
    )


AGAIN = "rite it again, with jax.jit(step).lower(...).as_text()."
MEMORY = (
    "MLIR's parser was ended by SIGKILL. Most likely this machine ran out of memory. The file is not harmed: read it "
    "on a machine with more memory."
)


def child_that(monkeypatch: pytest.MonkeyPatch, end: str, begins: bool = True) -> None:
    """Put another process in the place of the parser's."""
    begun = f"os.write(1, {stablehlo_file._BEGAN!r})" if begins else ""
    monkeypatch.setattr(stablehlo_file, "_CHILD", f"import os, signal, sys\nsys.stdin.buffer.read()\n{begun}\n{end}")


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("os.abort()", f"It is damaged: MLIR's parser was ended by SIGABRT on it. W{AGAIN}"),
        ("os.kill(os.getpid(), signal.SIGBUS)", f"It is damaged: MLIR's parser was ended by SIGBUS on it. W{AGAIN}"),
        ("os.kill(os.getpid(), signal.SIGKILL)", MEMORY),
        (
            "os.kill(os.getpid(), signal.SIGTERM)",
            f"MLIR's parser was ended by SIGTERM on it. Read it again; if that fails too: w{AGAIN}",
        ),
        (
            "sys.exit('no more')",
            f"MLIR's parser ended with status 1 on it: no more. Read it again; if that fails too: w{AGAIN}",
        ),
    ],
)
def test_how_the_parsers_process_ended(file: Path, monkeypatch: pytest.MonkeyPatch, end: str, said: str):
    child_that(monkeypatch, end)
    file.write_text(f"// {end}\n{file.read_text()}")
    assert error_of(file) == f"The StableHLO file {str(file)!r} cannot be used. {said}"


@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("import no_such_module", "it ended with status 1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("os.abort()", "it was ended by SIGABRT"),
        ("sys.exit(0)", "it ended with status 0"),
    ],
)
def test_a_parser_that_does_not_start(file: Path, monkeypatch: pytest.MonkeyPatch, end: str, said: str):
    file.write_text(f"// {end}, early\n{file.read_text()}")
    start = f"The StableHLO file {str(file)!r} cannot be used. The process for MLIR's parser could not start: "
    child_that(monkeypatch, end, begins=False)
    assert error_of(file) == f"{start}{said}. Look at this machine with: anytpu doctor."
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert error_of(file) == (
        f"{start}[Errno 2] No such file or directory: '/nowhere/python'. Look at this machine with: anytpu doctor."
    )


def test_a_content_is_tried_once_and_not_kept(monkeypatch: pytest.MonkeyPatch):
    content = f"// once\n{jax.jit(step).lower(X, W).as_text()}".encode()
    before = sys.getrefcount(content)
    stablehlo_file.try_parsing(content)
    assert sys.getrefcount(content) == before
    child_that(monkeypatch, "os.abort()")
    stablehlo_file.try_parsing(bytes(bytearray(content)))
    with jax.enable_x64(True), pytest.raises(ProgramError, match="It is damaged"):
        stablehlo_file.try_parsing(content)
