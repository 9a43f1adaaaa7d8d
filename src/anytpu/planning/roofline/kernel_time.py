"""What each kernel of a step takes on one device.

Rule: a kernel that reads the same as one before it is computed along with that: it only writes.
"""

from __future__ import annotations

from collections.abc import Mapping

from anytpu.planning.hlo import layer_of
from anytpu.planning.records import OpTime
from anytpu.planning.roofline.fusing import Kernel, siblings
from anytpu.planning.roofline.node import Node
from anytpu.planning.roofline.pricing import Machine, compute_s
from anytpu.planning.roofline.share import Share

_MOVERS = frozenset({"gather", "scatter", "concatenate", "dynamic-update-slice", "dynamic-slice", "copy", "transpose"})


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
