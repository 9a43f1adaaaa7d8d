"""The logs of every step, for a callback that wants more than the last of a call."""

from __future__ import annotations

from typing import Any

import numpy as np

from anytpu.errors import StrategyError
from anytpu.train.adopt import trainer_of


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
    trainer = trainer_of(model)
    if trainer is None:
        raise StrategyError(
            f"{model.name!r} was not compiled in the scope of a strategy, so it keeps no logs of each step: compile "
            "it in with strategy.scope():"
        )
    return trainer.step_logs()
