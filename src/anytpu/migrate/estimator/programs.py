"""Make Programs of an estimator's model function: a prediction to export, a training step to plan.

Idea: `program.of(estimator, ...)` makes the Program, and `export_saved_model` writes it with the weights. A process
without the model_fn can load and run it.

Rule: a prediction is whole-batch code for one batch shape. A training step is the code of one replica.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from anytpu.engine.hosts import current_hosts
from anytpu.errors import EstimatorError
from anytpu.migrate.estimator.inputs import split_rows
from anytpu.migrate.estimator.mode_run import ModeRun
from anytpu.migrate.estimator.steps import ModelStep
from anytpu.pipeline.remote_file import refuse_url
from anytpu.program.file import SUFFIX, write
from anytpu.program.program import ROWS, Program, Tree, spec_of
from anytpu.strategy.arguments import split_arguments
from anytpu.strategy.base import DefaultStrategy
from anytpu.strategy.per_replica import PerReplica
from anytpu.strategy.replicas import Replica, ReplicaScope, inside
from anytpu.strategy.step import Call, step_of


def prediction(make_step: Callable[[int], ModelStep], source: Any, tensors: bool) -> Program:
    """Return the prediction step as a Program.

    Args:
        make_step: makes the step for a number of rows.
        source: arrays or specs of the features of a batch, `(rows, ...)` each, or a function that returns them.
        tensors: whether to include the values of the variables.

    Raises:
        EstimatorError: `source` is neither.
    """
    features = _specs_of(source)
    step = make_step(jax.tree.leaves(features)[0].shape[0])
    # 1. Make the variables, for a single replica.
    replica_features = jax.tree.map(lambda spec: jax.ShapeDtypeStruct((1, *spec.shape), spec.dtype), features)
    step.make(DefaultStrategy(), (replica_features, None))
    # 2. Trace the step once, to find the variables that it uses.
    scope = ReplicaScope([])

    def trace(batch: Tree) -> Tree:
        with scope, inside(Replica(1, axis=None)):
            return step((batch, None))

    jax.eval_shape(trace, features)
    variables = list(scope.seen)

    # 3. The Program takes their values as its state.
    def predict(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        inner = ReplicaScope(list(zip(variables, state, strict=True)))
        with inner, inside(Replica(1, axis=None)):
            outputs = step((batch, None))
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
    return _with_values(program, variables) if tensors else program


def training(run: ModeRun, input_specs: Any, tensors: bool) -> Program:
    """Return a training step as a Program of one replica's code.

    Args:
        run: the run of mode TRAIN.
        input_specs: specs or arrays of a global batch, `(features, labels)`.
        tensors: whether to include the values of the variables.
    """
    deployment = run.deployment
    zeros = jax.tree.map(lambda spec: np.zeros(spec.shape, spec.dtype), spec_of(tuple(input_specs)))
    shards = jax.tree.map(lambda leaf: PerReplica.of_stack(split_rows(leaf, deployment.replicas)), zeros)
    run.make(zeros)
    form, _ = split_arguments((shards,), None, deployment.replicas)
    step = step_of(Call(run.step, form, deployment.strategy, is_pure=False))
    program = dataclasses.replace(step.program, name=f"{_name(run.step)}/train")
    return _with_values(program, list(step.variables)) if tensors else program


def exported(program: Program, folder: str | Path, step: int, platforms: tuple[str, ...]) -> str:
    """Write a program with its values as `<folder>/<step>.anytpu`, and return the path."""
    refuse_url(str(folder), "an exported program")
    path = Path(folder).expanduser() / f"{step}{SUFFIX}"
    path.parent.mkdir(parents=True, exist_ok=True)
    hosts = current_hosts()
    if hosts.is_first:
        write(program, path, platforms=platforms)
    hosts.exchange()
    return str(path)


def _specs_of(source: Any) -> Tree:
    features = source() if callable(source) else source
    leaves = jax.tree.leaves(features)
    if not leaves or not all(isinstance(leaf, np.ndarray | jax.Array | jax.ShapeDtypeStruct) for leaf in leaves):
        raise EstimatorError(
            "serving_input_receiver_fn must return the features of a batch, arrays or jax.ShapeDtypeStruct, not "
            f"{features!r}: for example lambda: jax.ShapeDtypeStruct((8, 32, 32, 3), 'float32')"
        )
    return spec_of(features)


def _with_values(program: Program, variables: list[Any]) -> Program:
    """Return the program with the values of its variables."""
    values = [np.array(variable.value) for variable in variables]
    return dataclasses.replace(program, tensors=jax.tree.unflatten(jax.tree.structure(program.state), values))


def _name(step: ModelStep) -> str:
    return getattr(step.model_fn, "__name__", "model_fn")
