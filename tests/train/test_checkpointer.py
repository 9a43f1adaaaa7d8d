"""`Checkpointer.steps`: a custom loop continues bit for bit, on Keras objects and on trees of arrays."""

from __future__ import annotations

import re
import signal
import subprocess
import threading
from pathlib import Path
from subprocess import PIPE
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import DataError, FileError, SettingError
from anytpu.train.checkpoint import Checkpoints, SavePolicy, Saver, Snapshot
from forked import python

X = np.random.default_rng(0).normal(size=(24, 3)).astype("float32")
Y = X.sum(axis=1, keepdims=True)


class Stopped(Exception):
    """Ends a loop in the middle."""


def keras_loop(folder: Path, last: int, stop_at: int | None = None, stride: int = 1) -> list[bytes]:
    """Train a model with a step function, and return the bytes of everything."""
    keras.utils.set_random_seed(5)
    strategy = tpu.connect("virtual", cores=2)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dropout(0.5), keras.layers.Dense(1)]
        )
        optimizer = keras.optimizers.Adam(0.01)
        metric = keras.metrics.Mean()
    dataset = tpu.pipeline.Dataset.from_arrays((X, Y)).shuffle(seed=2).repeat().batch(8)
    batches = iter(strategy.distribute_dataset(dataset))

    def step(batch: Any) -> Any:
        x, y = batch

        def loss() -> Any:
            return tpu.compute_average_loss(keras.losses.mean_squared_error(y, model(x, training=True)))

        value, gradients = tpu.value_and_grad(loss, model.trainable_variables)()
        optimizer.apply(gradients, model.trainable_variables)
        metric.update_state(value)
        return value

    saved = tpu.Checkpointer(folder, every_steps=2, keep=2)
    objects = {"model": model, "optimizer": optimizer, "metric": metric, "batches": batches}
    for index in saved.steps(range(0, last, stride), **objects):
        if index == stop_at:
            raise Stopped
        if stride > 1:
            strategy.run_steps(step, batches, steps=stride)
        else:
            strategy.run(step, args=(next(batches),))
    variables = [*model.variables, *optimizer.variables, *metric.variables]
    return [np.asarray(variable.value).tobytes() for variable in variables]


@pytest.mark.parametrize("stride", [1, 3])
def test_a_keras_loop_continues(tmp_path: Path, stride: int):
    whole = keras_loop(tmp_path / "whole", 12, stride=stride)
    for stop_at in (6, 9):
        with pytest.raises(Stopped):
            keras_loop(tmp_path / "run", 12, stop_at, stride)
        assert Checkpoints(tmp_path / "run").latest() in (stop_at, stop_at - 1)
    assert keras_loop(tmp_path / "run", 12, stride=stride) == whole
    assert Checkpoints(tmp_path / "run").latest() == 12


def test_other_programs_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    def loop(last: int, change: Any, cores: int = 2, rows: int = 4) -> list[str]:
        strategy = tpu.connect("virtual", cores=cores)
        with strategy.scope():
            weight = keras.Variable(1.0, aggregation="only_first_replica")

        def step(x: Any) -> Any:
            weight.assign(change(weight.value))
            return x.sum()

        for _ in tpu.Checkpointer(tmp_path, every_steps=1).steps(last, weight=weight):
            strategy.run(step, args=(np.ones(rows, "float32"),))
        said = [message for message in caplog.messages if "other programs" in message]
        caplog.clear()
        return said

    assert loop(1, jnp.sin) == loop(2, jnp.sin) == []
    assert loop(3, jnp.sin, rows=5) == []  # It may be the last batch of an epoch.
    programs = Checkpoints(tmp_path).load(3).host["state"]["programs"]
    (said,) = loop(4, jnp.tanh)
    (now,) = Checkpoints(tmp_path).load(4).host["state"]["programs"]
    then = ", ".join(f"{digest} on 2 cores" for digest in programs)
    assert said == (
        f"The checkpoint {tmp_path / '3'} was made by other programs: the digests of the steps were {then}, and are "
        f"{now} on 2 cores now. The loop continues with the programs of now"
    )
    (said,) = loop(5, jnp.tanh, cores=4)
    assert f"were {now} on 2 cores, and are " in said
    assert said.count(" on 4 cores now") == 1


