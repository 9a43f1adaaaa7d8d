"""`code_of`: the operations and bytes of one execution of a hand-written (Pallas) kernel, read from its own code.

Idea: the compiled module holds the code of each kernel, in the form of its compiler (Mosaic). That is the body of one
grid step, the blocks of its arrays, and the blocks of each step. So products and vector instructions are those of the
body times the steps, and bytes are those of the blocks. A block that stays for the next step is counted once. For an
array in the main memory (`memory_space=ANY`), the copies that the body starts count.

Rule: a branch counts in the steps in which it runs, if its condition follows from the grid and from constant arrays.
Else it counts its longer side. A loop counts as many iterations as its bounds say. A
loop whose bounds are known only at run time counts one iteration, and the kernel is endless. Code in another form is
None, never a guess.
"""

from __future__ import annotations

import base64
import binascii
import functools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from anytpu import _jax
from anytpu.planning.timing.grid_values import MAX_STEPS, GridValues
from anytpu.planning.timing.kernel_blocks import MovedBlocks, array_bytes, blocks_of, prefetched_count

_BODY = re.compile(r'"custom_call_config":\{"body":"([A-Za-z0-9+/=]+)"')
_VECTOR = re.compile(r"vector<([\dx]*)x([a-z]\w*)>")
_MEMREF = re.compile(r"memref<([\dx]+)x[a-z]")
_INTEGER = re.compile(r"-?\d+")
_INTEGERS = re.compile(r"[-\d{},\s]*")
_CONTRACTED = re.compile(r"dot_dimension_numbers<\[([\d, ]*)\]")
_DYNAMIC = -(2**63)
_WORKING = ("arith", "math")
_FREE = ("constant", "index_cast")
_LOOPS = ("scf.for", "scf.while")
_MAIN_MEMORY = ("any", "hbm")


class KernelCode(NamedTuple):
    """The work of one execution of a kernel.

    Attributes:
        flops: 2 for each multiplication of its products.
        vector_operations: number of element operations of the vector unit.
        bytes: bytes of its input and output blocks, and of the copies that it starts itself.
        steps: number of grid steps; None if known only at run time: the other numbers are then those of one step.
        busy_steps: number of grid steps in which its products run.
        least_flops: FLOPs that no branch and no loop of unknown length can leave out.
        least_bytes: bytes of the blocks if each is moved only as often as it is certain to change.
        whole_bytes: bytes of the main-memory arrays that its body uses, in part or in full.
        is_endless: whether a loop, or the grid, has a length that is known only at run time.
        name: name of the author's function, "" if it is "main".
    """

    flops: float
    vector_operations: float
    bytes: float
    steps: int | None
    busy_steps: float = 0.0
    least_flops: float = 0.0
    least_bytes: float = 0.0
    whole_bytes: float = 0.0
    is_endless: bool = False
    name: str = ""


class _RegionWork(NamedTuple):
    """The work of one execution of a region, with the fields of `KernelCode`; `bytes` are those of its copies.

    `most_flops` are its FLOPs if each branch takes its longer side.
    """

    flops: float = 0.0
    vector: float = 0.0
    bytes: float = 0.0
    least_flops: float = 0.0
    most_flops: float = 0.0
    unknown_loops: float = 0.0


def code_of(text: str, constants: Sequence[str | None] = ()) -> KernelCode | None:
    """Return the work of a kernel, or None if its code is missing or cannot be read.

    Args:
        text: the custom call, as the compiler prints it.
        constants: the literals of its first operands, which it may prefetch; None for one that is not constant.
    """
    match = _BODY.search(text)
    return _read(match[1], tuple(constants)) if match else None


@functools.lru_cache(maxsize=256)
def _read(body: str, constants: tuple[str | None, ...]) -> KernelCode | None:
    try:
        # Imported here: it loads native code that few plans need, and another jaxlib may keep it elsewhere.
        from jax.extend.mlir import ir

        context = _jax.kernel_context()
    except (ImportError, AttributeError):
        return None
    try:
        with context:
            return _counted(ir.Module.parse(base64.b64decode(body)), constants)
    except (ir.MLIRError, binascii.Error, KeyError, ValueError):
        return None


def _counted(module: Any, constants: Sequence[str | None]) -> KernelCode | None:
    functions = {
        str(function.attributes["sym_name"]).strip('"'): function
        for function in _operations(module.operation.regions[0])
    }
    # The kernel's own function has the bounds of the grid; the others are index maps.
    name = max(functions, key=lambda name: "iteration_bounds" in functions[name].attributes)
    main = functions[name]
    bounds = (
        [int(bound) for bound in main.attributes["iteration_bounds"]] if "iteration_bounds" in main.attributes else []
    )
    steps = None if _DYNAMIC in bounds else math.prod(bounds)
    arrays = _prefetched(main, len(bounds), constants)
    values = GridValues(main, bounds, arrays) if steps and steps <= MAX_STEPS else None
    work = _work(main, _Steps(values, np.ones(steps or 1, bool)))
    times, blocks = steps or 1, blocks_of(main, functions, bounds, arrays) if steps is not None else MovedBlocks()
    return KernelCode(
        work.flops * times,
        work.vector * times,
        blocks.bytes + work.bytes * times if steps is not None else 0.0,
        steps,
        times * work.flops / work.most_flops if work.most_flops else 0.0,
        work.least_flops * steps if steps is not None else 0.0,
        blocks.least_bytes,
        _whole(main),
        steps is None or work.unknown_loops > 0,
        "" if name == "main" else name,
    )


