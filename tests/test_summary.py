"""What the real TensorBoard reads back of summaries, on this disk and in a store, and of Keras's callback."""

from __future__ import annotations

import errno
import io
import re
import resource
import signal
import sys
from pathlib import Path

import fsspec
import jax
import keras
import numpy as np
import pytest
from PIL import Image
from tensorboard.backend.event_processing.event_multiplexer import EventMultiplexer
from tensorboard.compat.proto.graph_pb2 import GraphDef
from tensorboard.util.tensor_util import make_ndarray

import anytpu as tpu
from anytpu.errors import SettingError
from anytpu.summary import SummaryWriter

# Keras's model.to_json reads the learning rate in a way that NumPy 2 warns of.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")


def graph_in(folder: Path, run: str) -> GraphDef:
    """Return the graph of a run, as TensorBoard reads it."""
    return EventMultiplexer().AddRunsFromDirectory(str(folder)).Reload().Graph(run)


def runs_in(folder: Path | str) -> dict[str, dict[str, list[tuple[int, np.ndarray]]]]:
    """Return the (step, value) pairs of each tag of each run in a folder, as TensorBoard reads them."""
    events = EventMultiplexer(size_guidance={"tensors": 0})
    events.AddRunsFromDirectory(str(folder)).Reload()
    return {
        run: {
            tag: [(event.step, make_ndarray(event.tensor_proto)) for event in events.Tensors(run, tag)]
            for tag in tags["tensors"]
        }
        for run, tags in events.Runs().items()
    }


def test_tensorboard_reads_what_was_written(tmp_path: Path):
    pictures = np.zeros((5, 4, 6, 3), np.uint8)
    pictures[1, 2, 3] = (10, 20, 30)
    writer = tpu.summary.create_file_writer(tmp_path)
    with writer.as_default():
        assert tpu.summary.scalar("loss", keras.Variable(0.25), step=jax.numpy.int32(3))
        tpu.summary.scalar("loss", np.float64(0.5), step=4, description="the mean")
        tpu.summary.histogram("weights", [[0.0, 1.0], [1.0, 2.0]], step=3, buckets=2)
        tpu.summary.image("drawn", pictures, step=3, max_outputs=2)
        tpu.summary.image("gray", [np.full((2, 2, 1), 0.5), np.full((2, 2, 1), 7.0)], step=3)
        tpu.summary.text("note", "# a 'title' <b>", step=3)
    tags = runs_in(tmp_path)["."]
    assert [(step, float(value)) for step, value in tags["loss"]] == [(3, 0.25), (4, 0.5)]
    assert tags["weights"][0][1].tolist() == [[0, 1, 1], [1, 2, 3]]
    width, height, *drawn = tags["drawn"][0][1]
    assert (width, height, len(drawn)) == (b"6", b"4", 2)
    read = [np.asarray(Image.open(io.BytesIO(png))) for png in drawn]
    np.testing.assert_array_equal(read, pictures[:2])
    grays = [np.asarray(Image.open(io.BytesIO(png))) for png in tags["gray"][0][1][2:]]
    assert [int(gray[0, 0]) for gray in grays] == [127, 255]
    assert tags["note"][0][1].item() == b"# a 'title' <b>"


def test_default_writers_steps_and_conditions(tmp_path: Path):
    assert not tpu.summary.scalar("loss", 1.0, step=1)  # Without a writer nothing is written.
    outer, inner = (tpu.summary.create_file_writer(tmp_path / name) for name in ("outer", "inner"))
    with outer.as_default(step=1):
        tpu.summary.scalar("a", 1)
        with inner.as_default(), tpu.summary.record_if(lambda: tpu.summary.experimental.get_step() == 2):
            assert not tpu.summary.scalar("a", 2)
            tpu.summary.experimental.set_step(2)
            assert tpu.summary.scalar("a", 3)
        tpu.summary.scalar("a", 4, step=9)
        with keras.name_scope("in"), keras.name_scope("deep"):
            tpu.summary.scalar("b", 1, step=9)
    inner.close()
    assert not tpu.summary.should_record_summaries()
    with inner.as_default():
        tpu.summary.scalar("a", 5, step=10)  # It is closed.
    found = {run: [(step, float(value)) for step, value in tags["a"]] for run, tags in runs_in(tmp_path).items()}
    assert found == {"outer": [(1, 1), (9, 4)], "inner": [(2, 3)]}
    assert list(runs_in(tmp_path)["outer"]) == ["a", "in/deep/b"]


def test_a_named_writer_is_one_until_it_is_closed(tmp_path: Path):
    first = tpu.summary.create_file_writer(tmp_path, name="host")
    assert tpu.summary.create_file_writer(tmp_path, name="host") is first
    assert tpu.summary.create_file_writer(tmp_path) is not first
    first.close()
    assert tpu.summary.create_file_writer(tmp_path, name="host") is not first


def test_event_files_in_a_store():
    with tpu.summary.create_file_writer("memory://bucket/logs", filename_suffix=".x").as_default():
        tpu.summary.scalar("loss", 0.5, step=1)
    assert [float(value) for _, value in runs_in("memory://bucket/logs")["."]["loss"]] == [0.5]
    assert fsspec.filesystem("memory").glob("/bucket/logs/*.x")


