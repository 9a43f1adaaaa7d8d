"""Checkpoints of an estimator that are damaged, of another model, or cannot be written."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np
import optax
import pytest

import anytpu as tpu
from anytpu.errors import DamageError, EstimatorError, FileError
from anytpu.train.checkpoint import Checkpoints, checkpoint_at
from anytpu.train.checkpoint.lock import FolderLock
from error_texts import error_text
from estimator_samples import arrays, check_same, estimator, input_fn, model_fn, spec_of
from forked import python

X, _ = arrays()
EVERY_FOUR = {"save_checkpoints_steps": 4, "tf_random_seed": 3}


def network(name: str | None = None, has_norm: bool = True, optimizer: Any = None, dtype: Any = None) -> Any:
    def function(features, labels, mode, params):
        x = keras.layers.Dense(4, name=name, dtype=dtype)(features)
        if has_norm:
            x = keras.layers.BatchNormalization()(x, training=mode == "train")
        logits = keras.ops.cast(keras.layers.Dense(3, name="head")(x), "float32")
        return spec_of(mode, params, logits, labels, (optimizer or (lambda: keras.optimizers.Adam(0.02)))())

    return function


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    estimator(folder, network()).train(input_fn, max_steps=4)
    return folder


VERBS = {
    "train": lambda one: one.train(input_fn, steps=1),
    "evaluate": lambda one: one.evaluate(input_fn, steps=1),
    "predict": lambda one: next(one.predict(lambda params: X)),
    "export": lambda one: one.export_saved_model(one.model_dir + "-exported", X[:2]),
    "program": lambda one: tpu.program.of(one, X[:2], mode="infer", tensors=True),
    "train program": lambda one: tpu.program.of(one, (X[:16], arrays()[1][:16])),
}
FOR = {"train": "to go on with the training", "train program": "to go on with the training"}


@pytest.mark.parametrize("verb", VERBS)
def test_a_renamed_layer(trained, verb):
    one = estimator(trained, network(name="other"))
    there, here = (
        f", 'adam/{name}_kernel_momentum' float32[6, 4], 'adam/{name}_kernel_velocity' float32[6, 4], "
        f"'adam/{name}_bias_momentum' float32[4] and 1 more"
        if verb in FOR
        else ""
        for name in ("dense", "other")
    )
    assert error_text(lambda: VERBS[verb](one), kind=EstimatorError) == (
        f"the checkpoint of step 4 in {str(trained)!r} is of another model than model_fn makes "
        f"{FOR.get(verb, 'to evaluate or predict')}, and none of it is loaded. In the checkpoint only: "
        f"'dense/kernel' float32[6, 4], 'dense/bias' float32[4]{there}. In the model only: 'other/kernel' float32[6, "
        f"4], 'other/bias' float32[4]{here}. Use the model_fn that it was trained with, or train the changed one in "
        "another model_dir"
    )
    # Never half-loaded: what would fit is as it was made.
    assert np.all(np.asarray(one._state.variables.by_name["head/bias"].value) == 0)


@pytest.mark.parametrize("verb", ["train", "evaluate"])
@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (network(has_norm=False), "In the checkpoint only: 'batch_normalization/gamma' float32[4]"),
        (
            network(dtype="bfloat16"),
            "With another dtype: 'dense/kernel' float32[6, 4] in the checkpoint and bfloat16[6",
        ),
    ],
)
def test_another_model(trained, verb, changed, text):
    with pytest.raises(EstimatorError) as caught:
        VERBS[verb](estimator(trained, changed))
    assert text in str(caught.value)


def stacked(layer: Any, optimizer: Any) -> Any:
    """A model with a layer in the middle that is made in each mode; None has none."""

    def function(features, labels, mode, params):
        x = features if layer is None else layer(features, mode)
        return spec_of(mode, params, keras.layers.Dense(3, name="head")(x), labels, optimizer())

    return function


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(0.02),
    "averaged": lambda: keras.optimizers.SGD(0.1, use_ema=True),
    "optax": lambda: optax.adam(0.02),
}
LAYERS = {
    "norm": (
        lambda x, mode: keras.layers.BatchNormalization(center=False, scale=False, name="norm")(
            x, training=mode == "train"
        ),
        "'norm/moving_mean' float32[6], 'norm/moving_variance' float32[6]",
    ),
    "frozen": (
        lambda x, mode: keras.layers.Dense(6, trainable=False, name="frozen")(x),
        "'frozen/kernel' float32[6, 6], 'frozen/bias' float32[6]",
    ),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_removed_layer_that_is_not_trainable(tmp_path, optimizer):
    made = OPTIMIZERS[optimizer]
    for name, (layer, named) in LAYERS.items():
        folder = tmp_path / name
        estimator(folder, stacked(layer, made)).train(input_fn, max_steps=2)
        assert estimator(folder, stacked(layer, made)).evaluate(input_fn, steps=1)["global_step"] == 2
        for verb in ("evaluate", "predict", "export") if optimizer == "adam" else ("evaluate",):
            assert error_text(VERBS[verb], estimator(folder, stacked(None, made)), kind=EstimatorError) == (
                f"the checkpoint of step 2 in {str(folder)!r} is of another model than model_fn makes to evaluate or "
                f"predict, and none of it is loaded. In the checkpoint only: {named}. Use the model_fn that it was "
                "trained with, or train the changed one in another model_dir"
            )


def test_another_optimizer(trained):
    changed = network(optimizer=lambda: keras.optimizers.SGD(0.1, momentum=0.9))
    with pytest.raises(EstimatorError, match="In the checkpoint only: 'adam/iteration' int32") as caught:
        estimator(trained, changed).train(input_fn, steps=1)
    assert "In the model only: 'sgd/iteration' int32[]" in str(caught.value)
    # What only training needs may be another.
    assert estimator(trained, changed).evaluate(input_fn, steps=1)["global_step"] == 4


def test_what_one_mode_makes_for_itself(tmp_path):
    def function(features, labels, mode, params):
        if mode == "train":
            features = keras.layers.Dropout(0.1)(features, training=True)
        x = keras.layers.Dense(3)(features)
        if mode == "infer":
            x = x + keras.random.normal(x.shape, seed=keras.random.SeedGenerator(1))
        return spec_of(mode, params, x, labels, keras.optimizers.SGD(0.1))

    one = estimator(tmp_path, function).train(input_fn, max_steps=4)
    list(one.predict(lambda params: X))
    one.train(input_fn, max_steps=8)
    for verb in ("predict", "evaluate", "train"):
        VERBS[verb](estimator(tmp_path, function))


def test_a_warm_start_needs_every_weight(trained, tmp_path):
    warm = estimator(tmp_path / "a", network(optimizer=lambda: keras.optimizers.SGD(0.1)), warm_start_from=str(trained))
    assert warm.evaluate(input_fn, steps=2)["loss"] == estimator(trained, network()).evaluate(input_fn, steps=2)["loss"]
    assert warm.train(input_fn, max_steps=2)._state.step == 2
    assert error_text(
        lambda: estimator(tmp_path / "b", network(name="other"), warm_start_from=str(trained)).train(input_fn, steps=1),
        kind=EstimatorError,
    ) == (
        f"the checkpoint of step 4 in {str(trained)!r} is of another model than model_fn makes to start another "
        "training, and none of it is loaded. In the model only: 'other/kernel' float32[6, 4], 'other/bias' "
        "float32[4]. Use the model_fn that it was trained with, or train the changed one in another model_dir"
    )
    assert os.listdir(tmp_path / "b") == [".writer.json"]


def test_a_damaged_checkpoint_is_not_trained_on(tmp_path, caplog):
    expected = estimator(tmp_path / "whole", model_fn, run=EVERY_FOUR).train(input_fn, max_steps=16)
    estimator(tmp_path / "run", model_fn, run=EVERY_FOUR).train(input_fn, max_steps=12)
    place = tmp_path / "run" / "12" / "arrays.bin"
    content = bytearray(place.read_bytes())
    content[len(content) // 2] ^= 16
    place.write_bytes(content)
    with caplog.at_level(logging.WARNING, logger="anytpu"):
        assert estimator(tmp_path / "run", model_fn).evaluate(input_fn, steps=1)["global_step"] == 8
    assert len(caplog.messages) == 1
    assert f"The checkpoint of step 12 in {tmp_path / 'run'} is damaged and is not used: " in caplog.messages[0]
    assert caplog.messages[0].endswith(" That of step 8 is used")
    one = estimator(tmp_path / "run", model_fn, run=EVERY_FOUR).train(input_fn, max_steps=16)
    assert one._state.checkpoints.steps() == [0, 4, 8, 12, 16]
    assert (tmp_path / "run" / "12.damaged").is_dir()
    check_same(one, expected)


@pytest.mark.parametrize("verb", ["train", "evaluate", "predict", "export"])
def test_no_start_from_nothing_where_all_are_damaged(tmp_path, verb):
    estimator(tmp_path).train(input_fn, max_steps=1)
    for step in (0, 1):
        (tmp_path / str(step) / "manifest.json").write_text("")
    assert error_text(lambda: VERBS[verb](estimator(tmp_path)), kind=DamageError) == (
        f"no checkpoint in {str(tmp_path)!r} is whole: step 0: its manifest.json was changed or cut off after it was "
        "saved; step 1: its manifest.json was changed or cut off after it was saved. To start anew, choose another "
        "folder, or delete this one"
    )


def test_a_checkpoint_of_an_earlier_release_continues(tmp_path):
    estimator(tmp_path / "new").train(input_fn, max_steps=2)
    checkpoint = checkpoint_at(tmp_path / "new")
    # It had the position alone.
    Checkpoints(tmp_path / "old").save(
        2,
        checkpoint.values,
        trained={name for name, form in checkpoint.forms.items() if form.is_trained},
        optimizer_state={name for name, form in checkpoint.forms.items() if form.is_optimizer_state},
        host={"position": checkpoint.host["state"]["position"]},
    )
    whole = estimator(tmp_path / "new").train(input_fn, max_steps=4)
    resumed = estimator(tmp_path / "old").train(input_fn, max_steps=4)
    check_same(resumed, whole)


def test_a_checkpoint_of_another_kind_of_run_is_refused(tmp_path):
    list(tpu.Checkpointer(tmp_path).steps(1, state={"a": np.zeros(2)}))
    assert error_text(lambda: estimator(tmp_path).train(input_fn, max_steps=2), kind=(EstimatorError, FileError)) == (
        f"the checkpoint '{tmp_path}/1' was made by Checkpointer, and TPUEstimator cannot continue it. Choose another "
        "folder"
    )


def test_two_jobs_in_one_model_dir(tmp_path):
    one = estimator(tmp_path).train(input_fn, max_steps=1)
    with FolderLock(tmp_path):
        with pytest.raises(
            FileError, match=f"another job writes checkpoints to '{tmp_path}': process {os.getpid()} on"
        ):
            one.train(input_fn, max_steps=2)
        # Who reads needs no lock.
        assert estimator(tmp_path).evaluate(input_fn, steps=1)["global_step"] == 1
    assert one.train(input_fn, max_steps=2)._state.step == 2


LIMITED = """
import anytpu
import resource, sys
from estimator_samples import estimator, input_fn, model_fn
one = estimator(sys.argv[1], model_fn, run={"save_checkpoints_steps": 4})
one.train(input_fn, max_steps=4)
sys.dont_write_bytecode = True  # Or Python cuts off what it compiles.
resource.setrlimit(resource.RLIMIT_FSIZE, (700, 700))
one.train(input_fn, max_steps=12)
"""


def test_a_full_disk_is_an_error_at_the_end_of_a_training(tmp_path):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([*sys.path, str(Path(__file__).parents[2])])}
    command = [*python(), "-c", LIMITED, str(tmp_path)]
    said = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert said.returncode == 1
    lines = said.stderr.splitlines()
    assert lines[-1] == (
        f"anytpu.errors.FileError: the checkpoint of step 12 cannot be written in {str(tmp_path)!r}: File too large. "
        "Make room, keep fewer checkpoints, or choose another folder. The newest checkpoint is that of step 4. The run "
        "is complete, and its end is only in the memory of this process: save the result elsewhere, or run the same "
        "command again. It repeats the steps since the newest checkpoint"
    )
    assert (
        f"anytpu: the checkpoint of step 8 cannot be written in {str(tmp_path)!r}: File too large. Make room, keep "
        "fewer checkpoints, or choose another folder. The newest checkpoint is that of step 4. The training goes on, "
        "and later saves are tried without another message."
    ) in lines
    assert "Exception ignored" not in said.stderr
    assert "Exception in thread" not in said.stderr
    assert len(lines) < 50
    assert sorted(os.listdir(tmp_path)) == [".writer.json", "0", "4"]


def test_a_file_as_model_dir_is_found_before_the_first_step(tmp_path):
    (tmp_path / "file").write_text("")
    calls = []

    def counting(params: dict[str, Any]) -> Any:
        calls.append(params)
        return input_fn(params)

    assert error_text(lambda: estimator(tmp_path / "file").train(counting, steps=1), kind=FileError) == (
        f"checkpoints cannot be kept in {str(tmp_path / 'file')!r}: File exists. The path, or one of its parents, is a "
        "file. Choose the path of a folder; it need not exist yet."
    )
    assert calls == []


def test_an_export_of_a_damaged_checkpoint(tmp_path):
    one = estimator(tmp_path / "run").train(input_fn, max_steps=1)
    (tmp_path / "run" / "1" / "arrays.bin").unlink()
    assert error_text(
        lambda: estimator(tmp_path / "run").export_saved_model(
            str(tmp_path / "out"), jax.ShapeDtypeStruct((2, 6), "float32"), checkpoint_path=one.latest_checkpoint()
        ),
        kind=DamageError,
    ) == (
        f"the checkpoint of step 1 in {str(tmp_path / 'run')!r} cannot be used: it has no arrays.bin. Steps with a "
        "checkpoint: 0, 1"
    )
    assert not (tmp_path / "out").exists()
