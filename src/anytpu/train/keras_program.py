"""A compiled Keras model as a `Program`: one step of training, testing or predicting on a global batch.

Idea: each Keras step is a pure function of lists of arrays (`train_step(state, data)`), as a Program requires. A
model's own `train_step` is used without change.

Rule: the code is whole-batch. The model sees all rows of the batch and no other rows. So BatchNorm, dropout and losses
are computed over the whole batch, as on one device.
"""

from __future__ import annotations

import dataclasses
import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from anytpu import _keras
from anytpu.errors import ProgramError
from anytpu.program.program import ROWS, Program, Tree
from anytpu.strategy.state_extension import extension_of
from anytpu.train.outside import with_outside

PARTS = {
    "train": ("trainable", "non_trainable", "optimizer", "metrics"),
    "test": ("trainable", "non_trainable", "metrics"),
    "predict": ("trainable", "non_trainable"),
}
"""The lists of variables that each step of Keras takes and returns, in order."""

_LISTS = {
    "trainable": operator.attrgetter("trainable_variables"),
    "non_trainable": operator.attrgetter("non_trainable_variables"),
    "optimizer": operator.attrgetter("optimizer.variables"),
    "metrics": operator.attrgetter("metrics_variables"),
}
"""The variables of a model in each list."""

_KINDS = {"trainable": "weights", "non_trainable": "frozen", "optimizer": "slots", "metrics": "other"}
"""`Program.state_kinds` of the variables of each list."""


@dataclasses.dataclass(frozen=True, eq=False)
class VariableList:
    """One of the lists of variables that a step of Keras takes and returns.

    Keras passes these between calls in place of arrays. This class is not a list, because Keras tracks a list of
    variables assigned to a model as the model's weights.

    Attributes:
        variables: the Keras variables, in Keras's order.
        assigned: of a list of variables outside: the ids of those that a trace of the step has assigned.
    """

    variables: tuple[Any, ...]
    assigned: set[int] = dataclasses.field(default_factory=set)


def parts_of(model: Any, mode: str, outside: VariableList | None = None) -> tuple[VariableList, ...]:
    """Return the lists of Keras variables that a step of this mode takes, in order.

    Args:
        model: a built and compiled model.
        mode: "train", "test" or "predict".
        outside: the variables that a step uses outside of Keras's lists; see `outside.py`. They are a further list, and
            leave the lists of Keras that have them.
    """
    parts = tuple([VariableList(tuple(_LISTS[part](model))) for part in PARTS[mode]])
    if outside is None:
        return parts
    if not outside.variables:
        return (*parts, outside)
    ids = set(map(id, outside.variables))
    rest = (VariableList(tuple(v for v in part.variables if id(v) not in ids)) for part in parts)
    return (*rest, outside)


def keras_program(model: Any, mode: str, batch: Tree, parts: tuple[VariableList, ...]) -> Program:
    """Return the Program of one step of a built and compiled Keras model.

    Args:
        model: a built and compiled model.
        mode: "train", "test" or "predict".
        batch: specs of the global batch, `(x, y, sample_weight)` as Keras's data adapters yield it.
        parts: the variables, as `parts_of` lists them. With a list of variables outside, a trace raises
            `OutsideVariables` if the step uses others.
    """
    extension = extension_of(model)
    tables = {} if extension is None else extension.tables
    return Program(
        name=f"{model.name}/{mode}",
        step=with_outside(_STEPS[mode](model), tuple(part.variables for part in parts_of(model, mode)), parts),
        state=tuple([jax.ShapeDtypeStruct(v.shape, v.dtype) for v in part.variables] for part in parts),
        batch=batch,
        layout=jax.tree.map(lambda _: ROWS, batch),
        mode="train" if mode == "train" else "infer",
        state_names=tuple(v.path for part in parts for v in part.variables),
        tables=tuple(tables),
        state_kinds=_state_kinds(model, mode, parts, tables),
    )


def _state_kinds(model: Any, mode: str, parts: tuple[VariableList, ...], tables: dict[str, bool]) -> tuple[str, ...]:
    """Return `Program.state_kinds`. The slots of a table are variables of its layer."""
    named = zip(PARTS[mode], parts_of(model, mode), strict=True)
    kinds = {id(variable): _KINDS[name] for name, part in named for variable in part.variables}
    return tuple(
        "slots" if tables.get(variable.path) else kinds.get(id(variable), "other")
        for part in parts
        for variable in part.variables
    )


def _logging(mode: str) -> Callable[[Any], Callable]:
    """Return the maker of the train or the test step, whose outputs are the logs."""

    def make(model: Any) -> Callable:
        def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
            keras_step = model.train_step if mode == "train" else model.test_step
            logs, state = keras_step(tuple(list(part) for part in state), batch)
            return tuple(list(part) for part in state), _logged(model, f"{mode}_step", logs)

        return step

    return make


def _logged(model: Any, name: str, logs: Tree) -> Tree:
    """Return the logs of a step, in which a variable is its value.

    Raises:
        ProgramError: a log is no number and no array of numbers.
    """
    logs = jax.tree.map(_keras.array_of, logs)
    for path, leaf in jax.tree_util.tree_leaves_with_path(logs):
        if not isinstance(leaf, jax.Array | np.ndarray | np.generic | float | int | complex):
            raise ProgramError(
                f"{name} of {model.name!r} returns {leaf!r} as the log {jax.tree_util.keystr(path)}. A compiled step "
                "returns numbers and arrays of numbers: leave the log out, or add it in a callback"
            )
    return logs


def _predict(model: Any) -> Callable:
    def step(state: Tree, batch: Tree) -> tuple[Tree, Tree]:
        outputs, non_trainable = model.predict_step(tuple(list(part) for part in state), batch)
        return (state[0], list(non_trainable)), outputs

    return step


_STEPS = {"train": _logging("train"), "test": _logging("test"), "predict": _predict}
