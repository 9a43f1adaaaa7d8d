from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest

from anytpu.errors import DamageError, FileError
from anytpu.train.checkpoint import Purpose, difference
from anytpu.train.checkpoint.manifest import (
    ArrayForm,
    CheckpointManifest,
    StoredArray,
    digest_of,
    from_json,
    is_number,
    to_json,
)

KERNEL = StoredArray("dense/kernel", ArrayForm((2, 3), "float32", True, False), 0, "crc32c:00000000")
BIAS = StoredArray("dense/bias", ArrayForm((3,), "bfloat16"), 24, "crc32c:00000001")
MANIFEST = CheckpointManifest(7, (KERNEL, BIAS), {"position": [1, 0.1, None, "é"]})


def sealed(said: dict) -> bytes:
    """JSON with a digest that is right."""
    said.pop("digest", None)
    return json.dumps({**said, "digest": digest_of(json.dumps(said, indent=1).encode())}, indent=1).encode()


def test_what_is_written_is_read():
    assert from_json(to_json(MANIFEST)) == MANIFEST
    assert MANIFEST.size_bytes == 30
    assert str(KERNEL.form) == "float32[2, 3]"


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


WEIGHT, SLOT = ArrayForm((6, 3), "float32", True), ArrayForm((6, 3), "float32", is_optimizer_state=True)
SEED, STEP = ArrayForm((2,), "uint32"), ArrayForm((), "int32")
MODEL = {"dense/kernel": WEIGHT, "seed": SEED, "norm/mean": ArrayForm((3,), "float32")}
CHECKPOINT = {**MODEL, "adam/dense_kernel": SLOT, "adam/iterations": STEP}

STATISTIC = ArrayForm((3,), "float32")

ONLY_THERE = "In the checkpoint only: "
ONLY_HERE = "In the model only: "


@pytest.mark.parametrize(
    ("purpose", "stored", "wanted", "text"),
    [
        (Purpose.RESUME, CHECKPOINT, CHECKPOINT, None),
        (
            Purpose.RESUME,
            CHECKPOINT,
            MODEL,
            ONLY_THERE + "'adam/dense_kernel' float32[6, 3], 'adam/iterations' int32[]",
        ),
        (Purpose.RESUME, MODEL, {**MODEL, "more": SEED}, ONLY_HERE + "'more' uint32[2]"),
        (Purpose.INFER, CHECKPOINT, MODEL, None),
        (Purpose.INFER, CHECKPOINT, {**MODEL, "sampling": SEED}, None),
        (
            Purpose.INFER,
            CHECKPOINT,
            {**MODEL, "other/mean": ArrayForm((6, 3), "float32")},
            ONLY_HERE + "'other/mean' float32[6, 3]",
        ),
        (
            Purpose.INFER,
            {**CHECKPOINT, "gone/kernel": WEIGHT},
            {**MODEL, "new/kernel": WEIGHT},
            ONLY_THERE + "'gone/kernel' float32[6, 3]. " + ONLY_HERE + "'new/kernel' float32[6, 3]",
        ),
        (Purpose.INFER, {**MODEL, "adam/dense_kernel": SLOT, "step": STEP, "seed_1": SEED}, MODEL, None),
        (Purpose.INFER, {**MODEL, "gone/mean": STATISTIC}, MODEL, ONLY_THERE + "'gone/mean' float32[3]"),
        (
            Purpose.INFER,
            {**MODEL, "gone/mean": STATISTIC},
            {**MODEL, "new/mean": STATISTIC},
            ONLY_THERE + "'gone/mean' float32[3]. " + ONLY_HERE + "'new/mean' float32[3]",
        ),
        (Purpose.WARM_START, {**MODEL, "gone/mean": STATISTIC}, MODEL, None),
        (Purpose.WARM_START, {**MODEL, "head/kernel": WEIGHT}, CHECKPOINT, None),
        (Purpose.WARM_START, CHECKPOINT, {"head/kernel": WEIGHT}, ONLY_HERE + "'head/kernel' float32[6, 3]"),
        (
            Purpose.WARM_START,
            {"dense/kernel": WEIGHT, "seed": SEED},
            {"dense/kernel": ArrayForm((6, 9), "float32", True), "seed": ArrayForm((2,), "int64")},
            "With another shape: 'dense/kernel' float32[6, 3] in the checkpoint and float32[6, 9] in the model. With "
            "another dtype: 'seed' uint32[2] in the checkpoint and int64[2] in the model",
        ),
        (
            Purpose.INFER,
            {f"{name}/kernel": WEIGHT for name in "abcdefg"},
            {},
            ONLY_THERE + ", ".join(f"'{name}/kernel' float32[6, 3]" for name in "abcde") + " and 2 more",
        ),
    ],
)
def test_a_difference_is_named(purpose, stored, wanted, text):
    assert difference(stored, wanted, purpose) == text
