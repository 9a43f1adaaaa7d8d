"""Checkpoints: the manifest, beside arrays that are whole; and the arrays, beside a manifest that is."""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from anytpu.train.checkpoint import Checkpoints
from anytpu.train.checkpoint.manifest import NAME, digest_of
from anytpu.train.checkpoint.store import ARRAYS
from fuzz.battery import Battery
from fuzz.damage import BYTES, JSON

STEP = 5


def _saved(folder: str) -> Path:
    values = {
        "dense/kernel": np.arange(60, dtype="float32").reshape(5, 12),
        "dense/bias": np.zeros(12, "float16"),
        "seed": np.array([1, 2], "uint32"),
        "global_step": np.array(STEP, "int32"),
    }
    Checkpoints(folder).save(STEP, values, trained={"dense/kernel"}, host={"position": {"states": [{"batches": 3}]}})
    return Path(folder, str(STEP))


def _contents(name: str) -> Callable[[], list[bytes]]:
    def samples() -> list[bytes]:
        with tempfile.TemporaryDirectory() as folder:
            return [(_saved(folder) / name).read_bytes()]

    return samples


def _reading(name: str) -> Callable[[Path], Any]:
    def read(path: Path) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            (_saved(folder) / name).write_bytes(path.read_bytes())
            found = Checkpoints(folder).load(STEP)
            return [found.host, {key: value.tolist() for key, value in found.values.items()}, str(found.forms)]

    return read


def resealed(content: bytes, draw: random.Random) -> bytes:
    """Damage the manifest, and record its digest anew."""
    try:
        said = json.loads(draw.choice(JSON)(content, draw))
        said.pop("digest", None)
        return json.dumps({**said, "digest": digest_of(json.dumps(said, indent=1).encode())}, indent=1).encode()
    except (ValueError, AttributeError, TypeError, RecursionError):
        return content


BATTERIES = (
    Battery(
        "checkpoint_manifest",
        _contents(NAME),
        _reading(NAME),
        ".json",
        damage=(*BYTES, *JSON),
        resealed=(resealed,),
        is_checked=True,
        names_file=False,
    ),
    Battery(
        "checkpoint_arrays",
        _contents(ARRAYS),
        _reading(ARRAYS),
        ".bin",
        damage=BYTES,
        is_checked=True,
        names_file=False,
    ),
)
