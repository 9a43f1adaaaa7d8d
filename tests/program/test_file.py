"""The file form of a Program: written, read back here and in a process that has never seen the model's code."""

from __future__ import annotations

import functools
import io
import json
import os
import subprocess
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.errors import ProgramError, SettingError
from anytpu.program import REPLICATED, ROWS, of, read, write
from anytpu.program.archive import write_parts
from anytpu.program.lowering import one_device_step
from error_texts import error_text
from forked import python
from program_samples import SAMPLES, assert_same_bits, linear, many_types, nested, per_replica, plain

RUN_ELSEWHERE = """
import sys
from pathlib import Path
import jax, numpy as np
from anytpu.program import read

for path in Path(sys.argv[1]).glob("*.anytpu"):
    program = read(path, tensors=True)
    given = np.load(path.with_suffix(".npz"))
    batch = jax.tree.unflatten(jax.tree.structure(program.batch), [given[name] for name in sorted(given.files)])
    leaves = jax.tree.leaves(jax.jit(program.step)(program.tensors, batch))
    is_key = lambda leaf: jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    words = [np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf) for leaf in leaves]
    results = {f"{i:03d}": np.frombuffer(word.tobytes(), "uint8") for i, word in enumerate(words)}
    np.savez(path.with_suffix(".results.npz"), **results)
assert "program_samples" not in sys.modules
"""


error_of = functools.partial(error_text, kind=ProgramError)


def rewritten(path: Path, change) -> Path:
    """Write the parts of a program file anew, changed, with checksums that agree."""
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist() if name != "checksums.json"}
    change(parts)
    write_parts(path, parts)
    return path


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A program file with the values of its state."""
    sample = linear()
    write(sample.program, tmp_path / "linear.anytpu", tensors=sample.state)
    return tmp_path / "linear.anytpu"


@pytest.mark.parametrize("name", SAMPLES)
def test_round_trip(name: str, tmp_path: Path):
    sample = SAMPLES[name]()
    expected = jax.jit(one_device_step(sample.program))(sample.state, sample.batch)
    write(sample.program, tmp_path / "a.anytpu", tensors=sample.state)
    program = read(tmp_path / "a.anytpu", tensors=True)
    assert_same_bits(program.tensors, sample.state)
    assert_same_bits(jax.jit(program.step)(program.tensors, sample.batch), expected)


@pytest.fixture(scope="module")
def run_elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of every sample, which one process without the code made."""
    folder = tmp_path_factory.mktemp("elsewhere")
    for name, make in SAMPLES.items():
        sample = make()
        write(sample.program, folder / f"{name}.anytpu", tensors=sample.state)
        np.savez(folder / f"{name}.npz", **{f"{i:03d}": x for i, x in enumerate(jax.tree.leaves(sample.batch))})
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": ""}
    command = [*python(), "-c", RUN_ELSEWHERE, str(folder)]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", SAMPLES)
def test_another_process_without_the_code(name: str, run_elsewhere: Path):
    sample = SAMPLES[name]()
    state, outputs = jax.jit(one_device_step(sample.program))(sample.state, sample.batch)
    with np.load(run_elsewhere / f"{name}.results.npz") as result:
        got = [result[name].tobytes() for name in sorted(result.files)]
    assert got == [plain(leaf).tobytes() for leaf in jax.tree.leaves((state, outputs))]


def test_what_is_read_is_what_was_written(tmp_path: Path):
    program = many_types().program
    write(program, tmp_path / "a.anytpu")
    back = read(tmp_path / "a.anytpu")
    assert (back.name, back.mode, back.state, back.batch) == (program.name, "train", program.state, program.batch)
    assert (back.layout, back.state_names, back.replicas, back.tensors) == (ROWS, program.state_names, None, None)


