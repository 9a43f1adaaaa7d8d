"""The child processes of this process: borrowed for one compilation, returned, and killed at exit.

Idea: the compilations of one plan belong together. They run inside `compilations()`, and are ended together when one of
them fails; those of other plans and threads go on.

Rule: one thread borrows a child at a time. A loan that ends badly (a crash, a timeout, Ctrl-C) ends the child. A child
that was started in another environment (LIBTPU_INIT_ARGS, another libtpu) is not lent again. A forked process starts
without children.
"""

from __future__ import annotations

import atexit
import contextlib
import contextvars
import os
import threading
from collections.abc import Iterator

from anytpu import _env
from anytpu.planning.compiler.parent import Child, EndedError


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


_LOCK = threading.Lock()
_IDLE: list[Child] = []
_LENT: dict[Child, Compilations | None] = {}
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


@contextlib.contextmanager
def borrowed() -> Iterator[Child]:
    """Lend a child, a warm one if there is one.

    Raises:
        ClosedError: the compilations that this one belongs to were ended, before or during it.
    """
    whose = _CURRENT.get()
    child = _taken(whose)
    try:
        yield child
    except BaseException as error:
        child.kill()
        if whose is not None and whose.is_closed and isinstance(error, EndedError):
            raise ClosedError from None
        raise
    finally:
        _given_back(child)


def close() -> None:
    """Kill all children, busy ones included: a thread that waits for an answer gets `EndedError`."""
    with _LOCK:
        idle = _IDLE.copy()
        _IDLE.clear()
        for child in _LENT:
            child.end()
    for child in idle:
        child.kill()


def _taken(whose: Compilations | None) -> Child:
    surroundings = _env.compiler_surroundings()
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


def _given_back(child: Child) -> None:
    with _LOCK:
        _LENT.pop(child, None)
        if child.is_alive:
            _IDLE.append(child)
        else:
            child.kill()


def _forget() -> None:
    global _LOCK
    _LOCK = threading.Lock()
    _NOT_OURS.extend([*_IDLE, *_LENT])  # Keep references: collecting them would look like an end of our own children.
    _IDLE.clear()
    _LENT.clear()


atexit.register(close)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
