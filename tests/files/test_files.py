"""Memory, zips, .npy files and new files: what the readers and writers of the other folders lean on."""

from __future__ import annotations

import io
import os
import resource
import stat
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

from anytpu.files import memory
from anytpu.files.npy import read_npy
from anytpu.files.replacing import replaced
from anytpu.files.zips import Zip
from anytpu.units import format_bytes

LIMITED = """
import resource
from anytpu.files.memory import check_memory, left_in_limits
used = int(open("/proc/self/statm").read().split()[5]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_DATA, (used + 2**28, resource.RLIM_INFINITY))
print(2**27 < left_in_limits()[0] <= 2**28)
check_memory(2**26)
try:
    check_memory(2**29)
except ValueError as error:
    print(str(error).split(", and ")[0])
"""


def npy_file(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def with_header(text: str) -> bytes:
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text.encode()


@pytest.mark.parametrize("available_bytes", [None, 0, 2**25])
def test_memory_that_the_machine_has(available_bytes: int | None, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: available_bytes)
    monkeypatch.setattr(memory, "left_in_limits", lambda: [])
    memory.check_memory(2**24)
    if available_bytes is None:
        memory.check_memory(2**60)
        return
    with pytest.raises(ValueError) as caught:
        memory.check_memory(2**25 + 1)
    assert str(caught.value) == f"it needs 32 MiB of memory, and {format_bytes(available_bytes)} are free"


def test_the_memory_that_is_left(tmp_path: Path):
    assert memory.available_memory_bytes(tmp_path) is None
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:  2000 kB\nMemAvailable:  1000 kB\n")
    assert memory.available_memory_bytes(tmp_path) == 1000 * 1024
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/some/group\n1:cpu:/\n0::/box\n")
    old, new = tmp_path / "sys/fs/cgroup/memory/some/group", tmp_path / "sys/fs/cgroup/box"
    old.mkdir(parents=True)
    new.mkdir(parents=True)
    (old / "memory.limit_in_bytes").write_text("9000\n")
    (old / "memory.usage_in_bytes").write_text("5000\n")
    (old / "memory.stat").write_text("cache 700\ntotal_inactive_file 600\n")
    assert memory.available_memory_bytes(tmp_path) == 4600
    (new / "memory.max").write_text("max\n")
    (new / "memory.current").write_text("7\n")
    assert memory.available_memory_bytes(tmp_path) == 4600
    (old.parent / "memory.limit_in_bytes").write_text("50\n")
    (old.parent / "memory.usage_in_bytes").write_text("60\n")
    assert memory.available_memory_bytes(tmp_path) == 0


def test_what_unpacks_to_much_more_than_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name in ("a", "b"):
            archive.writestr(name, bytes(10**6))
    with Zip(path) as archive:
        archive.check_ratio()
        # Each of the two could be had, and both together not.
        monkeypatch.setattr(memory, "FREELY_UNPACKED_BYTES", 3 * 2**19)
        with pytest.raises(ValueError) as caught:
            archive.check_ratio()
    assert str(caught.value) == (
        "it unpacks from 2.1 KiB to 1.91 MiB, and above 1.5 MiB a file may unpack to 100 times its size"
    )


def test_a_member_is_held_once(tmp_path: Path):
    content = np.random.default_rng(0).bytes(2**25)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x", content)
    with Zip(tmp_path / "a.zip") as archive:
        tracemalloc.start()
        try:
            found = archive.read("x")
            peak_bytes = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
    assert found == content and peak_bytes < 1.5 * len(content)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux keeps to such a limit")
def test_a_limit_of_the_process_counts():
    ran = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines() == ["True", "it needs 512 MiB of memory"]


@pytest.mark.parametrize(
    "array",
    [
        *(np.arange(24).reshape(2, 3, 4), np.asfortranarray(np.arange(6.0).reshape(2, 3)), np.float32(2.5)),
        *(np.zeros((0, 3)), np.array(["a", "bc"]), np.array([(1, 2.0)], [("a", "<i4"), ("b", "<f8")])),
        *(np.arange(3, dtype=">i2"), np.array([True, False])),
    ],
    ids=str,
)
def test_arrays_come_back(array: np.ndarray):
    content = npy_file(array)
    found = read_npy(io.BytesIO(content), len(content))
    assert found.dtype == array.dtype and found.shape == array.shape and found.tolist() == array.tolist()
    assert found.flags.f_contiguous == np.asarray(array).flags.f_contiguous


HEADER = "{{'descr': {}, 'fortran_order': False, 'shape': {}}}"


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it ends 8 bytes too early"),
        (b"\x93NUMPY\7\0", "it does not begin as an .npy file of version 1, 2 or 3"),
        (with_header(HEADER.format("'<f8'", (2**40,)))[:40], "it ends 37 bytes too early"),
        (
            with_header(HEADER.format("'<f8'", (2**40,))),
            "its header states float64 of shape (1099511627776,), 8,796,093,022,208 bytes, and 0 follow",
        ),
        (with_header(HEADER.format("'|O'", (2,))), "it holds Python objects"),
        (
            with_header(HEADER.format("'|V0'", (2**40,))),
            "its header is invalid: |V0 of shape (1099511627776,), fortran_order False",
        ),
        (
            with_header(HEADER.format("'|u1'", (-1,))),
            "its header is invalid: uint8 of shape (-1,), fortran_order False",
        ),
        (with_header("__import__('os')"), None),
        (with_header("(" * 5000), None),
        (b"\x93NUMPY\2\0\xff\xff\xff\xff", "its header has 4,294,967,295 bytes; the maximum is 10,000"),
    ],
)
def test_headers_that_lie(content: bytes, reason: str | None):
    with pytest.raises(ValueError) as caught:
        read_npy(io.BytesIO(content), len(content))
    if reason is None:
        assert str(caught.value).startswith("its header is invalid: ")
    else:
        assert str(caught.value) == reason


