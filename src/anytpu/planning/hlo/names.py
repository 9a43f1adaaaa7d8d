"""`layer_of`: the user's layer in the path that JAX gives an operation.

Idea: "jit(step)/transpose(jvp(conv1))/conv_general_dilated" has three parts. It gives the transformations (compiled,
differentiated, transposed), the layer ("conv1") and the primitive. Only the layer is a user's name.

Rule: the name of a transformation, a loop or a compiled function is not part of a layer's name.
"""

from __future__ import annotations

import functools
import re
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
