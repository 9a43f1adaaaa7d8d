"""An estimator's model function as a `Program`: a prediction that leaves the process, a step of training to look at.

Idea: `program.of(estimator, ...)` makes it and `export_saved_model` writes it, with the weights; a process that has
never seen the model_fn loads and runs it.

Rule: a prediction is whole-batch code for the batch that it was made for. A step of training is the code of one
replica.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from anytpu.program.program import ROWS, Program, Tree, spec_of
from anytpu.strategy.arguments import parted
from anytpu.strategy.default import DefaultStrategy
from anytpu.strategy.per_replica import PerReplica
from anytpu.strategy.replicas import Replica, ReplicaScope, inside
from anytpu.strategy.step import Call, step_of
from anytpu.train.estimator.inputs import dealt
from anytpu.train.estimator.mode_run import ModeRun
from anytpu.train.estimator.steps import ModelStep


def prediction_program(step: ModelStep, features: Tree) -> tuple[Program, list[Any]]:
    """Return a model's prediction as a Program, and the variables that are its state.

    Args:
        step: the step of prediction.
        features: specs of the batch, `(rows, ...)` each.
    """
    one = jax.tree.map(lambda spec: jax.ShapeDtypeStruct((1, *spec.shape), spec.dtype), features)
    step.make(DefaultStrategy(), (one, None))
    scope = ReplicaScope([])

    def look(batch: Tree) -> Tree:
        with scope:
            return _as_one(step, batch)

    jax.eval_shape(look, features)
    variables = list(scope.seen)

    def predict(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        inner = ReplicaScope(list(zip(variables, state, strict=True)))
        with inner:
            outputs = _as_one(step, batch)
        return [inner.held(variable) for variable in variables], outputs

    program = Program(
        name=f"{_name(step)}/predict",
        step=predict,
        state=[jax.ShapeDtypeStruct(v.shape, v.dtype) for v in variables],
        batch=features,
        layout=jax.tree.map(lambda _: ROWS, features),
        mode="infer",
        state_names=tuple(v.path for v in variables),
    )
    return program, variables


def training_program(run: ModeRun, batch: tuple[Tree, Tree]) -> tuple[Program, list[Any]]:
    """Return a model's training as a Program of one replica's code, and the variables that are its state.

    Args:
        run: the mode TRAIN on its cores.
        batch: features and labels of a global batch, specs or arrays.
    """
    deployment = run.deployment
    zeros = jax.tree.map(lambda spec: np.zeros(spec.shape, spec.dtype), spec_of(batch))
    shards = jax.tree.map(lambda leaf: PerReplica.of_stack(dealt(leaf, deployment.replicas)), zeros)
    run.make(zeros)
    form, _ = parted((shards,), None, deployment.replicas)
    made = step_of(Call(run.step, form, deployment.strategy, is_pure=False), None)
    return dataclasses.replace(made.program, name=f"{_name(run.step)}/train"), list(made.variables)


def with_values(program: Program, variables: list[Any]) -> Program:
    """Return a program that carries the values of its variables."""
    values = [np.array(variable.value) for variable in variables]
    leaves = jax.tree.leaves(program.state)
    assert len(leaves) == len(values)
    return dataclasses.replace(program, tensors=jax.tree.unflatten(jax.tree.structure(program.state), values))


"""The entry point "estimator" of the group "anytpu.programs"."""


def _as_one(step: ModelStep, features: Tree) -> Tree:
    with inside(Replica(1, axis=None)):
        return step((features, None))


def _name(step: ModelStep) -> str:
    return getattr(step.model.model_fn, "__name__", "model_fn")
