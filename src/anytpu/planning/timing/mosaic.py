"""`code_of`: the operations and bytes of one execution of a hand-written (Pallas) kernel, read from its own code.

Idea: the compiled module holds the code of each kernel, in the form of its compiler (Mosaic). That is the body of one
grid step, the blocks of its arrays, and the blocks of each step. So products and vector instructions are those of the
body times the steps, and bytes are those of the blocks. A block that stays for the next step is counted once. For an
array in the main memory (`memory_space=ANY`), the copies that the body starts count.

Rule: a branch counts its longer side, a loop as many iterations as its bounds say. A loop whose bounds are known only
at run time counts one iteration, and the kernel is endless. Code in another form is None, never a guess.
"""

from __future__ import annotations

import base64
import binascii
import functools
import math
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from anytpu import _jax
from anytpu.planning.timing.kernel_blocks import MovedBlocks, array_bytes, blocks_of

_BODY = re.compile(r'"custom_call_config":\{"body":"([A-Za-z0-9+/=]+)"')
_VECTOR = re.compile(r"vector<([\dx]*)x([a-z]\w*)>")
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
        least_flops: FLOPs that no branch and no loop of unknown length can leave out.
        least_bytes: bytes of the blocks if each is moved only as often as it is certain to change.
        chosen_bytes: the part of `bytes` in blocks whose index the map reads from memory, if all steps move them.
        whole_bytes: bytes of the main-memory arrays that its body uses, in part or in full.
        is_endless: whether a loop, or the grid, has a length that is known only at run time.
        name: name of the author's function, "" if it is "main".
    """

    flops: float
    vector_operations: float
    bytes: float
    steps: int | None
    least_flops: float = 0.0
    least_bytes: float = 0.0
    chosen_bytes: float = 0.0
    whole_bytes: float = 0.0
    is_endless: bool = False
    name: str = ""


class _RegionWork(NamedTuple):
    """The work of one execution of a region, with the fields of `KernelCode`; `bytes` are those of its copies."""

    flops: float = 0.0
    vector: float = 0.0
    bytes: float = 0.0
    least_flops: float = 0.0
    unknown_loops: float = 0.0


def code_of(text: str) -> KernelCode | None:
    """Return the work of a kernel, or None if its code is missing or cannot be read.

    Args:
        text: the custom call, as the compiler prints it.
    """
    match = _BODY.search(text)
    return _read(match[1]) if match else None


@functools.lru_cache(maxsize=256)
def _read(body: str) -> KernelCode | None:
    try:
        # Imported here: it loads native code that few plans need, and another jaxlib may keep it elsewhere.
        from jax.extend.mlir import ir

        context = _jax.kernel_context()
    except (ImportError, AttributeError):
        return None
    try:
        with context:
            return _counted(ir.Module.parse(base64.b64decode(body)))
    except (ir.MLIRError, binascii.Error, KeyError, ValueError):
        return None


def _counted(module: Any) -> KernelCode | None:
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
    work = _work(main)
    steps = None if _DYNAMIC in bounds else math.prod(bounds)
    times, blocks = steps or 1, blocks_of(main, functions, bounds) if steps is not None else MovedBlocks()
    return KernelCode(
        work.flops * times,
        work.vector * times,
        blocks.bytes + work.bytes * times if steps is not None else 0.0,
        steps,
        work.least_flops * steps if steps is not None else 0.0,
        blocks.least_bytes,
        blocks.chosen_bytes,
        _whole(main),
        steps is None or work.unknown_loops > 0,
        "" if name == "main" else name,
    )


def _work(parent: Any) -> _RegionWork:
    """Return the work inside an operation, for one execution."""
    sides = [_work_of(region) for region in parent.regions]
    if parent.name.endswith("scf.if"):
        return _RegionWork(*map(max, zip(*sides, strict=True)))._replace(
            least_flops=min(side.least_flops for side in sides)
        )
    return _RegionWork(*map(sum, zip(*sides, strict=True))) if sides else _RegionWork()


def _work_of(region: Any) -> _RegionWork:
    flops = vector = moved = least = unknown = 0.0
    for operation in _operations(region):
        name = _name(operation)
        dialect, _, kind = name.partition(".")
        # A loop of unknown length counts one iteration in the work, and none in the minimum.
        inner, trips = _work(operation), _trips(operation) if name in _LOOPS else 1
        times = 1 if trips is None else trips
        flops, vector, moved = flops + times * inner.flops, vector + times * inner.vector, moved + times * inner.bytes
        least, unknown = least + (trips or 0) * inner.least_flops, unknown + inner.unknown_loops + (trips is None)
        results = [_VECTOR.search(str(result.type)) for result in operation.results]
        size = max((math.prod(_sizes(memref[1])) for memref in results if memref), default=0)
        if name in ("tpu.matmul", "vector.contract"):
            product = 2.0 * size * _contracted(operation)
            flops, least = flops + product, least + product
        elif name == "tpu.enqueue_dma":
            moved += sum(_main_memory_bytes(operand) for operand in operation.operands)
        elif dialect in _WORKING and kind not in _FREE:
            vector += size
    return _RegionWork(flops, vector, moved, least, unknown)


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
