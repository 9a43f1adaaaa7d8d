"""A fit with `checkpoint_dir` continues bit for bit: after an error, kill -9, SIGTERM and Ctrl-C, at any step."""

from __future__ import annotations

import argparse
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import anytpu as tpu
import checkpointed_fit
from anytpu.errors import DamageError, DataError, FileError, NaNLossError, SettingError
from anytpu.train.checkpoint import Checkpoints
from anytpu.train.checkpoint.manifest import from_json, to_json
from anytpu.train.variable_names import model_variables
from checkpointed_fit import Ended
from cli.commands import anytpu
from forked import python

PROGRAM = Path(checkpointed_fit.__file__)
VARIANTS = ("arrays", "dataset", "stream", "spanning", "fsdp", "generator", "sequences", "outside")


def train(folder: Path, variant: str, end_after: int = 0, **others: Any) -> dict[str, Any]:
    """Train in this process; after `end_after` steps, end with an error."""
    options = {
        "kill_after": 0,
        "wait_at": "",
        "every": 2,
        "epochs": checkpointed_fit.EPOCHS,
        "end_after": end_after,
        **others,
    }
    return checkpointed_fit.run(argparse.Namespace(folder=str(folder), variant=variant, **options))


@functools.cache
def uninterrupted(variant: str) -> dict[str, Any]:
    """Train without an end in the middle; nothing of the result depends on the folder."""
    with tempfile.TemporaryDirectory() as folder:
        return train(Path(folder) / "whole", variant)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.filterwarnings("ignore:.*ran out of data", "ignore:`shuffle=True` was passed")
def test_a_fit_continues_bit_for_bit_in_the_middle_of_an_epoch(tmp_path: Path, variant: str):
    whole = uninterrupted(variant)
    # The second end is after an epoch's last step, and before its evaluation.
    for end_after in (5, 3, 9):
        with pytest.raises(Ended):
            train(tmp_path / "ended", variant, end_after)
    steps = Checkpoints(tmp_path / "ended").steps()
    assert steps[-1] >= 12
    assert train(tmp_path / "ended", variant) == whole
    # A run that is complete trains no more, and returns the same.
    assert train(tmp_path / "ended", variant, end_after=1) == whole


def test_a_longer_run_continues_a_complete_one(tmp_path: Path):
    whole = train(tmp_path / "whole", "dataset", epochs=3)
    train(tmp_path / "run", "dataset", epochs=2)
    assert train(tmp_path / "run", "dataset", epochs=3) == whole


def child(folder: Path, *words: str) -> subprocess.Popen:
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONUNBUFFERED": "1"}
    command = [*python(), str(PROGRAM), str(folder), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment, text=True)


def test_kill_9_during_fit_and_a_restart(tmp_path: Path):
    whole = uninterrupted("dataset")
    words = ["run", "--", *python(), str(PROGRAM), str(tmp_path / "run"), "dataset", "--kill-after", "17"]
    done = anytpu(*words, "--every", "3")
    assert done.returncode == 0
    assert re.search(r"killed by SIGKILL, newest checkpoint: step \d+. Restart 1 of 100", done.stderr)
    assert json.loads(done.stdout) == json.loads(json.dumps(whole))


@pytest.mark.parametrize(
    ("point", "variant", "number"),
    [
        ("callback", "arrays", signal.SIGTERM),
        ("evaluation", "dataset", signal.SIGTERM),
        ("input", "stream", signal.SIGTERM),
        ("compilation", "arrays", signal.SIGTERM),
        ("input", "stream", signal.SIGINT),  # One point is enough for Ctrl-C: the same code acts.
    ],
)
def test_a_signal_saves_the_last_step(tmp_path: Path, point: str, variant: str, number: signal.Signals):
    ended = child(tmp_path / "run", variant, "--wait-at", point, "--every", "1000")
    assert ended.stdout is not None
    assert ended.stdout.readline() == "waiting\n"
    ended.send_signal(number)
    _, said = ended.communicate(timeout=100)
    assert ended.returncode == 75, said
    steps = {"callback": 4, "evaluation": 7, "input": 3, "compilation": 7}[point]
    where = tmp_path / "run"
    assert (
        f"anytpu: {number.name}: step {steps} is saved in {where}. The same command continues there (exit status 75)."
        in said
    )
    assert Checkpoints(where).steps() == [steps]
    assert train(where, variant) == uninterrupted(variant)


