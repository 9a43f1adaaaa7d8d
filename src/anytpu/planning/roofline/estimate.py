"""`roofline_time`: a step's time and memory on a TPU, from the Program alone.

Idea: without the TPU's compiler nobody knows the layouts, the fusions and the cycles. What is known is what the program
multiplies, what it has to read and write at least, and what the devices have to tell each other.

Rule: it is an estimate and says so: its interval is as wide as the comparison with the compiler shows it has to be.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

import jax

from anytpu.planning.hlo import layer_of
from anytpu.planning.records import Buffer, Memory, OpTime, StepTime
from anytpu.planning.roofline.fusing import Kernel, kernels_of, siblings
from anytpu.planning.roofline.liveness import buffers, temporaries
from anytpu.planning.roofline.node import Node
from anytpu.planning.roofline.pricing import Machine, compute_s
from anytpu.planning.roofline.share import Share, share_of
from anytpu.planning.target import Target
from anytpu.planning.timing.rates import rates_of
from anytpu.planning.timing.torus import span_of
from anytpu.program.program import Program
from anytpu.units import GIB

PRODUCT_SHARE = 0.7
"""The share of the peak rate that products reach: between those of a small network's and of a large matrix's."""

KERNEL_S = 1e-6
"""What starting a kernel takes, seconds."""

WIDTH = 2.0
"""The interval is from the estimate divided by this to the estimate times this. Beside predictions from the TPU's own
compiler (an MNIST CNN, an LSTM, a perceptron, a transformer, ResNet-50; v2-8, v3-8, v4-8, v5e-8, v6e-8; 21 pairs of
them) estimates were 0.67 to 1.35 times as long, and those of the memory 0.64 to 1.2 times as large."""

LIMIT_GIB = {"v2": 7.48, "v3": 15.48, "v4": 30.75, "v5e": 15.75, "v5p": 95.74, "v6e": 31.25, "v7x": 94.75}
"""What libtpu 0.0.42 lets a program use of a device's memory, as it says where one does not fit."""

_EVIDENCE = (
    "a roofline estimate from the program's operations and bytes, without the TPU's compiler; beside that, such "
    "estimates were 0.67 to 1.35 times as long on 21 pairs of a program and a chip. For a prediction: pip install "
    "'anytpu[plan]'"
)
_MOVERS = frozenset({"gather", "scatter", "concatenate", "dynamic-update-slice", "dynamic-slice", "copy", "transpose"})


def roofline_time(program: Program, target: Target) -> tuple[StepTime, Memory]:
    """Estimate the time of a step and its memory on one device, by a roofline.

    Args:
        program: the program; nothing of it is run.
        target: a slice of TPU chips.

    Returns:
        The time, whose `evidence` says what it is, and the memory of one device.

    Raises:
        ProgramError: the step cannot be traced.

    Example:
        >>> time, memory = roofline_time(program, target_named("v3-8"))
        >>> time.interval_s[0] < time.step_s < time.interval_s[1]
        True
    """
    assert target.chip is not None
    share = share_of(program, target.devices)
    kernels = {scope.loop: kernels_of(scope) for scope in share.scopes}
    ops = ops_of(share, kernels, machine_of(target))
    ops += reductions(share, target)
    time = StepTime(
        tuple(ops),
        step_s := sum(op.time_s for op in ops),
        (step_s / WIDTH, step_s * WIDTH),
        unpriced=(*share.unknown, *_unpriced(program, share, target)),
        evidence=(_EVIDENCE,),
    )
    return time, memory_of_share(program, target, share, kernels)


def machine_of(target: Target) -> Machine:
    """Return a device of a slice as a roofline knows it."""
    chip = target.chip
    assert chip is not None
    rates = {"bf16": chip.bf16_flops_per_s, "s8": chip.int8_ops_per_s, "f8": chip.fp8_flops_per_s}
    return Machine(
        {name: rate / chip.replicas for name, rate in rates.items() if rate},
        target.hbm_bytes_per_s,
        PRODUCT_SHARE,
        rates_of(target).hbm_share,
        KERNEL_S,
        chip.mxu_side,
    )


def ops_of(share: Share, kernels: Mapping[Node | None, list[Kernel]], machine: Machine) -> list[OpTime]:
    """Return what each kernel takes, in the order of the program, the bodies of loops after it."""
    ops = []
    for scope in share.scopes:
        beside = siblings(kernels[scope.loop])
        for kernel in kernels[scope.loop]:
            if kernel.root.opcode != "while":
                ops.append(op_of(kernel, share, machine, reads_again=kernel not in beside))
    return ops


def op_of(kernel: Kernel, share: Share, machine: Machine, reads_again: bool = True) -> OpTime:
    """Return what a kernel takes.

    Args:
        kernel: the kernel.
        share: whose part of the step it is in.
        machine: the device.
        reads_again: False where another kernel reads the same and this one is computed along with it.
    """
    root, main = kernel.root, kernel.main
    part = share.part if any(map(share.has_rows, (main, *main.operands))) else 1.0
    moved = kernel.written_bytes * (share.part if share.has_rows(root) else 1.0)
    if reads_again:
        moved += sum(size * (share.part if share.has_rows(one) else 1.0) for one, size in kernel.reads.items())
    computing_s = compute_s(kernel.product, machine, part) if kernel.product else 0.0
    moving_s = moved / (machine.hbm_bytes_per_s * machine.memory_share)
    starting_s = machine.kernel_s if reads_again and main.opcode != "dynamic-update-slice" else 0.0
    time_s = max(computing_s, moving_s) + starting_s
    return _op(kernel, share, time_s, part, moved, computing_s > moving_s)


