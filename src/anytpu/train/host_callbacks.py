"""The callbacks and the progress bar of a Keras loop that runs on several hosts.

Idea: every host runs the same loop, so a user's callback runs on every host, on equal weights and logs. Callbacks that
write files run on host 0 only: `ModelCheckpoint`, `CSVLogger`, `TensorBoard`, and each with `host_0_only = True`. Only
host 0 shows progress.

Rule: the hosts must make the same calls. A callback that stops the training on one host stops it on all hosts, at the
end of the epoch. A callback that runs on host 0 only must not read weights that a layout splits.
"""

from __future__ import annotations

from typing import Any

import keras

from anytpu.engine.hosts import Hosts
from anytpu.errors import SettingError

_WRITERS = (keras.callbacks.ModelCheckpoint, keras.callbacks.CSVLogger, keras.callbacks.TensorBoard)
_SAVES_INSTEAD = 'Write fit(..., checkpoint_dir="run7"), which saves on host 0 and continues on all hosts'


class OtherHostsCallback(keras.callbacks.Callback):
    """A callback in the place of one that runs on host 0 only.

    Args:
        original: the callback that runs on host 0.
    """

    def __init__(self, original: Any) -> None:
        super().__init__()
        self.original = original


def original_of(callback: Any) -> Any:
    """Return the callback whose place an `OtherHostsCallback` takes; any other callback itself."""
    return callback.original if isinstance(callback, OtherHostsCallback) else callback


class _SameStop(keras.callbacks.Callback):
    """Stops the training of every host at the end of the epoch, if a callback of any host has stopped it.

    Args:
        hosts: the hosts of the job.
    """

    takes_many_steps = True

    def __init__(self, hosts: Hosts) -> None:
        super().__init__()
        self._hosts = hosts
        self._has_wish = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._has_wish = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        # Keras would leave the epoch here, perhaps on this host only.
        model: Any = self.model
        self._has_wish |= bool(model.stop_training)
        model.stop_training = False

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        model: Any = self.model
        has_wish = self._has_wish or bool(model.stop_training)
        model.stop_training = any(self._hosts.gather({self._hosts.index: int(has_wish)}, self._hosts.count))


def set_for_host(arguments: dict[str, Any], hosts: Hosts, is_fit: bool, is_split: bool) -> None:
    """Set `callbacks` and `verbose` in the arguments of a Keras loop to those of this host.

    Args:
        arguments: the arguments of `fit`, `evaluate` or `predict`, by name.
        hosts: the hosts of the job.
        is_fit: whether the loop is `fit`.
        is_split: whether a layout splits the weights over the cores.

    Raises:
        SettingError: a callback saves a training in a way that several hosts cannot continue.
    """
    if not hosts.is_first:
        arguments["verbose"] = 0
    callbacks = arguments.get("callbacks") or []
    if isinstance(callbacks, keras.callbacks.CallbackList):
        raise SettingError(
            f"callbacks must be a list of callbacks on {hosts.count} hosts, not a keras.callbacks.CallbackList"
        )
    callbacks = list(keras.tree.flatten(callbacks))
    for callback in callbacks:
        _check(callback, hosts, is_split)
    mine = [
        callback if hosts.is_first or not _is_host_0_only(callback) else OtherHostsCallback(callback)
        for callback in callbacks
    ]
    if is_fit:
        arguments["callbacks"] = [*mine, _SameStop(hosts)]
    elif callbacks:
        arguments["callbacks"] = mine


def _check(callback: Any, hosts: Hosts, is_split: bool) -> None:
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        raise SettingError(
            f"the callback BackupAndRestore restores one host of {hosts.count}, and the others would train on other "
            f"weights. {_SAVES_INSTEAD}"
        )
    if is_split and isinstance(callback, keras.callbacks.ModelCheckpoint | keras.callbacks.TensorBoard):
        raise SettingError(
            f"the callback {type(callback).__name__} reads weights on one host, and they are split over {hosts.count} "
            f"hosts. {_SAVES_INSTEAD}"
        )


def _is_host_0_only(callback: Any) -> bool:
    return isinstance(callback, _WRITERS) or bool(getattr(callback, "host_0_only", False))
