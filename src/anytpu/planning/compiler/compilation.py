"""`compile_program`: compile a Program with the TPU's own compiler.

Idea: the compiler runs in a child process, so it cannot end the user's program. A crash, a hang and a refusal each
become one of our errors, and "it does not fit" becomes an answer.

Rule: a program that the same compiler has compiled with the same options comes from the disk.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import jax

from anytpu import _env
from anytpu.errors import CompilerMissingError, PlanError
from anytpu.planning.compiler import cache
from anytpu.planning.compiler.answer import CompiledProgram, OutOfMemory
from anytpu.planning.compiler.asking import asked
from anytpu.planning.compiler.oom import shortage
from anytpu.planning.compiler.refusal import refused
from anytpu.planning.compiler.request import Request, request_of
from anytpu.planning.target import Target
from anytpu.program.program import Program


def compile_program(
    program: Program,
    target: Target,
    *,
    options: Mapping[str, str] | None = None,
    timeout_s: float = 600,
    use_cache: bool = True,
) -> CompiledProgram | OutOfMemory:
    """Compile a Program for a target, which need not be present.

    Several threads may call this at a time; each then has its own compiler.

    Args:
        program: the program to compile.
        target: the devices to compile for.
        options: options of the compiler, such as {"xla_tpu_scoped_vmem_limit_kib": "98304"}; None means none.
        timeout_s: time limit of the compiler, seconds.
        use_cache: whether to look for the answer on the disk, and to store it there.

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
    request = request_of(program, target, options or {})
    key = key_of(request, libtpu)
    if use_cache and (kept := cache.read(key)) is not None:
        return _result(*kept, request.code.left_out, from_cache=True)
    header, text = asked(request, program.name, target.name, timeout_s)
    if "said" in header and shortage(header["said"]) is None:
        raise PlanError(refused(header["said"], program.name, target.name, request.code.jaxpr))
    if use_cache and key == key_of(request, str(_env.libtpu_version())):  # LIBTPU_INIT_ARGS may have changed meanwhile.
        cache.write(key, header, text)
    return _result(header, text, request.code.left_out, from_cache=False)


def key_of(request: Request, libtpu: str) -> str:
    """Return the key of a request in the cache: the digest of everything that the answer depends on.

    Args:
        request: the code, the target, the layout and the options.
        libtpu: version of the compiler. The version of JAX and the compiler's environment variables are part of the key
            too.
    """
    described = json.dumps(request.header(), sort_keys=True)
    settings = json.dumps({"jax": jax.__version__, "libtpu": libtpu, **_env.compiler_settings()})
    return cache.key_of(request.code.digest, described.encode(), settings.encode())


def _result(
    header: dict[str, Any], text: bytes, left_out: tuple[str, ...], from_cache: bool
) -> CompiledProgram | OutOfMemory:
    if "said" not in header:
        return CompiledProgram(hlo=text.decode(), from_cache=from_cache, left_out=left_out, **header)
    short = shortage(header["said"])
    assert short is not None
    return OutOfMemory(
        needed_bytes=short.needed_bytes,
        limit_bytes=short.limit_bytes,
        said=short.said,
        allocations=short.allocations,
        compiler=header["compiler"],
        compile_s=header["compile_s"],
        from_cache=from_cache,
        left_out=left_out,
    )
