"""Make the `CheckedStep` of a Keras model: one training step, its weights and its rows.

Rule: a model that is not built is built as its `fit` would build it. Nothing else in the model changes.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

import jax
import keras
import numpy as np

from anytpu import _keras
from anytpu.errors import ProgramError
from anytpu.program.program import Tree
from anytpu.strategy.current import CURRENT
from anytpu.train.checking.checked_step import CheckedStep, NoReplicasError, in_a_replica, refusing
from anytpu.train.checking.sample import batch_of
from anytpu.train.compiled_models import trainer_of
from anytpu.train.model_program import program_of_model

_HALF = ("bfloat16", "float16")


def checked_step_of(model: Any, x: Any, y: Any, rows: int) -> tuple[CheckedStep, str]:
    """Return the step of a model, and a short description of its batch.

    Args:
        model: a compiled Keras model.
        x: arrays, or None to generate them.
        y: arrays, or None to generate them.
        rows: maximum number of rows.

    Raises:
        ProgramError: `model` is not a compiled Keras model, or cannot be built.
        DataError: x or y are arrays that no TPU computes with.
    """
    if not isinstance(model, keras.Model):
        raise ProgramError(f"tpu.check checks a compiled Keras model, not {model!r}")
    if not model.compiled:
        raise ProgramError(f"the model {model.name!r} is not compiled: call model.compile(optimizer, loss) first")

    def make() -> tuple[CheckedStep, str]:
        with _home(model), refusing(f"{model.name}/train", cores=1):
            batch, text = batch_of(model, x, y, rows)
            program = program_of_model(model, batch, "train", tensors=True)
        return CheckedStep(dataclasses.replace(program, tensors=None), _arrays(program.tensors), _arrays(batch)), text

    try:
        return make()
    except NoReplicasError:
        return in_a_replica(make)


def is_half(model: Any) -> bool:
    """Return whether any layer of a model computes in half precision."""
    return any(layer.compute_dtype in _HALF for layer in _keras.layers_of(model))


def _home(model: Any) -> contextlib.AbstractContextManager[Any]:
    """Return the scope that the model was compiled in, for variables made when it is built."""
    trainer = trainer_of(model)
    return contextlib.nullcontext() if trainer is None or CURRENT.get() is not None else trainer.strategy.scope()


def _arrays(tree: Tree) -> list[np.ndarray]:
    return [np.asarray(leaf) for leaf in jax.tree.leaves(tree)]
