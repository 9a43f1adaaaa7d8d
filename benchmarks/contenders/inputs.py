"""The inputs of the seed jobs: random arrays of the right shapes, the same for every contender."""

from __future__ import annotations

import numpy as np

BATCH = {"iris": 1, "imdb": 64, "gru": 64, "mnist": 200, "cifar10": 128, "resnet50": 16, "gpt": 32}
"""Rows of one training step."""

IMAGE = {"mnist": (28, 28, 1), "cifar10": (32, 32, 3), "resnet50": (224, 224, 3)}
CLASSES = {"mnist": 10, "cifar10": 10, "resnet50": 1000}


def rows(job: str, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return what `steps` training steps read: inputs and labels (iris: always its 100 rows, labels one-hot)."""
    random = np.random.default_rng(0)
    if job == "iris":
        labels = random.integers(0, 3, 100)
        centres = np.asarray([[5.0, 3.4, 1.5, 0.2], [5.9, 2.8, 4.3, 1.3], [6.6, 3.0, 5.6, 2.0]])
        features = centres[labels] + 0.3 * random.normal(size=(100, 4))
        return np.insert(features, 0, 1, axis=1).astype("float32"), np.eye(3, dtype="float32")[labels]
    count = steps * BATCH[job]
    if job in ("imdb", "gru"):
        return random.integers(0, 15000, (count, 250), dtype=np.int32), random.integers(0, 2, count).astype("int32")
    if job == "gpt":
        words = random.integers(0, 1000, (count, 65), dtype=np.int32)
        return words[:, :-1], words[:, 1:]
    labels = random.integers(0, CLASSES[job], count).astype("int32")
    return random.random((count, *IMAGE[job]), dtype=np.float32), labels
