from __future__ import annotations

import contextvars
import os
import random
import re
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from anytpu import _env
from anytpu.errors import CompilerMissingError, PlanError
from anytpu.planning.compiler import children, compile_program, parent
from anytpu.planning.compiler.parent import Child
from anytpu.planning.records.target import target_named
from compiler_samples import program_of, slow, train

V3 = target_named("v3-8")
AFTER = (
    "Most likely this machine ran out of memory. Your program is not harmed. Plan on a machine with more memory, one "
    "system at a time, or plan less: layers that are alike compile once inside a jax.lax.scan."
)


def compile_train() -> None:
    compile_program(program_of(train), V3, use_cache=False)


def compile_slowly() -> None:
    compile_program(program_of(slow), V3, use_cache=False)


def idle() -> int:
    """Return the number of a child that waits; it need not have loaded its compiler yet."""
    with children.borrow_child() as child:
        return child.pid


def ends(pid: int) -> bool:
    """Tell whether a process ends within a minute."""
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    found = bool(poll.poll(60_000))
    os.close(watched)
    return found


def test_a_child_that_waits_is_used_again():
    assert idle() == idle()


def test_a_child_that_was_killed_while_it_waited_is_replaced():
    before = idle()
    os.kill(before, signal.SIGKILL)
    assert ends(before)
    assert idle() != before


def test_a_child_that_ends_while_it_waits_leaves_no_zombie():
    with children.borrow_child() as child:
        pass
    os.kill(child.pid, signal.SIGKILL)
    child._reaper.join(60)
    assert not Path(f"/proc/{child.pid}").exists()


def test_a_child_is_lent_only_in_the_surroundings_that_it_was_started_in(monkeypatch: pytest.MonkeyPatch):
    before = idle()
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_tpu_flag=1")
    after = idle()
    assert ends(before)
    while not (environment := Path(f"/proc/{after}/environ").read_bytes().strip(b"\0")):
        time.sleep(0.01)  # It has not loaded its program yet.
    assert b"LIBTPU_INIT_ARGS=--xla_tpu_flag=1" in environment.split(b"\0")
    monkeypatch.setattr(_env, "libtpu_version", lambda: "99")  # as after an upgrade while this process runs
    assert idle() != after and ends(after)


def test_those_of_compilations_that_were_closed_end_and_no_more_begin():
    with children.borrow_child() as other, children.compilations() as ours:
        with pytest.raises(children.ClosedError), children.borrow_child() as child:
            ours.close()
            assert ends(child.pid)
            child.ask({}, b"", 60, "nothing")
        with pytest.raises(children.ClosedError), children.borrow_child():
            raise AssertionError("a closed one was lent a child")
        assert other.is_alive and list(children._LENT) == [other]
    with children.borrow_child() as again:
        assert again is other


def test_an_answer_that_came_before_the_end_counts():
    with children.compilations() as ours:
        with children.borrow_child() as child:
            ours.close()
        assert ends(child.pid) and child not in children._IDLE


def test_close_ends_those_that_are_lent_and_those_that_wait():
    with children.borrow_child() as lent:
        waits = idle()
        children.close()
        assert not any(Path(f"/proc/{pid}").exists() for pid in (lent.pid, waits))
    assert children._IDLE == [] and not children._LENT


def had_of(errors: list[Exception]) -> list[str]:
    """Return what each error says of the memory that was seen."""
    return ["".join(re.findall(r", when it had at least [\d.]+ [MG]iB", str(error))) for error in errors]


def compiling(errors: list[Exception]) -> threading.Thread:
    """Start a slow compilation, as one of this thread's, in a thread."""

    def work() -> None:
        try:
            compile_program(program_of(slow), V3)
        except (PlanError, children.ClosedError) as error:
            errors.append(error)

    thread = threading.Thread(target=contextvars.copy_context().run, args=(work,))
    thread.start()
    return thread