def test_a_member_larger_than_it_declares(tmp_path: Path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(10**6))
    content = path.read_bytes()
    path.write_bytes(content.replace(struct.pack("<L", 10**6), struct.pack("<L", 10)))
    with Zip(path) as archive, pytest.raises(ValueError, match=r"Bad CRC-32 for file 'zeros'"):
        archive.read("zeros")


def test_a_member_larger_than_the_memory(tmp_path: Path):
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("zeros", bytes(10**6))
    limits = resource.getrlimit(resource.RLIMIT_DATA)
    content = path.read_bytes()
    path.write_bytes(content.replace(struct.pack("<L", 10**6), struct.pack("<L", 2**32 - 2)))
    used_bytes = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used_bytes + 2**30, limits[1]))
    try:
        with Zip(path) as archive, pytest.raises(ValueError, match=r"^it needs 4 GiB of memory, and .* are free$"):
            archive.read("zeros")
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, limits)


def test_a_method_that_cannot_be_bounded(tmp_path: Path):
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("x", bytes(1000))
    with Zip(tmp_path / "a.zip") as archive, pytest.raises(ValueError) as caught:
        archive.read("x")
    assert str(caught.value) == "'x' is packed by method 12, neither stored nor deflated"


def test_a_new_file_is_whole_or_not_there(tmp_path: Path):
    path = tmp_path / ("n" * 250)
    with replaced(path) as unfinished:
        unfinished.write_text("new")
        assert not path.exists() and unfinished.parent == tmp_path
    assert path.read_text() == "new"
    with pytest.raises(KeyError), replaced(path) as unfinished:
        unfinished.write_text("newer")
        raise KeyError
    assert path.read_text() == "new" and os.listdir(tmp_path) == [path.name]


def test_a_new_file_has_the_mode_of_any_new_file(tmp_path: Path):
    (tmp_path / "plain").touch()
    with replaced(tmp_path / "new"):
        pass
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == stat.S_IMODE((tmp_path / "plain").stat().st_mode)


def test_a_link_with_the_temporary_name_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / ".a.guessed").symlink_to(victim)
    names = iter(["guessed", "other"])
    monkeypatch.setattr("secrets.token_hex", lambda size: next(names))
    with replaced(tmp_path / "a") as unfinished:
        assert unfinished.name == ".a.other"
        unfinished.write_text("new")
    assert victim.read_text() == "mine"
