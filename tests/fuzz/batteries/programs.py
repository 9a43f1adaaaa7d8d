"""Program files, `.anytpu`."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Any

import jax

from anytpu.program import read, write
from anytpu.program.archive import CHECKSUMS, write_parts
from fuzz.batteries.arrays import npy_header
from fuzz.battery import Battery
from fuzz.damage import BYTES, JSON, members_of, swell_member
from program_samples import linear, many_types, nested


def program_files() -> list[bytes]:
    """Return program files with and without the values of their state."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for sample in (linear(), many_types(), nested()):
            path = Path(folder, "some.anytpu")
            write(sample.program, path, tensors=sample.state)
            found.append(path.read_bytes())
        write(linear().program, path)
        found.append(path.read_bytes())
    return found


def resealed(content: bytes, draw: random.Random) -> bytes:
    """Damage one part and record the checksums anew."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "some.anytpu")
        parts = members_of(content)
        parts.pop(CHECKSUMS, None)
        if not parts:
            return content
        name = draw.choice(sorted(parts))
        kinds = {".json": JSON, ".npy": (*BYTES, *[npy_header] * 10)}.get(Path(name).suffix, BYTES)
        parts[name] = draw.choice(kinds)(parts[name], draw)
        write_parts(path, parts)
        return path.read_bytes()


def _read(path: Path) -> Any:
    # Stands in the list of the members too, and at the head of each.
    has_values = b"tensors/000.npy" in path.read_bytes()
    program = read(path, tensors=has_values)
    repr(program)
    values = [
        jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf
        for leaf in jax.tree.leaves(program.tensors)
    ]
    return [program.name, str(program.state), str(program.batch), jax.device_get(values)]


BATTERIES = (
    Battery("anytpu", program_files, _read, ".anytpu", resealed=(resealed,), is_checked=True),
    Battery(
        "anytpu_bomb",
        program_files,
        _read,
        ".anytpu",
        damage=(swell_member,),
        share=0.01,
        limit_s=60.0,
        is_checked=True,
    ),
)