def test_a_second_signal_ends_the_process_at_once(tmp_path: Path):
    ended = child(tmp_path / "run", "arrays", "--wait-at", "callback", "--every", "1000")
    assert ended.stdout is not None
    ended.stdout.readline()
    ended.send_signal(signal.SIGTERM)
    assert ended.stderr is not None
    said = next(line for line in ended.stderr if "SIGTERM" in line)
    assert said == "anytpu: SIGTERM: the step that runs is finished first; send it again to stop at once.\n"
    ended.send_signal(signal.SIGINT)
    ended.communicate(timeout=100)
    assert ended.returncode == -signal.SIGINT


X, Y = np.arange(24, dtype="float32").reshape(12, 2) / 24, np.arange(12, dtype="float32") / 12


def model_of(units: int = 3, **compiled: Any) -> Any:
    keras.utils.set_random_seed(3)
    with tpu.connect("virtual", cores=2).scope():
        model = keras.Sequential([keras.layers.Dense(units), keras.layers.Dense(1)], name="small")
        model.compile(keras.optimizers.SGD(0.01), "mse", **{"steps_per_execution": 1, **compiled})
    return model


def fit(folder: Any, model: Any = None, **others: Any) -> Any:
    model = model or model_of()
    model.fit(X, Y, **{"batch_size": 4, "epochs": 2, "verbose": 0, "checkpoint_dir": folder, **others})
    return model


