"""What a fit knows beyond Keras's History: the logs of every step, and how long it waited for its input."""

from __future__ import annotations

from typing import Any

import numpy as np

from anytpu.errors import StrategyError
from anytpu.train.compiled_models import trainer_of
from anytpu.train.trainer import Trainer


def step_logs(model: Any) -> dict[str, np.ndarray]:
    """Return the logs of each step of the last call, as Keras would have logged them one step at a time.

    A call runs many steps; Keras's callbacks get the logs of the last. Ask for the others in `on_train_batch_end`, in a
    callback that says `takes_many_steps = True`, so that it does not force one step a call. (One that says
    `async_safe = True` is called from another thread, perhaps when the next call has run.)

    Args:
        model: a model that trains on a strategy.

    Returns:
        For each log its values, `(steps,)`: running means over the epoch, as Keras's metrics are.

    Raises:
        StrategyError: the model was not compiled in the scope of a strategy.
    """
    return _trainer(model, "no logs of each step").step_logs()


def input_shares(model: Any) -> list[float]:
    """Return the share of each epoch's time that the device waited for batches, of the newest fit of a model.

    It is 0 where the arrays lie on the device whole. An epoch that waited for more than a third of its time says so in
    a line on stderr, unless the fit is silent, `verbose=0`.

    Args:
        model: a model that trains on a strategy.

    Returns:
        One number from 0 to 1 for each epoch that has ended.

    Raises:
        StrategyError: the model was not compiled in the scope of a strategy.
    """
    return list(_trainer(model, "no account of its input").input_shares)


def _trainer(model: Any, lacks: str) -> Trainer:
    trainer = trainer_of(model)
    if trainer is None:
        raise StrategyError(
            f"{model.name!r} was not compiled in the scope of a strategy, so it keeps {lacks}: compile "
            "it in with strategy.scope():"
        )
    return trainer
