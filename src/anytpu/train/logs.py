"""Results of a fit beyond Keras's History: the logs of every step, and the time spent waiting for input."""

from __future__ import annotations

from typing import Any

import numpy as np

from anytpu.errors import StrategyError
from anytpu.train.compiled_models import trainer_of
from anytpu.train.trainer import Trainer


def step_logs(model: Any) -> dict[str, np.ndarray]:
    """Return the logs of each step of the last call, as Keras logs them with one step a call.

    A call runs many steps; Keras's callbacks get the logs of the last step. Read the others in `on_train_batch_end` of
    a callback with `takes_many_steps = True`, which does not force one step a call. (A callback with
    `async_safe = True` is called from another thread, perhaps after the next call has run.)

    Args:
        model: a model that trains on a strategy.

    Returns:
        The values of each log by name, `(steps,)`: running means over the epoch, like Keras's metrics.

    Raises:
        StrategyError: the model was not compiled in the scope of a strategy.
    """
    return _trainer(model, "no logs of each step").step_logs()


def input_shares(model: Any) -> list[float]:
    """Return, for each epoch of a model's newest fit, the share of time that the device waited for batches.

    It is 0 if all arrays are resident on the device. An epoch that waited for more than a third of its time prints a
    line on stderr, unless the fit is silent, `verbose=0`.

    Args:
        model: a model that trains on a strategy.

    Returns:
        A share from 0 to 1 for each epoch that has ended.

    Raises:
        StrategyError: the model was not compiled in the scope of a strategy.
    """
    return list(_trainer(model, "no input waiting times").input_shares)


def _trainer(model: Any, lacks: str) -> Trainer:
    trainer = trainer_of(model)
    if trainer is None:
        raise StrategyError(
            f"{model.name!r} was not compiled in the scope of a strategy, so it keeps {lacks}: compile "
            "it in with strategy.scope():"
        )
    return trainer
