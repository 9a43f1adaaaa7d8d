"""The origin of an operation: its layer and its line in the user's program, read from the traced step."""

from __future__ import annotations

import dataclasses
import functools
import os
import sysconfig
from collections.abc import Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from anytpu.planning.hlo import layer_of
from anytpu.program import lowering
from anytpu.program.jaxprs import inner_jaxprs, level_of

_LIBRARIES = tuple({os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")})
_OF_JAX = f"{os.sep}jax{os.sep}"
# Functions that trace steps: frames outside them belong to the caller of the plan, not to the step.
_TRACERS = frozenset({lowering.__file__, os.path.join(os.path.dirname(__file__), "export.py")})
_OURS = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))


@dataclasses.dataclass(frozen=True)
class OperationPlace:
    """The origin of an operation.

    Attributes:
        operation: name of its primitive: "dot_general".
        layer: named scopes around it, "sequential/dense", or "".
        line: "model.py:12 (call)", or "".
        is_users: whether the line is the user's; else it belongs to a package, because no line of the user's is known.
    """

    operation: str
    layer: str
    line: str
    is_users: bool = True

    @property
    def identity(self) -> str:
        """Its layer and the user's line: the part that an answer quotes, and that is the same from run to run."""
        return f"{self.layer} {self.line if self.is_users else ''}"

    def __str__(self) -> str:
        layer = f" of the layer {self.layer!r}" if self.layer else ""
        return f"the operation {self.operation!r}{layer}" + (f", at {self.line}" if self.line else "")


@dataclasses.dataclass(frozen=True)
class TracedOperation:
    """An equation of a traced step, with the equations that enclose it.

    Attributes:
        equation: the equation.
        around: the enclosing equations, outermost first: a call of a jitted function, a loop, a kernel.
    """

    equation: JaxprEqn
    around: tuple[JaxprEqn, ...] = ()

    @property
    def name(self) -> str:
        """Name of its primitive."""
        return self.equation.primitive.name

    @property
    def place(self) -> OperationPlace:
        """Origin of the operation."""
        lines = self._lines()
        users = next((line for line in lines if is_users(line[0])), None)
        chosen = users or next(iter(lines), None)
        line = f"{chosen[0]}:{chosen[1]} ({chosen[2]})" if chosen else ""
        scopes = [str(equation.source_info.name_stack) for equation in (*self.around, self.equation)]
        return OperationPlace(self.name, layer_of("/".join([*scopes, self.name])).layer, line, users is not None)

    def passes(self, file: str, line: int) -> bool:
        """Return whether a source line is in its stack."""
        return any((passed[0], passed[1]) == (file, line) for passed in self._lines())

    def _lines(self) -> list[tuple[str, int, str]]:
        return [line for equation in (self.equation, *reversed(self.around)) for line in _lines(equation)]


def operations(jaxpr: ClosedJaxpr | Jaxpr, around: tuple[JaxprEqn, ...] = ()) -> Iterator[TracedOperation]:
    """Yield each equation of a jaxpr, inner ones included."""
    for equation in level_of(jaxpr).eqns:
        yield TracedOperation(equation, around)
        for inner in inner_jaxprs(equation):
            yield from operations(inner, (*around, equation))


@functools.lru_cache(maxsize=1024)
def is_users(file: str) -> bool:
    """Return whether a file is the user's: neither of Python or its packages, nor of anytpu."""
    path = os.path.realpath(file)
    return not any(path.startswith(folder + os.sep) for folder in (*_LIBRARIES, _OURS))


def _lines(equation: JaxprEqn) -> tuple[tuple[str, int, str], ...]:
    """Return (file, line, function) of the stack frames of an equation inside the step, innermost first."""
    return _frames(equation.source_info.traceback)


# Layers that are alike have equal tracebacks, and JAX takes a fifth of a millisecond to list the frames of one.
@functools.lru_cache(maxsize=4096)
def _frames(traceback: Any) -> tuple[tuple[str, int, str], ...]:
    frames = []
    for frame in traceback.frames if traceback is not None else ():
        if frame.file_name in _TRACERS:
            break
        if _OF_JAX not in frame.file_name:
            frames.append((frame.file_name, frame.line_num, frame.function_name))
    return tuple(frames)
