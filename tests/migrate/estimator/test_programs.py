from __future__ import annotations

import json
import subprocess
from typing import Any

import jax
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import EstimatorError, ProgramError
from error_texts import error_text
from estimator_samples import arrays, estimator, input_fn, model_fn
from forked import python

X, Y = arrays()

LOADS = """
import json, sys
import numpy as np
import anytpu as tpu
program = tpu.program.read(sys.argv[1], tensors=True)
_, outputs = program.step(program.tensors, np.load(sys.argv[2]))
print(json.dumps({name: np.asarray(value).tolist() for name, value in outputs.items()}))
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Any:
    return estimator(tmp_path_factory.mktemp("trained"), model_fn).train(input_fn, max_steps=5)


def test_an_export_runs_without_the_models_code_a36(trained, tmp_path):
    path = trained.export_saved_model(tmp_path, lambda: jax.ShapeDtypeStruct((5, X.shape[1]), "float32"))
    assert path == str(tmp_path / "5.anytpu")
    np.save(tmp_path / "x.npy", X[:5])
    command = [*python(), "-c", LOADS, path, str(tmp_path / "x.npy")]
    outputs = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    expected = list(trained.predict(lambda params: X[:5]))
    np.testing.assert_allclose(outputs["logits"], [row["logits"] for row in expected], rtol=1e-5, atol=1e-6)
    assert outputs["class"] == [int(row["class"]) for row in expected]


def test_a_prediction_as_a_program(trained):
    program = tpu.program.of(trained, X[:4], mode="infer", tensors=True)
    assert (program.name, program.mode, program.replicas, program.rows) == ("model_fn/predict", "infer", None, 4)
    assert program.tensors is not None
    kept = dict(zip(program.state_names, program.tensors, strict=True))
    np.testing.assert_array_equal(kept["dense/kernel"], trained.get_variable_value("dense/kernel"))


def test_a_step_of_training_as_a_program(trained):
    program = tpu.program.of(trained, (X[:16], Y[:16]), tensors=True)
    assert (program.name, program.mode, program.replicas) == ("model_fn/train", "train", 2)
    assert "adam/dense_kernel_momentum" in program.state_names
    assert [leaf.shape for leaf in jax.tree.leaves(program.batch)] == [(2, 8, 6), (2, 8)]


def test_of_another_batch(trained):
    features = jax.ShapeDtypeStruct((1, X.shape[1]), "float32")
    assert tpu.program.of(trained, features, mode="infer", batch_size=12).rows == 12
    program = tpu.program.of(trained, (features, jax.ShapeDtypeStruct((1,), Y.dtype)), batch_size=24)
    assert [leaf.shape for leaf in jax.tree.leaves(program.batch)] == [(2, 12, 6), (2, 12)]


def test_of_no_other_precision(trained):
    assert error_text(
        lambda: tpu.program.of(trained, X[:4], mode="infer", precision="bfloat16"), kind=ProgramError
    ) == (
        "a TPUEstimator computes in the precision that its model_fn chooses, and cannot be made again with "
        "precision='bfloat16': cast in the model_fn, under tpu.bfloat16_scope() for example"
    )


def test_what_cannot_be_exported(trained, tmp_path):
    assert error_text(lambda: estimator(tmp_path).export_saved_model(tmp_path, X[:5]), kind=EstimatorError) == (
        f"there is no checkpoint to export in {str(tmp_path)!r}: call estimator.train first"
    )
    assert error_text(lambda: trained.export_saved_model(tmp_path, lambda: "x"), kind=EstimatorError) == (
        "serving_input_receiver_fn must return the features of a batch, arrays or jax.ShapeDtypeStruct, not 'x': for "
        "example lambda: jax.ShapeDtypeStruct((8, 32, 32, 3), 'float32')"
    )
    assert error_text(lambda: tpu.program.of(trained), kind=ProgramError) == (
        "a TPUEstimator needs input_specs, the shapes of a batch: program.of(estimator, (features, labels)), or "
        'program.of(estimator, features, mode="infer")'
    )
