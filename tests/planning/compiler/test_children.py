from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from anytpu.errors import CompilerMissingError, PlanError
from anytpu.planning.compiler import children, compile_program
from anytpu.planning.target import target_named
from compiler_samples import program_of, slow, train

V3 = target_named("v3-8")
AFTER = (
    "Your program is not harmed. Try another batch size or another TPU, or another compiler: "
    "pip install --upgrade 'anytpu[plan]'"
)


def compile_train() -> None:
    compile_program(program_of(train), V3, use_cache=False)


def idle() -> int:
    """Return the number of the one warm child."""
    compile_train()
    return children._IDLE[-1].pid


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


def compiling(errors: list[Exception]) -> tuple[threading.Thread, int]:
    """Start a slow compilation in a thread; return it and the number of its child, once that compiles."""

    def work() -> None:
        try:
            compile_program(program_of(slow), V3)
        except PlanError as error:
            errors.append(error)

    pid = idle()
    thread = threading.Thread(target=work)
    thread.start()
    while not any(child.is_busy for child in children._LENT):
        thread.join(0.01)
    return thread, pid


def test_a_warm_child_is_used_again():
    assert idle() == idle()


def test_a_child_that_was_killed_while_it_waited_is_replaced():
    before = idle()
    os.kill(before, signal.SIGKILL)
    assert ends(before)
    assert idle() != before


def test_a_child_that_is_killed_while_it_compiles():
    errors: list[Exception] = []
    thread, pid = compiling(errors)
    os.kill(pid, signal.SIGKILL)
    thread.join()
    assert [str(error) for error in errors] == [
        f"The TPU compiler was ended by SIGKILL while it compiled 'slow/train' for v3-8. It said nothing. {AFTER}"
    ]
    compile_train()


def test_close_ends_those_that_compile_and_those_that_wait():
    errors: list[Exception] = []
    thread, pid = compiling(errors)
    children.close()
    thread.join()
    assert len(errors) == 1 and ends(pid)
    assert children._IDLE == children._LENT == []
    compile_train()


PARENT = """
import signal, sys, threading
from anytpu.planning.compiler import children, compile_program
from anytpu.planning.target import target_named
from compiler_samples import program_of, slow

def tell():
    while not children._LENT or not children._LENT[0].is_busy:
        pass
    print(children._LENT[0].pid, flush=True)

threading.Thread(target=tell, daemon=True).start()
compile_program(program_of(slow), target_named("v3-8"))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_child_ends_with_its_parent(number: signal.Signals):
    tests = str(Path(__file__).parents[2])
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": tests},
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    parent.send_signal(number)
    _, said = parent.communicate()
    assert ends(child)
    assert said == "" if number == signal.SIGKILL else said.rstrip().endswith("KeyboardInterrupt")


def test_two_threads_have_a_child_each():
    seen: list[int] = []

    def work() -> None:
        with children.borrowed() as child:
            seen.append(child.pid)
            both.wait()

    both = threading.Barrier(2, timeout=30)
    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(seen)) == 2


def test_a_compiler_that_cannot_be_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A libtpu of another kind stands before the real one, in the child."""
    (tmp_path / "libtpu").mkdir()
    (tmp_path / "libtpu/__init__.py").write_text("def get_library_path():\n    return '/nowhere/libtpu.so'\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    children.close()
    with pytest.raises(CompilerMissingError) as error:
        compile_train()
    said = str(error.value)
    assert said.startswith("The TPU compiler, libtpu, is installed and cannot be used here: ")
    assert said.endswith(". Install the one that this JAX pairs with: pip install --force-reinstall 'anytpu[plan]'")
    assert "/nowhere/libtpu.so" in said and "\n" not in said