def _prefetched(main: Any, rank: int, constants: Sequence[str | None]) -> list[np.ndarray | None]:
    """Return the arrays that a kernel has before its grid starts; None for one that is not a constant."""
    arguments = list(main.regions[0].blocks[0].arguments)[rank : rank + prefetched_count(main)]
    return [_array(argument, literal) for argument, literal in zip(arguments, constants, strict=False)]


def _array(argument: Any, literal: str | None) -> np.ndarray | None:
    match = _MEMREF.match(str(argument.type))
    is_whole = _INTEGERS.fullmatch(literal or "") is not None
    numbers = [int(number) for number in _INTEGER.findall(literal or "")] if is_whole else []
    sizes = _sizes(match[1]) if match else []
    # A single number is that of a broadcast.
    is_known = sizes and len(numbers) in (1, math.prod(sizes))
    return np.resize(numbers, sizes) if is_known else None


class _Steps(NamedTuple):
    """Steps of a grid: the values in them, None for an unknown or a very large grid, and which steps they are."""

    values: GridValues | None
    active: np.ndarray

    def share(self, condition: Any) -> float | None:
        """Return the share of the steps in which a condition holds, or None."""
        known = self.values.of(condition) if self.values else None
        count = np.count_nonzero(self.active)
        return None if known is None or not count else int(np.count_nonzero(known & self.active)) / int(count)

    def where(self, condition: Any, holds: bool) -> _Steps:
        """Return the steps in which a condition has a value."""
        known = self.values.of(condition) if self.values else None
        return self if known is None else self._replace(active=self.active & (known == holds))


def _work(parent: Any, steps: _Steps) -> _RegionWork:
    """Return the work inside an operation, for one execution: the mean over the steps."""
    if not parent.name.endswith("scf.if"):
        inner = [_work_of(region, steps) for region in parent.regions]
        return _RegionWork(*map(sum, zip(*inner, strict=True))) if inner else _RegionWork()
    condition = parent.operands[0]
    sides = [
        _work_of(region, steps.where(condition, holds))
        for region, holds in zip(parent.regions, (True, False), strict=False)
    ]
    sides += [_RegionWork()] * (2 - len(sides))
    share = steps.share(condition)
    if share is None:
        return _RegionWork(*map(max, zip(*sides, strict=True)))._replace(
            least_flops=min(side.least_flops for side in sides)
        )
    held, other = sides
    mean = _RegionWork(*(share * own + (1 - share) * rest for own, rest in zip(held, other, strict=True)))
    return mean._replace(most_flops=max(held.most_flops, other.most_flops))


def _work_of(region: Any, steps: _Steps) -> _RegionWork:
    flops = vector = moved = least = most = unknown = 0.0
    for operation in _operations(region):
        name = _name(operation)
        dialect, _, kind = name.partition(".")
        # A loop of unknown length counts one iteration in the work, and none in the minimum.
        inner, trips = _work(operation, steps), _trips(operation) if name in _LOOPS else 1
        times = 1 if trips is None else trips
        flops, vector, moved = flops + times * inner.flops, vector + times * inner.vector, moved + times * inner.bytes
        least, most = least + (trips or 0) * inner.least_flops, most + times * inner.most_flops
        unknown += inner.unknown_loops + (trips is None)
        results = [_VECTOR.search(str(result.type)) for result in operation.results]
        size = max((math.prod(_sizes(memref[1])) for memref in results if memref), default=0)
        if name in ("tpu.matmul", "vector.contract"):
            product = 2.0 * size * _contracted(operation)
            flops, least, most = flops + product, least + product, most + product
        elif name == "tpu.enqueue_dma":
            moved += sum(_main_memory_bytes(operand) for operand in operation.operands)
        elif dialect in _WORKING and kind not in _FREE:
            vector += size
    return _RegionWork(flops, vector, moved, least, most, unknown)


def _name(operation: Any) -> str:
    return operation.name.removeprefix("stable_mosaic.")


def _operations(region: Any) -> Iterator[Any]:
    """Return the operations of a region, without nested ones."""
    for block in region.blocks:
        for operation in block.operations:
            yield operation.operation


def _trips(loop: Any) -> int | None:
    """Return the trip count of a loop with constant bounds; None for any other loop."""
    bounds = [_constant(operand) for operand in list(loop.operands)[:3]] if _name(loop) == "scf.for" else []
    match [bound for bound in bounds if bound is not None]:
        case [start, stop, step]:
            return max(0, -(-(stop - start) // step))
        case _:
            return None


def _constant(value: Any) -> int | None:
    attributes = getattr(value.owner, "attributes", {})
    return int(str(attributes["value"]).split(":")[0]) if "value" in attributes else None


def _contracted(product: Any) -> int:
    """Return the length of the contracted dimension of a product's first operand."""
    left = _VECTOR.search(str(product.operands[0].type))
    sizes = _sizes(left[1]) if left else [1]
    match = _CONTRACTED.search(str(product))
    axes = [int(axis) for axis in match[1].split(",")] if match else [len(sizes) - 1]
    return math.prod(sizes[axis] for axis in axes)


def _whole(main: Any) -> float:
    """Return the bytes of the arrays in the main memory that the body uses."""
    arguments = main.regions[0].blocks[0].arguments
    return sum(_main_memory_bytes(argument) for argument in arguments if any(True for _ in argument.uses))


def _main_memory_bytes(value: Any) -> float:
    size, space = array_bytes(value)
    return size if space in _MAIN_MEMORY else 0.0


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split("x") if size]
