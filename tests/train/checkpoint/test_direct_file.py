"""Direct access: bytes are written and read whole, whatever their number and the file system."""

from __future__ import annotations

import contextlib
import fcntl
import os
from pathlib import Path

import numpy as np
import pytest

from anytpu.train.checkpoint.arrays import write_all
from anytpu.train.checkpoint.direct_file import DirectFile, direct_pieces
from anytpu.train.checkpoint.read_ahead import ReadAhead
from anytpu.units import MIB

SIZES = [0, 1, 4096, 4 * MIB - 1, 4 * MIB, 4 * MIB + 1, 9 * MIB + 77]


def content_of(size_bytes: int) -> bytes:
    return np.random.default_rng(size_bytes).bytes(size_bytes)


@pytest.fixture(params=["disk", "tmpfs"])
def folder(request: pytest.FixtureRequest, tmp_path: Path):
    if request.param == "disk":
        yield tmp_path
        return
    if not os.path.isdir("/dev/shm"):
        pytest.skip("this machine has no tmpfs")
    path = Path("/dev/shm") / f"anytpu-{os.getpid()}"
    path.mkdir()
    yield path
    for file in path.iterdir():
        file.unlink()
    path.rmdir()


@pytest.mark.parametrize("size_bytes", SIZES)
def test_the_file_has_the_bytes_and_the_size(folder: Path, size_bytes: int):
    content = content_of(size_bytes)
    with DirectFile(folder / "file") as file:
        write_all(file, memoryview(content)[: size_bytes // 3])
        write_all(file, memoryview(content)[size_bytes // 3 :])
        file.finish()
    assert (folder / "file").read_bytes() == content


def test_a_write_that_ends_within_a_block_goes_on_without_direct_writes(tmp_path: Path):
    content = content_of(5 * MIB)
    with DirectFile(tmp_path / "file") as file:
        raw = file._file
        before = fcntl.fcntl(raw, fcntl.F_GETFL)
        write_all(file, memoryview(content)[: 4 * MIB])
        os.ftruncate(raw.fileno(), 100)
        os.lseek(raw.fileno(), 100, os.SEEK_SET)
        write_all(file, memoryview(content)[4 * MIB :])
        file._size_bytes = 100 + MIB
        file.finish()
        after = fcntl.fcntl(raw, fcntl.F_GETFL)
    assert (tmp_path / "file").read_bytes() == content[:100] + content[4 * MIB :]
    if before & os.O_DIRECT:
        assert not after & os.O_DIRECT


def test_an_existing_file_is_kept(tmp_path: Path):
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        DirectFile(tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == b"old"


@pytest.mark.parametrize("size_bytes", [*SIZES, 40 * MIB + 77])
def test_pieces_of_files_are_their_bytes(folder: Path, size_bytes: int):
    content = content_of(size_bytes)
    with contextlib.ExitStack() as stack:
        for name, part in (("1", content[: size_bytes // 3]), ("2", b""), ("3", content[size_bytes // 3 :])):
            (folder / name).write_bytes(part)
        files = [stack.enter_context((folder / name).open("rb", buffering=0)) for name in "123"]
        found, buffer = [], bytearray(3 * MIB + 5)
        source = stack.enter_context(ReadAhead(direct_pieces(files)))
        while count := source.readinto(memoryview(buffer)):
            found.append(bytes(buffer[:count]))
    assert b"".join(found) == content
