"""Files of models that a program saves on several hosts: host 0 writes them.

Idea: every host runs the same program, so every host calls `model.save`. The others return at once: the program may
call it on host 0 only, so they must not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras

from anytpu import _keras
from anytpu.engine.hosts import current_hosts
from anytpu.errors import SettingError
from anytpu.train.compiled_models import trainer_of


def install() -> None:
    """Wrap `save` and `save_weights` of Keras's models."""
    for name in ("save", "save_weights"):
        _keras.wrap(keras.Model, name, _on_host_0)


def _on_host_0(original: Callable) -> Callable:
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> Any:
        hosts = current_hosts()
        if hosts.is_alone:
            return original(self, *args, **kwargs)
        trainer = trainer_of(self)
        if trainer is not None and trainer.strategy.splits_weights:
            raise SettingError(
                f"{self.name!r} cannot be saved by one host, since its weights are split over {hosts.count} hosts. "
                'Train with fit(..., checkpoint_dir="run7"), and type: anytpu checkpoints run7 --export w.safetensors'
            )
        return original(self, *args, **kwargs) if hosts.is_first else None

    return wrapper
