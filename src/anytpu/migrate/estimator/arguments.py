"""Checks of a `TPUEstimator`'s arguments, made before anything starts."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import keras

from anytpu.errors import EstimatorError, SettingError
from anytpu.migrate.estimator.run_config import RunConfig, check_positive
from anytpu.migrate.estimator.steps import check_model_fn
from anytpu.migrate.low_level.cross_shard import Minimization

_RESERVED = ("batch_size", "context")
_NAMES = {"train": "train_batch_size", "eval": "eval_batch_size", "infer": "predict_batch_size"}


def check_constructor(
    model_fn: Any,
    config: Any,
    params: Any,
    use_tpu: bool,
    rows: Mapping[str, Any],
    exports: bool,
) -> None:
    """Reject invalid arguments of the constructor.

    Args:
        model_fn, config, params, use_tpu: the arguments of these names.
        rows: batch sizes by mode, or None. That of training is required if `use_tpu` is True.
        exports: whether `export_to_tpu` or `export_to_cpu` is True.

    Raises:
        EstimatorError, SettingError: an argument is invalid.
    """
    if not isinstance(config, RunConfig):
        raise EstimatorError(
            f"`config` must be provided with type `tpu_config.RunConfig`, not {config!r}: type config=tpu.RunConfig()"
        )
    if params is not None and any(key in params for key in _RESERVED):
        raise EstimatorError(
            f"{list(_RESERVED)} are reserved keys but existed in params {params}. Leave them out: the estimator adds "
            "them"
        )
    if use_tpu and rows["train"] is None:
        raise EstimatorError("`train_batch_size` cannot be `None`. Pass the rows of a global batch, for example 1024")
    for mode, count in rows.items():
        if count is not None:
            check_positive(_NAMES[mode], count)
    if not exports:
        raise SettingError("One of export_to_cpu and export_to_tpu must be true. Leave both out")
    check_model_fn(model_fn)


def check_train(steps: Any, max_steps: Any, on_tpu: bool) -> None:
    """Reject invalid `steps` or `max_steps` of a training."""
    if steps is not None and max_steps is not None:
        raise EstimatorError(f"Can not provide both steps and max_steps, got {steps!r} and {max_steps!r}. Pass one")
    if on_tpu and steps is None and max_steps is None:
        raise EstimatorError(
            "For TPU training, one of `steps` or `max_steps` must be set. Cannot be both `None`. Type "
            "estimator.train(input_fn, max_steps=1000)"
        )
    for name, count in (("Train steps", steps), ("Train max_steps", max_steps)):
        if count is not None:
            check_positive(name, count)


def check_evaluate(steps: Any, on_tpu: bool) -> None:
    """Reject invalid `steps` of an evaluation."""
    if steps is not None:
        check_positive("Eval steps", steps)
    elif on_tpu:
        raise EstimatorError(
            "Evaluate `steps` must be set on TPU. Cannot be `None`. Pass the number of full batches, "
            "steps=examples // eval_batch_size"
        )


@functools.cache
def install_minimize() -> None:
    """Add TensorFlow's method `minimize` to Keras's optimizers; it records a request."""

    def minimize(self: Any, loss: Any, global_step: Any = None, var_list: Any = None) -> Minimization:
        """Record a request to minimise a loss, for the `train_op` of a `TPUEstimatorSpec`."""
        return Minimization(self, loss, None if var_list is None else tuple(var_list))

    keras.optimizers.Optimizer.minimize = minimize