def test_trees_come_back_with_a_namedtuple_as_a_tuple(tmp_path: Path):
    sample = nested()
    write(sample.program, tmp_path / "a.anytpu")
    back = read(tmp_path / "a.anytpu")
    scalar = jax.ShapeDtypeStruct((), "float32")
    assert back.state == ((jax.ShapeDtypeStruct((), "int32"), scalar), [scalar, None, {}])
    assert back.batch == {"x": [jax.ShapeDtypeStruct((4, 2), "float32"), None], "scale": scalar}
    assert back.layout == {"x": [ROWS, None], "scale": REPLICATED}
    assert back.state_names == ("0/count", "0/mean", "1/0")
    assert back.step(sample.state, sample.batch)[1] == {}


def test_per_replica_code_comes_back_as_whole_batch_code(tmp_path: Path):
    sample = per_replica(4)
    write(sample.program, tmp_path / "a.anytpu")
    back = read(tmp_path / "a.anytpu")
    assert back.replicas is None
    assert back.layout == (ROWS, REPLICATED)
    assert back.rows == 4
    state, outputs = back.step(sample.state, sample.batch)
    assert state["sum"].shape == ()
    assert outputs["index"].tolist() == [0, 1, 2, 3]


def test_a_file_can_be_written_again(path: Path, tmp_path: Path):
    write(read(path, tensors=True), tmp_path / "again.anytpu")
    sample = linear()
    again = read(tmp_path / "again.anytpu", tensors=True)
    assert_same_bits(again.step(again.tensors, sample.batch), read(path).step(sample.state, sample.batch))


def test_several_platforms(tmp_path: Path):
    sample = linear()
    write(sample.program, tmp_path / "a.anytpu", platforms=("cpu", "cuda", "tpu"))
    assert json.loads(zipfile.ZipFile(tmp_path / "a.anytpu").read("program.json"))["platforms"] == [
        "cpu",
        "cuda",
        "tpu",
    ]
    read(tmp_path / "a.anytpu").step(sample.state, sample.batch)


def test_a_mesh_comes_back(tmp_path: Path):
    mesh = jax.sharding.AbstractMesh(
        (4, 2), ("data", "model"), axis_types=(jax.sharding.AxisType.Auto, jax.sharding.AxisType.Auto)
    )
    specs = [
        jax.ShapeDtypeStruct(shape, "float32", sharding=jax.sharding.NamedSharding(mesh, jax.P(*axes)))
        for shape, axes in (((8, 4), (None, "model")), ((16, 8), ("data",)))
    ]
    program = of(lambda w, x: (w, x @ w), tuple(specs))
    write(program, tmp_path / "a.anytpu")
    again = read(tmp_path / "a.anytpu")
    assert again.placement == program.placement is not None
    assert again.placement.devices == 8


def test_no_state_and_no_outputs(tmp_path: Path):
    program = of(lambda state, batch: (state, None), ({}, [np.zeros(3)]))
    write(program, tmp_path / "a.anytpu", tensors={})
    back = read(tmp_path / "a.anytpu", tensors=True)
    assert back.tensors == {}
    assert back.step({}, [jnp.zeros(3)]) == ({}, None)


def test_values_that_numpy_holds_wider_are_stored_as_jax_has_them(tmp_path: Path):
    program = of(lambda state, batch: (state + 1, {}), (np.float64(3), ()))
    write(program, tmp_path / "a.anytpu", tensors=3.0)
    assert read(tmp_path / "a.anytpu", tensors=True).tensors.dtype == "float32"


# Writing what cannot be written.


def test_unknown_platform(tmp_path: Path):
    with pytest.raises(SettingError, match="not 'gpu'"):
        write(linear().program, tmp_path / "a.anytpu", platforms=("gpu",))


def test_name_that_is_not_a_program_files(tmp_path: Path):
    for name in ("a", "a.zip"):
        assert error_of(write, linear().program, name) == (
            f"The name of a program file must end in '.anytpu', unlike {name!r}."
        )


def test_folder_that_is_not_there(tmp_path: Path):
    place = str(tmp_path / "no" / "a.anytpu")
    assert error_of(write, linear().program, place) == (
        f"The program file {place!r} cannot be written: No such file or directory."
    )


