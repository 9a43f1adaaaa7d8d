"""`Manifest`: the list of everything in a checkpoint, with a digest of each array.

Idea: a checkpoint is a folder of array bytes and one `manifest.json`. The manifest names each array with its shape,
dtype, place in a file and digest, and holds what is not an array (the position in the data, for example) itself. It
holds its own digest too, so every byte of a checkpoint is covered by one digest.

Rule: nothing is a checkpoint without its manifest. This module knows no front door: whoever saves arrays by name uses
it.

Digests are CRC-32C. It finds every burst of up to 32 bits and, in an array of up to 256 MB, every three flipped bits.
It misses other damage with a probability of 2**-32 an array. It finds accidents, not malice.
"""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import PurePath
from typing import Any

import google_crc32c
import ml_dtypes  # noqa: F401 - makes the names of bfloat16 and the float8 kinds known to NumPy
import numpy as np

from anytpu.errors import DamageError, FileError

KIND = "anytpu checkpoint"
"""What the manifest calls itself."""

FORMAT = 1
"""The version of the format that this release writes, and the newest that it reads."""

NAME = "manifest.json"
"""The file of the manifest, in the folder of a checkpoint."""

Json = Any


@dataclasses.dataclass(frozen=True)
class ArrayForm:
    """The form of a named array, without its values.

    Attributes:
        shape: its shape.
        dtype: the name of its dtype, such as "float32".
        is_trained: True for a trainable weight; False for any other state, such as an optimizer's.
        is_optimizer_state: True for an optimizer's slots and settings; None in an old checkpoint, which does not say.
    """

    shape: tuple[int, ...]
    dtype: str
    is_trained: bool = False
    is_optimizer_state: bool | None = None

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array in a checkpoint.

    Attributes:
        name: its name, such as "dense/kernel".
        form: its shape and dtype.
        file: the file that has its bytes (little-endian, in C order), in the folder of the checkpoint.
        offset_bytes: where they begin in the file.
        digest: their digest.
    """

    name: str
    form: ArrayForm
    file: str
    offset_bytes: int
    digest: str

    @property
    def size_bytes(self) -> int:
        """The number of its bytes in the file."""
        return math.prod(self.form.shape) * np.dtype(self.form.dtype).itemsize


@dataclasses.dataclass(frozen=True)
class Manifest:
    """Everything in a checkpoint.

    Attributes:
        step: the step that it was saved at.
        arrays: the arrays, in the order of their bytes.
        host: the state that is not an array, as plain JSON.

    Example:
        >>> from_json(to_json(Manifest(step=3, arrays=(), host={"batches": 7}))).host
        {'batches': 7}
    """

    step: int
    arrays: tuple[StoredArray, ...]
    host: Json = None

    def sizes_bytes(self) -> dict[str, int]:
        """Return the size of each file of arrays."""
        sizes: dict[str, int] = {}
        for array in self.arrays:
            sizes[array.file] = sizes.get(array.file, 0) + array.size_bytes
        return sizes


def digest_of(content: bytes | np.ndarray) -> str:
    """Return the digest of some bytes, or of those of an array in C order.

    Example:
        >>> digest_of(b"123456789")
        'crc32c:e3069283'
    """
    if isinstance(content, np.ndarray):
        content = content.reshape(-1).view(np.uint8)
        content.flags.writeable = False  # google_crc32c takes nothing that may change; this is a view.
    return f"crc32c:{google_crc32c.value(content):08x}"  # pyright: ignore[reportArgumentType]


def is_number(dtype: np.dtype) -> bool:
    """Return whether a checkpoint holds arrays of a dtype: integers, floats of any kind, complex numbers, booleans."""
    # The floats of ml_dtypes, such as bfloat16, are of NumPy's kind for raw bytes.
    return dtype.kind in "biufcV" and dtype.type is not np.void


def to_json(manifest: Manifest) -> bytes:
    """Return a manifest as JSON, with its own digest."""
    arrays = [{"name": a.name, **dataclasses.asdict(a.form), **_place(a)} for a in manifest.arrays]
    said = {"kind": KIND, "format": FORMAT, "step": manifest.step, "host": manifest.host, "arrays": arrays}
    return _dumped({**said, "digest": digest_of(_dumped(said))})


def from_json(content: bytes) -> Manifest:
    """Return the manifest that some JSON holds.

    Raises:
        DamageError: it holds none, or was changed after it was saved.
        FileError: it is of a newer format.
    """
    try:
        said: dict[str, Any] = json.loads(content)
        version, is_ours, digest = said.get("format"), said.get("kind") == KIND, said.pop("digest", None)
    except (ValueError, AttributeError, RecursionError):
        raise DamageError(f"its {NAME} was changed or cut off after it was saved") from None
    # No damage: another release reads it. But where the digest is right with our format, the format itself was changed.
    if (
        is_ours
        and type(version) is int
        and version > FORMAT
        and digest != digest_of(_dumped({**said, "format": FORMAT}))
    ):
        raise FileError(
            f"its {NAME} is of format {version}, and this release of anytpu reads formats up to {FORMAT}: install a "
            "newer one with pip install --upgrade anytpu"
        )
    # Byte for byte: a digest of the meaning alone would let a flipped space pass.
    if digest != digest_of(_dumped(said)) or content != _dumped({**said, "digest": digest}):
        raise DamageError(f"its {NAME} was changed or cut off after it was saved")
    try:
        return Manifest(int(said["step"]), tuple(_array(one) for one in said["arrays"]), said["host"])
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamageError(f"its {NAME} cannot be understood: {type(error).__name__}: {error}") from error


def _place(array: StoredArray) -> dict[str, Any]:
    return {"file": array.file, "offset_bytes": array.offset_bytes, "digest": array.digest}


def _array(said: dict[str, Any]) -> StoredArray:
    shape, offset_bytes, file = tuple(said["shape"]), said["offset_bytes"], said["file"]
    if any(type(one) is not int or not 0 <= one < 2**63 for one in (*shape, offset_bytes)):
        raise ValueError(f"an array of shape {shape!r} at the offset {offset_bytes!r}")
    if not is_number(np.dtype(said["dtype"])):
        raise ValueError(f"an array of {said['dtype']!r}")
    if not isinstance(file, str) or not file.isprintable() or file != PurePath(file).name:
        raise ValueError(f"a file {file!r}")
    is_optimizer_state = said.get("is_optimizer_state")
    if not isinstance(is_optimizer_state, bool | None):
        raise ValueError(f"is_optimizer_state {is_optimizer_state!r}")
    form = ArrayForm(shape, str(said["dtype"]), bool(said["is_trained"]), is_optimizer_state)
    return StoredArray(str(said["name"]), form, file, offset_bytes, str(said["digest"]))


def _dumped(said: Any) -> bytes:
    return json.dumps(said, indent=1).encode()
