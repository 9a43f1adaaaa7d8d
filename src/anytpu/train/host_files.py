"""Files of models that a program saves on several hosts: host 0 writes them.

Idea: every host runs the same program, so every host calls `model.save`. The others wait until host 0 has written the
file. In a callback they do not wait, because the callback may run on host 0 only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from anytpu import _keras
from anytpu.engine.hosts import current_hosts
from anytpu.errors import SettingError
from anytpu.train.compiled_models import trainer_of


def install(is_in_loop: Callable[[], bool]) -> None:
    """Wrap `save` and `save_weights` of Keras's models.

    Args:
        is_in_loop: returns whether a Keras loop runs, so that a callback is the caller.
    """
    for name in ("save", "save_weights"):
        _keras.wrap(keras.Model, name, lambda original: _on_host_0(original, is_in_loop))


def _on_host_0(original: Callable, is_in_loop: Callable[[], bool]) -> Callable:
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        hosts = current_hosts()
        if hosts.is_alone:
            return original(self, *args, **kwargs)
        trainer = trainer_of(self)
        if trainer is not None and trainer.strategy.layout is not None:
            raise SettingError(
                f"{self.name!r} cannot be saved by one host, since its weights are split over {hosts.count} hosts. "
                'Train with fit(..., checkpoint_dir="run7"), and type: anytpu checkpoints run7 --export w.safetensors'
            )
        result = original(self, *args, **kwargs) if hosts.is_first else None
        if not is_in_loop():
            hosts.exchange()
        return result

    return wrapper
