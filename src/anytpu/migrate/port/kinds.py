"""The classes of a program's values: functions and classes of the program, instances, tuples, tensors."""

from __future__ import annotations

import dataclasses
import fnmatch
import functools
import re
from collections.abc import Iterable
from typing import Any

import libcst as cst

from anytpu.migrate.port import known
from anytpu.migrate.port.known import Definition
from anytpu.migrate.port.rules import new_name, rule_of
from anytpu.migrate.replaced.table import facts


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
GIVES_SHAPE = re.compile(r"input_(shape|dim|length)\b|Input(Layer)?\(|Embedding\(")
"""In a program with this, a Sequential of Keras 2 is built, and its name is in no name of a variable."""


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


@functools.cache
def result_of(old: str) -> Kinds:
    """Return the value of a call of a TensorFlow or Keras name, by the class that its new name makes or promises."""
    if kinds := _given("results of old names", old):
        return kinds
    rule = rule_of(old)
    if rule is not None and rule[1].how == "call" and ")({" in rule[1].target:
        return ARRAY  # a layer that is made and called
    name = new_name(old)
    if name is None:
        return frozenset({"optax"}) if old.startswith("train.") and old.endswith("Optimizer") else UNKNOWN
    if kinds := _given("results of new names", name):
        return kinds
    definition = known.find(name)
    is_class = definition is not None and definition.is_class
    made = instances_of(definition if is_class else known.returned_class(definition))
    return made or _given("results of functions", name)


def _given(heading: str, name: str) -> Kinds:
    """Return the values that the table gives for a name under a heading."""
    patterns = facts(heading)
    found = next((patterns[pattern] for pattern in patterns if fnmatch.fnmatchcase(name, pattern)), ())
    return kinds_of(found)


def kinds_of(names: Iterable[str]) -> Kinds:
    """Return the values that some names of the table stand for: instances of classes, which have a dot, and marks."""
    return UNKNOWN.union(*(instance_of(name) if "." in name else {name} for name in names))