def test_a_jax_loop_continues_on_its_devices(tmp_path: Path):
    @jax.jit
    def step(params: Any, momentum: Any) -> Any:
        gradient = jax.grad(lambda p: ((X @ p["w"] + p["b"] - Y) ** 2).mean())(params)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        return jax.tree.map(lambda p, m: p - 0.01 * m, params, momentum), momentum

    def loop(folder: Path, stop_at: int | None = None) -> Any:
        params = {"w": jnp.ones((3, 1)), "b": jnp.zeros(1, jnp.float32)}
        state = {"params": params, "momentum": jax.tree.map(jnp.zeros_like, params), "count": 0, "seen": [np.zeros(2)]}
        for index in tpu.Checkpointer(folder, every_steps=1).steps(8, state=state):
            if index == stop_at:
                raise Stopped
            state["params"], state["momentum"] = step(state["params"], state["momentum"])
            state["count"] += 1
            state["seen"][0] = state["seen"][0] + index
        return state

    whole = loop(tmp_path / "whole")
    with pytest.raises(Stopped):
        loop(tmp_path / "run", 5)
    state = loop(tmp_path / "run")
    assert jax.tree.map(lambda leaf: np.asarray(leaf).tobytes(), state) == jax.tree.map(
        lambda leaf: np.asarray(leaf).tobytes(), whole
    )
    assert isinstance(state["params"]["w"], jax.Array)
    assert (type(state["count"]), state["count"]) == (int, 8)


@pytest.mark.parametrize("kind", ["data set", "loader"])
def test_iterators_of_grain_continue(tmp_path: Path, kind: str):
    grain = pytest.importorskip("grain")

    def batches() -> Any:
        if kind == "data set":
            return iter(grain.MapDataset.range(40).shuffle(seed=3).repeat().batch(4))
        order = grain.samplers.IndexSampler(40, grain.sharding.NoSharding(), shuffle=True, seed=1)
        return iter(grain.DataLoader(data_source=range(40), sampler=order, operations=[grain.transforms.Batch(4)]))

    def loop(folder: Path, last: int) -> Any:
        state, source = {"seen": np.zeros((10, 4), int)}, batches()
        for step in tpu.Checkpointer(folder).steps(last, state=state, source=source):
            state["seen"][step] = next(source)
        return state["seen"].tolist()

    whole = loop(tmp_path / "whole", 10)
    loop(tmp_path / "run", 4)
    assert loop(tmp_path / "run", 10) == whole


def test_a_state_that_cannot_be_written_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    class Source:
        def get_state(self) -> Any:
            return object()

        def set_state(self, state: Any) -> None: ...

    cause = (
        "step {} cannot be saved: host/positions/source is a object, and a checkpoint holds numbers, text, bytes, "
        "arrays, lists and dicts"
    )
    with pytest.raises(FileError) as raised:
        for _ in tpu.Checkpointer(tmp_path, every_steps=1).steps(3, source=Source()):
            pass
    assert str(raised.value) == (
        f"{cause.format(3)}. The run is complete, and its end is only in the memory of this process: save the result "
        "elsewhere, or run the same command again. It repeats the steps since the newest checkpoint"
    )
    said = f"anytpu: {cause.format(1)}. The training goes on, and later saves are tried without another message.\n"
    assert capsys.readouterr().err == said


def terminated_in_a_step(program: str, folder: Path) -> subprocess.Popen[str]:
    """Start a program that prints "waiting" in a step, send it SIGTERM there, and return its process."""
    command = [*python(), "-c", program, str(folder)]
    process = subprocess.Popen(command, stdin=PIPE, stdout=PIPE, stderr=PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGTERM)
    said = next(line for line in process.stderr if "SIGTERM" in line)
    assert said == "anytpu: SIGTERM: the step that runs is finished first; send it again to stop at once.\n"
    return process


def test_a_signal_within_the_body_saves_after_it(tmp_path: Path):
    program = """
import sys, time
import anytpu as tpu
state = {"a": 0}
for step in tpu.Checkpointer(sys.argv[1]).steps(9, state=state):
    state["a"] += 1
    if step == 2:
        print("waiting", flush=True)
        sys.stdin.readline()
"""
    for second in (signal.SIGINT, None):
        process = terminated_in_a_step(program, tmp_path)
        if second is not None:
            process.send_signal(second)
        _, said = process.communicate("\n" if second is None else None)
        assert process.returncode == (75 if second is None else -signal.SIGINT)
        assert Checkpoints(tmp_path).steps() == ([3] if second is None else [])
    assert f"SIGTERM: step 3 is saved in {tmp_path}. The same command continues there (exit status 75)." in said