def test_another_number_of_cores_and_another_layout_load_by_name(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    with pytest.raises(Ended):
        train(tmp_path / "run", "fsdp", end_after=9)
    shutil.copytree(tmp_path / "run", tmp_path / "other")
    newest = Checkpoints(tmp_path / "run").latest()
    manifest = tmp_path / "other" / str(newest) / "manifest.json"
    written = from_json(manifest.read_bytes())
    versions = written.host["made"]["versions"]
    now, versions["jaxlib"] = versions["jaxlib"], "0.9.9"
    manifest.write_bytes(to_json(written))
    whole, other = train(tmp_path / "run", "fsdp"), train(tmp_path / "other", "arrays")
    assert (
        f"The checkpoint {manifest.parent} was written by another system: jaxlib 0.9.9 then, {now} now; cores 8 then, "
        "2 now. The run continues, perhaps with other rounding"
    ) in caplog.text
    np.testing.assert_allclose(whole["history"]["loss"], other["history"]["loss"], rtol=1e-4)


def test_another_model_is_refused_whole(tmp_path: Path):
    fit(tmp_path)
    model = model_of(units=4)
    with pytest.raises(FileError) as raised:
        fit(tmp_path, model, epochs=3)
    assert str(raised.value) == (
        f"the checkpoint {str(tmp_path / '6')!r} does not fit the model 'small'. With another shape: "
        "'trainable/small/dense/kernel' float32[2, 3] in the checkpoint and float32[2, 4] in the model, "
        "'trainable/small/dense/bias' float32[3] in the checkpoint and float32[4] in the model, "
        "'trainable/small/dense_1/kernel' float32[3, 1] in the checkpoint and float32[4, 1] in the model. Build it as "
        "it was, or choose another folder"
    )


X96 = np.random.default_rng(2).normal(size=(96, 2)).astype("float32")


class Rows(keras.utils.PyDataset):
    """The 96 rows in batches of 16."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> Any:
        return X96[16 * index : 16 * index + 16], X96[16 * index : 16 * index + 16, :1]


def dataset(rows: int = 96, seed: int = 1) -> Any:
    return tpu.pipeline.Dataset.from_arrays((X96[:rows], X96[:rows, :1])).shuffle(seed=seed).batch(16)


def generator() -> Any:
    while True:
        for index in range(6):
            yield Rows()[index]


INPUTS = {
    "arrays": (X96, {"batch_size": 16}, "arrays of 96 rows with batch_size=16 and shuffle=True"),
    "in order": (X96, {"batch_size": 16, "shuffle": False}, "arrays of 96 rows with batch_size=16 and shuffle=False"),
    "by batch": (
        X96,
        {"batch_size": 16, "shuffle": "batch"},
        "arrays of 96 rows with batch_size=16 and shuffle='batch'",
    ),
    "90 rows": (X96[:90], {"batch_size": 16}, "arrays of 90 rows with batch_size=16 and shuffle=True"),
    "batches of 17": (X96, {"batch_size": 17}, "arrays of 96 rows with batch_size=17 and shuffle=True"),
    "split": (
        X96,
        {"batch_size": 15, "validation_split": 0.1},
        "arrays of 86 rows with batch_size=15 and shuffle=True",
    ),
    "Dataset": (dataset(), {}, repr(dataset())),
    "another Dataset": (dataset(seed=2), {}, repr(dataset(seed=2))),
    "a Dataset of 90": (dataset(90), {}, repr(dataset(90))),
    "PyDataset": (Rows(), {}, "Rows with shuffle=True"),
    "a PyDataset in order": (Rows(), {"shuffle": False}, "Rows with shuffle=False"),
    "generator": (generator, {"steps_per_epoch": 6}, "a generator"),
}


@pytest.mark.filterwarnings("ignore:Your `PyDataset` class", "ignore:`shuffle=True` was passed")
def test_a_position_belongs_to_one_input(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    def train(folder: Path, name: str, end_at: int) -> Any:
        x, options, _ = INPUTS[name]
        x = x() if callable(x) and name == "generator" else x
        targets = {"y": x[:, :1]} if isinstance(x, np.ndarray) else {}
        with tpu.connect("virtual", cores=2).scope():
            model: Any = keras.Sequential([keras.layers.Dense(1)])
            model.compile("sgd", "mse", steps_per_execution=1)
        saved = tpu.Checkpointer(folder, every_steps=1)
        callbacks = [_EndAt(end_at)] if end_at else []
        return model.fit(x, **targets, epochs=1, verbose=0, callbacks=callbacks, checkpoint_dir=saved, **options)

    for name in INPUTS:
        with pytest.raises(Ended):
            train(tmp_path / name, name, 4)
    for then, now in [("arrays", name) for name in INPUTS] + [(name, "arrays") for name in INPUTS]:
        shutil.copytree(tmp_path / then, tmp_path / "copy")
        if then == now:
            train(tmp_path / "copy", now, 0)
        else:
            with pytest.raises(DataError) as raised:
                train(tmp_path / "copy", now, 0)
            assert str(raised.value) == (
                f"the checkpoint was saved at step 3 of a pass over {INPUTS[then][2]}, and this is {INPUTS[now][2]}. "
                "Pass the data, the batch_size and the shuffle of that run, or choose another checkpoint_dir"
            )
        shutil.rmtree(tmp_path / "copy")
    for then, now in [("Dataset", "another Dataset"), ("Dataset", "a Dataset of 90")]:
        with pytest.raises(DataError, match="of a pass over Dataset"):
            train(tmp_path / then, now, 0)
    assert "values" not in caplog.text
    X96[:] = X96[::-1].copy()
    train(tmp_path / "arrays", "arrays", 0)
    assert (
        "The arrays have other values than those of the checkpoint. The pass continues with those of now" in caplog.text
    )


def test_another_number_of_steps_is_refused_within_an_epoch(tmp_path: Path):
    saved = tpu.Checkpointer(tmp_path, every_steps=1)
    with pytest.raises(Ended):
        fit(saved, callbacks=[_EndAt(2)])
    with pytest.raises(DataError) as raised:
        fit(saved, batch_size=6)
    assert str(raised.value) == (
        "the checkpoint was saved at step 1 of an epoch of 3 steps, and this epoch has 2. Pass the data and the "
        "batch_size of that run, or choose another checkpoint_dir"
    )


class _EndAt(keras.callbacks.Callback):
    def __init__(self, step: int) -> None:
        super().__init__()
        self._left = iter(range(1, step))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if next(self._left, None) is None:
            raise Ended


def test_the_best_checkpoint_is_kept(tmp_path: Path):
    class Logs(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            assert logs is not None
            logs["score_f1"] = [1.0, 5.0, 2.0, 4.0, 3.0, 4.5][epoch]

    saved = tpu.Checkpointer(tmp_path, every_steps=3, keep=2, best="score_f1")
    fit(saved, epochs=6, callbacks=[Logs()])
    assert Checkpoints(tmp_path).steps() == [6, 15, 18]
    assert [host["metrics"].get("score_f1") for _, host in Checkpoints(tmp_path).hosts()] == [5.0, 3.0, 4.5]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("trainable/small/dense/kernel", np.nan),
        ("trainable/small/dense/kernel", np.inf),
        ("non_trainable/small/batch_normalization/moving_mean", np.nan),
        ("non_trainable/small/batch_normalization/moving_variance", np.inf),
        ("optimizer/adagrad/small_dense_kernel_accumulator", np.inf),
    ],
)
def test_a_state_that_is_not_finite_is_not_saved(tmp_path: Path, name: str, value: float):
    class Smallest(keras.layers.Layer):
        def build(self, input_shape: Any) -> None:
            self.smallest = self.add_weight(shape=(), initializer=lambda *_, **__: np.inf, trainable=False)

        def call(self, x: Any) -> Any:
            return x

    class Spoil(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
            if epoch == 2 and self.model is not None:
                variable = model_variables(self.model)[name]
                variable.assign(np.full(variable.shape, value))

    layers = [keras.layers.Dense(3), keras.layers.BatchNormalization(), Smallest()]
    with tpu.connect("virtual", cores=2).scope():
        model = keras.Sequential([keras.Input((2,)), *layers, keras.layers.Dense(1)], name="small")
        model.compile("adagrad", "mse", steps_per_execution=1)
    with pytest.raises(NaNLossError) as raised:
        fit(tpu.Checkpointer(tmp_path, every_steps=1), model, epochs=4, callbacks=[Spoil()])
    assert Checkpoints(tmp_path).latest() == 6
    assert str(raised.value) == (
        f"step 7 is not saved: {name!r} has a NaN or an infinity. The newest checkpoint is that of step 6. Lower the "
        'learning rate, clip the gradients, or pass on_nan="skip" to fit'
    )


def test_a_damaged_checkpoint_is_named_and_the_one_before_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    whole = fit(None, epochs=3).get_weights()
    fit(tpu.Checkpointer(tmp_path, every_steps=1, keep=9))
    content = bytearray((tmp_path / "6" / "arrays.bin").read_bytes())
    content[5] ^= 16
    (tmp_path / "6" / "arrays.bin").write_bytes(content)
    continued = fit(tmp_path, epochs=3)
    assert [weight.tobytes() for weight in continued.get_weights()] == [weight.tobytes() for weight in whole]
    assert "The checkpoint of step 6" in caplog.text
    assert "That of step 5 is used" in caplog.text
    for step in Checkpoints(tmp_path).steps():
        (tmp_path / str(step) / "arrays.bin").write_bytes(b"")
    with pytest.raises(DamageError, match=r"no checkpoint in .* is whole"):
        fit(tmp_path, epochs=4)


def test_a_full_disk_does_not_end_the_training(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    # A limit on the size of files is a full disk for the writer, and needs no rights.
    program = """
import os, resource, signal, sys, time
import numpy as np, keras, anytpu as tpu
from anytpu.train.checkpoint import Checkpoints
from anytpu.train.checkpoint.manifest import from_json, to_json
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
sys.dont_write_bytecode = True  # Or Python cuts off what it compiles.
with tpu.connect("virtual", cores=2).scope():
    model = keras.Sequential([keras.layers.Dense(500), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=1)

class Fill(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch, logs=None):
        if epoch == 1:
            while not os.path.isdir(sys.argv[1] + "/2"):
                time.sleep(0.01)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        if epoch == 3:
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

saved = tpu.Checkpointer(sys.argv[1], every_steps=1, keep=2)
model.fit(np.ones((8, 2)), np.ones(8), batch_size=4, epochs=4, verbose=0, callbacks=[Fill()], checkpoint_dir=saved)
print(Checkpoints(sys.argv[1]).steps())
"""
    done = subprocess.run(
        [*python(), "-c", program, str(tmp_path)], capture_output=True, text=True, timeout=110, check=True
    )
    assert done.stdout == "[7, 8]\n"
    said = [line for line in done.stderr.splitlines() if "cannot be written" in line]
    # One message of the checkpoints, and one warning of the run's record.
    assert ["The record of the run" in line for line in said] in ([True, False], [False, True])
    said = [line for line in said if "The record of the run" not in line]
    assert said[0].startswith(
        f"anytpu: the checkpoint of step 3 cannot be written in {str(tmp_path)!r}: File too large."
    )
    assert said[0].endswith("The training goes on, and later saves are tried without another message.")
    assert not list(tmp_path.glob(".unfinished*"))


def test_a_failed_last_save_is_an_error(tmp_path: Path):
    class Obstruct(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            (tmp_path / "6").write_text("a file where the last checkpoint goes")

    message = (
        f"the checkpoint of step 6 cannot be written: {str(tmp_path / '6')!r} exists already, and it is not a "
        "checkpoint. Rename it, or choose another folder. The run is complete, and its end is only in the memory of "
        "this process: save the result elsewhere, or run the same command again. It repeats the steps since the newest "
        "checkpoint"
    )
    with pytest.raises(FileError) as raised:
        fit(tpu.Checkpointer(tmp_path, every_s=None), callbacks=[Obstruct()])
    assert str(raised.value) == message
    (tmp_path / "loop").mkdir()
    (tmp_path / "loop" / "6").write_text("")
    with pytest.raises(FileError) as raised:
        list(tpu.Checkpointer(tmp_path / "loop").steps(6, state={"a": 1}))
    assert str(raised.value) == message.replace(str(tmp_path), str(tmp_path / "loop"))


def test_any_error_of_the_writing_thread_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    class Large(keras.callbacks.Callback):
        def get_state(self) -> Any:
            return {"digits": 10**5000}

        def set_state(self, state: Any) -> None: ...

    reason = (
        "cannot be saved: ValueError: Exceeds the limit (4300 digits) for integer string conversion; use "
        "sys.set_int_max_str_digits() to increase the limit"
    )
    with pytest.raises(FileError) as raised:
        fit(tpu.Checkpointer(tmp_path, every_steps=2), callbacks=[Large()])
    assert str(raised.value) == (
        f"step 6 {reason}. The run is complete, and its end is only in the memory of this process: save the result "
        "elsewhere, or run the same command again. It repeats the steps since the newest checkpoint"
    )
    said = f"anytpu: step 2 {reason}. The training goes on, and later saves are tried without another message.\n"
    assert capsys.readouterr().err == said
    assert Checkpoints(tmp_path).steps() == []


def test_errors_come_before_the_first_step(tmp_path: Path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileError, match=r"checkpoints cannot be kept in .*file"):
        fit(tmp_path / "file")
    with Checkpoints(tmp_path / "locked").writing():
        pass
    with pytest.raises(SettingError) as raised:
        fit(7)
    assert str(raised.value) == "checkpoint_dir must be the path of a folder or a tpu.Checkpointer, not 7"
    with pytest.raises(SettingError) as raised:
        fit(tmp_path, callbacks=[keras.callbacks.BackupAndRestore(str(tmp_path / "backup"))])
    assert str(raised.value) == (
        "fit has checkpoint_dir and the callback BackupAndRestore, and both continue a run. Remove BackupAndRestore"
    )
    with pytest.raises(SettingError) as raised, pytest.warns(UserWarning, match="Keras's own loop"):
        fit("run7", model_of(run_eagerly=True))
    assert str(raised.value) == (
        "checkpoint_dir='run7' saves the compiled loop, and 'small' does not use it: run_eagerly=True. Remove that, or "
        "pass callbacks=[keras.callbacks.ModelCheckpoint(...)]"
    )
    for step in tpu.Checkpointer(tmp_path / "loop").steps(1, state={"a": 1}):
        assert step == 0
    with pytest.raises(FileError) as raised_file:
        fit(tmp_path / "loop")
    assert str(raised_file.value) == (
        f"the checkpoint {str(tmp_path / 'loop' / '1')!r} was made by Checkpointer, and fit cannot continue it. Choose "
        "another folder"
    )


def test_a_new_callback_begins_with_no_state(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    fit(tmp_path)
    fit(tmp_path, epochs=3, callbacks=[keras.callbacks.TerminateOnNaN()])
    assert f"TerminateOnNaN is new: the checkpoint {str(tmp_path / '6')!r} has no state of it" in caplog.text.replace(
        str(tmp_path / "6"), repr(str(tmp_path / "6"))
    )


def test_validation_by_a_generator_starts_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    def batches() -> Any:
        while True:
            yield X[:4], Y[:4]

    fit(tmp_path, validation_data=batches(), validation_steps=1)
    fit(tmp_path, epochs=3, validation_data=batches(), validation_steps=1)
    assert (
        "The validation data is a generator, which starts anew. An uninterrupted run would validate with its later "
        "batches"
    ) in caplog.messages


def test_another_program_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    def said() -> list[str]:
        return [line for line in caplog.messages if "another program" in line]

    fit(tmp_path)
    fit(tmp_path, epochs=3)
    assert said() == []
    model = model_of()
    with tpu.connect("virtual", cores=2).scope():
        model.compile(keras.optimizers.SGD(0.01), "mae", steps_per_execution=1)
    fit(tmp_path, model, epochs=4)
    then, now = (
        next(iter(host["programs"].values()))
        for host in (Checkpoints(tmp_path).load(step).host["state"] for step in (9, 12))
    )
    assert then != now
    assert said() == [
        f"The checkpoint {tmp_path / '9'} was made by another program: the step's digest was {then}, and is {now} now. "
        "The run continues with the model, loss, optimizer and layout of now"
    ]


def test_the_list_of_facts_is_plain_json(tmp_path: Path):
    fit(tmp_path)
    host = json.loads((tmp_path / "6" / "manifest.json").read_bytes())["host"]
    assert {"by": "fit", "model": "small", "epoch": 2, "cores": 2}.items() <= host["made"].items()
