"""`check_kernel`: a Pallas kernel for the TPU, checked without one.

Idea: three questions have answers before a TPU is rented. The TPU's own compiler takes the kernel or refuses it. JAX's
interpreter computes its results. Its code, times its grid, has a time.

Rule: the compiler compiles the kernel alone, as a step with no batch, so that nothing of it is split.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from typing import Any, Unpack

import jax

from anytpu._calls import explain_arguments
from anytpu.errors import CompilerMissingError, PlanError, ProgramError, SettingError
from anytpu.planning.compiler import CompiledProgram, compile_program
from anytpu.planning.compiler.places import operations
from anytpu.planning.hlo import parse
from anytpu.planning.kernels.kernel_run import compare, random_arrays
from anytpu.planning.plans.planner import run_together
from anytpu.planning.plans.request import CompileOptions
from anytpu.planning.records.kernels import KernelCheck, KernelGrid, KernelOnChip
from anytpu.planning.records.target import Target, targets_named
from anytpu.planning.timing import step_time
from anytpu.program.makers import of
from anytpu.program.program import Program, leaf_text
from anytpu.units import format_bytes

_USED = re.compile(r'"used_scoped_memory_configs":\[\{"memory_space":"1","offset":"\d+","size":"(\d+)"')
_SHORTAGE = re.compile(r"Used (\S+) of (\S+) vmem")

_ADVICE = (
    (
        "exceeded scoped vmem limit",
        "Take smaller blocks: each block of an input or output is held twice, for the copy of the next one. Or raise "
        "the limit: compiler_params=pltpu.CompilerParams(vmem_limit_bytes=64 * 2**20)",
    ),
    ("memory space vmem", "Take smaller blocks: together they are larger than the VMEM of the chip"),
    (
        "divisible by 8 and 128",
        "Take blocks whose last two sizes are multiples of 8 and 128, or those of the whole array; pad the array",
    ),
    ("Unimplemented primitive", "Compute it with other operations, or outside of the kernel"),
    ("Invalid vector type", "Cast the array to float32 or bfloat16 outside of the kernel"),
    ("nsupported", "Cast to float32, bfloat16 or int32 there, or compute it outside of the kernel"),
    ("captures constants", "Pass the array to pallas_call as an input"),
)
"""Part of the compiler's message -> the change to try."""


@functools.partial(explain_arguments, also=CompileOptions.__annotations__)
def check_kernel(
    kernel: Callable[..., Any],
    inputs: Sequence[Any],
    reference: Callable[..., Any] | None,
    tpu: str | Sequence[str] = ("v5e-1", "v6e-1"),
    *,
    tolerance: float | None = None,
    **settings: Unpack[CompileOptions],
) -> KernelCheck:
    """Check a Pallas kernel for the TPU: its results, whether each chip's compiler takes it, its VMEM and its time.

    Args:
        kernel: a function of arrays that calls `pl.pallas_call`, without `interpret`.
        inputs: its arguments: arrays, or `jax.ShapeDtypeStruct` for random ones (normal numbers; integers from 0 to
            7). Give indices as arrays.
        reference: a function of the same arguments, of NumPy or JAX, that returns the same outputs. None compiles
            only.
        tpu: one system or several; on each, one device runs the kernel.
        tolerance: largest difference from the reference, as a share of the largest value of an output. None: 1e-4 for
            float32, 2e-2 for bfloat16, 0 for integers.
        **settings: as `plan` takes them: options, timeout_s, use_cache, progress, and name, which is that of the
            function without one.

    Returns:
        A record; its `passed` says whether nothing is wrong, `show()` prints it.

    Raises:
        ProgramError: the function calls no Pallas kernel, or fails.
        SettingError: the tolerance is negative, or the inputs are no arrays.
        UnknownTPUError: no such TPU.
        CompilerMissingError: the TPU compiler is not installed.

    Example:
        >>> tpu.check_kernel(matmul, (x, y), jnp.dot, "v5e-1").show()  # doctest: +SKIP
    """
    # 1. The arguments, and the grids of the kernel's calls.
    targets = targets_named([tpu] if isinstance(tpu, str) else list(tpu))
    if tolerance is not None and not tolerance >= 0:
        raise SettingError(f"tolerance must be a share of the largest value, 0 or more, or None, not {tolerance!r}")
    if not isinstance(inputs, list | tuple):
        raise SettingError(f"inputs must be a tuple of arrays or jax.ShapeDtypeStruct, not {inputs!r}")
    called = settings.pop("name", None) or getattr(kernel, "__name__", "kernel")
    specs = [_spec(called, index, value) for index, value in enumerate(inputs)]
    grids = _grids(called, kernel, specs)
    # 2. The results, by JAX's interpreter.
    tell = settings.pop("progress", None) or (lambda line: None)
    comparison = None
    if reference is not None:
        tell(f"{called} in TPU interpret mode, {_steps(grids)}")
        comparison = compare(kernel, reference, random_arrays(list(inputs)), tolerance)

    # 3. The compiler of each chip. The inputs are the state, because a batch would be split over the devices.
    def step(state: Any, batch: Any) -> Any:
        return state, kernel(*state)

    step.__name__ = called
    program = of(step, (tuple(specs), ()), "infer")
    tasks = [functools.partial(_on_chip, program, target, tell, settings) for target in targets]
    text = ", ".join(map(leaf_text, specs))
    return KernelCheck(called, text, grids, comparison, tuple(run_together(tasks)))


