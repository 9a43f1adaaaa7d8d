"""`shapes_of`: read shapes and layouts, and reckon what they take in memory.

Idea: `bf16[128,10]{0,1:T(8,128)(2,1)S(1)}` is an array of 128 x 10 numbers whose dimension 0 is the fastest one, stored
in tiles of 8 x 128 of which each holds pairs of rows, in memory space 1. Dimensions are rounded up to the tile, so
that the 10 takes the room of 16.

Rule: tiles apply to the most minor dimensions; each further tile divides the one before it.
Source: https://openxla.org/xla/tiled_layout.
"""

from __future__ import annotations

import functools
import math
import re

from anytpu.errors import PlanError
from anytpu.planning.hlo.instruction import Shape

_SHAPE = re.compile(r"(?:/\*index=\d+\*/)?([a-z][a-z0-9]*)\[([^\]]*)\](?:\{([^}]*)\})?")
_TILES = re.compile(r"T((?:\([\d,*]*\))+)")
_TILE = re.compile(r"\(([\d,*]*)\)")
_SPACE = re.compile(r"S\((\d+)\)")
_BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "c64": 64, "c128": 128}
_BITS_IN_NAME = re.compile(r"[a-z]+(\d+)")


@functools.lru_cache(maxsize=65536)
def shapes_of(text: str) -> tuple[Shape, ...]:
    """Read one shape, or those of a tuple, flattened.

    Raises:
        PlanError: it is no shape.

    Example:
        >>> shape = shapes_of("f32[128,10]{0,1:T(8,128)}")[0]
        >>> shape.bytes, shape.padded_bytes
        (5120, 8192)
    """
    found = tuple(_shape(*match.groups(default="")) for match in _SHAPE.finditer(text))
    if not found and text != "()":
        raise PlanError(f"{text!r} in the compiler's text is not the shape of an array, such as 'f32[8,128]{{1,0}}'")
    return found


def bits_of(dtype: str) -> int:
    """Return the bits of one number of a type: 16 for "bf16", 4 for "s4", 8 for "f8e4m3fn" and "pred".

    Raises:
        PlanError: there is no such type.
    """
    if dtype in _BITS:
        return _BITS[dtype]
    match = _BITS_IN_NAME.match(dtype)
    if not match:
        raise PlanError(f"{dtype!r} in the compiler's text is not a type of numbers, such as 'f32' or 'bf16'")
    return int(match[1])


def _shape(dtype: str, dims_text: str, layout: str) -> Shape:
    dims = tuple(int(dim.strip().removeprefix("<=")) for dim in dims_text.split(",") if dim.strip())
    order, _, rest = layout.partition(":")
    minor_to_major = tuple(map(int, filter(None, order.split(",")))) or tuple(reversed(range(len(dims))))
    tiles_match, space = _TILES.search(rest), _SPACE.search(rest)
    tiles = tuple(_sizes(tile) for tile in _TILE.findall(tiles_match[1])) if tiles_match else ()
    bits = bits_of(dtype)
    padded = padded_count(tuple(dims[axis] for axis in reversed(minor_to_major)), tiles)
    return Shape(
        dtype=dtype,
        dims=dims,
        minor_to_major=minor_to_major,
        tiles=tiles,
        memory_space=int(space[1]) if space else 0,
        bytes=math.ceil(math.prod(dims) * bits / 8),
        padded_bytes=math.ceil(padded * bits / 8),
    )


def _sizes(tile: str) -> tuple[int, ...]:
    # "*" joins a dimension to the next more minor one: to the count of elements it is a tile of 1.
    return tuple(1 if size == "*" else int(size) for size in tile.split(",") if size)


def padded_count(physical: tuple[int, ...], tiles: tuple[tuple[int, ...], ...]) -> int:
    """Return how many numbers an array takes the room of.

    Args:
        physical: sizes from the slowest dimension to the fastest.
        tiles: tiles of the layout, () for none.

    Example:
        >>> padded_count((10, 128), ((8, 128),)), padded_count((), ((128,),))
        (2048, 128)
    """
    sizes = list(physical)
    for tile in tiles:
        outer = [1] * (len(tile) - len(sizes)) + sizes
        kept, divided = outer[: len(outer) - len(tile)], outer[len(outer) - len(tile) :]
        sizes = kept + [math.ceil(size / side) for size, side in zip(divided, tile, strict=True)] + list(tile)
    return math.prod(sizes)
