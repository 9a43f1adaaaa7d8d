"""Make a `Program` of a Keras model, for `program.of`, from the specs of a batch or from a number of rows.

Idea: a training step can be traced once the metrics are built for some labels and the optimizer has its slots. Planning
must leave neither on the model: its `fit` may have other labels, and slots take memory. So a sketch is built, which
shares the model's layers. For another precision, a model is made again from the configuration, with another dtype
policy in each layer.

Rule: no step is run, no weight is read and the model does not change, with two exceptions. `tensors=True` reads the
values of the weights, and a model that is not built is built. Variables made for a sketch have shapes and no values.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import jax
import keras
import numpy as np

from anytpu import _keras
from anytpu.errors import AnyTPUError, ProgramError
from anytpu.program.program import Program, Tree, spec_of
from anytpu.strategy.scopes import refuse_split_variables
from anytpu.train import clones, host_layers
from anytpu.train.batch_specs import (
    are_labels_guessed,
    how_to_give_specs,
    input_specs_of,
    label_specs_of,
    with_batch_size,
)
from anytpu.train.compiled_models import trainer_of
from anytpu.train.keras_program import keras_program, parts_of


def program_of_model(
    model: Any,
    input_specs: Tree,
    mode: str,
    tensors: bool,
    batch_size: int | None = None,
    precision: str | None = None,
) -> Program:
    """Return the Program of a training step of a Keras model (mode "train"), or of a prediction ("infer").

    Args:
        model: a Keras model; compiled, for "train".
        input_specs: specs or arrays of a global batch: `(x, y)` or `(x, y, sample_weight)` to train, `x` or `(x,)` to
            infer. None derives them from the model's inputs and its loss.
        mode: "train" or "infer".
        tensors: whether to copy the values of the variables into the Program.
        batch_size: number of rows of the global batch; None takes that of `input_specs`.
        precision: "float32" or "bfloat16"; None keeps the model's.

    Raises:
        ProgramError: there are neither input specs nor a batch size. Or the model is not compiled, or does not know the
            shapes of its inputs. Or its step cannot be traced with the input specs or with the guessed labels. Or
            `keras.distribution` splits its variables, which a Program does not support.
    """
    trainer = trainer_of(model)
    # The layout of a strategy is given beside a Program.
    if trainer is None or not trainer.strategy.splits_weights:
        refuse_split_variables(model)
    host_layers.install()
    if input_specs is None and batch_size is None:
        raise ProgramError(
            f"the model {model.name!r} does not know the rows of a batch: give batch_size=64, or "
            "input_specs=(x_train[:64], y_train[:64])"
        )
    if mode == "train" and not model.compiled:
        raise ProgramError(
            f"the model {model.name!r} is not compiled: call model.compile(optimizer, loss) first, or ask for "
            'mode="infer" (--infer)'
        )
    if precision is not None:
        model = in_precision(model, precision)
    if input_specs is None:
        return _program_of_rows(model, mode, tensors, batch_size or 0)
    with _explained(model, mode, "these input_specs", batch_size):
        batch = spec_of(input_specs if isinstance(input_specs, tuple) else (input_specs,))
        if batch_size is not None:
            batch = with_batch_size(batch, batch_size)
        program = _program(model, batch, mode, tensors)
        if mode == "infer":  # A training step was traced for its metrics.
            jax.eval_shape(program.step, program.state, program.batch)
        return program


def _program_of_rows(model: Any, mode: str, tensors: bool, batch_size: int) -> Program:
    inputs = input_specs_of(model, batch_size)
    if mode == "infer":
        return _program(model, (inputs,), mode, tensors)
    build_layers(model, inputs)
    labels = label_specs_of(model, inputs)
    given = f"the labels that its outputs and its loss suggest, {_text(labels)}"
    with _explained(model, mode, given, batch_size):
        program = _program(model, (inputs, labels), mode, tensors)
        # Guessed labels are tried here, so that an error names them.
        if are_labels_guessed(model):
            jax.eval_shape(program.step, program.state, program.batch)
        return program


@contextlib.contextmanager
def _explained(model: Any, mode: str, given: str, batch_size: int | None) -> Iterator[None]:
    """Turn an error of Keras or of JAX in the block into a `ProgramError` that says how to give specs."""
    try:
        yield
    except AnyTPUError:
        raise
    except Exception as error:
        step = "a training step" if mode == "train" else "a prediction"
        raise ProgramError(
            f"{step} of the model {model.name!r} cannot be traced with {given}: "
            f"{type(error).__name__}: {clones.reason(error)}. {how_to_give_specs(model, batch_size or 64)}"
        ) from error


def _program(model: Any, batch: Tree, mode: str, tensors: bool) -> Program:
    keras_mode = "train" if mode == "train" else "predict"
    model = _built(model, batch, mode, tensors)
    parts = parts_of(model, keras_mode)
    program = keras_program(model, keras_mode, batch, parts)
    values = tuple([np.array(variable.value) for variable in part.variables] for part in parts) if tensors else None
    return dataclasses.replace(program, tensors=values)


def _built(model: Any, batch: Tree, mode: str, tensors: bool) -> Any:
    """Return the model to trace, built for a batch: the model itself or a sketch of it."""
    if mode == "train" and _keras.is_built(model) and not tensors:
        return sketch_of(model, batch)
    if mode == "train":
        _keras.build_for(model, batch)
    else:
        build_layers(model, batch[0])
    return model


def build_layers(model: Any, inputs: Tree) -> None:
    """Build the layers of a model that is not built, for the specs of its inputs."""
    if not _keras.is_built(model):
        symbolic = jax.tree.map(lambda spec: keras.KerasTensor(spec.shape, spec.dtype.name), inputs)
        _keras.keras_backend().compute_output_spec(model, symbolic, training=False)


def _text(specs: Tree) -> str:
    """Return the specs of labels as a short text: "float32[64,10] and int32[64]"."""
    return " and ".join(f"{leaf.dtype.name}{list(leaf.shape)}".replace(", ", ",") for leaf in jax.tree.leaves(specs))


POLICIES = {"float32": "float32", "bfloat16": "mixed_bfloat16"}
"""Keras's dtype policy for each precision."""

