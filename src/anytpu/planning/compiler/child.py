"""The child process: compiles requests with libtpu and sends the answers. `Child` of parent.py starts it.

Rule: a request holds everything; this process imports neither Keras nor the user's program. It exits with its parent,
even in the middle of a compilation, and after some time without a request.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import math
import os
import queue
import re
import tempfile
import threading
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import jax.export
import numpy as np
from jax.experimental import mesh_utils, topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from anytpu import _env, _jax

IDLE_S = 120.0
"""How long a child waits for the next request, seconds."""

_LOOKS_S = 1.0
_MAX_LINE = 2**22
_MAX_CODE = 2**26
"""Bytes of a program whose constants are printed: a captured array of 1 GB would be several GB of text."""
_KERNEL = b"tpu_custom_call"
_LITERAL = re.compile(r" constant\(\{[^)]*\)")
_Requests = queue.SimpleQueue[tuple[dict[str, Any], bytes]]


def main(descriptor: int) -> None:
    """Answer requests until the parent is gone.

    Args:
        descriptor: file descriptor of the connection to the parent.
    """
    connection, requests = Connection(descriptor), _Requests()
    # 1. A thread of its own receives, because this one cannot look at the pipe while libtpu compiles.
    threading.Thread(target=_receive, args=(connection, requests, os.getppid()), daemon=True).start()
    # 2. The compiler is loaded once. A failure is the answer to each request, so that the parent can report it.
    fault = _load()
    # 3. One request after another. IDLE_S without one ends the process with status 0, which
    # `children._ask_twice` takes as a reason to start another child.
    with contextlib.suppress(queue.Empty):
        while True:
            header, code = requests.get(timeout=IDLE_S)
            connection.send(({"unusable": fault}, b"") if fault else compile_request(header, code))


def _load() -> str:
    """Load the compiler, and return the reason if it cannot be loaded, or ""."""
    try:
        _devices("v2:2x2", ())
    except Exception as error:  # Any error here means that there is no compiler.
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return ""


def _receive(connection: Connection, requests: _Requests, parent: int) -> None:
    """Say that this process reads, pass on each request, and end this process when no more can come."""
    with contextlib.suppress(EOFError, OSError):
        # Before libtpu is loaded: from now on a large request of the parent does not block.
        connection.send(({"is_ready": True}, b""))
        # The system gives this process another parent when its own has ended.
        while os.getppid() == parent:
            if connection.poll(_LOOKS_S):
                requests.put(connection.recv())
    # Not `sys.exit`, which would end this thread only: libtpu cannot be interrupted.
    os._exit(0)


def compile_request(header: dict[str, Any], code: bytes) -> tuple[dict[str, Any], bytes]:
    """Compile, and return the answer: sizes and the HLO text, or the compiler's message."""
    started = time.monotonic()
    jax.config.update("jax_enable_x64", header["wide"])
    answer_of = _scheduled if header["stage"] == "schedule" else _compiled
    try:
        sizes, text = answer_of(header, code)
    except Exception as error:  # The parent reports any error.
        said = {
            "compiler": _name(),
            "kind": type(error).__name__,
            "said": str(error),
            "compile_s": time.monotonic() - started,
        }
        return said, b""
    return {**sizes, "compiler": _name(), "compile_s": time.monotonic() - started}, text.encode()


def _compiled(header: dict[str, Any], code: bytes) -> tuple[dict[str, Any], str]:
    """Compile to machine code; return the sizes and the HLO text."""
    compiled = _compile(header, code)
    # The dump takes a second compilation, so it comes last.
    text = _text(compiled, _has_masks(code)) or _dumped_text(header, code)
    sizes = compiled.memory_analysis()
    answer = {
        "argument_bytes": sizes.argument_size_in_bytes,
        "output_bytes": sizes.output_size_in_bytes,
        "alias_bytes": sizes.alias_size_in_bytes,
        "temp_bytes": sizes.temp_size_in_bytes,
        "code_bytes": sizes.generated_code_size_in_bytes,
        "peak_bytes": getattr(sizes, "peak_memory_in_bytes", None),
    }
    return answer, text


def _scheduled(header: dict[str, Any], code: bytes) -> tuple[dict[str, Any], str]:
    """Compile until libtpu dumps the schedule; return the sizes and the HLO text. The compilation goes on.

    Raises:
        OSError: it dumped none.
    """
    # 1. The compilation goes on after its schedule and writes into the folder, so deleting the folder may fail.
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        compiling = concurrent.futures.ThreadPoolExecutor(1).submit(_compile, _dumping(header, folder, code), code)
        # 2. Wait for the schedule.
        # libtpu writes this file last of the schedule's, and one after the other.
        while True:
            is_done = compiling.done()  # Asked first: a short compilation may end between the two questions.
            if _dumped(folder, "after_optimizations_after_buffer_assignment"):
                break
            if is_done:
                compiling.result()
                raise OSError(f"{_name()} writes no schedules")
            concurrent.futures.wait([compiling], _LOOKS_S / 10)
        # 3. Both files are complete, because libtpu wrote them before the file above.
        sizes = _memory(_dumped(folder, "after_optimizations-buffer-assignment")[0].read_text())
        return sizes, _with_masks(_dumped(folder, "after_optimizations")[0].read_text())


def _memory(assignment: str) -> dict[str, Any]:
    """Return the sizes of a buffer assignment; arrays outside of the main memory have a color."""
    sizes = {"parameter": 0, "": 0}
    for size, rest in re.findall(r"^allocation \d+: size (\d+), (.*)$", assignment, re.MULTILINE):
        if "color" not in rest and "thread-local" not in rest:
            # XLA of libtpu 0.0.50 and later writes the allocation's page before its kind.
            kind = re.match(r"(?:page \d+, )?(parameter)?", rest)
            sizes[(kind and kind[1]) or ""] += int(size)
    fixed = {"output_bytes": 0, "alias_bytes": 0, "code_bytes": 0, "peak_bytes": None}
    return {"argument_bytes": sizes["parameter"], "temp_bytes": sizes[""], **fixed}


