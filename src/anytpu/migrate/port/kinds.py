"""The classes of a program's values: functions and classes of the program, instances, tuples, tensors."""

from __future__ import annotations

import dataclasses
from typing import Any

import libcst as cst

from anytpu.migrate.port import known
from anytpu.migrate.port.known import Definition
from anytpu.migrate.port.rules import new_name, rule_of


@dataclasses.dataclass(frozen=True)
class OwnFunction:
    """A function of the program: a definition, a lambda or a method."""

    node: cst.FunctionDef | cst.Lambda


@dataclasses.dataclass(frozen=True)
class OwnClass:
    """A class of the program."""

    node: cst.ClassDef


@dataclasses.dataclass(frozen=True)
class Instance:
    """An instance of a class: of a package, or of the program."""

    cls: Definition | OwnClass


@dataclasses.dataclass(frozen=True)
class Items:
    """A tuple or a list with a known number of items."""

    items: tuple[frozenset[Any], ...]


@dataclasses.dataclass(frozen=True)
class Each:
    """A list of any length, of which each item has these values: the layers or the weights of a model."""

    kinds: frozenset[Any]


Value = OwnFunction | OwnClass | Instance | Items | Each | str
"""A value's class. Strings: "array" (a tensor), "element" (of a data set), "sizes" (a shape, which is a tuple), "size"
(a number or an array of NumPy that is computed from shapes alone), "symbolic" (beside "array": of a model that is made
from inputs), "dataset options", "example", "schedule" (a rate that decays), and so on."""

Kinds = frozenset[Value]
UNKNOWN: Kinds = frozenset()
ARRAY: Kinds = frozenset({"array"})
ELEMENT: Kinds = frozenset({"element"})
SYMBOLIC: Kinds = frozenset({"symbolic"})
TENSORS = ARRAY | ELEMENT | SYMBOLIC
SHAPE: Kinds = frozenset({"sizes"})
SIZE: Kinds = frozenset({"size"})

OF_ANY_CLASS = "of any class"
"""Beside an instance: its class may be one below, with more members."""
IN_SEQUENTIAL, IN_MODEL = "in a Sequential", "in a model"
"""Beside a variable: the model that it was taken from. Keras 3 puts the name of a Sequential before its path."""
_MARKS = (OF_ANY_CLASS, IN_SEQUENTIAL, IN_MODEL)
DATASET = "anytpu.pipeline.Dataset"
_RETURNS = {
    "keras.models.load_model": "keras.Model",
    "keras.saving.load_model": "keras.Model",
    "keras.models.clone_model": "keras.Model",
    "keras.models.model_from_json": "keras.Model",
    "keras.models.model_from_config": "keras.Model",
    "tpu.TPUDistributionStrategy": "tpu.TPUStrategy",
    "keras.layers.Input": "array",
    "keras.Input": "array",
    "keras.optimizers.get": "keras.optimizers.Optimizer",
}
"""Classes of results that no annotation promises."""
_ARRAYS = ("keras.ops.", "keras.random.", "keras.activations.", "keras.losses.", "tpu.pipeline.decode")


def instance_of(name: str) -> Kinds:
    """Return the value set of an instance of a class of anytpu or Keras, such as "keras.Model"."""
    return instances_of(known.find(name))


def instances_of(*definitions: Definition | None) -> Kinds:
    """Return the value set of instances of some classes, of which some may not be known."""
    return frozenset(Instance(definition) for definition in definitions if definition is not None)


def item_of(kinds: Kinds, index: int) -> Kinds:
    """Return the values of an item of a tuple."""
    item_kinds: Kinds = kinds & TENSORS
    for value in kinds:
        if isinstance(value, Items) and index < len(value.items):
            item_kinds |= value.items[index]
    return item_kinds | each_of(kinds)


def each_of(kinds: Kinds) -> Kinds:
    """Return the values of the items of a list of any length."""
    return UNKNOWN.union(*(value.kinds for value in kinds if isinstance(value, Each)))


def list_of(kinds: Kinds) -> Kinds:
    """Return the value of a list of any length of instances; other items are not followed."""
    held = frozenset(value for value in kinds if isinstance(value, Instance) or value in _MARKS)
    return frozenset({Each(held)}) if held else UNKNOWN


def result_of(old: str) -> Kinds:
    """Return the value of a call of a TensorFlow or Keras name, by the class that its new name makes or promises."""
    # 1. Names whose value is fixed here.
    if old in ("shape", "keras.backend.shape"):
        return SHAPE
    if old == "data.Options":
        return frozenset({"dataset options"})
    if old.startswith("train.") and old.endswith("_decay"):
        return frozenset({"schedule"})
    if old == "train.Example":
        return frozenset({"example"})
    if old.startswith("data.") and (old.endswith("Dataset") or old.startswith("data.Dataset.")):
        return instance_of(DATASET)
    rule = rule_of(old)
    if rule is not None and rule[1].how == "call" and ")({" in rule[1].target:
        return ARRAY  # a layer that is made and called
    # 2. The class that the new name makes, or that its definition or a table promises.
    name = new_name(old)
    if name is None:
        return frozenset({"optax"}) if old.startswith("train.") and old.endswith("Optimizer") else UNKNOWN
    if name.startswith("optax."):
        return frozenset({"optax"})
    if name == "tpu.keras_to_tpu_model":
        return (
            instance_of("keras.Model") | instance_of("anytpu.migrate.keras_to_tpu.tpu_model.TPUModel") | {"converted"}
        )
    if name == "keras.Variable":
        return instance_of(name) | {IN_MODEL}
    if name in _RETURNS:
        return ARRAY | SYMBOLIC if _RETURNS[name] == "array" else instance_of(_RETURNS[name])
    definition = known.find(name)
    if definition is not None and name.startswith("keras.applications."):
        return instance_of("keras.Model")
    is_class = definition is not None and definition.is_class
    made = instances_of(definition if is_class else known.returned_class(definition))
    return made or (ARRAY if name.startswith(_ARRAYS) else UNKNOWN)