def test_a_refused_program_leaves_the_file_that_is_there(path: Path):
    before = path.read_bytes()
    printing = of(lambda state, batch: (jax.debug.print("x") or state, {}), (np.zeros(3), np.zeros(3)))
    assert "calls back into Python (debug_print" in error_of(write, printing, path)
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_tensors_of_another_structure(tmp_path: Path):
    assert error_of(write, linear().program, tmp_path / "a.anytpu", tensors=[1]) == (
        "The tensors must have the structure of the state of '_linear/train', PyTreeDef({'steps': *, 'w': *}), not "
        "PyTreeDef([*])."
    )


def test_tensor_of_another_shape(tmp_path: Path):
    tensors = {"w": np.zeros(4, "float32"), "steps": 0}
    assert error_of(write, linear().program, tmp_path / "a.anytpu", tensors=tensors) == (
        "The tensor 'w' of '_linear/train' must be float32[3], not float32[4]."
    )


# Reading what cannot be read.


def test_no_file(tmp_path: Path):
    place = str(tmp_path / "a.anytpu")
    assert error_of(read, place) == f"The program file {place!r} cannot be read: No such file or directory."


def test_a_folder(tmp_path: Path):
    place = tmp_path / "a.anytpu"
    place.mkdir()
    assert error_of(read, place) == f"The program file {str(place)!r} cannot be read: Is a directory."


def test_mlir():
    assert error_of(read, "model.mlir") == (
        "'model.mlir' is the name of a StableHLO file, and a program file's ends in '.anytpu'. Make a Program of it "
        "with anytpu.program.of('model.mlir'); lower(program).mlir_module() returns StableHLO."
    )


def test_an_empty_file(tmp_path: Path):
    place = tmp_path / "a.anytpu"
    place.write_bytes(b"")
    assert error_of(read, place) == (
        f"The program file {str(place)!r} is empty. Copy it again, or write it again with anytpu.program.write."
    )


@pytest.mark.parametrize("content", [b"PK", b"not a zip file at all" * 100])
def test_not_a_program_file(content: bytes, tmp_path: Path):
    place = tmp_path / "a.anytpu"
    place.write_bytes(content)
    assert error_of(read, place) == (
        f"{str(place)!r} is not a program file: it is not a zip file. Program files are written by "
        "anytpu.program.write."
    )


def test_another_zip_file(tmp_path: Path):
    place = tmp_path / "a.anytpu"
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr("model.h5", "weights")
    assert error_of(read, place) == (
        f"{str(place)!r} is not a program file: it has no part named 'checksums.json'. Program files are written by "
        "anytpu.program.write."
    )


def test_cut_short(path: Path):
    path.write_bytes(path.read_bytes()[:-100])
    assert error_of(read, path) == (
        f"The program file {str(path)!r} is cut short or damaged: the list of its parts, which is at its end, "
        "cannot be read. Copy it again, or write it again with anytpu.program.write."
    )


def test_altered(path: Path):
    content = path.read_bytes()
    place = content.index(b"\x93NUMPY") + 130
    path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
    read(path)  # Nobody asked for the values.
    assert error_of(read, path, tensors=True) == (
        f"The program file {str(path)!r} was altered or damaged after it was written: its part 'tensors/000.npy' is "
        "not what was recorded. Copy it again, or write it again with anytpu.program.write."
    )


def test_altered_with_a_good_zip_around_it(path: Path):
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in parts.items():
            archive.writestr(name, content.replace(b"_linear/train", b"_linear/wrong"))
    assert "its part 'program.json' is not what was recorded" in error_of(read, path)


def test_newer_format(path: Path):
    def change(parts):
        parts["program.json"] = parts["program.json"].replace(b'"format": 1', b'"format": 7')

    assert error_of(read, rewritten(path, change)) == (
        f"The program file {str(path)!r} is of format 7, and this release of anytpu reads formats up to 2. Install a "
        "newer one: pip install --upgrade anytpu"
    )


def test_no_values(tmp_path: Path):
    place = tmp_path / "a.anytpu"
    write(linear().program, place)
    assert error_of(read, place, tensors=True) == (
        f"The program file {str(place)!r} does not hold the values of the state. Write it with "
        "anytpu.program.write(program, path, tensors=state)."
    )


