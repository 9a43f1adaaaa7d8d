"""Names of a model's variables that are the same in each process that builds the model.

Idea: Keras numbers layers, optimizers and metrics per process: the second model of a notebook has "dense_7". Here the
numbers of such names restart within the model, in order. Names that the user chose are kept.

Rule: a name has the variable's kind first: "trainable/sequential/dense_1/kernel". The same model has the same names.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from anytpu import _keras
from anytpu.train.keras_program import PARTS, parts_of

_NUMBERED = re.compile(r"(.*?)(?:_(\d+))?")


class _Renumbering:
    """Names without the numbers of the process.

    Args:
        automatic: the names that Keras gives to objects of each class in use, such as "dense".
    """

    def __init__(self, automatic: Iterable[str]) -> None:
        self._automatic = frozenset(automatic)
        self._numbers: dict[str, list[str]] = {}

    def path(self, path: str) -> str:
        """Return a path with each automatic part renumbered."""
        return "/".join(map(self._part, path.split("/")))

    def _part(self, part: str) -> str:
        match = _NUMBERED.fullmatch(part)
        base = match[1] if match else part
        if base not in self._automatic:
            return part
        seen = self._numbers.setdefault(base, [])
        if part not in seen:
            seen.append(part)
        index = seen.index(part)
        return f"{base}_{index}" if index else base


def named_variables(groups: Mapping[str, Sequence[Any]], owners: Iterable[Any]) -> dict[str, Any]:
    """Return variables by name.

    Args:
        groups: the variables of each kind; weights come before the optimizer's.
        owners: the layers, optimizers and metrics whose automatic names are renumbered.
    """
    renumbering = _Renumbering(_automatic(owners))
    named: dict[str, Any] = {}
    # A slot's path has the path of its weight, with underscores: "adam/sequential_1_dense_7_kernel_momentum".
    weights: dict[str, str] = {}
    for kind, variables in groups.items():
        for variable in variables:
            path = renumbering.path(_renamed(variable.path, weights))
            weights[variable.path.replace("/", "_")] = path.replace("/", "_")
            named[_free(f"{kind}/{path}", named)] = variable
    return named


def renumbered(names: Iterable[str], owners: Iterable[Any]) -> list[str]:
    """Return names whose automatic numbers restart, in order; `owners` as in `named_variables`."""
    return list(map(_Renumbering(_automatic(owners)).path, names))


OUTSIDE = "outside/"
"""The kind of the variables that a step assigns outside of Keras's lists, at the beginning of their names."""


def model_variables(model: Any, outside: Sequence[Any] = ()) -> dict[str, Any]:
    """Return all variables of a compiled and built model by name: weights, seeds, the optimizer's and the metrics'.

    Args:
        model: the model.
        outside: the variables that its steps assign outside of Keras's lists.
    """
    groups = {kind: part.variables for kind, part in zip(PARTS["train"], parts_of(model, "train"), strict=True)}
    groups[OUTSIDE.rstrip("/")] = tuple(outside)
    return named_variables(groups, [*_keras.layers_of(model), model.optimizer, *model.metrics])


def _automatic(owners: Iterable[Any]) -> set[str]:
    return {_snake_case(type(owner).__name__) for owner in owners} | {"seed_generator", "variable"}


def _renamed(path: str, weights: dict[str, str]) -> str:
    """Return a slot's path with the renumbered name of its weight."""
    inside = [weight for weight in weights if weight in path]
    if not inside or path.replace("/", "_") in weights:
        return path
    longest = max(inside, key=len)
    return path.replace(longest, weights[longest])


def _free(name: str, taken: dict[str, Any]) -> str:
    if name not in taken:
        return name
    return next(free for number in range(2, len(taken) + 3) if (free := f"{name}#{number}") not in taken)


def _snake_case(name: str) -> str:
    """Return Keras's automatic name of a class: "conv2d" of Conv2D, "batch_normalization" of BatchNormalization."""
    name = re.sub(r"\W+", "", name)
    name = re.sub("(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub("([a-z])([A-Z])", r"\1_\2", name).lower()
