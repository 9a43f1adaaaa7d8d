"""`CallbackStates`: the attributes of callbacks continue, and objects that the program holds too stay the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu

X = np.arange(16, dtype="float32").reshape(8, 2)


class Shared(keras.callbacks.Callback):
    """Changes the objects that the program passed, and replaces others."""

    def __init__(self, **objects: Any) -> None:
        super().__init__()
        self.steps, self.nested, self.array = objects["steps"], objects["nested"], objects["array"]
        self.unchanged, self.replaced, self.lines = objects["unchanged"], objects["replaced"], objects["lines"]
        self.names: set[int] = objects["names"]
        self.given = objects["given"]
        self.late: Any = None

    def on_train_begin(self, logs: Any = None) -> None:
        self.late = self.given["late"]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        count = len(self.steps)
        self.steps.append(count)
        self.nested["inner"].append(count / 2)
        self.nested[f"step {count}"] = np.float32(count)
        self.array += 1
        self.replaced = [*self.replaced, count]
        self.lines.append(f"line {count}")
        self.names.add(count)
        self.late.append(-count)


def objects_of() -> dict[str, Any]:
    """Return objects that two callbacks and the program share."""
    late: list[int] = []
    return {
        "steps": [],
        "nested": {"inner": []},
        "array": np.zeros(1500),
        "unchanged": [1],
        "replaced": [0],
        "lines": [],
        "names": set(),
        "late": late,
        "given": {"late": late},
    }


def fit(folder: Path, epochs: int, callbacks: list[Any]) -> None:
    with tpu.connect("virtual", cores=2).scope():
        model: Any = keras.Sequential([keras.layers.Dense(1)])
        model.compile("sgd", "mse", steps_per_execution=1)
    saved = tpu.Checkpointer(folder, every_steps=1)
    model.fit(X, X[:, :1], batch_size=4, epochs=epochs, verbose=0, callbacks=callbacks, checkpoint_dir=saved)


def test_objects_that_the_program_shares_continue(tmp_path: Path):
    whole = objects_of()
    fit(tmp_path / "whole", 3, [Shared(**whole)])
    fit(tmp_path / "run", 2, [Shared(**objects_of())])
    again = objects_of()
    callback = Shared(**again)
    fit(tmp_path / "run", 3, [callback])
    assert {name: value for name, value in again.items() if name != "array"} == {
        name: value for name, value in whole.items() if name != "array"
    }
    assert again["array"].tolist() == whole["array"].tolist() == [6.0] * 1500
    assert again["replaced"] == [0]  # The callback replaced its list, and never changed the program's.
    assert callback.replaced == [0, 0, 1, 2, 3, 4, 5]
    for name in ("steps", "nested", "array", "unchanged", "lines", "names", "late"):
        assert getattr(callback, name) is again[name], name


def test_two_callbacks_keep_one_list(tmp_path: Path):
    class Writes(keras.callbacks.Callback):
        def __init__(self, seen: list[int]) -> None:
            super().__init__()
            self.seen = seen

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.seen.append(epoch)

    fit(tmp_path, 2, [Writes(seen := []), Writes(seen)])
    fit(tmp_path, 3, [first := Writes(seen := []), second := Writes(seen)])
    assert first.seen is second.seen is seen
    assert seen == [0, 0, 1, 1, 2, 2]


def test_a_list_that_cannot_be_saved_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    class Endless(keras.callbacks.Callback):
        def __init__(self) -> None:
            super().__init__()
            self.itself: list[Any] = [1]
            self.itself.append(self.itself)
            self.both: list[Any] = []
            self.both += [self.both, {"both": self.both}]
            self.deep: list[Any] = []
            for _ in range(3000):
                self.deep = [self.deep]
            self.records: list[Any] = []
            self.fine = 0

        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            self.itself.append(epoch)
            self.records.append(object())
            self.fine += 1

    fit(tmp_path, 2, [Endless()])
    callback = Endless()
    fit(tmp_path, 3, [callback])
    assert (callback.fine, len(callback.itself), len(callback.records)) == (3, 3, 1)
    said = [message for message in caplog.messages if "not saved" in message]
    assert said == [
        f"The attribute {name!r} of the callback Endless is not saved: it holds itself, or other parts than numbers, "
        "text, arrays, lists and dicts. Write get_state() and set_state(state)"
        for _ in range(2)
        for name in ("itself", "records")
    ]
