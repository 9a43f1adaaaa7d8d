"""`roofline_time`: a step's time and memory on a TPU, from the Program alone.

Idea: without the TPU's compiler nobody knows the layouts, the fusions and the cycles. What is known is what the program
multiplies, what it has to read and write at least, and what the devices have to tell each other.

Rule: it is an estimate and says so: its interval is as wide as the comparison with the compiler shows it has to be.
"""

from __future__ import annotations

from anytpu.planning.records import Memory, OpTime, StepTime
from anytpu.planning.roofline.footprint import memory_of_share
from anytpu.planning.roofline.fusing import kernels_of
from anytpu.planning.roofline.kernel_time import ops_of
from anytpu.planning.roofline.pricing import Machine
from anytpu.planning.roofline.reductions import reductions
from anytpu.planning.roofline.share import Share, share_of
from anytpu.planning.target import Target
from anytpu.planning.timing.rates import rates_of
from anytpu.program.program import Program

PRODUCT_SHARE = 0.7
"""The share of the peak rate that products reach: between those of a small network's and of a large matrix's."""

KERNEL_S = 1e-6
"""What starting a kernel takes, seconds."""

WIDTH = 2.0
"""The interval is from the estimate divided by this to the estimate times this. Beside predictions from the TPU's own
compiler (an MNIST CNN, an LSTM, a perceptron, a transformer, ResNet-50; v2-8, v3-8, v4-8, v5e-8, v6e-8; 21 pairs of
them) estimates were 0.69 to 1.41 times as long, and those of the memory 0.64 to 1.2 times as large."""

_EVIDENCE = (
    "a roofline estimate from the program's operations and bytes, without the TPU's compiler; beside that, such "
    "estimates were 0.69 to 1.41 times as long on 21 pairs of a program and a chip. For a prediction: pip install "
    "'anytpu[plan]'"
)


def roofline_time(
    program: Program,
    target: Target,
    *,
    steps_per_execution: int = 1,
) -> tuple[StepTime, Memory]:
    """Estimate the time of a step and its memory on one device, by a roofline.

    Args:
        program: the program; nothing of it is run.
        target: a slice of TPU chips.
        steps_per_execution: steps that one call of the host starts.

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
    ops += reductions(share, target) if program.placement is None else []
    dispatch_s = rates_of(target).dispatch_s / steps_per_execution
    ops.append(OpTime("host dispatch", "host", "host", dispatch_s, priced_by="published measurements"))
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


def _unpriced(program: Program, share: Share, target: Target) -> list[str]:
    found = [
        f"{node.name}: {node.opcode} is not known to a roofline; only its bytes are counted"
        for scope in share.scopes
        for node in scope.nodes
        if node.opcode == "custom-call"
    ]
    if program.placement is not None:
        found.append(
            "the program brings shardings of its own: each device is taken to do an even part, and what the devices "
            "exchange is not priced"
        )
    elif target.devices > 1 and not share.is_exact:
        found.append(
            "the step could not be traced for the rows of one device: each is taken to do an even part of it, and the "
            "network between them is counted for gradients only"
        )
    if target.slices > 1:
        found.append(
            "the data center's network between slices: what they exchange is priced as if they were one slice, and "
            "takes longer"
        )
    return found
