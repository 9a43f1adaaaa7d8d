"""`ModeKeys`: the modes of a model_fn."""

from __future__ import annotations

from typing import final


@final
class ModeKeys:
    """The modes of a model_fn: plain strings, as in TensorFlow."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"
