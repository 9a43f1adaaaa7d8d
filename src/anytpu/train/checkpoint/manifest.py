"""`CheckpointManifest`: the contents of a checkpoint, with a digest of each array.

Idea: a checkpoint is a folder with array bytes and one `manifest.json`. The manifest records each array's name, shape,
dtype, offset and digest. It also stores the state that is not an array, such as the position in the data, and its
own digest. So a digest covers every byte of a checkpoint. `difference` compares the arrays with those of a model.

Rule: a folder without a manifest is not a checkpoint. A checkpoint is loaded completely or not at all. This module
depends on no caller: any code that saves named arrays can use it.

Digests are CRC-32C. It detects every burst of up to 32 bits and, in an array of up to 256 MB, every three flipped bits.
It misses other damage with a probability of 2**-32 an array. It detects accidents, not tampering.
"""

from __future__ import annotations

import dataclasses
import enum
import json
import math
from collections.abc import Mapping
from typing import Any

import google_crc32c
import ml_dtypes  # noqa: F401 - makes the names of bfloat16 and the float8 kinds known to NumPy
import numpy as np

from anytpu.errors import DamageError, FileError
from anytpu.files.json_text import check_json, read_json
from anytpu.files.npy import named_dtype
from anytpu.units import MIB

KIND = "anytpu checkpoint"
"""The value of the manifest's "kind" field."""

FORMAT = 1
"""The format version that this release writes, and the newest that it reads."""

NAME = "manifest.json"
"""The file of the manifest, in the folder of a checkpoint."""

MAX_BYTES = 64 * MIB
"""Maximum size of a manifest: 250,000 arrays."""

_PIECE_BYTES = 2**20
"""Bytes of one call of google_crc32c, which holds Python's lock: the training's thread waits for it."""

Json = Any


@dataclasses.dataclass(frozen=True)
class ArrayForm:
    """The form of a named array, without its values.

    Attributes:
        shape: shape of the array.
        dtype: name of the dtype, such as "float32".
        is_trained: whether the array is a trainable weight; False for other state, such as an optimizer's.
        is_optimizer_state: whether the array is an optimizer's slot or setting.
    """

    shape: tuple[int, ...]
    dtype: str
    is_trained: bool = False
    is_optimizer_state: bool = False

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


@dataclasses.dataclass(frozen=True)
class StoredArray:
    """An array in a checkpoint.

    Attributes:
        name: name of the array, such as "dense/kernel".
        form: shape and dtype of the array.
        offset_bytes: offset of the array's bytes (little-endian, in C order) in the checkpoint's file of arrays.
        digest: digest of the array's bytes.
    """

    name: str
    form: ArrayForm
    offset_bytes: int
    digest: str

    @property
    def size_bytes(self) -> int:
        """Size of the array in the file, in bytes."""
        return math.prod(self.form.shape) * np.dtype(self.form.dtype).itemsize


@dataclasses.dataclass(frozen=True)
class CheckpointManifest:
    """The contents of a checkpoint.

    Attributes:
        step: step at which the checkpoint was saved.
        arrays: the arrays, in the order of their offsets.
        host: the state that is not an array, as plain JSON.

    Example:
        >>> from_json(to_json(CheckpointManifest(step=3, arrays=(), host={"batches": 7}))).host
        {'batches': 7}
    """

    step: int
    arrays: tuple[StoredArray, ...]
    host: Json = None

    @property
    def size_bytes(self) -> int:
        """Size of the file of arrays, in bytes."""
        return sum(array.size_bytes for array in self.arrays)


def digest_of(content: bytes | np.ndarray) -> str:
    """Return the digest of bytes, or of an array's bytes in C order.

    Example:
        >>> digest_of(b"123456789")
        'crc32c:e3069283'
    """
    if isinstance(content, np.ndarray):
        content = content.reshape(-1).view(np.uint8)
        content.flags.writeable = False  # google_crc32c takes read-only buffers only; `content` is a view.
    crc = 0
    for start in range(0, len(content), _PIECE_BYTES):
        crc = google_crc32c.extend(crc, content[start : start + _PIECE_BYTES])  # pyright: ignore[reportArgumentType]
    return f"crc32c:{crc:08x}"


def is_number(dtype: np.dtype) -> bool:
    """Return whether a checkpoint can hold a dtype: integers, floats of any kind, complex numbers, booleans."""
    # The floats of ml_dtypes, such as bfloat16, have NumPy's kind of raw bytes.
    return dtype.kind in "biufcV" and dtype.type is not np.void


def to_json(manifest: CheckpointManifest) -> bytes:
    """Return a manifest as JSON, with its own digest.

    Raises:
        FileError: `from_json` would refuse it: it is too large, or its host state nests too deeply.
    """
    arrays = [
        {"name": a.name, **dataclasses.asdict(a.form), "offset_bytes": a.offset_bytes, "digest": a.digest}
        for a in manifest.arrays
    ]
    fields = {"kind": KIND, "format": FORMAT, "step": manifest.step, "host": manifest.host, "arrays": arrays}
    content = _to_bytes({**fields, "digest": digest_of(_to_bytes(fields))})
    try:
        check_json(content, MAX_BYTES)
    except ValueError as error:
        raise FileError(
            f"the checkpoint of step {manifest.step} cannot be written, for its {NAME}: {error}. Keep less in the "
            "states of the callbacks"
        ) from error
    return content