def test_a_signal_after_a_save_that_failed_saves_after_the_body(tmp_path: Path):
    program = """
import resource, sys, threading
import numpy as np
import anytpu as tpu

sys.dont_write_bytecode = True  # Or Python cuts off what it compiles.

def limit(size):
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))

state = {"a": np.zeros(2**18)}
for step in tpu.Checkpointer(sys.argv[1], every_steps=1).steps(9, state=state):
    state["a"] = state["a"] + 1
    if step == 2:
        for thread in threading.enumerate():
            if thread.name == "anytpu writes a checkpoint":
                thread.join()
        limit(2**16)
    if step == 3:
        for thread in threading.enumerate():
            if thread.name == "anytpu writes a checkpoint":
                thread.join()
        limit(resource.RLIM_INFINITY)
        print("waiting", flush=True)
        sys.stdin.readline()
"""
    process = terminated_in_a_step(program, tmp_path)
    _, said = process.communicate("\n")
    assert process.returncode == 75
    assert f"SIGTERM: step 4 is saved in {tmp_path}. The same command continues there (exit status 75)." in said
    assert Checkpoints(tmp_path).steps() == [1, 2, 4]


def test_a_snapshot_counts_as_saved_only_when_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    saver, seen = Saver(Checkpoints(tmp_path), SavePolicy(every_steps=1)), []
    accept = saver._accept

    def interrupted(snapshot: Snapshot) -> None:  # A signal may come before the thread starts.
        accept(snapshot)
        seen.append((saver.is_written, saver.is_saved(3), Checkpoints(tmp_path).steps()))

    monkeypatch.setattr(saver, "_accept", interrupted)
    saver.save(lambda: Snapshot(3, "test", {"a": np.zeros(3)}))
    assert seen == [(False, False, [])]
    assert saver.is_saved(3)
    assert Checkpoints(tmp_path).steps() == [3]


def test_a_signal_within_the_first_body_ends_the_loop_at_once(tmp_path: Path):
    program = """
import sys, threading
import anytpu as tpu
for step in tpu.Checkpointer(sys.argv[1]).steps(9, state={"a": 0}):
    print("waiting", flush=True)
    threading.Event().wait()
"""
    process = subprocess.Popen([*python(), "-c", program, str(tmp_path)], stdout=PIPE, stderr=PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=100)
    assert process.returncode == 75
    assert said == (
        f"\nanytpu: SIGTERM: nothing is new since step 0, in {tmp_path}. The same command continues there (exit status "
        "75).\n"
    )


def test_the_best_is_kept(tmp_path: Path):
    saved = tpu.Checkpointer(tmp_path, every_s=None, keep=1, best="val_loss")
    for step in saved.steps(6, state={"a": 1.0}):
        saved.report(val_loss=[5.0, 2.0, 3.0, 4.0, 2.5, 3.0][step])
    assert Checkpoints(tmp_path).steps() == [2, 6]


def test_every_nth_is_kept_for_good(tmp_path: Path):
    saved = tpu.Checkpointer(tmp_path, every_s=None, every_steps=3, keep=1, keep_every=10)
    for _ in saved.steps(34, state={"a": 1.0}):
        pass
    assert Checkpoints(tmp_path).steps() == [12, 21, 30, 34]


def test_saves_that_stop_the_training_for_too_long_are_postponed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.setattr("anytpu.train.checkpoint.saver._FREE_S", 1.0)
    now_s = [0.0]
    saver = Saver(Checkpoints(tmp_path), SavePolicy(every_steps=1), now=lambda: now_s[0])

    def slow(step: int) -> Snapshot:
        now_s[0] += 9
        return Snapshot(step, "test", {"a": np.zeros(3)})

    for step in range(1, 101):
        now_s[0] += 10
        if saver.is_due(step):
            saver.save(lambda step=step: slow(step))
            saver.wait()
    saver.finish()
    # One save of 9 s each 450 s. The writer's own CPU time counts too: up to 150 ms change no step.
    assert Checkpoints(tmp_path).steps() == [1, 40, 84]
    said = r"anytpu: a save costs 9(\.\d)? s of the training. So saves are about 45\d s apart, 2% of the time.\n"
    assert re.fullmatch(said, capsys.readouterr().err)


