"""A fast path of `train_on_batch`, `test_on_batch` and `predict_on_batch`: one batch a call, many calls.

Idea: in each call Keras's own methods search the model for unbuilt parts, copy the batch to the device twice, and
assign each variable. Only the first call uses them. After it everything is built, and a call does this: reset the
metrics, run one step, return the logs in Keras's form.

Rule: a call that needs more, such as a new optimizer or an error to raise, uses Keras's own method.
"""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from anytpu import _keras
from anytpu.engine.feeds import one_batch
from anytpu.train.trainer import Trainer

_MODES = {"train_on_batch": "train", "test_on_batch": "test", "predict_on_batch": "predict"}


def can_run(trainer: Trainer, name: str, arguments: dict[str, Any]) -> bool:
    """Return whether a call can take the fast path.

    Args:
        trainer: the trainer of the model.
        name: name of the method, such as "train_on_batch".
        arguments: arguments of the method, by name.
    """
    has_both = arguments.get("class_weight") is not None and arguments.get("sample_weight") is not None
    return not has_both and trainer.is_ready(_MODES[name])


def run(trainer: Trainer, name: str, arguments: dict[str, Any]) -> Any:
    """Run one step, and return the result in the form of Keras's method.

    Args:
        trainer: the trainer of the model.
        name: "train_on_batch", "test_on_batch" or "predict_on_batch".
        arguments: arguments of the method, by name.
    """
    model, mode = trainer.model, _MODES[name]
    x, y, weight, class_weight = map(arguments.get, ("x", "y", "sample_weight", "class_weight"))
    if class_weight is not None:
        weight = _keras.class_weights(y, class_weight)
    batch = jax.tree.map(_on_host, (x,) if mode == "predict" else (x, y, weight))
    if mode != "predict":
        model.reset_metrics()
    group = one_batch(trainer.backend, trainer.padding.padded(batch, may_stay=True))
    outputs, _ = getattr(model, f"{mode}_function")(trainer.state(mode), group)
    if mode == "predict":
        return jax.tree.map(np.array, outputs)
    return _keras.returned_logs(model, outputs, arguments.get("return_dict", False))


def _on_host(leaf: Any) -> np.ndarray:
    array = np.asarray(leaf)
    return array.astype(jax.dtypes.canonicalize_dtype(array.dtype), copy=False)
