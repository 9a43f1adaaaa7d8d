"""How long it takes to read the compiler's text: 50 MB of HLO on one core.

The text is a real module (a Keras CNN's training step for v3-8, compiled by libtpu) repeated under new names until it
is large enough: the fused computations, and as often the instructions of ENTRY, so that both keep their share. Seconds
are those of the CPU (`time.process_time`), the least of three runs.

    python benchmarks/hlo_parse.py              compile the module, then read it
    python benchmarks/hlo_parse.py module.hlo   read a module of one's own
"""

import platform
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anytpu as tpu  # isort: skip
import jax
import jax.numpy as jnp

from anytpu.planning import hlo
from anytpu.planning.compiler import CompiledProgram, compile_program
from anytpu.planning.memory.liveness import peak_of
from anytpu.planning.records.target import target_named
from plan_speed import network

SIZE_BYTES = 50_000_000
RUNS = 3


def compiled() -> str:
    """Return the module of a training step."""
    model = network()
    specs = (jax.ShapeDtypeStruct((1024, 28, 28, 1), jnp.float32), jax.ShapeDtypeStruct((1024,), jnp.int32))
    answer = compile_program(tpu.program.of(model, specs), target_named("v3-8"))
    assert isinstance(answer, CompiledProgram)
    return answer.hlo


def repeated(text: str) -> str:
    """Return a module that consists of a module many times."""
    start, entry = text.index("\n\n%") + 2, text.index("\nENTRY") + 1
    head, called, (first, *lines) = text[:start], text[start:entry], text[entry:].split("\n")
    inner = "\n".join(line for line in lines if line.startswith("  "))
    copies = max(1, round(SIZE_BYTES / (len(text) - start)))
    renamed = [re.sub(r"%([\w.\-]+)", rf"%\1.copy{copy}", called) for copy in range(copies)]
    executed = [re.sub(r"%([\w.\-]+)", rf"%\1.copy{copy}", inner) for copy in range(copies)]
    executed[1:] = [part.replace("  ROOT ", "  ") for part in executed[1:]]
    return "".join((head, *renamed, first, "\n", "\n".join(executed), "\n}\n"))


def timed(what: str, work: Callable[[], Any]) -> float:
    """Print what a piece of work takes, and return it, seconds."""
    least_s = float("inf")
    for _ in range(RUNS):
        start_s = time.process_time()
        work()
        least_s = min(least_s, time.process_time() - start_s)
    print(f"{what:58} {least_s:6.2f} s")
    return least_s


def main() -> None:
    """Measure."""
    text = repeated(Path(sys.argv[1]).read_text() if len(sys.argv) > 1 else compiled())
    module = hlo.parse(text)
    entry, total = (
        len(module.entry.instructions),
        sum(len(computation.instructions) for computation in module.computations.values()),
    )
    print(f"{len(text) / 1e6:.1f} MB, {len(module.computations):,} computations, {total:,} instructions")
    print(f"{entry:,} of them in ENTRY; {platform.python_implementation()} {platform.python_version()}, one core")

    def every_computation() -> None:
        for computation in hlo.parse(text).computations.values():
            assert computation.instructions

    timed("cut at its computations", lambda: hlo.parse(text))
    timed("ENTRY read", lambda: hlo.parse(text).entry)
    timed("every computation read", every_computation)
    executed = list(module.entry.instructions.values())
    timed("FLOPs of each instruction of ENTRY", lambda: [hlo.flops_of(instruction) for instruction in executed])
    timed("layer, line and collective of each", lambda: [_facts(module, instruction) for instruction in executed])
    timed("what is in memory at the peak", lambda: peak_of(module))


def _facts(module: hlo.Module, one: hlo.HloInstruction) -> tuple[Any, ...]:
    return hlo.layer_of(one.op_name), module.source_of(one), hlo.collective_of(one)


if __name__ == "__main__":
    main()
