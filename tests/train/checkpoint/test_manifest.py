from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from anytpu.errors import DamageError, FileError
from anytpu.train.checkpoint.manifest import (
    ArrayForm,
    CheckpointManifest,
    StoredArray,
    digest_of,
    from_json,
    is_number,
    to_json,
)

KERNEL = StoredArray("dense/kernel", ArrayForm((2, 3), "float32", True, False), "arrays.bin", 0, "crc32c:00000000")
BIAS = StoredArray("dense/bias", ArrayForm((3,), "bfloat16"), "arrays.bin", 24, "crc32c:00000001")
MANIFEST = CheckpointManifest(7, (KERNEL, BIAS), {"position": [1, 0.1, None, "é"]})


def sealed(said: dict) -> bytes:
    """JSON with a digest that is right."""
    said.pop("digest", None)
    return json.dumps({**said, "digest": digest_of(json.dumps(said, indent=1).encode())}, indent=1).encode()


def test_what_is_written_is_read():
    assert from_json(to_json(MANIFEST)) == MANIFEST
    assert MANIFEST.sizes_bytes() == {"arrays.bin": 30}
    assert str(KERNEL.form) == "float32[2, 3]"


def test_an_old_manifest_does_not_say_what_belongs_to_an_optimizer():
    said = json.loads(to_json(MANIFEST))
    for array in said["arrays"]:
        del array["is_optimizer_state"]
    assert [array.form.is_optimizer_state for array in from_json(sealed(said)).arrays] == [None, None]


def test_every_flipped_bit_is_noticed():
    content = to_json(MANIFEST)
    for place in range(len(content)):
        for bit in range(8):
            changed = bytearray(content)
            changed[place] ^= 1 << bit
            with pytest.raises(DamageError, match=r"manifest\.json"):
                from_json(bytes(changed))


def test_every_truncation_is_noticed():
    content = to_json(MANIFEST)
    for length in range(len(content)):
        with pytest.raises(DamageError, match=r"its manifest.json was changed or cut off after it was saved"):
            from_json(content[:length])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shape": [-1]}, "ValueError: an array of shape (-1,) at the offset 0"),
        ({"shape": [2.0]}, "ValueError: an array of shape (2.0,) at the offset 0"),
        ({"offset_bytes": -8}, "ValueError: an array of shape (2, 3) at the offset -8"),
        ({"dtype": "object"}, "ValueError: an array of 'object'"),
        ({"dtype": "V8"}, "ValueError: an array of 'V8'"),
        ({"file": "../other"}, "ValueError: a file '../other'"),
        ({"file": "a\0"}, "ValueError: a file 'a\\x00'"),
        ({"is_optimizer_state": 1}, "ValueError: is_optimizer_state 1"),
    ],
)
def test_a_manifest_that_makes_no_sense(changes, message):
    said = json.loads(to_json(MANIFEST))
    said["arrays"][0].update(changes)
    with pytest.raises(DamageError) as caught:
        from_json(sealed(said))
    assert str(caught.value) == f"its manifest.json cannot be understood: {message}"


def test_a_newer_format():
    said = json.loads(to_json(MANIFEST))
    with pytest.raises(FileError) as caught:
        from_json(sealed({**said, "format": 2}))
    assert type(caught.value) is FileError
    assert str(caught.value) == (
        "its manifest.json is of format 2, and this release of anytpu reads formats up to 1: install a newer one with "
        "pip install --upgrade anytpu"
    )


def test_digests_are_of_the_bytes():
    array = np.arange(6, dtype="float32").reshape(2, 3)
    assert digest_of(array) == digest_of(array.tobytes())
    assert digest_of(np.asarray(1.0)) == digest_of(np.float64(1).tobytes())
    assert array.flags.writeable
    assert digest_of(np.zeros((0, 3))) == digest_of(b"") == "crc32c:00000000"


@pytest.mark.parametrize(
    ("dtype", "fits"),
    [("float32", True), ("bool", True), (ml_dtypes.bfloat16, True), ("complex64", True), ("O", False), ("U3", False)],
)
def test_numbers(dtype, fits):
    assert is_number(np.dtype(dtype)) is fits
