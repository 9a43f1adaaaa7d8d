"""The origin of an operation in the user's program: `layer_of` its path, and the line of its stack frame.

Idea: JAX names an operation "jit(step)/transpose(jvp(conv1))/conv_general_dilated": the transformations (compiled,
differentiated, transposed), the layer ("conv1") and the primitive. Only the layer is a user's name. The compiler keeps
the Python stack as four linked tables: files, functions, locations, frames. The user's line is the innermost one
outside of libraries.

Rule: the name of a transformation, a loop or a compiled function is not part of a layer's name. Frames outside of
anytpu's tracing belong to the caller of the plan, not to the program, and are ignored.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from typing import NamedTuple

_WRAPPED = re.compile(r"([A-Za-z_]\w*)\((.*)\)$", re.DOTALL)
_TRANSFORMS = {"jvp", "transpose", "vmap", "remat", "checkpoint", "linearize", "vjp", "pmap", "shard_map"}
_FLOW = {
    "while", "body", "cond", "scan", "call_exported", "checkpoint", "rematted_computation", "remat", "remat2",
    "closed_call", "core_call", "eval_jaxpr", "xla_call", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr",
    "custom_jvp_call_jaxpr", "shard_map", "pjit", "jit", "cond_body", "body_fun", "pallas_call", "switch",
    "custom_lin", "mesh_cast", "named_call",
}  # fmt: skip
_BRANCH = re.compile(r"branch_\d+_fun$")
_NAMED = re.compile(r'^(\d+) "(.*)"$', re.MULTILINE)
_LOCATED = re.compile(r"^(\d+) \{file_name_id=(\d+) function_name_id=\d+ line=(\d+)", re.MULTILINE)
_FRAMED = re.compile(r"^(\d+) \{file_location_id=(\d+)(?: parent_frame_id=(\d+))?", re.MULTILINE)
_LIBRARY = re.compile(r"[/\\](?:site-packages|dist-packages|lib[/\\]python3\.?\d*)[/\\]|^<")
_UNKNOWN = "<unknown>"
_SLASH = re.compile(r"[/\\]")
_OURS = re.compile(r"[/\\](?:src|site-packages|dist-packages)[/\\]anytpu[/\\]")
_TRACING = re.compile(_OURS.pattern + r"(?:program|planning)[/\\]")


class LayerName(NamedTuple):
    """The origin of an operation.

    Attributes:
        layer: "conv1" or "block1/dense"; "" if the user named nothing.
        is_backward: whether it computes a gradient.
    """

    layer: str
    is_backward: bool


@functools.lru_cache(maxsize=65536)
def layer_of(op_name: str) -> LayerName:
    """Return the layer of an operation's path, and whether it belongs to the backward pass.

    Example:
        >>> layer_of("jit(step)/transpose(jvp(conv1))/conv_general_dilated")
        LayerName(layer='conv1', is_backward=True)
        >>> layer_of("jit(step)/jvp(block1)/dense/jit(relu)/max").layer
        'block1/dense'
    """
    parts, is_backward = _split(op_name), False
    names: list[str] = []
    for part in parts[:-1]:
        inner, transposed = _unwrapped(part)
        is_backward |= transposed
        names += [name for name in _split(inner) if not _is_flow(name)]
    # The last part is the primitive. It names no layer, but a transformation around it may be a transposition.
    is_backward |= _unwrapped(parts[-1])[1] if parts else False
    return LayerName("/".join(names), is_backward)


def is_recomputed(op_name: str) -> bool:
    """Return whether an operation repeats a computation of the forward pass, by `jax.checkpoint`.

    Example:
        >>> is_recomputed("jit(step)/transpose(jvp())/checkpoint/rematted_computation/dot_general")
        True
    """
    return "rematted_computation" in op_name


def _split(path: str) -> list[str]:
    """Split a path at the slashes outside of parentheses."""
    if "(" not in path:
        return [part for part in path.split("/") if part]
    parts, depth, start = list[str](), 0, 0
    for place, character in enumerate(path):
        depth += (character == "(") - (character == ")")
        if character == "/" and depth == 0:
            parts.append(path[start:place])
            start = place + 1
    return [part for part in [*parts, path[start:]] if part]


def _unwrapped(part: str) -> tuple[str, bool]:
    """Remove transformations from a name; a compiled function's name is removed altogether."""
    is_backward = False
    while match := _WRAPPED.match(part):
        if match[1] not in _TRANSFORMS:
            return ("", is_backward) if match[1] in ("jit", "pjit") else (part, is_backward)
        is_backward |= match[1] == "transpose"
        part = match[2]
    return part, is_backward


def _is_flow(name: str) -> bool:
    # "bsd,dhk->bshk" is the formula of an einsum.
    return name in _FLOW or "->" in name or bool(_BRANCH.match(name)) or bool(_WRAPPED.match(name))


class Frames:
    """The stack frames of a module, read when first asked for.

    Args:
        text: the part of the module's text before its first computation.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._sources: dict[int, str] = {}

    def source(self, frame: int) -> str:
        """Return the innermost line that is the user's, "model.py:12", or ""."""
        if frame not in self._sources:
            self._sources[frame] = self._source(frame)
        return self._sources[frame]

    def _source(self, frame: int) -> str:
        for file, line in self._stack(frame):
            if _TRACING.search(file):
                return ""
            if not _LIBRARY.search(file) and not _OURS.search(file):
                return f"{re.split(_SLASH, file)[-1]}:{line}"
        return ""

    def _stack(self, frame: int) -> Iterator[tuple[str, int]]:
        """Yield file and line of a frame and of its callers, the innermost first; none if it is not listed."""
        # No more steps than frames: a damaged table may have a cycle.
        for _ in range(len(self._frames)):
            if frame not in self._frames:
                return
            location, frame = self._frames[frame]
            yield self._locations.get(location, (_UNKNOWN, 0))

    @functools.cached_property
    def _locations(self) -> dict[int, tuple[str, int]]:
        files = dict(_NAMED.findall(self._table("FileNames")))
        located = _LOCATED.findall(self._table("FileLocations"))
        return {int(number): (files.get(file, _UNKNOWN), int(line)) for number, file, line in located}

    @functools.cached_property
    def _frames(self) -> dict[int, tuple[int, int]]:
        """The location and the caller's frame of each frame, 0 for no caller."""
        rows = [tuple(int(x or 0) for x in row) for row in _FRAMED.findall(self._table("StackFrames"))]
        # libtpu 0.0.51 writes one more than the caller's number, so that 1 is nobody; others may write the number.
        shift = 1 if any(parent >= number for number, _, parent in rows) else 0
        return {number: (location, parent - shift) for number, location, parent in rows}

    def _table(self, name: str) -> str:
        start = self._text.find(f"\n{name}\n")
        if start < 0:
            return ""
        end = self._text.find("\n\n", start + 1)
        return self._text[start : end if end > 0 else len(self._text)]
