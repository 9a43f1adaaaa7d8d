"""The callbacks of each host: those that write files run on host 0, and all hosts stop together."""

from __future__ import annotations

from typing import Any

import keras
import pytest

from anytpu.engine.hosts import Hosts
from anytpu.errors import SettingError
from anytpu.train.checks import wants_every_step
from anytpu.train.host_callbacks import OtherHostsCallback, set_for_host


def host(index: int) -> Hosts:
    return Hosts(4, index, lambda note: note)


def arguments_of(index: int, callbacks: Any = None, is_fit: bool = True, is_split: bool = False) -> dict[str, Any]:
    arguments = {"callbacks": callbacks, "verbose": 2}
    set_for_host(arguments, host(index), is_fit, is_split)
    return arguments


class EachBatch(keras.callbacks.Callback):
    """Is called after each step."""

    host_0_only = True

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Do nothing."""


def test_progress_is_shown_by_host_0():
    assert [arguments_of(index)["verbose"] for index in range(2)] == [2, 0]


def test_callbacks_that_write_run_on_host_0(tmp_path: Any):
    lambdas, logger, mine = keras.callbacks.LambdaCallback(), keras.callbacks.CSVLogger(tmp_path / "log"), EachBatch()
    checkpoint = keras.callbacks.ModelCheckpoint(tmp_path / "best.keras")
    callbacks = [lambdas, [logger, mine], checkpoint]

    assert arguments_of(0, callbacks)["callbacks"][:-1] == [lambdas, logger, mine, checkpoint]
    first, *others = arguments_of(1, callbacks)["callbacks"][:-1]
    assert first is lambdas
    assert [type(other) for other in others] == [OtherHostsCallback] * 3
    assert [other.original for other in others] == [logger, mine, checkpoint]
    # Every host runs as many steps in a call.
    assert [wants_every_step(arguments_of(index, callbacks)["callbacks"], "train") for index in range(2)] == [True] * 2


def test_evaluate_keeps_no_callbacks():
    assert arguments_of(1, is_fit=False) == {"callbacks": None, "verbose": 0}


def test_a_training_stops_at_the_end_of_the_epoch():
    *_, last = arguments_of(0)["callbacks"]
    model = keras.Sequential([keras.layers.Dense(1)])
    last.set_model(model)

    seen = []
    for stops in (True, False):
        last.on_epoch_begin(0)
        model.stop_training = stops
        last.on_train_batch_end(0)
        seen.append(model.stop_training)
        last.on_epoch_end(0)
        seen.append(model.stop_training)

    # Not within the epoch, where another host may be at another step.
    assert seen == [False, True, False, False]
    assert not wants_every_step([last], "train")


@pytest.mark.parametrize(
    ("callback", "is_split", "why"),
    [
        (
            keras.callbacks.BackupAndRestore("backup"),
            False,
            "the callback BackupAndRestore restores one host of 4, and the others would train on other weights",
        ),
        (
            keras.callbacks.ModelCheckpoint("best.keras"),
            True,
            "the callback ModelCheckpoint reads weights on one host, and they are split over 4 hosts",
        ),
        (
            keras.callbacks.TensorBoard("logs"),
            True,
            "the callback TensorBoard reads weights on one host, and they are split over 4 hosts",
        ),
    ],
)
def test_callbacks_that_several_hosts_cannot_continue(callback: Any, is_split: bool, why: str):
    with pytest.raises(SettingError) as caught:
        arguments_of(0, [callback], is_split=is_split)

    assert str(caught.value) == (
        f'{why}. Write fit(..., checkpoint_dir="run7"), which saves on host 0 and continues on all hosts'
    )


def test_a_callback_list_is_refused():
    with pytest.raises(SettingError) as caught:
        arguments_of(0, keras.callbacks.CallbackList([]))

    assert str(caught.value) == "callbacks must be a list of callbacks on 4 hosts, not a keras.callbacks.CallbackList"