def test_compilations_that_are_ended():
    """One plan's by its token, while another's goes on; that one by a signal."""
    errors: list[Exception] = []
    with children.compilations() as ours:
        thread = compiling(errors)
    others: list[Exception] = []
    other = compiling(others)
    while len(parent._BUSY) < 2:
        thread.join(0.01)
    ours.close()
    thread.join()
    assert [type(error) for error in errors] == [children.ClosedError]
    (child,) = children._LENT
    assert child.pid in parent._BUSY and child.is_alive
    os.kill(child.pid, signal.SIGKILL)
    other.join()
    assert [str(error) for error in others] == [
        f"The TPU compiler was ended by SIGKILL while it compiled 'slow/train' for v3-8{had}. {AFTER}"
        for had in had_of(others)
    ]
    compile_train()


PARENT = """
import signal, sys, threading
from anytpu.planning.compiler import children, compile_program, parent
from anytpu.planning.records.target import target_named
from compiler_samples import program_of, slow

def tell():
    while not parent._BUSY:
        pass
    print(*[child.pid for child in children._LENT], flush=True)

threading.Thread(target=tell, daemon=True).start()
compile_program(program_of(slow), target_named("v3-8"))
"""


def test_children_end_with_their_parents():
    ended_by = (signal.SIGKILL, signal.SIGINT)
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}
    parents = [
        subprocess.Popen(
            [sys.executable, "-c", PARENT],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for _ in ended_by
    ]
    for process, number in zip(parents, ended_by, strict=True):
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.send_signal(number)
        _, said = process.communicate()
        assert ends(child)
        assert said == "" if number == signal.SIGKILL else said.rstrip().endswith("KeyboardInterrupt")


def test_two_threads_have_a_child_each():
    seen: list[int] = []

    def work() -> None:
        with children.borrow_child() as child:
            seen.append(child.pid)
            both.wait()

    both = threading.Barrier(2, timeout=30)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 2


def test_a_compilation_that_made_room_starts_again_alone(monkeypatch: pytest.MonkeyPatch):
    started: list[tuple[int, list[int]]] = []
    monkeypatch.setattr(parent, "memory_limit_bytes", lambda pids: 2**30)
    # Two compilers are above the limit together, and one alone is not.
    monkeypatch.setattr(parent, "resident_bytes", lambda pid: 2**29 + 1)
    send = Child.ask

    def ask(child: Child, *arguments: Any) -> Any:
        started.append((child.pid, parent._BUSY.copy()))
        return send(child, *arguments)

    monkeypatch.setattr(Child, "ask", ask)
    first = threading.Thread(target=compile_slowly)
    first.start()
    while not parent._BUSY:
        time.sleep(0.01)
    compile_train()
    first.join()
    (older, _), (younger, beside), (again, alone) = started
    assert beside == [older] and alone == []
    assert len({older, younger, again}) == 3 or again == older


def test_a_compiler_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A libtpu of another kind stands before the real one, in the child."""
    (tmp_path / "libtpu").mkdir()
    (tmp_path / "libtpu/__init__.py").write_text("def get_library_path():\n    return '/nowhere/libtpu.so'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CompilerMissingError) as error:
        compile_train()
    said = str(error.value)
    assert said.startswith("The TPU compiler, libtpu, is installed and cannot be used here: ")
    assert said.endswith(". Install the one that this JAX pairs with: pip install --force-reinstall 'anytpu[plan]'")
    assert "/nowhere/libtpu.so" in said and "\n" not in said


CHILD = """
import random
from multiprocessing.connection import Connection

def main(descriptor):
    connection = Connection(descriptor)
    connection.send(({"is_ready": True}, b""))
    connection.recv()
    connection.send(({"unusable": random.__file__}, b""))
"""


def test_the_folder_of_this_package_hides_no_module_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    compiler = tmp_path / "anytpu/planning/compiler"
    compiler.mkdir(parents=True)
    (compiler / "child.py").write_text(CHILD)
    (tmp_path / "anytpu/__init__.py").touch()  # or one that is installed would come first
    (tmp_path / "random.py").write_text("__file__ = 'hidden'")
    monkeypatch.setattr(_env, "package_folder", lambda: tmp_path)
    child = Child()
    with pytest.raises(CompilerMissingError) as error:
        child.ask({}, b"", 60, "nothing")
    child.kill()
    assert f" cannot be used here: {random.__file__}. Install " in str(error.value)
