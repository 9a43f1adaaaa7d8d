"""`compile_program`: a Program through the real TPU compiler.

Rule: the compiler runs in a child process, so that nothing that it does ends the user's program: a crash, a hang and a
refusal each become one error of ours.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import Any

from anytpu.errors import PlanError
from anytpu.planning.compiler.answer import Compiled, OutOfMemory
from anytpu.planning.compiler.children import borrowed
from anytpu.planning.compiler.parent import Child, EndedError, TooSlowError
from anytpu.planning.compiler.request import request_of
from anytpu.planning.target import Target
from anytpu.program.program import Program


def compile_program(
    program: Program,
    target: Target,
    *,
    options: Mapping[str, str] | None = None,
    timeout_s: float = 600,
    use_cache: bool = True,
) -> Compiled | OutOfMemory:
    """Compile a Program for a target, which need not be there.

    Args:
        program: what to compile.
        target: for which devices.
        options: options of the compiler, such as {"xla_tpu_scoped_vmem_limit_kib": "98304"}; None means none.
        timeout_s: the longest that the compiler may take, seconds.
        use_cache: look for the answer on the disk, and keep it there.

    Raises:
        PlanError: the compiler refused the program, ended or took too long, or is not installed.
        ProgramError: the program cannot be lowered.
    """
    request = request_of(program, target, options or {})
    answer, text = _asked(program, target, request.header(), request.code.content, timeout_s)
    if "said" in answer:
        raise PlanError(f"The TPU compiler refused {program.name!r} for {target.name}: {answer['said']}")
    return Compiled(hlo=text.decode(), **answer)


def _asked(
    program: Program, target: Target, header: dict[str, Any], code: bytes, timeout_s: float
) -> tuple[dict[str, Any], bytes]:
    with borrowed() as child:
        try:
            return child.ask(header, code, timeout_s)
        except TooSlowError:
            raise PlanError(f"too slow {program.name} {target.name} {timeout_s}") from None
        except EndedError:
            raise PlanError(_ended(program, target, child)) from None


def _ended(program: Program, target: Target, child: Child) -> str:
    status = child.wait()
    how = f"by the signal {signal.Signals(-status).name}" if status < 0 else f"with status {status}"
    return (
        f"The TPU compiler ended {how} while it compiled {program.name!r} for {target.name}. Its last lines:\n"
        f"{child.last_lines()}"
    )
