"""The callbacks and the progress bar of a Keras loop that runs on several hosts.

Idea: every host runs the same loop, so a user's callback runs on every host, on equal weights and logs. Callbacks that
write files run on host 0 only: `ModelCheckpoint`, `CSVLogger`, `TensorBoard`, and each with `host_0_only = True`. Only
host 0 shows progress.

Rule: the hosts must make the same calls. A callback that stops the training on one host stops it on all hosts, at the
end of the epoch.
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


class _SameStop(keras.callbacks.Callback):
    """Stops the training on every host if a callback has stopped it on host 0.

    Args:
        hosts: the hosts of the job.
    """

    def __init__(self, hosts: Hosts) -> None:
        super().__init__()
        self._hosts = hosts

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        model: Any = self.model
        model.stop_training = bool(self._hosts.first(bool(model.stop_training)))


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
    if is_split and isinstance(callback, keras.callbacks.ModelCheckpoint):
        raise SettingError(
            f"the callback ModelCheckpoint saves on one host, and the weights are split over {hosts.count} hosts. "
            f"{_SAVES_INSTEAD}"
        )


def _is_host_0_only(callback: Any) -> bool:
    return isinstance(callback, _WRITERS) or bool(getattr(callback, "host_0_only", False))
