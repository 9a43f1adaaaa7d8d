"""Where an operation comes from: its layer and its line in the user's program, read from the traced step."""

from __future__ import annotations

import dataclasses
import functools
import os
import sysconfig
from collections.abc import Iterator
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from anytpu.program import lowering
from anytpu.program.jaxprs import inner_jaxprs, level_of

_LIBRARIES = tuple({os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")})
_OF_JAX = f"{os.sep}jax{os.sep}"
# Where steps are traced: what lies around that is how somebody came to ask, and no part of the step.
_TRACERS = frozenset({lowering.__file__, os.path.join(os.path.dirname(__file__), "export.py")})
_OURS = os.path.realpath(os.path.join(os.path.dirname(__file__), os.pardir, os.pardir))


@dataclasses.dataclass(frozen=True)
class OperationPlace:
    """Where an operation comes from.

    Attributes:
        operation: what JAX calls it: "dot_general".
        layer: the named scopes around it, "sequential/dense", or "".
        line: "model.py:12 (call)", or "".
        is_users: whether the line is the user's; else it is one of a package, for want of any of the user's.
    """

    operation: str
    layer: str
    line: str
    is_users: bool = True

    def __str__(self) -> str:
        layer = f" of the layer {self.layer!r}" if self.layer else ""
        return f"the operation {self.operation!r}{layer}" + (f", at {self.line}" if self.line else "")


@dataclasses.dataclass(frozen=True)
class TracedOperation:
    """An equation of a traced step, with those that it is inside of.

    Attributes:
        equation: itself.
        around: the equations around it, outermost first: a call of a jitted function, a loop, a kernel.
    """

    equation: JaxprEqn
    around: tuple[JaxprEqn, ...] = ()

    @property
    def name(self) -> str:
        """What JAX calls it."""
        return self.equation.primitive.name

    @property
    def place(self) -> OperationPlace:
        """Where it comes from."""
        lines = self._lines()
        users = next((line for line in lines if is_users(line[0])), None)
        chosen = users or next(iter(lines), None)
        line = f"{chosen[0]}:{chosen[1]} ({chosen[2]})" if chosen else ""
        scopes = (str(equation.source_info.name_stack) for equation in (*self.around, self.equation))
        return OperationPlace(self.name, layer_of("/".join(scopes)), line, users is not None)

    def passes(self, file: str, line: int) -> bool:
        """Tell whether a line of source is among those that it comes from."""
        return any((passed[0], passed[1]) == (file, line) for passed in self._lines())

    def _lines(self) -> list[tuple[str, int, str]]:
        return [line for equation in (self.equation, *reversed(self.around)) for line in _lines(equation)]


def operations(jaxpr: ClosedJaxpr | Jaxpr, around: tuple[JaxprEqn, ...] = ()) -> Iterator[TracedOperation]:
    """Yield each equation of a jaxpr and of those inside it."""
    for equation in level_of(jaxpr).eqns:
        yield TracedOperation(equation, around)
        for inner in inner_jaxprs(equation):
            yield from operations(inner, (*around, equation))


def layer_of(path: str) -> str:
    """Return the named scopes in a path: "jit(step)/jvp(dense)/dot_general" without what JAX puts around them.

    Example:
        >>> layer_of("jit(step)/transpose(jvp(sequential))/dense/")
        'sequential/dense'
    """
    parts = []
    for part in path.split("/"):
        while part.endswith(")") and "(" in part:
            before, part = part[:-1].split("(", 1)
            if before in ("jit", "pjit", "custom_jvp_call", "custom_vjp_call"):
                part = ""
        parts.append(part)
    return "/".join(part for part in parts if part and part != "call_exported")


@functools.lru_cache(maxsize=1024)
def is_users(file: str) -> bool:
    """Tell whether a file is the user's: neither of Python or its packages, nor of anytpu."""
    path = os.path.realpath(file)
    return not any(path.startswith(folder + os.sep) for folder in (*_LIBRARIES, _OURS))


def _lines(equation: JaxprEqn) -> list[tuple[str, int, str]]:
    """Return (file, line, function) of the frames of a step that an equation was made in, innermost first."""
    traceback: Any = equation.source_info.traceback
    frames = []
    for frame in traceback.frames if traceback is not None else ():
        if frame.file_name in _TRACERS:
            break
        if _OF_JAX not in frame.file_name:
            frames.append((frame.file_name, frame.line_num, frame.function_name))
    return frames
