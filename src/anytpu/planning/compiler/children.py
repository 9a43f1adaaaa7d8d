"""The child processes of this process: borrowed for one compilation, returned, and killed at exit.

Idea: the compilations of one plan belong together. They run inside `compilations()`, and are ended together when one of
them fails; those of other plans and threads go on.

Rule: one thread borrows a child at a time. A loan that ends badly (a crash, a timeout, Ctrl-C) ends the child. A child
that was started in another environment (LIBTPU_INIT_ARGS, another libtpu) is not lent again. A forked process starts
without children. A compilation that made room for others starts again when these have ended, and none starts beside it.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import os
import signal
import threading
import time
from collections.abc import Iterator

from anytpu import _env, units
from anytpu.errors import NoAnswerError, PlanError
from anytpu.planning.compiler.parent import (
    LESS_MEMORY,
    Answer,
    Child,
    CrowdedError,
    EndedError,
    forget_children,
    is_busy,
)
from anytpu.planning.compiler.request import Request


class Compilations:
    """Compilations that belong together.

    Attributes:
        is_closed: whether they were ended; no more may begin.
    """

    def __init__(self) -> None:
        self.is_closed = False

    def close(self) -> None:
        """End the running compilations and refuse new ones: each raises `ClosedError` in its own thread."""
        with _LOCK:
            self.is_closed = True
            for child, whose in _LENT.items():
                if whose is self:
                    child.end()


class ClosedError(Exception):
    """The compilations that this one belongs to were ended, because another of them failed."""


_LOOKS_S = 0.1
# Guards `_IDLE`, `_LENT` and `Compilations.is_closed`.
_LOCK = threading.Lock()
# Held by a compilation that took too much memory beside others, while it runs again.
_ALONE = threading.Lock()
_IDLE: list[Child] = []
_LENT: dict[Child, Compilations | None] = {}
# In a forked process: the children of its parent.
_NOT_OURS: list[Child] = []
_CURRENT = contextvars.ContextVar[Compilations | None]("compilations", default=None)


@contextlib.contextmanager
def compilations() -> Iterator[Compilations]:
    """Treat the compilations of this thread from here on, and those of copies of its context, as belonging together."""
    ours = Compilations()
    before = _CURRENT.set(ours)
    try:
        yield ours
    finally:
        _CURRENT.reset(before)


def ask_child(request: Request, timeout_s: float, job: str) -> Answer:
    """Return a child's answer to a request.

    Args:
        request: the program to compile.
        timeout_s: time limit, seconds.
        job: program and target, for the errors: "'step/train' for v3-8".

    Raises:
        CompilerMissingError: the compiler cannot be loaded.
        NoAnswerError: it took too long or too much memory.
        PlanError: it ended otherwise.
    """
    try:
        with _ALONE:  # Held by a compilation that needs the memory of the machine for itself.
            pass
        try:
            return _ask_twice(request, timeout_s, job)
        except CrowdedError:
            # The lock keeps later compilations from starting while this one waits for the earlier ones, and runs.
            with _ALONE:
                return _ask_alone(request, timeout_s, job)
    except EndedError as error:
        # SIGKILL most likely means that memory ran out. For NoAnswerError a plan has a floor.
        kind = NoAnswerError if error.status == -signal.SIGKILL else PlanError
        raise kind(describe_end(job, error)) from None


def _ask_alone(request: Request, timeout_s: float, job: str) -> Answer:
    while True:
        while is_busy():
            time.sleep(_LOOKS_S)
        # A compilation that passed the lock before may have begun meanwhile.
        with contextlib.suppress(CrowdedError):
            return _ask_twice(request, timeout_s, job)


def _ask_twice(request: Request, timeout_s: float, job: str) -> Answer:
    try:
        return _ask(request, timeout_s, job)
    except EndedError as error:
        if error.status != 0:
            raise
    return _ask(request, timeout_s, job)  # The last child had waited too long for a request, and has just exited.


def _ask(request: Request, timeout_s: float, job: str) -> Answer:
    with borrow_child() as child:
        answer = child.ask(request.header(), request.code.content, timeout_s, job)
        if request.stage == "schedule":
            child.end()  # It goes on to the machine code, and libtpu cannot be interrupted.
        return answer


@contextlib.contextmanager
def borrow_child() -> Iterator[Child]:
    """Lend a child, a warm one if there is one.

    Raises:
        ClosedError: the compilations that this one belongs to were ended, before or during it.
    """
    whose = _CURRENT.get()
    child = _take(whose)
    try:
        yield child
    except BaseException as error:
        child.kill()
        # `Compilations.close` ended the child. The user sees the error of the compilation that failed.
        if whose is not None and whose.is_closed and isinstance(error, EndedError):
            raise ClosedError from None
        raise
    finally:
        _give_back(child)


@atexit.register
def close() -> None:
    """Kill all children, busy ones included: a thread that waits for an answer gets `EndedError`."""
    with _LOCK:
        idle = _IDLE.copy()
        _IDLE.clear()
        # `end`, not `kill`: a thread still reads from the streams of a lent child.
        for child in _LENT:
            child.end()
    for child in idle:
        child.kill()


def describe_end(job: str, error: EndedError) -> str:
    """Return the error text for a compiler that ended before it answered: how it ended, its last output, and what to
    do."""
    status = error.status
    if status == -signal.SIGKILL:
        seen = f", when it had at least {units.format_bytes(error.peak_bytes)}" if error.peak_bytes else ""
        return (
            f"The TPU compiler was ended by SIGKILL while it compiled {job}{seen}. Most likely this machine ran out of "
            f"memory. Your program is not harmed. {LESS_MEMORY}"
        )
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    words = f" Its last words:\n{error.last_words}\n" if error.last_words else " It said nothing. "
    return (
        f"The TPU compiler {how} while it compiled {job}.{words}"
        "Your program is not harmed. Try another batch size or another TPU, or another compiler: "
        "pip install --upgrade 'anytpu[plan]'"
    )


def _take(whose: Compilations | None) -> Child:
    surroundings = _env.compiler_surroundings()
    # The check and the loan are one step. Otherwise a child could be lent after `Compilations.close` ended all others.
    with _LOCK:
        if whose is not None and whose.is_closed:
            raise ClosedError
        while _IDLE:
            child = _IDLE.pop()
            if child.is_alive and child.surroundings == surroundings:
                break
            child.kill()
        else:
            child = Child()
        _LENT[child] = whose
        return child


def _give_back(child: Child) -> None:
    with _LOCK:
        _LENT.pop(child, None)
        if child.is_alive:
            _IDLE.append(child)
        else:
            child.kill()


def _forget() -> None:
    global _LOCK, _ALONE
    _LOCK, _ALONE = threading.Lock(), threading.Lock()
    _NOT_OURS.extend([*_IDLE, *_LENT])  # Keep references: collecting them would look like an end of our own children.
    _IDLE.clear()
    _LENT.clear()
    forget_children()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