def test_the_time_of_a_writer_that_ends_while_the_training_waits_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    checkpoints, may_write = Checkpoints(tmp_path), threading.Event()
    save, now_s, asked = checkpoints.save, [0.0], []

    def clock() -> float:
        asked.append(None)
        if len(asked) == 4:  # The end of the wait: the writer ends just while the training adds the time.
            may_write.set()
            next(thread for thread in threading.enumerate() if "writes a checkpoint" in thread.name).join()
        return now_s[0]

    def slow() -> Snapshot:
        now_s[0] += 9
        return Snapshot(1, "test", {"a": np.zeros(3)})

    def save_later(*arguments: Any, **options: Any) -> None:
        may_write.wait()
        save(*arguments, **options)

    thread_times_s = iter([0.0, 40.0])
    monkeypatch.setattr("anytpu.train.checkpoint.saver._FREE_S", 1.0)
    monkeypatch.setattr(checkpoints, "save", save_later)
    monkeypatch.setattr("time.thread_time", lambda: next(thread_times_s))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    saver = Saver(checkpoints, SavePolicy(every_steps=1), now=lambda: now_s[0])
    saver.save(slow)
    monkeypatch.setattr(saver, "_now", clock)
    assert not saver.is_due(2)
    assert len(asked) == 4
    assert capsys.readouterr().err == (
        "anytpu: a save costs 49 s of the training. So saves are about 2450 s apart, 2% of the time.\n"
    )
    saver.finish()


def test_objects_that_cannot_be_saved_are_named(tmp_path: Path):
    saved = tpu.Checkpointer(tmp_path)
    with pytest.raises(SettingError) as raised:
        saved.steps(3, loader=(part for part in X))
    assert str(raised.value) == (
        "loader is a generator, whose state a checkpoint cannot hold. Pass a Keras model, an optimizer, a metric, a "
        "module of Flax NNX, an iterator with get_state and set_state, or a dict or a list of arrays, numbers and "
        "modules"
    )
    with pytest.raises(SettingError) as raised:
        saved.steps(3, model=keras.Sequential([keras.layers.Dense(2)]))
    assert str(raised.value) == (
        "model has no variables yet, so a checkpoint cannot hold them: build it first, for example with "
        "model.build(...)"
    )
    batches = iter(tpu.connect("virtual", cores=2).distribute_dataset([X]))
    with pytest.raises(DataError) as data_error:
        list(saved.steps(3, batches=batches))
    assert str(data_error.value) == (
        "a list has no position to save: pass a tpu.pipeline.Dataset, or an iterable whose iterator has get_state and "
        "set_state"
    )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"every_s": 0}, "every_s must be a positive number of seconds, not 0"),
        ({"every_steps": 2.5}, "every_steps must be a positive integer, not 2.5"),
        ({"keep": 0}, "keep must be a positive integer, not 0"),
        ({"mode": "least"}, 'mode must be "min", "max", or "" to choose by the metric\'s name, not \'least\''),
    ],
)
def test_settings_are_checked(settings: dict[str, Any], message: str):
    with pytest.raises(SettingError) as raised:
        tpu.Checkpointer("run7", **settings)
    assert str(raised.value) == message


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        (-1, "steps must be a number of steps or a range, not -1"),
        (range(5, 0, -1), "steps must be a range that goes up, not range(5, 0, -1)"),
    ],
)
def test_steps_are_checked(tmp_path: Path, steps: Any, message: str):
    with pytest.raises(SettingError) as raised:
        tpu.Checkpointer(tmp_path).steps(steps, state={"a": 1})
    assert str(raised.value) == message


def test_other_objects_are_refused(tmp_path: Path):
    list(tpu.Checkpointer(tmp_path).steps(2, state={"a": np.zeros(2)}))
    state = {"a": np.zeros(3)}
    with pytest.raises(FileError) as raised:
        list(tpu.Checkpointer(tmp_path).steps(3, state=state))
    assert str(raised.value) == (
        f"the checkpoint {str(tmp_path / '2')!r} does not fit the objects of the loop. With another shape: 'state/a' "
        "float64[2] in the checkpoint and float64[3] in the model. Build it as it was, or choose another folder"
    )
    dataset = tpu.pipeline.Dataset.from_arrays(X).batch(8)
    with pytest.raises(FileError) as raised:
        list(tpu.Checkpointer(tmp_path).steps(3, state={"a": np.zeros(2)}, batches=iter(dataset)))
    assert str(raised.value) == (
        f"the checkpoint {str(tmp_path / '2')!r} has the positions of the iterators [], and these are ['batches']. "
        "Pass the same names, or choose another folder"
    )
