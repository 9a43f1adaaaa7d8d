"""`train_on_batch`, `test_on_batch` and `predict_on_batch`: one batch a call, many calls.

Idea: Keras's own methods look through the model for what is not built yet, bring the batch to the device twice, and
assign to each variable at the end of each call. The first call goes through them. From then on all is built, and what
is left of a call is this: reset the metrics, run one step, return the logs in Keras's form.

Rule: what a call needs beyond that goes through Keras's own method: a new optimizer, an error to raise.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from anytpu import _keras
from anytpu.engine.feeds import one_batch
from anytpu.train.trainer import Trainer

_MODES = {"train_on_batch": "train", "test_on_batch": "test", "predict_on_batch": "predict"}


def can_run(trainer: Trainer, name: str, given: dict[str, Any]) -> bool:
    """Say whether a call needs nothing that only Keras's own method does.

    Args:
        trainer: of the model.
        name: the method.
        given: its arguments by name.
    """
    has_both = given.get("class_weight") is not None and given.get("sample_weight") is not None
    return not has_both and trainer.is_ready(_MODES[name])


def run(trainer: Trainer, name: str, given: dict[str, Any]) -> Any:
    """Run one step, and return what Keras's method of this name returns.

    Args:
        trainer: of the model.
        name: "train_on_batch", "test_on_batch" or "predict_on_batch".
        given: the arguments by name.
    """
    model, mode = trainer.model, _MODES[name]
    x, y, weight, class_weight = map(given.get, ("x", "y", "sample_weight", "class_weight"))
    if class_weight is not None:
        weight = _keras.class_weights(y, class_weight)
    batch = jax.tree.map(_on_host, (x,) if mode == "predict" else (x, y, weight))
    if mode != "predict":
        model.reset_metrics()
    group = one_batch(trainer.backend, trainer.padding.padded(batch, may_stay=True))
    outputs, _ = getattr(model, f"{mode}_function")(trainer.state(mode), group)
    if mode == "predict":
        return jax.tree.map(np.array, outputs)
    return _keras.returned_logs(model, outputs, given.get("return_dict", False))


def _on_host(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