_FLOAT_POLICIES = ("float32", "mixed_bfloat16", "bfloat16", "mixed_float16", "float16")


def sketch_of(model: Any, batch: Tree) -> Any:
    """Return a model that shares the layers of a compiled model and is built for training on a batch.

    If the compile settings cannot be made again, the model itself is built and returned.

    Args:
        model: a built and compiled model.
        batch: specs of the batch, `(x, y)` or `(x, y, sample_weight)`.
    """
    try:
        settings = clones.settings_of(model)
    except Exception:
        # An optimizer or a metric of the user's own without a configuration.
        _keras.build_for(model, batch)
        return model
    sketch = _keras.shallow_copy(model)
    with _keras.without_values():
        _keras.compile_plainly(sketch, settings)
        _keras.build_for(sketch, batch)
    return sketch


def in_precision(model: Any, precision: str) -> Any:
    """Return a model of the same layers that computes in a precision; it is compiled if the model is.

    Args:
        model: a model that can be made again from its configuration, built or not.
        precision: "float32" or "bfloat16".

    Raises:
        ProgramError: the model cannot be made again.
    """
    policy = POLICIES[precision]
    if _has_policy(model, policy):
        return model
    try:
        config = _with_policy(model.get_config(), policy)
        settings = clones.settings_of(model) if model.compiled else None
        with _keras.without_values():
            copy = type(model).from_config(config)
            clones.build_like(copy, model)
            if settings is not None:
                _keras.compile_plainly(copy, settings)
    except Exception as error:
        raise ProgramError(_cannot(model, precision, clones.reason(error))) from error
    if [v.shape for v in clones.variables_of(copy)] != [v.shape for v in clones.variables_of(model)]:
        raise ProgramError(_cannot(model, precision, "its copy has other variables"))
    return copy


def _has_policy(model: Any, policy: str) -> bool:
    """Return whether a model already has a policy; under a mixed policy some layers, such as the last, are float32."""
    layers = [layer for layer in _keras.layers_of(model) if not isinstance(layer, keras.layers.InputLayer)]
    policies = {layer.dtype_policy.name for layer in layers}
    return policies == {policy} or (policy != "float32" and policy in policies)


def _with_policy(config: Any, policy: str) -> Any:
    """Return a configuration with each floating-point dtype policy replaced."""
    if isinstance(config, list | tuple):
        return type(config)(_with_policy(part, policy) for part in config)
    if not isinstance(config, dict):
        return config
    if config.get("class_name") == "DTypePolicy" and config.get("config", {}).get("name") in _FLOAT_POLICIES:
        return {**config, "config": {**config["config"], "name": policy}}
    return {name: _with_policy(part, policy) for name, part in config.items()}


def _cannot(model: Any, precision: str, why: str) -> str:
    return (
        f"the model {model.name!r} cannot be made again in {precision}: {why}. Choose the precision yourself, with "
        f'keras.config.set_dtype_policy("{POLICIES[precision]}") before it is made, and leave precision out'
    )
