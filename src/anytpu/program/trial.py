"""`try_parsing`: parses the StableHLO of a file in a child process first.

Idea: MLIR's parser aborts the process on some damaged modules, both text and bytecode. If a child process has parsed
and lowered a module, this process can parse it too: the parser and the bytes are the same.

Rule: a child is started for each new content, which takes one or two seconds. Modules made in this process are not
tried.
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
"""Time limit of the parser, in seconds."""

_REFUSED = 3
_BEGAN = b"anytpu: the parser begins\n"
_PARSED: set[str] = set()  # Keys of contents that a child has parsed: the jax_enable_x64 flag and a digest.
_CRASHES = {-number for number in (signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE)}
_AGAIN = "Write it again, with jax.jit(step).lower(...).as_text()."
# Insert our folder after the standard library and before other packages, unless it is in sys.path already.
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
    """Parse StableHLO in a child process, and return on success.

    Args:
        content: the module, as text or as MLIR's bytecode.

    Raises:
        ProgramError: the content is not StableHLO, or the parser could not start, crashed or timed out. The message is
            a sentence about "it".
    """
    wide = bool(jax.config.jax_enable_x64)  # type: ignore[attr-defined]
    key = f"{wide} {hashlib.sha256(content).hexdigest()}"
    if key not in _PARSED:
        _try(content, wide)
        _PARSED.add(key)


def main(wide: bool) -> None:
    """Parse and lower the module on standard input; the exit status is 0 on success."""
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
        child = subprocess.run(command, input=content, capture_output=True, env=environment, timeout=LIMIT_S)
    except subprocess.TimeoutExpired:
        raise ProgramError(f"MLIR's parser did not finish with it in {LIMIT_S:g} s.") from None
    except OSError as error:
        raise ProgramError(_unstarted(str(error))) from error
    _, began, message = child.stdout.partition(_BEGAN)
    printed = child.stderr.decode(errors="replace")
    if began and child.returncode == _REFUSED:
        raise ProgramError(message.decode())
    if child.returncode or not began:
        raise ProgramError(_crash_message(child.returncode, printed, bool(began)))


def _crash_message(status: int, printed: str, has_begun: bool) -> str:
    """Return the error text for a child that ended without a result.

    Args:
        status: exit status of the child.
        printed: its standard error.
        has_begun: whether the parser had started.
    """
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
