"""Answers of the TPU compiler, kept as files: a test that plans does not wait for the same compilation in each run.

Idea: an answer depends on the program, the system and the versions, and so does its name. A program that changed is
compiled, and so is every program with another version of JAX or libtpu.

Rule: the folder of this checkout, line numbers and the numbers that Keras gives to layers are in no name. So an answer
may quote another line or layer than those of now. `scripts/record_compilations` compiles all anew; tests of the
compiler itself take no record.
"""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
from pathlib import Path

import jax
import jax.export

from anytpu import _env
from anytpu.planning.compiler import compilation
from anytpu.planning.compiler.export import _LOCATION
from anytpu.planning.compiler.parent import Answer
from anytpu.planning.compiler.places import operations
from anytpu.planning.compiler.request import Request

FOLDER = Path(__file__).parent / "compilations"
ROOT, ROOT_IN_RECORDS = str(Path(__file__).parents[1]), "/anytpu"
LEAST_S = 0.7
"""Shorter compilations are not kept."""

is_used = True
is_recording = os.environ.get("RECORD_COMPILATIONS") == "1"
_ask_compiler = compilation.ask_child


def name_of(request: Request) -> str:
    """Return the name of the record of an answer."""
    module = jax.export.deserialize(bytearray(request.code.content)).mlir_module()
    places = [operation.place.identity for operation in operations(request.code.jaxpr)]
    lines = [re.sub(r":\d+(?= \()|_\d+\b", "", place.replace(ROOT, "")) for place in places]
    versions = [jax.__version__, _env.libtpu_version(), _env.compiler_settings()]
    parts = [_LOCATION.sub("", module), lines, request.header(), versions]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:40]


def ask(request: Request, timeout_s: float, job: str) -> Answer:
    """Return the recorded answer to a request, or that of the compiler."""
    if not is_used:
        return _ask_compiler(request, timeout_s, job)
    path = FOLDER / f"{name_of(request)}.xz"
    if path.exists():
        head, _, text = lzma.decompress(path.read_bytes()).partition(b"\n")
        return json.loads(head), text.replace(ROOT_IN_RECORDS.encode(), ROOT.encode())
    answer = header, text = _ask_compiler(request, timeout_s, job)
    if is_recording and header.get("compile_s", 0) > LEAST_S:
        FOLDER.mkdir(exist_ok=True)
        content = json.dumps(header).encode() + b"\n" + text.replace(ROOT.encode(), ROOT_IN_RECORDS.encode())
        path.write_bytes(lzma.compress(content))
    return answer


compilation.ask_child = ask
