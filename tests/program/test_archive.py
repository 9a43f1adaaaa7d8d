"""A zip of named parts with a sha-256 of each, and the values of a state as .npy parts."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from anytpu.errors import ProgramError
from anytpu.files import memory
from anytpu.program import Program, spec_of
from anytpu.program.archive import CHECKSUMS, ArchiveParts, npy_to_tensors, tensor_part, tensors_to_npy, write_parts
from anytpu.units import format_bytes
from program_samples import assert_same_bits

PARTS = {"program.json": b"{}", "program.bin": b"code" * 100, "tensors/000.npy": bytes(1000)}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_parts(tmp_path / "a.anytpu", PARTS)
    return tmp_path / "a.anytpu"


def test_round_trip(path: Path):
    with ArchiveParts(path, ("program.json",)) as parts:
        assert {name: parts.read(name) for name in PARTS} == PARTS
        assert parts.unchecked("program.bin") == PARTS["program.bin"]
        assert parts.unchecked("nothing") == b""


def test_what_is_in_the_file(path: Path):
    with zipfile.ZipFile(path) as archive:
        assert archive.namelist() == [*PARTS, CHECKSUMS]
        sums = json.loads(archive.read(CHECKSUMS))
    assert sums == {name: hashlib.sha256(content).hexdigest() for name, content in PARTS.items()}


def test_the_same_parts_give_the_same_bytes(path: Path):
    before = path.read_bytes()
    write_parts(path, PARTS)
    assert path.read_bytes() == before


def test_nothing_is_left_beside_it(path: Path):
    assert [file.name for file in path.parent.iterdir()] == ["a.anytpu"]


def test_a_write_that_fails_leaves_nothing(tmp_path: Path):
    taken = tmp_path / "taken.anytpu"
    taken.mkdir()
    with pytest.raises(ProgramError) as caught:
        write_parts(taken, PARTS)
    assert str(caught.value) == f"The program file {str(taken)!r} cannot be written: Is a directory."
    assert [file.name for file in tmp_path.iterdir()] == ["taken.anytpu"]


def test_a_part_that_is_needed(path: Path):
    with pytest.raises(ProgramError) as caught:
        ArchiveParts(path, ("program.json", "layers.json"))
    assert str(caught.value) == (
        f"{str(path)!r} is not a program file: it has no part named 'layers.json'. Program files are written by "
        "anytpu.program.write."
    )


@pytest.mark.parametrize("sums", [b"", b"[]", b"{", b"[" * 100_000])
def test_checksums_that_are_none(sums: bytes, tmp_path: Path):
    place = tmp_path / "a.anytpu"
    with zipfile.ZipFile(place, "w") as archive:
        archive.writestr(CHECKSUMS, sums)
    with pytest.raises(ProgramError) as caught:
        ArchiveParts(place, ())
    assert str(caught.value) == (
        f"The program file {str(place)!r} was altered or damaged after it was written: its part 'checksums.json' is "
        "not what was recorded. Copy it again, or write it again with anytpu.program.write."
    )


def test_a_part_without_a_checksum(path: Path):
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("more", "content")
    with ArchiveParts(path, ()) as parts, pytest.raises(ProgramError, match="its part 'more' is not what was recorded"):
        parts.read("more")


def test_parts_that_unpack_to_much_more_than_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path, parts = tmp_path / "a.anytpu", {"program.bin": bytes(2**20), "tensors/000.npy": b""}
    write_parts(path, parts)
    monkeypatch.setattr(memory, "FREELY_UNPACKED_BYTES", 2**19)
    with pytest.raises(ProgramError) as caught:
        ArchiveParts(path, ())
    assert str(caught.value) == (
        f"The program file {str(path)!r} cannot be used. Its parts are too large: it unpacks from "
        f"{format_bytes(path.stat().st_size)} to 1 MiB, and above 512 KiB a file may unpack to 100 times its size. "
        "Write it again with anytpu.program.write."
    )
    # What anytpu writes itself is stored, where it is that large.
    write_parts(path, parts)
    with ArchiveParts(path, ()) as found:
        assert found.read("program.bin") == parts["program.bin"]
    # So are several that are that large together.
    write_parts(path, {"a": bytes(2**18), "b": bytes(2**18 + 1)})
    ArchiveParts(path, ()).__exit__()


def test_parts_of_numbers_are_packed_by_runs(tmp_path: Path):
    content = bytes(range(256)) * 2**8 + bytes(2**16)
    sizes = []
    for numbers in ((), ("weights",)):
        write_parts(tmp_path / "a.tpu", {"weights": content}, numbers)
        sizes.append((tmp_path / "a.tpu").stat().st_size)
        with ArchiveParts(tmp_path / "a.tpu", ("weights",)) as parts:
            assert parts.read("weights") == content
    assert sizes[0] < 2**13 < 2**15 < sizes[1] < 2**17


TYPES = ["float32", "float16", "bfloat16", "float8_e4m3fn", "int4", "int8", "uint8", "uint32", "bool", "complex64"]


def program_of(state) -> Program:
    return Program("p/train", lambda state, batch: (state, {}), spec_of(state), (), ())


def through_files(state):
    program = program_of(state)
    stored = tensors_to_npy(program, state)
    return npy_to_tensors(program, [content for _, content in stored], [generator for generator, _ in stored])


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("shape", [(), (0,), (3, 2)])
def test_values_round_trip(dtype: str, shape: tuple[int, ...]):
    state = {"w": jnp.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)}
    assert_same_bits(through_files(state), state)


def test_not_contiguous():
    state = np.arange(12, dtype="float32").reshape(3, 4).T[::2]
    assert_same_bits(through_files(state), state)


@pytest.mark.parametrize("generator", ["threefry2x32", "rbg"])
def test_typed_keys(generator: str):
    key = jax.random.split(jax.random.key(3, impl=generator), 2)
    back = through_files((key,))[0]
    assert jax.random.bits(back[1]) == jax.random.bits(key[1])


def test_numpy_alone_reads_them():
    ((generator, content),) = tensors_to_npy(program_of(jnp.ones(3)), jnp.ones(3))
    assert generator is None
    assert np.load(io.BytesIO(content)).tolist() == [1, 1, 1]


def test_part_names():
    assert [tensor_part(index) for index in (0, 12, 1234)] == [
        "tensors/000.npy",
        "tensors/012.npy",
        "tensors/1234.npy",
    ]


def test_strings_are_not_tensors():
    with pytest.raises(ProgramError) as caught:
        tensors_to_npy(program_of(np.zeros(2, "float32")), np.array(["a", "b"]))
    assert str(caught.value) == "The tensor 'state' of 'p/train' must be float32[2], not str32[2]."
