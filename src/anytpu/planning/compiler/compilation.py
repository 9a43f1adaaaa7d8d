"""`compile_program`: compile a Program with the TPU's own compiler.

Idea: the compiler runs in a child process, so it cannot end the user's program. A crash, a hang and a refusal each
become one of our errors, and "it does not fit" becomes an answer.

Rule: a program that the same compiler has compiled with the same options comes from the disk.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping

import jax

from anytpu import _env
from anytpu.errors import CompilerMissingError
from anytpu.planning.compiler import cache
from anytpu.planning.compiler.answer import CompiledProgram, OutOfMemory, answer_of
from anytpu.planning.compiler.children import ask_child
from anytpu.planning.compiler.refusal import refusal_of
from anytpu.planning.compiler.request import Request, Stage, request_of
from anytpu.planning.records.target import Target
from anytpu.program.program import Program


def compile_program(
    program: Program,
    target: Target,
    *,
    options: Mapping[str, str] | None = None,
    timeout_s: float = 600,
    use_cache: bool = True,
    stage: Stage = "code",
    begin: Callable[[], None] | None = None,
) -> CompiledProgram | OutOfMemory:
    """Compile a Program for a target, which need not be present.

    Several threads may call this at a time; each then has its own compiler.

    Args:
        program: the program to compile.
        target: the devices to compile for.
        options: options of the compiler, such as {"xla_tpu_scoped_vmem_limit_kib": "98304"}; None means none.
        timeout_s: time limit of the compiler, seconds.
        use_cache: whether to look for the answer on the disk, and to store it there.
        stage: the last stage of the compilation; a program that ends with its schedule has no cycles and no code.
        begin: called before the compiler is asked, if the answer is not on the disk; None for nothing.

    Raises:
        CompilerMissingError: the compiler is not installed, or cannot be started.
        NoAnswerError: the compiler took too long or too much memory.
        PlanError: the compiler refused the program or crashed; or the program is written for another number of devices,
            or computes with float64.
        ProgramError: the program cannot be lowered.

    Example:
        >>> compile_program(program, target_named("v5e-8")).peak_bytes  # doctest: +SKIP
        57451008
    """
    libtpu = _env.libtpu_version()
    if libtpu is None:
        raise CompilerMissingError("The TPU compiler, libtpu, is not installed: pip install 'anytpu[plan]'")
    request = request_of(program, target, options or {}, stage)
    key = key_of(request, libtpu)
    kept = cache.read(key) if use_cache else None
    if kept is None and begin is not None:
        begin()
    header, text = kept or ask_child(request, timeout_s, f"{program.name!r} for {target.name}")
    answer = answer_of(header, text, request.code.left_out, from_cache=kept is not None)
    if answer is None:
        raise refusal_of(header["said"], program.name, target.name, request.code.jaxpr)
    # LIBTPU_INIT_ARGS may have changed meanwhile.
    if use_cache and kept is None and key == key_of(request, str(_env.libtpu_version())):
        cache.write(key, header, text)
    return answer


def key_of(request: Request, libtpu: str) -> str:
    """Return the key of a request in the cache: the digest of everything that the answer depends on.

    Args:
        request: the code, the target, the layout and the options.
        libtpu: version of the compiler. The version of JAX and the compiler's environment variables are part of the key
            too.
    """
    settings = {"jax": jax.__version__, "libtpu": libtpu, **_env.compiler_settings()}
    parts = [request.code.digest.hex(), request.header(), settings]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
