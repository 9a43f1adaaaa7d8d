"""`scheduled_time`: the time of a program by its schedule, in a tenth of the work of a compilation.

Idea: nine tenths of a compilation make machine code. The schedule is final before that: fusions, collectives and what
runs beside them, and the memory. So a process compiles until the compiler dumps its schedule, and is then ended. The
plan's model of time prices the dump.

Rule: a schedule has no cycles yet, so an operation takes the time of its products or of its bytes. On v5e a step of a
small decoder takes 14 to 26 % longer with cycles, in the same order of layouts.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from pathlib import Path
from typing import Any

import jax

from anytpu.planning import hlo
from anytpu.planning.compiler import child
from anytpu.planning.compiler.request import request_of
from anytpu.planning.records import StepTime
from anytpu.planning.timing import step_time

TIMEOUT_S = 1800


def scheduled_time(program: Any, target: Any, options: dict[str, str] | None = None) -> StepTime | None:
    """Return the time of a Program on a system by its schedule; None if it does not fit."""
    request = request_of(program, target, options or {})
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([child.__name__])
    with tempfile.TemporaryDirectory() as folder:
        header = request.header()
        header["options"] = header["options"] | {"xla_dump_to": folder, "xla_dump_hlo_as_text": "True"}
        process = context.Process(target=_compile, args=(header, request.code.content, folder))
        process.start()
        end, text = time.monotonic() + TIMEOUT_S, ""
        while process.is_alive() and not text and time.monotonic() < end:
            time.sleep(0.2)
            text = _dumped(Path(folder))
        text = text or _dumped(Path(folder))
        process.kill()
        process.join()
        if text:
            return step_time(hlo.parse(text), target)
        said = Path(folder, "error")
        message = said.read_text() if said.exists() else f"no answer, status {process.exitcode}"
        if "RESOURCE_EXHAUSTED" not in message:
            raise RuntimeError(message)
        return None


def _dumped(folder: Path) -> str:
    """Return the dumped schedule of the step once it is written, or ""."""
    # The compiler dumps the assignment of buffers after the schedule.
    if not list(folder.glob("*jit_run*.after_optimizations-buffer-assignment.txt")):
        return ""
    return next((path.read_text() for path in folder.glob("*jit_run*.after_optimizations.txt")), "")


def _compile(header: dict[str, Any], code: bytes, folder: str) -> None:
    """Compile in this process; it is killed when the schedule is there."""
    try:
        jax.config.update("jax_enable_x64", header["wide"])
        child._compile(header, code)
    except Exception as error:
        Path(folder, "error").write_text(f"{type(error).__name__}: {error}")
