"""`ModeKeys`: what a model_fn is called for."""

from __future__ import annotations

from typing import final


@final
class ModeKeys:
    """The modes of a model_fn: plain strings, as they were of old."""

    TRAIN = "train"
    EVAL = "eval"
    PREDICT = "infer"
