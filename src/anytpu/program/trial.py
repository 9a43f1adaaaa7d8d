"""`try_parsing`: StableHLO of a file, parsed first in a process that may end.

Idea: MLIR's parser ends the process on some damaged modules, text and bytecode. What a child has parsed and lowered,
this process parses too: it is the same parser and the same bytes.

Rule: a child is started for each content that was not tried before, which takes a second or two. Modules that were made
in this process are not tried.
"""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys

import jax

from anytpu import _env
from anytpu.errors import ProgramError

LIMIT_S = 300.0
"""How long the parser may take, seconds."""

_REFUSED = 3
_BEGAN = b"anytpu: the parser begins\n"
_PARSED: set[str] = set()  # Digests of what a child has parsed, with the width of integers.
_CRASHES = {-one for one in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)}
_AGAIN = "Write it again, with jax.jit(step).lower(...).as_text()."
# After the standard library and before other packages, where this anytpu would not be found anyway.
_CHILD = """
import sys
folder = sys.argv[1]
if folder not in sys.path:
    others = [at for at, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages"))]
    sys.path.insert(min(others, default=len(sys.path)), folder)
from anytpu.program.trial import main
main(sys.argv[2] == "True")
"""


def try_parsing(content: bytes) -> None:
    """Parse StableHLO in a child process, and return when it could be.

    Args:
        content: the module, as text or as MLIR's bytecode.

    Raises:
        ProgramError: it is not StableHLO, or the parser could not start, ended or took too long; sentences about "it".
    """
    wide = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
    key = f"{wide} {hashlib.sha256(content).hexdigest()}"
    if key not in _PARSED:
        _try(content, wide)
        _PARSED.add(key)


def main(wide: bool) -> None:
    """Parse what standard input holds, and lower it; the exit status says whether that could be done."""
    jax.config.update("jax_enable_x64", wide)
    from anytpu.program.stablehlo import parse

    sys.stdout.buffer.write(_BEGAN)
    sys.stdout.buffer.flush()
    try:
        module = parse(sys.stdin.buffer.read())
        specs = [argument.spec for argument in module.arguments]
        if module.exported.nr_devices == 1:
            jax.jit(module.exported.call).trace(*specs).lower(lowering_platforms=("tpu",))
    except ProgramError as error:
        sys.stdout.buffer.write(str(error).encode(errors="replace"))
        sys.exit(_REFUSED)


def _try(content: bytes, wide: bool) -> None:
    command = [sys.executable, "-P", "-c", _CHILD, str(_env.package_folder()), str(wide)]
    environment = _env.compiler_environment()
    try:
        tried = subprocess.run(command, input=content, capture_output=True, env=environment, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise ProgramError(f"MLIR's parser does not come to an end with it in {LIMIT_S:g} s.") from None
    except OSError as error:
        raise ProgramError(_unstarted(str(error))) from error
    _, began, said = tried.stdout.partition(_BEGAN)
    printed = tried.stderr.decode(errors="replace")
    if began and tried.returncode == _REFUSED:
        raise ProgramError(said.decode())
    if tried.returncode or not began:
        raise ProgramError(_ended(tried.returncode, printed, bool(began)))


def _ended(status: int, printed: str, has_begun: bool) -> str:
    """Return the sentences for a child that ended without a result."""
    how = f"was ended by {signal.Signals(-status).name}" if status < 0 else f"ended with status {status}"
    lines = [line.strip() for line in printed.splitlines() if line.strip()]
    complaint = next((line for line in lines if "error:" in line or "LLVM ERROR" in line), lines[-1] if lines else "")
    said = f": {complaint[:160].rstrip('.')}" if complaint else ""
    if status == -signal.SIGKILL:
        return (
            f"MLIR's parser {how}. Most likely this machine ran out of memory. The file is not harmed: read it on a "
            "machine with more memory."
        )
    if not has_begun:
        return _unstarted(f"it {how}{said}")
    if status in _CRASHES:
        return f"It is damaged: MLIR's parser {how} on it{said}. {_AGAIN}"
    return f"MLIR's parser {how} on it{said}. Read it again; if that fails too: {_AGAIN[0].lower()}{_AGAIN[1:]}"


def _unstarted(why: str) -> str:
    return (
        f"The process for MLIR's parser could not start: {why.rstrip('.')}. Look at this machine with: anytpu doctor."
    )
