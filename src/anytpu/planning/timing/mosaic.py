"""`code_of`: the operations and the bytes of one execution of a hand-written (Pallas) kernel, read from its own code.

Idea: the compiled module holds the code of each kernel, in the form that its compiler (Mosaic) takes: the body of one
step of a grid, the blocks of its arrays, and which of them a step is given. So products and vector instructions are
those of the body times the steps, and bytes are those of the blocks. A block that stays for the next step is counted
once.

Rule: of a branch the longer side is counted, of a loop as many rounds as its bounds say. What cannot be read is None,
never a guess: code in another form, or a loop whose bounds are only known when it runs.
"""

from __future__ import annotations

import base64
import binascii
import functools
import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

_BODY = re.compile(r'"custom_call_config":\{"body":"([A-Za-z0-9+/=]+)"')
_VECTOR = re.compile(r"vector<([\dx]*)x([a-z]\w*)>")
_BLOCK = re.compile(r"memref<([\dx]+)x([a-z]+)(\d+)")
_CONTRACTED = re.compile(r"dot_dimension_numbers<\[([\d, ]*)\]")
_DYNAMIC = -(2**63)
_WORKING = ("arith", "math")
_FREE = ("constant", "index_cast")


class KernelCode(NamedTuple):
    """What a kernel does in one execution.

    Attributes:
        flops: 2 for each multiplication of its products.
        vector_operations: of single numbers, by the vector unit.
        bytes: of the blocks that it is given and gives back.
        steps: of its grid; None where that is known only when it runs: all the others are then those of one step.
    """

    flops: float
    vector_operations: float
    bytes: float
    steps: int | None


def code_of(text: str) -> KernelCode | None:
    """Return what a kernel does, or None where its code is not there or cannot be read.

    Args:
        text: the custom call, as the compiler prints it.
    """
    match = _BODY.search(text)
    return _read(match[1]) if match else None


@functools.lru_cache(maxsize=256)
def _read(body: str) -> KernelCode | None:
    try:
        # Loads native code that few plans need, and that another jaxlib may keep elsewhere.
        from jaxlib.mlir import ir

        context = _context(ir)
    except (ImportError, AttributeError):
        return None
    try:
        with context:
            return _counted(ir.Module.parse(base64.b64decode(body)))
    except (ir.MLIRError, binascii.Error, KeyError, ValueError):
        return None


def _context(ir: Any) -> Any:
    from jaxlib.mlir._mlir_libs import _jax_mlir_ext
    from jaxlib.mosaic.python import tpu

    context, registry = ir.Context(), ir.DialectRegistry()
    _jax_mlir_ext.register_dialects(registry)
    context.append_dialect_registry(registry)
    context.load_all_available_dialects()
    tpu.register_dialect(context)
    context.allow_unregistered_dialects = True
    return context


def _counted(module: Any) -> KernelCode | None:
    functions = {str(one.attributes["sym_name"]).strip('"'): one for one in _operations(module.operation.regions[0])}
    main = next((one for one in functions.values() if "iteration_bounds" in one.attributes), None)
    if main is None:
        main = next(iter(functions.values()))
        bounds: list[int] = []
    else:
        bounds = _numbers(main.attributes["iteration_bounds"])
    flops, vector = _work(main)
    steps = None if _DYNAMIC in bounds else math.prod(bounds)
    moved = _moved(main, functions, bounds) if steps is not None else 0.0
    return KernelCode(flops * (steps or 1), vector * (steps or 1), moved, steps)


def _work(parent: Any) -> tuple[float, float]:
    """Return operations of the matrix units and of the vector unit inside an operation, once."""
    sides = [_work_of(region) for region in parent.regions]
    if parent.name.endswith("scf.if"):
        return max(sides)
    return sum(side[0] for side in sides), sum(side[1] for side in sides)


def _work_of(region: Any) -> tuple[float, float]:
    flops = vector = 0.0
    for one in _operations(region):
        name = one.name.removeprefix("stable_mosaic.")
        dialect, _, kind = name.partition(".")
        inner, times = _work(one), _trips(one) if name == "scf.for" else 1
        flops, vector = flops + times * inner[0], vector + times * inner[1]
        results = [_VECTOR.search(str(result.type)) for result in one.results]
        size = max((math.prod(_sizes(found[1])) for found in results if found), default=0)
        if name in ("tpu.matmul", "vector.contract"):
            flops += 2.0 * size * _contracted(one)
        elif dialect in _WORKING and kind not in _FREE:
            vector += size
    return flops, vector


def _operations(region: Any) -> Iterator[Any]:
    """Return the operations of a region, without those inside of them."""
    for block in region.blocks:
        for one in block.operations:
            yield one.operation


def _trips(loop: Any) -> int:
    """Return how often a loop with constant bounds runs.

    Raises:
        ValueError: its bounds are known only when it runs.
    """
    start, stop, step = (_constant(operand) for operand in list(loop.operands)[:3])
    return max(0, -(-(stop - start) // step))


def _constant(value: Any) -> int:
    owner = value.owner
    attributes = getattr(owner, "attributes", {})
    if "value" not in attributes:
        raise ValueError("not a constant")
    return int(str(attributes["value"]).split(":")[0])


def _contracted(product: Any) -> int:
    """Return the length of the sums of a product: of the dimension of its first operand that is contracted."""
    left = _VECTOR.search(str(product.operands[0].type))
    sizes = _sizes(left[1]) if left else [1]
    match = _CONTRACTED.search(str(product))
    axes = [int(axis) for axis in match[1].split(",")] if match else [len(sizes) - 1]
    return math.prod(sizes[axis] for axis in axes)


def _moved(main: Any, functions: dict[str, Any], bounds: Sequence[int]) -> float:
    """Return the bytes of all blocks: each is moved again when an index that it depends on changes."""
    if "window_params" not in main.attributes:
        return 0.0
    prefetched = (
        int(str(main.attributes["scalar_prefetch"]).split(":")[0]) if "scalar_prefetch" in main.attributes else 0
    )
    blocks = [argument.type for argument in main.regions[0].blocks[0].arguments][len(bounds) + prefetched :]
    moved = 0.0
    for window, block in zip(main.attributes["window_params"], blocks, strict=False):
        match = _BLOCK.match(str(block))
        if match is None or "vmem" not in str(block):
            continue
        named = re.search(r"transform_indices = @(\w+)", str(window))
        depends = _last_index(functions.get(named[1]) if named else None, len(bounds))
        moved += math.prod(_sizes(match[1])) * int(match[3]) / 8 * math.prod(bounds[:depends])
    return moved


def _last_index(transform: Any, rank: int) -> int:
    """Return how many indices of the grid, from the first, decide which block is next: all, where that is unclear."""
    if transform is None:
        return rank
    body = transform.regions[0].blocks[0]
    used, waiting = (
        0,
        [value for one in body.operations if one.operation.name.endswith("return") for value in one.operands],
    )
    while waiting:
        value = waiting.pop()
        owner = value.owner
        if owner == body:
            # What is read from prefetched memory is taken to depend on the indices that it is read with.
            used = max(used, value.arg_number + 1 if value.arg_number < rank else 0)
        else:
            waiting += list(owner.operands)
    return used


def _numbers(array: Any) -> list[int]:
    return [int(number) for number in array]


def _sizes(text: str) -> list[int]:
    return [int(size) for size in text.split("x") if size]