def _text(compiled: Any, has_masks: bool) -> str | None:
    """Return the text of a program, or None if this jaxlib cannot read the output of a newer libtpu."""
    try:
        text = compiled.as_text()
        with contextlib.suppress(ImportError, AttributeError):
            # The mask of an attention kernel is a constant.
            text = _with_masks(_jax.text_with_constants(compiled)) if has_masks else text
        return text
    except jax.errors.JaxRuntimeError:
        return None


def _has_masks(code: bytes) -> bool:
    """Return whether a program has kernels, whose masks may be constants, and is small enough to print these."""
    return _KERNEL in code and len(code) <= _MAX_CODE


def _with_masks(text: str) -> str:
    """Return the text without the values of large constants, which no plan reads."""
    lines = text.split("\n")
    return "\n".join(_LITERAL.sub("constant({...})", line) if len(line) > _MAX_LINE else line for line in lines)


def _dumped_text(header: dict[str, Any], code: bytes) -> str:
    """Compile once more, and return the text that libtpu itself dumps into a folder.

    Raises:
        OSError: it dumped none.
    """
    with tempfile.TemporaryDirectory() as folder:
        _compile(_dumping(header, folder, code), code)
        paths = _dumped(folder, "after_codegen")
        if not paths:
            raise OSError(f"{_name()} writes no text of its programs, and JAX {jax.__version__} reads none of it")
        return _with_masks(paths[0].read_text())


def _dumping(header: dict[str, Any], folder: str, code: bytes) -> dict[str, Any]:
    """Return a request whose compilation dumps its stages into a folder; those of a kernel with all constants."""
    dump = {"xla_dump_to": folder, "xla_dump_hlo_as_text": "True"}
    if _has_masks(code):
        dump["xla_dump_large_constants"] = "True"
    return header | {"options": header["options"] | dump}


def _dumped(folder: str, stage: str) -> list[Path]:
    return sorted(Path(folder).glob(f"*.jit_run.*.{stage}.txt"))


def _compile(header: dict[str, Any], code: bytes) -> Any:
    # 1. The arguments arrive with padded rows, which the devices divide.
    exported = jax.export.deserialize(bytearray(code))
    mesh = _mesh(header)
    specs = [
        jax.ShapeDtypeStruct(tuple(shape), aval.dtype, sharding=_sharding(mesh, spec))
        for (shape, spec), aval in zip(header["arguments"], exported.in_avals, strict=True)
    ]

    # 2. The padding is cut off inside. `_dumped` looks for files of this function's name.
    def run(*leaves: Any) -> Any:
        return exported.call(*[_cut(leaf, aval.shape) for leaf, aval in zip(leaves, exported.in_avals, strict=True)])

    # 3. The leaves of the state come first, so the first arguments are the donated ones.
    results = tuple(None if spec is None else _sharding(mesh, spec) for spec in header["results"])
    jitted = jax.jit(run, donate_argnums=tuple(range(header["donated"])), out_shardings=results)
    with jax.sharding.set_mesh(mesh) if header["explicit"] else contextlib.nullcontext():
        return jitted.lower(*specs).compile(compiler_options=header["options"] or None)


def _mesh(header: dict[str, Any]) -> Mesh:
    names, sizes = zip(*header["axes"], strict=True)
    name, arguments = header["topology"]
    slices = arguments.get("num_slices", 1)
    devices = _devices(name, tuple((key, _hashable(value)) for key, value in sorted(arguments.items())))
    if not header["ordered"]:
        laid = np.array(devices).reshape(sizes)
    elif slices > 1:
        # Only the first axis crosses the network between slices.
        across = (math.gcd(sizes[0], slices), *[1] * (len(sizes) - 1))
        within = (sizes[0] // across[0], *sizes[1:])
        laid = mesh_utils.create_hybrid_device_mesh(within, across, devices, allow_split_physical_axes=True)
    else:
        laid = _arrange(sizes, devices)
    types = tuple(AxisType.Explicit if axis in header["explicit"] else AxisType.Auto for axis in names)
    return Mesh(laid, names, axis_types=types)


def _arrange(sizes: tuple[int, ...], devices: Any) -> Any:
    """Arrange devices as a mesh: each axis along whole sides of the slice if that is possible."""
    if devices[0].device_kind == "TPU v4" and any(device.core_on_chip for device in devices):
        return np.array(devices).reshape(sizes)  # JAX arranges only chips of v4; their cores are consecutive.
    try:
        return mesh_utils.create_device_mesh(sizes, devices)
    except NotImplementedError:
        return mesh_utils.create_device_mesh(sizes, devices, allow_split_physical_axes=True)


def _name() -> str:
    return f"libtpu {_env.libtpu_version()}"


def _hashable(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


@functools.lru_cache(maxsize=8)
def _devices(name: str, arguments: tuple[tuple[str, Any], ...]) -> Any:
    return topologies.get_topology_desc(name, platform="tpu", **dict(arguments)).devices


def _sharding(mesh: Mesh, spec: list[Any]) -> NamedSharding:
    return NamedSharding(mesh, PartitionSpec(*[tuple(part) if part else None for part in spec]))


def _cut(leaf: Any, shape: tuple[int, ...]) -> Any:
    return leaf if leaf.shape == shape else leaf[tuple(slice(size) for size in shape)]