def _op(kernel: Kernel, share: Share, time_s: float, part: float, moved: float, is_computing: bool) -> OpTime:
    main = kernel.main
    path = main.instruction.op_name if main.instruction else ""
    layer, is_backward = layer_of(path)
    source = share.module.source_of(main.instruction) if main.instruction else None
    flops = sum(kernel.product.flops.values()) * part if kernel.product else 0.0
    return OpTime(
        name=main.name,
        opcode=main.opcode,
        kind="matmul" if kernel.product else ("memory" if main.opcode in _MOVERS else "vector"),
        time_s=main.count * time_s,
        count=main.count,
        flops=main.count * flops,
        bytes=main.count * moved,
        layer=layer,
        source=str(source or ""),
        is_backward=is_backward,
        bound="compute" if is_computing else "memory",
        priced_by="roofline",
    )


def reductions(share: Share, target: Target) -> list[OpTime]:
    """Return the sums over the devices: those of weights' gradients together, as compilers join them; others each."""
    if target.devices == 1:
        return []
    summed = [node for scope in share.scopes for node in scope.nodes if share.is_summed(node)]
    gradients = [node for node in summed if node.flops or node.opcode == "scatter" or _is_backward(node)]
    others = [node for node in summed if node not in set(gradients)]
    ops = [_all_reduce("gradients", gradients, target)] if gradients else []
    return ops + [_all_reduce(node.name, [node], target) for node in others]


def _is_backward(node: Node) -> bool:
    return node.instruction is not None and layer_of(node.instruction.op_name).is_backward


def _all_reduce(name: str, nodes: list[Node], target: Target) -> OpTime:
    size_bytes = sum(node.bytes for node in nodes)
    path = nodes[0].instruction.op_name if len(nodes) == 1 and nodes[0].instruction else ""
    layer, is_backward = layer_of(path) if path else ("", len(nodes) > 1)
    return OpTime(
        f"all-reduce {name}",
        "all-reduce",
        "collective",
        all_reduce_s(size_bytes, target),
        bytes=float(size_bytes),
        layer=layer,
        is_backward=is_backward,
        bound="network",
        priced_by="roofline",
    )


def all_reduce_s(size_bytes: float, target: Target) -> float:
    """Return how long adding up arrays over all devices takes: over the links between chips, in a chip's memory."""
    rates = rates_of(target)
    span = span_of(target, tuple(range(target.devices)))
    if span.chips <= 1:
        return rates.start_s + 2 * size_bytes / rates.streaming_bytes_per_s
    taken_in = 2 * size_bytes * (span.chips - 1) / span.chips
    latency_s = rates.collective_start_s + 2 * span.hops * rates.hop_s
    return latency_s + taken_in / (span.links * rates.link_bytes_per_s * rates.reduce_share)


def memory_of_share(
    program: Program, target: Target, share: Share, kernels: Mapping[Node | None, list[Kernel]]
) -> Memory:
    """Return the memory of one device: the state, the batch, and the temporaries at their most."""
    state_leaves = jax.tree.leaves(program.state)
    names = program.state_names or tuple(f"state {number}" for number in range(len(state_leaves)))
    fixed = [_given(name, "state", leaf, 1.0) for name, leaf in zip(names, state_leaves, strict=True)]
    fixed += [
        _given("batch", "batch", leaf, 1.0 if layout.axis is None else 1.0 / target.devices)
        for leaf, layout in program.leaves()
    ]
    scopes = {scope.loop: scope for scope in share.scopes}
    temporary, live = temporaries(scopes, kernels, share.bytes_of)
    given = sum(one.bytes for one in fixed)
    largest = sorted([*fixed, *buffers(live, share.bytes_of)], key=lambda one: -one.bytes)
    return Memory(
        peak_bytes=round(given + temporary),
        limit_bytes=limit_bytes(target),
        buffers=tuple(largest[:50]),
    )


def limit_bytes(target: Target) -> int:
    """Return what the TPU's compiler lets a program use of a device's memory."""
    chip = target.chip
    assert chip is not None
    whole = chip.hbm_bytes // chip.replicas
    return round(LIMIT_GIB[chip.name] * GIB) if chip.name in LIMIT_GIB else whole - GIB // 2


def _given(name: str, use: Literal["state", "batch"], leaf: jax.ShapeDtypeStruct, part: float) -> Buffer:
    dtype = str(leaf.dtype).replace("float", "f").replace("uint", "u").replace("int", "s")
    size = math.ceil(leaf.size * leaf.dtype.itemsize * part)
    return Buffer(name, use, size, size, f"{dtype}[{','.join(map(str, leaf.shape))}]")


def _unpriced(program: Program, share: Share, target: Target) -> list[str]:
    found = [
        f"{node.name}: {node.opcode} is not known to a roofline; only its bytes are counted"
        for scope in share.scopes
        for node in scope.nodes
        if node.opcode == "custom-call"
    ]
    if target.devices > 1 and not share.is_exact:
        found.append(
            "the step could not be traced for the rows of one device: each is taken to do an even part of it, and the "
            "network between them is counted for gradients only"
        )
    return [*found, "the host's dispatch and the input pipeline: not in a roofline"]
