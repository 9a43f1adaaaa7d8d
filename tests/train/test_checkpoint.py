from __future__ import annotations

import logging

import numpy as np
import pytest

from anytpu.errors import FileError
from anytpu.train.checkpoint import Checkpoints, checkpoint_at

VALUES = {"dense/kernel": np.arange(6, dtype="float32").reshape(2, 3), "step": np.int32(3), "flag": np.array(True)}


def test_what_is_saved_is_loaded(tmp_path):
    checkpoints = Checkpoints(tmp_path / "a")
    assert checkpoints.latest() is None
    checkpoints.save(3, VALUES, {"states": [{"batches": 2}]})
    values, position = checkpoints.load(3)
    assert position == {"states": [{"batches": 2}]}
    assert sorted(values) == sorted(VALUES)
    for name, value in VALUES.items():
        assert values[name].dtype == np.asarray(value).dtype
        np.testing.assert_array_equal(values[name], value)


def test_the_newest_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (0, 5, 12):
        checkpoints.save(step, VALUES)
    assert checkpoints.steps() == [5, 12]
    assert checkpoint_at(tmp_path)[1] == checkpoints.latest() == 12
    assert checkpoint_at(checkpoints.path(5))[1] == 5
    assert checkpoints.load(5)[1] is None


def test_half_a_checkpoint_is_none(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(1, VALUES)
    half = tmp_path / "2.orbax-checkpoint-tmp"
    half.mkdir()
    (half / "rest").write_text("")
    assert checkpoints.steps() == [1]
    checkpoints.load(1)
    # Somebody may be writing it; who writes next in this folder clears it away.
    assert half.is_dir()
    checkpoints.save(2, VALUES)
    assert checkpoints.steps() == [1, 2]
    assert not half.exists()


def test_orbax_does_not_talk(tmp_path, caplog):
    with caplog.at_level(logging.INFO):
        Checkpoints(tmp_path).save(1, VALUES)
        assert Checkpoints(tmp_path).latest() == 1
        Checkpoints(tmp_path).load(1)
    assert caplog.messages == []


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda folder: Checkpoints("gs://bucket/run"),
            "checkpoints are kept in a folder of this machine, not at 'gs://bucket/run'. Pass a local folder, or mount "
            "the bucket as one",
        ),
        (
            lambda folder: checkpoint_at(folder),
            "there is no checkpoint in {!r}: pass the model_dir of an estimator that was trained",
        ),
        (
            lambda folder: Checkpoints(folder).load(7),
            "the checkpoint of step 7 in {!r} cannot be read. Those that are there: none",
        ),
    ],
)
def test_what_is_not_there(tmp_path, call, message):
    with pytest.raises(FileError) as caught:
        call(tmp_path)
    assert str(caught.value) == message.format(str(tmp_path))
