from __future__ import annotations

import pytest

from anytpu.train.checkpoint import ArrayForm, Purpose, difference

KERNEL, SLOT = ArrayForm((6, 3), "float32", True), ArrayForm((6, 3), "float32")
SEED, STEP = ArrayForm((2,), "uint32"), ArrayForm((), "int32")
MODEL = {"dense/kernel": KERNEL, "seed": SEED, "norm/mean": ArrayForm((3,), "float32")}
CHECKPOINT = {**MODEL, "adam/dense_kernel": SLOT, "adam/iterations": STEP}

STATISTIC = ArrayForm((3,), "float32", is_optimizer_state=False)
KNOWN_SLOT = ArrayForm((6, 3), "float32", is_optimizer_state=True)
COUNT = ArrayForm((), "int32", is_optimizer_state=False)

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
        (Purpose.INFER, CHECKPOINT, {**MODEL, "other/mean": SLOT}, ONLY_HERE + "'other/mean' float32[6, 3]"),
        (
            Purpose.INFER,
            {**CHECKPOINT, "gone/kernel": KERNEL},
            {**MODEL, "new/kernel": KERNEL},
            ONLY_THERE + "'gone/kernel' float32[6, 3]. " + ONLY_HERE + "'new/kernel' float32[6, 3]",
        ),
        (Purpose.INFER, {**MODEL, "adam/dense_kernel": KNOWN_SLOT, "step": COUNT, "seed_1": SEED}, MODEL, None),
        (Purpose.INFER, {**MODEL, "gone/mean": STATISTIC}, MODEL, ONLY_THERE + "'gone/mean' float32[3]"),
        (
            Purpose.INFER,
            {**MODEL, "gone/mean": STATISTIC},
            {**MODEL, "new/mean": STATISTIC},
            ONLY_THERE + "'gone/mean' float32[3]. " + ONLY_HERE + "'new/mean' float32[3]",
        ),
        (Purpose.WARM_START, {**MODEL, "gone/mean": STATISTIC}, MODEL, None),
        (Purpose.WARM_START, {**MODEL, "head/kernel": KERNEL}, CHECKPOINT, None),
        (Purpose.WARM_START, CHECKPOINT, {"head/kernel": KERNEL}, ONLY_HERE + "'head/kernel' float32[6, 3]"),
        (
            Purpose.WARM_START,
            {"dense/kernel": KERNEL, "seed": SEED},
            {"dense/kernel": ArrayForm((6, 9), "float32", True), "seed": ArrayForm((2,), "int64")},
            "With another shape: 'dense/kernel' float32[6, 3] in the checkpoint and float32[6, 9] in the model. With "
            "another dtype: 'seed' uint32[2] in the checkpoint and int64[2] in the model",
        ),
        (
            Purpose.INFER,
            {f"{name}/kernel": KERNEL for name in "abcdefg"},
            {},
            ONLY_THERE + ", ".join(f"'{name}/kernel' float32[6, 3]" for name in "abcde") + " and 2 more",
        ),
    ],
)
def test_a_difference_is_named(purpose, stored, wanted, text):
    assert difference(stored, wanted, purpose) == text