def test_a_full_disk_warns_once_and_the_program_goes_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    writer = tpu.summary.create_file_writer(tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
        with writer.as_default(), pytest.warns(UserWarning) as warned:
            for step in range(10):
                tpu.summary.scalar("loss", 0.5, step=step)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    (file,) = tmp_path.iterdir()
    reason = f"[Errno {errno.EFBIG}] File too large"
    assert [str(warning.message) for warning in warned] == [
        f"The event file {file} cannot be written: {reason}. It gets no more summaries; the program goes on."
    ]


def test_numbers_of_a_histogram_that_are_not_finite_are_left_out(tmp_path: Path):
    text = re.escape("The histogram 'w' leaves out 2 of 4 numbers: not finite.")
    with tpu.summary.create_file_writer(tmp_path).as_default(), pytest.warns(UserWarning, match=text):
        tpu.summary.histogram("w", [1.0, np.nan, np.inf, 2.0], step=1, buckets=1)
    assert runs_in(tmp_path)["."]["w"][0][1].tolist() == [[1, 2, 2]]


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (
            lambda: tpu.summary.scalar("loss", 0.5),
            "the summary 'loss' has no step: write step=, or `with writer.as_default(step=...)` around it",
        ),
        (
            lambda: tpu.summary.scalar("loss", np.ones(3, np.float32), step=1),
            "the summary 'loss' must be one number, not float32 of shape (3,)",
        ),
        (
            lambda: tpu.summary.scalar("loss", 0.5, step=1.5),
            "the step of the summary 'loss' must be an integer, not 1.5",
        ),
        (lambda: tpu.summary.text("note", 3, step=1), "the summary 'note' must be text, not 3"),
        (
            lambda: tpu.summary.image("drawn", np.ones((1, 4, 4, 3), np.int64), step=1),
            "the pictures 'drawn' must be floats from 0 to 1, or uint8, not int64",
        ),
        (
            lambda: tpu.summary.image("drawn", [], step=1),
            "the pictures 'drawn' must have shape (pictures, height, width, 1 to 4 channels), not (0,)",
        ),
        (
            lambda: tpu.summary.image("drawn", np.ones((4, 4, 3)), step=1),
            "the pictures 'drawn' must have shape (pictures, height, width, 1 to 4 channels), not (4, 4, 3)",
        ),
        (
            lambda: jax.jit(lambda x: tpu.summary.scalar("loss", x, step=1))(0.5),
            "the summary 'loss' stands in a compiled step, where its value is not known yet: return the value from the "
            "step, and write the summary after it",
        ),
    ],
)
def test_refused_summaries(tmp_path: Path, write, text: str):
    tpu.summary.experimental.set_step(None)
    with tpu.summary.create_file_writer(tmp_path).as_default(), pytest.raises(SettingError) as caught:
        write()
    assert str(caught.value) == text


def test_what_to_install_without_tensorboard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "tensorboard.compat.proto.event_pb2", None)
    with pytest.raises(SettingError) as caught:
        tpu.summary.create_file_writer(tmp_path)
    assert str(caught.value) == (
        "event files of TensorBoard need the package tensorboard: type pip install 'anytpu[tensorboard]'"
    )


@pytest.mark.parametrize("update_freq", ["epoch", 2])
def test_keras_callback_writes_in_a_scope(tmp_path: Path, update_freq: str | int):
    with tpu.connect().scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=["mae"])
    x = np.random.default_rng(0).random((64, 6), np.float32)
    callback = keras.callbacks.TensorBoard(
        str(tmp_path),
        histogram_freq=1,
        write_images=True,
        update_freq=update_freq,
        write_steps_per_second=update_freq == 2,
    )
    data = (x, x.sum(1, keepdims=True))
    history = model.fit(*data, epochs=3, batch_size=16, validation_data=data, verbose=0, callbacks=[callback]).history
    runs = runs_in(tmp_path)
    train = runs["train"]
    assert [(step, float(value)) for step, value in train["epoch_loss"]] == [
        (epoch, np.float32(loss)) for epoch, loss in enumerate(history["loss"])
    ]
    assert [float(value) for _, value in runs["validation"]["epoch_mae"]] == np.float32(history["val_mae"]).tolist()
    assert [step for step, _ in train[f"{model.name}/{model.layers[0].name}/kernel/histogram"]] == [0, 1, 2]
    assert len(train[f"{model.name}/{model.layers[0].name}/kernel/image"][0][1]) == 3  # Width, height and one picture.
    first = model.layers[0]
    graph = graph_in(tmp_path, "train").node
    nodes = [(node.op, list(node.input)) for node in graph]
    assert nodes == [("InputLayer", []), ("Dense", [graph[0].name]), ("Dense", [first.name])]
    steps = [step for step, _ in train.get("batch_loss", [])]
    assert steps == ([] if update_freq == "epoch" else [2, 4, 6, 8, 10, 12])


def test_keras_callback_without_a_scope(tmp_path: Path):
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(np.ones((8, 2)), np.ones(8), verbose=0, callbacks=[tpu.summary.TensorBoard(str(tmp_path))])
    assert list(runs_in(tmp_path)["train"]) == ["epoch_loss", "epoch_learning_rate"]


def test_an_unknown_name():
    with pytest.raises(AttributeError) as caught:
        tpu.summary.merge_all()  # pyright: ignore
    assert str(caught.value) == "anytpu.summary has no name 'merge_all'; dir(anytpu.summary) lists its names."


def test_a_writer_that_is_dropped_writes_out_the_rest(tmp_path: Path):
    writer = SummaryWriter(str(tmp_path), "", 1000)
    writer.set_as_default()
    tpu.summary.scalar("loss", 0.5, step=1)
    tpu.summary.flush()
    del writer
    assert [float(value) for _, value in runs_in(tmp_path)["."]["loss"]] == [0.5]
