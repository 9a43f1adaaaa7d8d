"""Make Programs of an estimator's model function: a prediction to export, a training step to plan.

Idea: `program.of(estimator, ...)` makes the Program, and `export_saved_model` writes it with the weights. A process
without the model_fn can load and run it.

Rule: a prediction is whole-batch code for one batch shape. A training step is the code of one replica.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from anytpu.program.program import ROWS, Program, Tree, spec_of
from anytpu.strategy.arguments import split_arguments
from anytpu.strategy.default import DefaultStrategy
from anytpu.strategy.per_replica import PerReplica
from anytpu.strategy.replicas import Replica, ReplicaScope, inside
from anytpu.strategy.step import Call, step_of
from anytpu.train.estimator.inputs import split_rows
from anytpu.train.estimator.mode_run import ModeRun
from anytpu.train.estimator.steps import ModelStep


def prediction_program(step: ModelStep, features: Tree) -> tuple[Program, list[Any]]:
    """Return a model's prediction as a Program, and the variables of its state.

    Args:
        step: the prediction step.
        features: specs of the batch, `(rows, ...)` each.
    """
    # 1. Make the variables, for a single replica.
    replica_features = jax.tree.map(lambda spec: jax.ShapeDtypeStruct((1, *spec.shape), spec.dtype), features)
    step.make(DefaultStrategy(), (replica_features, None))
    # 2. Trace the step once, to find the variables that it uses.
    scope = ReplicaScope([])

    def trace(batch: Tree) -> Tree:
        with scope:
            return _in_single_replica(step, batch)

    jax.eval_shape(trace, features)
    variables = list(scope.seen)

    # 3. The Program takes their values as its state.

    def predict(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        inner = ReplicaScope(list(zip(variables, state, strict=True)))
        with inner:
            outputs = _in_single_replica(step, batch)
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
    """Return a model's training step as a Program of one replica's code, and the variables of its state.

    Args:
        run: the run of mode TRAIN.
        batch: specs or arrays of a global batch, `(features, labels)`.
    """
    deployment = run.deployment
    zeros = jax.tree.map(lambda spec: np.zeros(spec.shape, spec.dtype), spec_of(batch))
    shards = jax.tree.map(lambda leaf: PerReplica.of_stack(split_rows(leaf, deployment.replicas)), zeros)
    run.make(zeros)
    form, _ = split_arguments((shards,), None, deployment.replicas)
    step = step_of(Call(run.step, form, deployment.strategy, is_pure=False), None)
    return dataclasses.replace(step.program, name=f"{_name(run.step)}/train"), list(step.variables)


def with_values(program: Program, variables: list[Any]) -> Program:
    """Return the program with the values of its variables."""
    values = [np.array(variable.value) for variable in variables]
    leaves = jax.tree.leaves(program.state)
    assert len(leaves) == len(values)
    return dataclasses.replace(program, tensors=jax.tree.unflatten(jax.tree.structure(program.state), values))


def _in_single_replica(step: ModelStep, features: Tree) -> Tree:
    with inside(Replica(1, axis=None)):
        return step((features, None))


def _name(step: ModelStep) -> str:
    return getattr(step.model.model_fn, "__name__", "model_fn")