def test_code_that_this_jax_cannot_read(path: Path):
    def change(parts):
        parts["program.bin"] = parts["program.bin"][:50]

    text = error_of(read, rewritten(path, change))
    assert text.startswith(
        f"The program file {str(path)!r} cannot be used. JAX {jax.__version__} cannot read the code in it, which "
        f"JAX {jax.__version__} wrote: "
    )


def change_manifest(**changes):
    def change(parts):
        parts["program.json"] = json.dumps(json.loads(parts["program.json"]) | changes).encode()

    return change


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"state": 3}, "Its manifest cannot be understood: TypeError: 'int' object is not subscriptable"),
        (
            {"outputs": {"tree": 0, "leaves": []}},
            "Its code takes or returns another number of arrays than its manifest lists.",
        ),
        (
            {"outputs": {"tree": 0, "leaves": [{"name": "loss", "dtype": "int8", "shape": []}]}},
            "Its manifest describes arrays of [('int8', ())], and its code has [('float32', ())].",
        ),
        (
            {"outputs": {"tree": {"list": [0, 0]}, "leaves": [{"name": "loss", "dtype": "float32", "shape": []}]}},
            "The structure {'list': [0, 0]} has 2 leaves, not 1.",
        ),
        (
            {"placement": {"axes": [["data", 8]], "specs": [], "explicit": []}},
            "Its manifest places another number of arrays than it lists.",
        ),
        ({"placement": {}}, "Its manifest cannot be understood: KeyError: 'axes'"),
    ],
)
def test_a_manifest_that_does_not_fit_the_code(path: Path, changes: dict, text: str):
    rewritten(path, change_manifest(**changes))
    assert error_of(read, path) == f"The program file {str(path)!r} cannot be used. {text}"


def test_fewer_values_than_states(path: Path):
    text = error_of(read, rewritten(path, change_manifest(tensors=[None])), tensors=True)
    assert "cannot be used. The values of its state are not what the state declares: " in text


def test_values_that_do_not_fit_the_state(path: Path):
    def change(parts):
        buffer = io.BytesIO()
        np.save(buffer, np.zeros(5, "float32"))
        parts["tensors/001.npy"] = buffer.getvalue()

    assert error_of(read, rewritten(path, change), tensors=True) == (
        f"The program file {str(path)!r} cannot be used. The values of its state are not what the state declares: "
        "float32[5] is not float32[3]"
    )


def test_values_are_never_pickles(path: Path):
    def change(parts):
        buffer = io.BytesIO()
        np.save(buffer, np.array([print], dtype=object), allow_pickle=True)
        parts["tensors/001.npy"] = buffer.getvalue()

    assert "cannot be used. The values of its state are not" in error_of(read, rewritten(path, change), tensors=True)


def test_wide_arrays_in_a_narrow_process(tmp_path: Path):
    place = tmp_path / "a.anytpu"
    with jax.enable_x64(True):
        write(of(lambda state, batch: (state + batch, {}), (np.float64(3), np.float64(1))), place)
        assert float(read(place).step(np.float64(3), np.float64(1))[0]) == 4
    assert error_of(read, place) == (
        f"The program file {str(place)!r} cannot be used. Its 'state' is float64[], and JAX computes with 32 bits in "
        'this process: set JAX_ENABLE_X64=1, or call jax.config.update("jax_enable_x64", True) first.'
    )


def test_each_damaged_byte_is_an_error_of_ours_or_does_no_harm(path: Path):
    """Every seventh byte flipped, the file cut at every thirteenth."""
    content, sample = path.read_bytes(), linear()
    whole = read(path, tensors=True)
    damaged = [content[:at] + bytes([content[at] ^ 0x41]) + content[at + 1 :] for at in range(0, len(content), 7)]
    damaged += [content[:at] for at in range(0, len(content), 13)]
    harmless = 0
    for wrong in damaged:
        path.write_bytes(wrong)
        try:
            program = read(path, tensors=True)
        except ProgramError:
            continue
        harmless += 1
        assert (program.state, program.batch, program.name) == (whole.state, whole.batch, whole.name)
        assert_same_bits(program.tensors, sample.state)
    assert harmless < len(damaged) / 10