def _spec(name: str, index: int, value: Any) -> jax.ShapeDtypeStruct:
    if not hasattr(value, "shape") or not hasattr(value, "dtype"):
        raise SettingError(
            f"input {index} of {name!r} is a {type(value).__name__}: give arrays or jax.ShapeDtypeStruct, and bind "
            "other arguments with functools.partial"
        )
    return jax.ShapeDtypeStruct(value.shape, jax.dtypes.canonicalize_dtype(value.dtype))


def _grids(name: str, kernel: Callable[..., Any], specs: Sequence[Any]) -> tuple[KernelGrid, ...]:
    try:
        jaxpr = jax.make_jaxpr(kernel)(*specs)
    except Exception as error:
        first = str(error).partition("\n")[0].rstrip(".")
        advice = _advice(first)
        raise ProgramError(f"the kernel {name!r} cannot be traced: {first}{f'. {advice}' if advice else ''}") from error
    calls = [operation for operation in operations(jaxpr) if operation.name == "pallas_call"]
    if not calls:
        raise ProgramError(
            f"{name!r} calls no Pallas kernel: give the function that calls pl.pallas_call(body, ...)(x); for another "
            "function use anytpu.plan"
        )
    return tuple(
        KernelGrid(
            call.equation.params["jaxpr"].debug_info.func_src_info,
            tuple(size if isinstance(size, int) else None for size in call.equation.params["grid_mapping"].grid),
        )
        for call in calls
    )


def _steps(grids: Sequence[KernelGrid]) -> str:
    return "grid " + ", ".join("x".join("?" if size is None else f"{size:,}" for size in grid.grid) for grid in grids)


def _advice(said: str) -> str:
    return next((advice for part, advice in _ADVICE if part in said), "")


def _on_chip(program: Program, target: Target, tell: Callable[[str], None], settings: Any) -> KernelOnChip:
    tell(f"{program.name.rpartition('/')[0]} for {target.name}")
    try:
        answer = compile_program(program, target, **settings)
    except CompilerMissingError:
        raise
    except PlanError as error:
        return _refused(target, error)
    if not isinstance(answer, CompiledProgram):
        text = f"the arrays need {format_bytes(answer.needed_bytes)} of {format_bytes(answer.limit_bytes)}"
        return KernelOnChip(target, reason=text, advice="Give smaller inputs", said=answer.said)
    # The interval is that of the whole step; the kernel has the same share above and below.
    time = step_time(parse(answer.hlo), target)
    kernels = [op for op in time.ops if op.kind == "kernel"]
    time_s = sum(op.time_s for op in kernels)
    low, high = (end / time.step_s for end in time.interval_s)
    return KernelOnChip(
        target,
        time_s,
        (low * time_s, high * time_s),
        any(op.priced_by == "floor" for op in kernels),
        sum(op.time_s for op in time.ops if op.kind not in ("kernel", "host")),
        max(map(int, _USED.findall(answer.hlo)), default=None),
        max(kernels, key=lambda op: op.time_s).bound if kernels else "",
    )


def _refused(target: Target, error: PlanError) -> KernelOnChip:
    if not error.compiler_message:
        return KernelOnChip(target, reason=str(error).rstrip("."))
    from anytpu.planning.compiler.refusal import first_sentence

    said, place = error.compiler_message, f", of {error.place}" if error.place else ""
    shortage = _SHORTAGE.search(said)
    reason = (
        f"it takes {shortage[1]} of {shortage[2]} of VMEM"
        if shortage
        else first_sentence(said).partition(", and index_map")[0]
    )
    return KernelOnChip(target, reason=f"{reason}{place}", advice=_advice(said), said=said)
