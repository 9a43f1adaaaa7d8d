"""A StableHLO file (".mlir") as a Program.

Idea: such a file has no states, names or rows, but some attributes. A donated argument, whose memory a result reuses,
is state, and that result is the new state. If arguments have shardings over a mesh, the Program has that placement. The
example axis is then the one that a data axis of the mesh splits. All other arguments are batch. They are replicated
unless the user declares that their rows are split.

MLIR's parser aborts the process on some damaged modules, both text and bytecode. So a child process parses and lowers
each new content first, which takes one or two seconds. If it succeeds, this process can parse the content too: the
parser and the bytes are the same.

Rule: nothing is guessed from shapes.
"""

from __future__ import annotations

import hashlib
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from anytpu import _env
from anytpu.errors import ProgramError
from anytpu.files.opening import read_file
from anytpu.program.batch_axes import split_layout
from anytpu.program.program import REPLICATED, Layout, Placement, Program
from anytpu.program.stablehlo import StableHLO, parse

SUFFIX = ".mlir"
"""File name suffix of a StableHLO file."""

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
from anytpu.program.stablehlo_file import main
main(sys.argv[2] == "True")
"""


def read_stablehlo(path: str | Path, layouts: Mapping[int, Layout] | None = None) -> Program:
    """Read a Program from a StableHLO file, text or bytecode.

    Args:
        path: path of the file.
        layouts: layouts of arguments of its main function, by index: `{1: ROWS}`; other arguments are replicated.

    Raises:
        ProgramError: the file cannot be read, is not StableHLO with one main function and static shapes, or the layouts
            do not fit its arguments.
    """
    try:
        content = read_file(Path(path))
        if not content.strip():
            raise ProgramError("The file is empty: write jax.jit(step).lower(...).as_text() into it.")
        # A child parses it first: on damaged code MLIR's parser may end its process.
        try_parsing(content)
        module = parse(content)
        return _program(Path(path).stem, module, _layouts(module, layouts))
    except OSError as error:
        raise ProgramError(f"The StableHLO file {str(path)!r} cannot be read: {error.strerror or error}.") from error
    except ProgramError as error:
        raise ProgramError(f"The StableHLO file {str(path)!r} cannot be used. {error}") from error


def _layouts(module: StableHLO, layouts: Mapping[int, Layout] | None) -> list[Layout]:
    count = len(module.arguments)
    is_mapping = isinstance(layouts, Mapping) and all(isinstance(layout, Layout) for layout in layouts.values())
    if layouts is not None and not is_mapping:
        raise ProgramError(
            "Its shapes are fixed; input_specs can only name the arguments that are split over the devices, as "
            f"{{number: anytpu.program.ROWS}}, and not {layouts!r}."
        )
    for index, layout in (layouts or {}).items():
        if index not in range(count):
            raise ProgramError(f"It has no argument {index!r}: its {count} arguments count from 0.")
        argument = module.arguments[index]
        if layout.axis is not None and argument.becomes is not None:
            raise ProgramError(f"Its argument {index} is state, whose memory a result takes: that is REPLICATED.")
        if layout.axis is not None and len(argument.spec.shape) <= layout.axis:
            raise ProgramError(f"Its argument {index} has the shape {argument.spec.shape} and no rows to split.")
    return [(layouts or {}).get(index, REPLICATED) for index in range(count)]


def _program(name: str, module: StableHLO, layouts: list[Layout]) -> Program:
    state, batch = _indices(module)
    arguments, placement = module.arguments, _placement(module, (*state, *batch))
    specs = [arguments[index].spec for index in batch]
    layout, note = tuple(layouts[index] for index in batch), ""
    if placement is not None and all(leaf_layout == REPLICATED for leaf_layout in layout):
        layout, note = split_layout(tuple(f"argument {index}" for index in batch), specs, placement)
    return Program(
        name=f"{name}/{'train' if state else 'infer'}",
        step=_step(module, state, batch),
        state=tuple(arguments[index].spec for index in state),
        batch=tuple(specs),
        layout=layout,
        mode="train" if state else "infer",
        state_names=tuple(f"argument {index}" for index in state),
        placement=placement,
        notes=(note,) if note else (),
    )


def _indices(module: StableHLO) -> tuple[list[int], list[int]]:
    """Return the indices of the state arguments, and of the batch arguments."""
    indices = range(len(module.arguments))
    state = [index for index in indices if _is_state(module, index)]
    return state, [index for index in indices if index not in state]


def _is_state(module: StableHLO, index: int) -> bool:
    argument = module.arguments[index]
    return argument.becomes is not None and module.results[argument.becomes] == argument.spec


def _placement(module: StableHLO, indices: Sequence[int]) -> Placement | None:
    if not module.mesh:
        return None
    return Placement(module.mesh, tuple(module.arguments[index].sharding or () for index in indices))


def _step(module: StableHLO, state: list[int], batch: list[int]) -> Callable[[Any, Any], tuple[Any, Any]]:
    order = [*state, *batch]
    new_state = [module.arguments[index].becomes for index in state]

    def step(state: Any, batch: Any) -> tuple[Any, Any]:
        arguments = dict(zip(order, jax.tree.leaves((state, batch)), strict=True))
        results = module.exported.call(*[arguments[index] for index in range(len(arguments))])
        outputs = tuple(result for index, result in enumerate(results) if index not in new_state)
        return tuple(results[index] for index in new_state if index is not None), outputs

    return step


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
