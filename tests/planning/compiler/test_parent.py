"""The memory of the compiler's process: watched, limited, and named when it was too much."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from anytpu.errors import PlanError
from anytpu.files import memory
from anytpu.planning.compiler import parent
from anytpu.planning.compiler.children import ask_child, describe_end
from anytpu.planning.compiler.parent import EndedError, memory_limit_bytes, must_make_room, resident_bytes
from anytpu.planning.compiler.request import request_of
from anytpu.planning.records.target import target_named
from compiler_samples import program_of, train

V3 = target_named("v3-8")
LESS = (
    "Plan on a machine with more memory, one system at a time, or plan less: layers that are alike compile once inside "
    "a jax.lax.scan."
)
CHILD = """
import os, signal, time
from multiprocessing.connection import Connection

def main(descriptor):
    connection = Connection(descriptor)
    connection.send(({"is_ready": True}, b""))
    connection.recv()
    taken = [bytearray(2**20) for _ in range(SIZE_MIB)]
    for part in taken:
        part[::4096] = bytes(len(part[::4096]))
    END
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Stand a package of another compiler's process in the place of ours."""
    compiler = tmp_path / "anytpu/planning/compiler"
    compiler.mkdir(parents=True)
    (tmp_path / "anytpu/__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))  # No warm compiler that another test has left is lent either.
    return compiler


def said(folder: Path, size_mib: int, end: str) -> str:
    (folder / "child.py").write_text(CHILD.replace("SIZE_MIB", str(size_mib)).replace("END", end))
    request = request_of(program_of(train), V3, {})
    with pytest.raises(PlanError) as caught:
        ask_child(request, 60, "'train' for v3-8")
    return str(caught.value)


def test_a_compiler_that_takes_too_much_is_ended(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: 100 * 2**20)
    text = said(folder, 200, "time.sleep(60)")
    assert text.startswith("The TPU compiler took ") and " to compile 'train' for v3-8, and was ended" in text
    assert text.endswith(f"90 % of the memory that was available. {LESS}")
    taken, of, limit = text.split(" MiB")
    assert 90 <= float(taken.split()[-1]) <= 400 and 90 <= float(of.split()[-1]) <= 110, text
    assert limit.startswith(", 90 % of the memory")


def test_a_compiler_that_the_system_ended(folder: Path):
    text = said(folder, 1, "os.kill(os.getpid(), signal.SIGKILL)")
    start = "The TPU compiler was ended by SIGKILL while it compiled 'train' for v3-8"
    end = f"Most likely this machine ran out of memory. Your program is not harmed. {LESS}"
    assert text.startswith(start) and text.endswith(f". {end}")
    peaked = describe_end("'train' for v3-8", EndedError(-9, "", 3 * 2**30))
    assert peaked == f"{start}, when it had at least 3 GiB. {end}"
    assert describe_end("'train' for v3-8", EndedError(-9, "")) == f"{start}. {end}"


def test_the_limit_is_a_share_of_what_is_there_and_shared(monkeypatch: pytest.MonkeyPatch):
    ours = resident_bytes(os.getpid())
    assert ours > 2**20
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: 2**30)
    assert memory_limit_bytes([]) == int(0.9 * 2**30)
    assert memory_limit_bytes([os.getpid()]) > int(0.9 * (2**30 + ours / 2))  # type: ignore[operator]
    monkeypatch.setattr(memory, "available_memory_bytes", lambda: None)
    assert memory_limit_bytes([]) is None


def test_the_youngest_makes_room(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(parent, "resident_bytes", {1: 60, 2: 30}.get)
    assert must_make_room(80, 2, [1, 2]) and not must_make_room(80, 1, [1, 2])
    assert not must_make_room(90, 2, [1, 2])


def test_a_process_that_is_gone_has_none():
    with subprocess.Popen(["true"]) as process:
        process.wait()
    assert resident_bytes(process.pid) == 0


def test_a_compiler_that_does_not_read_is_ended_in_time(folder: Path):
    (folder / "child.py").write_text("import time\n\ndef main(descriptor):\n    time.sleep(60)\n")
    request = request_of(program_of(train), V3, {})
    with pytest.raises(PlanError) as caught:
        ask_child(request, 1.5, "'train' for v3-8")
    assert str(caught.value).startswith("The TPU compiler took longer than 1.5 s to compile 'train' for v3-8")
