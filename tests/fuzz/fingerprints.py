"""A digest of what a reader returned, to tell whether two readings gave the same."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np


def fingerprint(value: Any) -> str:
    """Return a digest of arrays, containers, dataclasses and plain values; NaNs of the same bits are the same."""
    digest = hashlib.sha256()
    _add(digest, value)
    return digest.hexdigest()


def _add(digest: Any, value: Any) -> None:
    digest.update(type(value).__name__.encode() + b":")
    if isinstance(value, np.ndarray | np.generic):
        digest.update(f"{value.dtype} {value.shape} ".encode())
        if value.dtype.hasobject:
            _add(digest, value.tolist())
        else:
            digest.update(np.ascontiguousarray(value).tobytes())
    elif isinstance(value, bytes | str):
        digest.update(value if isinstance(value, bytes) else value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, Mapping):
        _add(digest, list(value.items()))
    elif isinstance(value, list | tuple | set | frozenset):
        digest.update(f"{len(value)} ".encode())
        for item in value if not isinstance(value, set | frozenset) else sorted(value, key=repr):
            _add(digest, item)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        _add(digest, [getattr(value, field.name) for field in dataclasses.fields(value)])
    else:
        digest.update(repr(value).encode("utf-8", "surrogatepass"))