def from_json(content: bytes) -> CheckpointManifest:
    """Return the manifest from its JSON.

    Raises:
        DamageError: the JSON is not a manifest, or was changed after it was saved.
        FileError: the manifest has a newer format.
    """
    try:
        fields: dict[str, Any] = read_json(content, MAX_BYTES)
        version, is_ours, digest = fields.get("format"), fields.get("kind") == KIND, fields.pop("digest", None)
    except (ValueError, AttributeError):
        raise DamageError(f"its {NAME} was changed or cut off after it was saved") from None
    # A newer format is not damage: a newer release reads it. But if the digest is correct with FORMAT in its place, the
    # "format" field itself was damaged.
    if (
        is_ours
        and type(version) is int
        and version > FORMAT
        and digest != digest_of(_to_bytes({**fields, "format": FORMAT}))
    ):
        raise FileError(
            f"its {NAME} is of format {version}, and this release of anytpu reads formats up to {FORMAT}: install a "
            "newer one with pip install --upgrade anytpu"
        )
    # The bytes are compared too: a digest of the parsed values alone would not detect a changed space.
    if digest != digest_of(_to_bytes(fields)) or content != _to_bytes({**fields, "digest": digest}):
        raise DamageError(f"its {NAME} was changed or cut off after it was saved")
    try:
        return CheckpointManifest(
            int(fields["step"]), tuple(_array(entry) for entry in fields["arrays"]), fields["host"]
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise DamageError(f"its {NAME} cannot be understood: {type(error).__name__}: {error}") from error


def _array(fields: dict[str, Any]) -> StoredArray:
    shape, offset_bytes = tuple(fields["shape"]), fields["offset_bytes"]
    if any(type(size) is not int or not 0 <= size < 2**63 for size in (*shape, offset_bytes)):
        raise ValueError(f"an array of shape {shape!r} at the offset {offset_bytes!r}")
    if not is_number(named_dtype(fields["dtype"])):
        raise ValueError(f"an array of {fields['dtype']!r}")
    form = ArrayForm(shape, str(fields["dtype"]), bool(fields["is_trained"]), bool(fields["is_optimizer_state"]))
    return StoredArray(str(fields["name"]), form, offset_bytes, str(fields["digest"]))


def _to_bytes(fields: Any) -> bytes:
    return json.dumps(fields, indent=1).encode()


MAX_NAMED = 5
"""Maximum number of arrays named in each part of the text."""

Forms = Mapping[str, ArrayForm]


class Purpose(enum.Enum):
    """The purpose for which a model loads a checkpoint."""

    RESUME = "to go on with the training"
    INFER = "to evaluate or predict"
    WARM_START = "to start another training"


def difference(stored: Forms, wanted: Forms, purpose: Purpose) -> str | None:
    """Return the difference between a checkpoint and a model as text, or None if the checkpoint fits.

    - To resume, both must have the same arrays.
    - To infer, a checkpoint may also have the optimizer's state and integers (counts, random seeds). A model may also
      have integers that only inference needs (random seeds).
    - For a warm start, the checkpoint must have the model's trainable weights.

    An array in both must have the same shape and dtype.

    Args:
        stored: forms of the checkpoint's arrays by name.
        wanted: forms of the model's arrays by name.
        purpose: the purpose for which the model loads the checkpoint.

    Example:
        >>> kernel = ArrayForm((2, 3), "float32", is_trained=True)
        >>> difference({"dense/kernel": kernel}, {"head/kernel": kernel}, Purpose.RESUME)
        "In the checkpoint only: 'dense/kernel' float32[2, 3]. In the model only: 'head/kernel' float32[2, 3]"
    """
    both = [name for name in wanted if name in stored]
    differences = {
        "In the checkpoint only": [
            f"{name!r} {form}" for name, form in stored.items() if name not in wanted and _is_needed(form, purpose)
        ],
        "In the model only": [
            f"{name!r} {form}" for name, form in wanted.items() if name not in stored and _is_wanted(form, purpose)
        ],
        "With another shape": [_sides(n, stored, wanted) for n in both if stored[n].shape != wanted[n].shape],
        "With another dtype": [
            _sides(n, stored, wanted)
            for n in both
            if stored[n].shape == wanted[n].shape and stored[n].dtype != wanted[n].dtype
        ],
    }
    return ". ".join(f"{kind}: {_listed(arrays)}" for kind, arrays in differences.items() if arrays) or None


def _is_needed(form: ArrayForm, purpose: Purpose) -> bool:
    """Return whether a model must have this array of a checkpoint."""
    if purpose is Purpose.INFER:
        return form.is_trained or (not form.is_optimizer_state and not _is_integer(form))
    return purpose is Purpose.RESUME


def _is_wanted(form: ArrayForm, purpose: Purpose) -> bool:
    """Return whether a checkpoint must have this array of a model."""
    if purpose is Purpose.INFER:
        return form.is_trained or not _is_integer(form)
    return purpose is Purpose.RESUME or form.is_trained


def _is_integer(form: ArrayForm) -> bool:
    return np.dtype(form.dtype).kind in "biu"


def _sides(name: str, stored: Forms, wanted: Forms) -> str:
    return f"{name!r} {stored[name]} in the checkpoint and {wanted[name]} in the model"


def _listed(arrays: list[str]) -> str:
    more = len(arrays) - MAX_NAMED
    return ", ".join(arrays[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")
