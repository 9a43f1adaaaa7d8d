"""`Shape`: the shape and layout of an array, read from the compiler's text, with its size in memory.

Idea: `bf16[128,10]{0,1:T(8,128)(2,1)S(1)}` has 128 x 10 elements. Its dimension 0 is the fastest one. It is stored in
tiles of 8 x 128, each of which holds pairs of rows, in memory space 1. Dimensions are rounded up to the tile, so the 10
takes the room of 16.

Rule: tiles apply to the most minor dimensions; each further tile divides the one before it.

Source: https://openxla.org/xla/tiled_layout.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re

from anytpu.errors import PlanError
from anytpu.planning.records.quoting import quoted

_SHAPE = re.compile(r"(?:/\*index=\d+\*/)?([a-z][a-z0-9]*)\[([^\]]*)\](?:\{([^}]*)\})?")
_TILE = r"\((?:(?:\d{1,18}|\*)(?:,(?:\d{1,18}|\*))*)?\)"
_TILES = re.compile(rf"T((?:{_TILE})+)(?!\()")
_SPACE = re.compile(r"S\((\d{1,9})\)")
_BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "c64": 64, "c128": 128}
_BITS_IN_NAME = re.compile(r"[a-z]+(\d{1,3})(?!\d)")
_DIM = re.compile(r"\s*(?:<=)?(\d{1,18})\s*")
_MAX_BYTES = 2**63


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """The shape and layout of one array.

    Attributes:
        dtype: "f32", "bf16", "pred", ...
        dims: its sizes, () for a scalar.
        minor_to_major: dimensions from the fastest to the slowest.
        tiles: the tiles of its layout: ((8, 128), (2, 1)); () for none.
        memory_space: 0 for the main memory (HBM), else n of S(n).
        bytes: size of its elements.
        padded_bytes: size in memory, padding included.
    """

    dtype: str
    dims: tuple[int, ...]
    minor_to_major: tuple[int, ...]
    tiles: tuple[tuple[int, ...], ...]
    memory_space: int
    bytes: int
    padded_bytes: int

    def __str__(self) -> str:
        """Return type and sizes as the compiler writes them: "bf16[128,28,28,32]"."""
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


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
    shapes = tuple(_shape(match[0], *match.groups(default="")) for match in _SHAPE.finditer(text))
    if not shapes and text != "()":
        raise _no_shape(text)
    return shapes


def bits_of(dtype: str) -> int:
    """Return the bits of one element of a type: 16 for "bf16", 4 for "s4", 8 for "f8e4m3fn" and "pred".

    Raises:
        PlanError: there is no such type.
    """
    if dtype in _BITS:
        return _BITS[dtype]
    match = _BITS_IN_NAME.match(dtype)
    if not match:
        raise PlanError(f"{quoted(dtype)} in the compiler's text is not a type of numbers, such as 'f32' or 'bf16'")
    return int(match[1])


def _shape(text: str, dtype: str, dims_text: str, layout: str) -> Shape:
    dims = _numbers(text, dims_text)
    order, _, rest = layout.partition(":")
    minor_to_major = _numbers(text, order) or tuple(reversed(range(len(dims))))
    tiles_match, space = _TILES.search(rest), _SPACE.search(rest)
    if rest.count("T(") != bool(tiles_match) or rest.count("S(") != bool(space):
        raise _no_shape(text)
    tiles = tuple(_sizes(tile) for tile in tiles_match[1][1:-1].split(")(")) if tiles_match else ()
    if sorted(minor_to_major) != list(range(len(dims))) or any(0 in tile for tile in tiles):
        raise _no_shape(text)
    bits = bits_of(dtype)
    padded = padded_count(tuple(dims[axis] for axis in reversed(minor_to_major)), tiles)
    if max(padded, math.prod(dims)) * bits >= 8 * _MAX_BYTES:
        raise _no_shape(text)
    return Shape(
        dtype=dtype,
        dims=dims,
        minor_to_major=minor_to_major,
        tiles=tiles,
        memory_space=int(space[1]) if space else 0,
        bytes=math.ceil(math.prod(dims) * bits / 8),
        padded_bytes=math.ceil(padded * bits / 8),
    )


def _numbers(text: str, written: str) -> tuple[int, ...]:
    """Return the numbers of a list such as "8,<=128"."""
    matches = [_DIM.fullmatch(number) for number in written.split(",")] if written.strip() else []
    if not all(matches):
        raise _no_shape(text)
    return tuple(int(match[1]) for match in matches if match)


def _no_shape(text: str) -> PlanError:
    return PlanError(f"{quoted(text)} in the compiler's text is not the shape of an array, such as 'f32[8,128]{{1,0}}'")


def _sizes(tile: str) -> tuple[int, ...]:
    # "*" joins a dimension to the next more minor one: to the count of elements it is a tile of 1.
    return tuple(1 if size == "*" else int(size) for size in tile.split(",") if size)


def padded_count(physical: tuple[int, ...], tiles: tuple[tuple[int, ...], ...]) -> int:
    """Return the number of elements that an array takes the room of, padding included.

    Args:
        physical: sizes from the slowest dimension to the fastest.
        tiles: tiles of the layout, () for none.

    Example:
        >>> padded_count((10, 128), ((8, 128),)), padded_count((), ((128,),))
        (2048, 128)
    """
    sizes = list(physical)
    for tile in tiles:
        # The divided dimensions become counts of tiles, followed by the sides of the tile, which the next tile divides.
        outer = [1] * (len(tile) - len(sizes)) + sizes
        kept, divided = outer[: len(outer) - len(tile)], outer[len(outer) - len(tile) :]
        sizes = kept + [-(-size // max(1, side)) for size, side in zip(divided, tile, strict=True)] + list(tile)
    return math.prod(sizes)
