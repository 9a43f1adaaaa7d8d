"""`compiled_ops`: a roofline over what a compiler has made of a program, kernel by kernel.

Idea: where the compiler of a machine can be asked, its fusions are known: each instruction of the optimized module is a
kernel that reads its operands and writes its result.

Rule: a kernel that slices an operand reads the slice only; one that updates a part of an array writes that part. What
a library computes (a custom call of cuBLAS or cuDNN) hides its product: it is looked up in the module before it was
optimized, by the path of the operation in the user's program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from anytpu.planning.hlo import Computation, Instruction, Module, layer_of
from anytpu.planning.records import OpTime
from anytpu.planning.roofline.node import Node, scopes_of
from anytpu.planning.roofline.pricing import Machine

_NOTHING = frozenset(
    (
        "parameter",
        "constant",
        "tuple",
        "get-tuple-element",
        "bitcast",
        "while",
        "loop",
        "iota",
        "after-all",
        "partition-id",
    )
)
_PARTS = ("dynamic-slice", "slice", "gather")
_COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")


def compiled_ops(
    module: Module, machine: Machine, hidden: Mapping[str, Mapping[str, float]]
) -> tuple[list[OpTime], list[str]]:
    """Return what each kernel of an optimized module takes, and in words what could not be priced.

    Args:
        module: the optimized module of one device.
        machine: the device.
        hidden: flops by type of the products of each path in the program, for those that a library computes.
    """
    scopes, unpriced = scopes_of(module)
    ops = []
    seen: dict[str, int] = {}
    nodes = [node for scope in scopes for node in scope.nodes if node.opcode not in _NOTHING and node.instruction]
    for node in nodes:
        assert node.instruction is not None
        if node.opcode == "custom-call":
            seen[node.instruction.op_name] = seen.get(node.instruction.op_name, 0) + 1
    for node in nodes:
        if node.opcode.startswith(_COLLECTIVES):
            if not node.opcode.endswith("-done"):
                unpriced.append(f"{node.name}: {node.opcode}; the network between GPUs is not priced")
            continue
        if node.opcode.endswith("-done"):
            continue
        flops = _flops(node, module, machine) or _hidden(node, hidden, seen)
        if node.opcode == "custom-call" and not flops:
            unpriced.append(f"{node.name}: a custom call whose operations nobody counts; only its bytes are priced")
        ops.append(_op(node, module, machine, flops))
    return ops, unpriced


def _hidden(node: Node, hidden: Mapping[str, Mapping[str, float]], seen: Mapping[str, int]) -> Mapping[str, float]:
    """Return the products that a library computes in a custom call, shared by all calls of one path."""
    if node.opcode != "custom-call" or node.instruction is None:
        return {}
    path = node.instruction.op_name
    return {dtype: flops / seen[path] for dtype, flops in hidden.get(path, {}).items()}


def _flops(node: Node, module: Module, machine: Machine) -> dict[str, float]:
    """Return the flops of the products in a kernel, by the type that the machine multiplies in."""
    found: dict[str, float] = {}
    if node.flops and node.instruction is not None:
        inside = module.home_of(node.instruction)
        for one, home in _products(module, node.instruction, inside):
            operands = [shape.dtype for name in one.operands[:2] for shape in home.instructions[name].shapes]
            for dtype, flops in module.flops_by_dtype(one).items():
                multiplied = machine.multiplied_as(dtype, operands)
                found[multiplied] = found.get(multiplied, 0.0) + flops
    return found


def _products(module: Module, one: Instruction, inside: Computation) -> Iterator[tuple[Instruction, Computation]]:
    if one.opcode in ("dot", "convolution"):
        yield one, inside
    elif one.opcode == "fusion":
        for name in one.called:
            for inner in module.computations[name].instructions.values():
                yield from _products(module, inner, module.computations[name])


def _op(node: Node, module: Module, machine: Machine, flops: Mapping[str, float]) -> OpTime:
    assert node.instruction is not None
    computing_s = sum(count / machine.rate(dtype) for dtype, count in flops.items()) / machine.product_share
    moved = moved_bytes(node, module)
    moving_s = moved / (machine.hbm_bytes_per_s * machine.memory_share)
    layer, is_backward = layer_of(node.instruction.op_name)
    return OpTime(
        name=node.name,
        opcode=node.opcode,
        kind="matmul" if flops else ("memory" if node.opcode in ("copy", "transpose", "concatenate") else "vector"),
        time_s=node.count * (max(computing_s, moving_s) + machine.kernel_s),
        count=node.count,
        flops=node.count * sum(flops.values()),
        bytes=node.count * moved,
        layer=layer,
        source=str(module.source_of(node.instruction) or ""),
        is_backward=is_backward,
        bound="compute" if computing_s > moving_s else "memory",
        priced_by="roofline",
    )


def moved_bytes(node: Node, module: Module) -> float:
    """Return the bytes that a kernel reads and writes."""
    one = node.instruction
    assert one is not None
    if one.opcode == "fusion" and one.called:
        return _fusion_bytes(node, module.computations[one.called[0]])
    if one.opcode in _PARTS:
        return 2.0 * node.bytes
    if one.opcode == "dynamic-update-slice":
        return 2.0 * node.operands[1].bytes
    return float(node.bytes + sum(operand.bytes for operand in node.operands))


def _fusion_bytes(node: Node, body: Computation) -> float:
    users: dict[str, list[Instruction]] = {}
    for one in body.instructions.values():
        for name in one.operands:
            users.setdefault(name, []).append(one)
    moved = 0.0
    for one in body.instructions.values():
        if one.opcode == "parameter":
            moved += _read_bytes(one, users.get(one.name, []))
    root = body.instructions[body.root]
    parts = [body.instructions[name] for name in root.operands] if root.opcode == "tuple" else [root]
    return moved + sum(_written_bytes(part, body) for part in parts)


def _read_bytes(parameter: Instruction, users: list[Instruction]) -> float:
    whole = float(sum(shape.bytes for shape in parameter.shapes))
    if users and all(user.opcode in _PARTS and user.operands[0] == parameter.name for user in users):
        return min(whole, float(sum(shape.bytes for user in users for shape in user.shapes)))
    if users and all(user.opcode == "dynamic-update-slice" and user.operands[0] == parameter.name for user in users):
        return 0.0
    return whole


def _written_bytes(root: Instruction, body: Computation) -> float:
    if root.opcode == "dynamic-update-slice":
        return float(sum(shape.bytes for shape in body.instructions[root.operands[1]].shapes))
    return float(sum(shape.bytes for shape in root.shapes))


def hidden_products(module: Module, machine: Machine) -> dict[str, dict[str, float]]:
    """Return the flops by type of the products of each path in a module that was not optimized yet."""
    found: dict[str, dict[str, float]] = {}
    for scope in scopes_of(module)[0]:
        for node in scope.nodes:
            if node.flops and node.instruction is not None:
                flops = found.setdefault(node.instruction.op_name, {})
                for dtype, count in _flops(node, module, machine).items():
                    flops[dtype] = flops.get(dtype, 0.0) + count
    return found
