from __future__ import annotations

import functools
import types
from typing import Any

import keras
import numpy as np
import pytest

from anytpu.strategy.identity import Identity


def same(one, other) -> bool:
    equal = Identity(one) == Identity(other)
    assert not equal or hash(Identity(one)) == hash(Identity(other))
    return equal


def cell(source: str, names: types.ModuleType | None = None) -> Any:
    """Run a notebook cell, and return its globals."""
    names = names or types.ModuleType("notebook")
    exec(compile(source, "cell", "exec"), vars(names))
    return names


def test_a_function_made_anew_is_the_same():
    def make(model):
        def step(x):
            return model, x

        return step

    model = object()
    assert same(make(model), make(model))
    assert not same(make(model), make(object()))


def test_functions_made_beside_it_count_by_their_parts():
    def make(model):
        def loss(x):
            return model, x

        def step(x):
            return loss(x)

        return step

    model = object()
    assert same(make(model), make(model))
    assert not same(make(model), make(object()))


def test_functions_that_call_each_other():
    def make():
        def odd(n):
            return n and even(n - 1)

        def even(n):
            return not n or odd(n - 1)

        return even

    assert same(make(), make())


def test_globals_by_identity_and_scalars_by_value():
    names = cell("model = object()\nrate = 0.5\ndef step(x): return model, rate, x")
    before = Identity(names.step)
    names.rate = float("0.5")
    assert Identity(names.step) == before
    names.rate = 0.25
    assert Identity(names.step) != before
    names.rate = 0.5
    names.model = object()
    assert Identity(names.step) != before


def test_scalars_of_different_types_differ():
    names = cell("flag = True\ndef step(): return flag")
    identities = []
    for flag in (True, 1, 1.0, "1", b"1", None, 0.0, -0.0, float("nan")):
        names.flag = flag
        identities.append(Identity(names.step))
    assert len(set(identities)) == len(identities)
    names.flag = float("nan")
    assert Identity(names.step) == identities[-1]


def test_globals_of_nested_and_of_called_functions_count():
    source = """
model, rate, unused = object(), 1, 1
def loss(x): return rate
def step(x):
    def inner(): return [model for _ in x]
    return loss(inner())
"""
    names = cell(source)
    before = Identity(names.step)
    names.unused = 2
    assert Identity(names.step) == before
    names.rate = 2
    assert Identity(names.step) != before
    names.rate = 1
    names.model = object()
    assert Identity(names.step) != before


def test_a_global_that_is_only_an_attributes_name_does_not_count():
    names = cell("loss = object()\ndef step(x): return x.loss, x.mean()")
    before = Identity(names.step)
    names.loss = object()
    names.mean = object()
    assert Identity(names.step) == before


def test_a_global_that_hides_a_builtin_counts():
    names = cell("def step(x): return sum(x)")
    before = Identity(names.step)
    names.sum = max
    assert Identity(names.step) != before


def test_a_cell_that_is_run_again_is_another_step():
    source = "def step(x): return x"
    names = cell(source)
    before = Identity(names.step)
    cell(source, names)
    assert Identity(names.step) != before


def test_lists_and_dictionaries_by_what_they_hold():
    names = cell("settings = {'rate': 0.5, 'sizes': [1, 2]}\ndef step(): return settings")
    before = Identity(names.step)
    names.settings = {"rate": 0.5, "sizes": [1, 2]}
    assert Identity(names.step) == before
    names.settings["sizes"].append(3)
    assert Identity(names.step) != before


def test_long_and_circular_lists():
    names = cell("items = [0] * 1024\ndef step(): return items")
    before = Identity(names.step)
    names.items[0] = 1
    assert Identity(names.step) != before
    names.items.append(0)
    before = Identity(names.step)
    names.items[0] = 2
    assert Identity(names.step) == before
    names.items = [1]
    names.items.append(names.items)
    assert Identity(names.step) == Identity(names.step)


def test_long_lists_of_arrays():
    names = cell("def step(): return items")
    names.items = [np.zeros(1) for _ in range(1024)]
    before = Identity(names.step)
    names.items[0] = np.zeros(1)
    assert Identity(names.step) != before
    # A longer one is compared by its identity: each call would have to look at each of its items.
    names.items.append(np.zeros(1))
    before = Identity(names.step)
    names.items[0] = np.zeros(1)
    assert Identity(names.step) == before and len(before.key) < 20


def test_a_long_list_that_holds_itself():
    names = cell("def step(): return items")
    names.items = [np.zeros(1) for _ in range(70)]
    names.items.insert(0, names.items)
    assert Identity(names.step) == Identity(names.step)


def test_defaults_count():
    def make(rate, *, scale):
        return lambda x, rate=rate, *, scale=scale: (x, rate, scale)

    assert same(make(1, scale=2), make(1, scale=2))
    assert not same(make(1, scale=2), make(2, scale=2))
    assert not same(make(1, scale=2), make(1, scale=3))


def test_partials_by_function_and_arguments():
    def step(model, x, rate):
        return model, x, rate

    model = object()
    assert same(functools.partial(step, model, rate=1), functools.partial(step, model, rate=1))
    assert not same(functools.partial(step, model, rate=1), functools.partial(step, model, rate=2))
    assert not same(functools.partial(step, model, rate=1), functools.partial(step, object(), rate=1))
    assert not same(functools.partial(step, model), step)


def test_methods_by_object_and_function():
    class Trainer:
        def step(self):
            return self

        def other(self):
            return self

        def __call__(self):
            return self

    trainer = Trainer()
    assert same(trainer.step, trainer.step)
    assert not same(trainer.step, trainer.other)
    assert not same(trainer.step, Trainer().step)
    assert same(trainer, trainer)
    assert not same(trainer, Trainer())


def test_wrapped_functions():
    def wrapped(fn):
        @functools.wraps(fn)
        def wrapper(*args):
            return fn(*args)

        return wrapper

    def make(model):
        @wrapped
        def step(x):
            return model, x

        return step

    model = object()
    assert same(make(model), make(model))
    assert not same(make(model), make(object()))


def test_a_cell_that_is_not_filled_yet():
    def step():
        return later

    before = Identity(step)
    later = 1
    assert Identity(step) != before


def test_what_it_names_is_held():
    names = cell("model = object()\ndef step(): return model")
    first = Identity(names.step)
    seen = set()
    for _ in range(100):  # Else a new object might get the address of the old one.
        names.model = object()
        seen.add(Identity(names.step) == first)
    assert seen == {False}


READS = """
import math
class Config: factor, shared = 1.0, 1.0
class Trainer:
    def __init__(self):
        self.rate, self.unread, self.config, self.options = 1.0, 1.0, Config(), {"rate": 1.0}
        self.several, self.loss = [Config()], lambda x: x * settings.rate
    @property
    def scaled(self): return self.rate
    def helper(self, config): return config.factor
    def by_rate(self, x): return x * self.rate
    def by_config(self, x): return x * self.config.factor
    def by_helper(self, x): return x * self.helper(self.config)
    def by_property(self, x): return x * self.scaled
    def by_getattr(self, x): return x * getattr(self, "rate")
    def by_any_name(self, x, name): return x * getattr(self, name)
    def by_options(self, x): return x * self.options["rate"]
    def by_several(self, x): return x * sum(config.factor for config in self.several)
    def by_class(self, x): return x * self.config.shared
    def by_function(self, x): return self.loss(x) * math.pi
    def __call__(self, x): return x * self.rate
trainer = Trainer()
"""


@pytest.mark.parametrize(
    ("step", "change"),
    [
        ("trainer.by_rate", "trainer.rate = 3.0"),
        ("trainer.by_config", "trainer.config.factor = 3.0"),
        ("trainer.by_config", "trainer.config = Config()"),
        ("trainer.by_helper", "trainer.config.factor = 3.0"),
        ("trainer.by_helper", "Trainer.helper = lambda self, config: 3.0"),
        ("trainer.by_property", "trainer.rate = 3.0"),
        ("trainer.by_getattr", "trainer.rate = 3.0"),
        ("trainer.by_any_name", "trainer.rate = 3.0"),
        ("trainer.by_options", "trainer.options['rate'] = 3.0"),
        ("trainer.by_several", "trainer.several[0].factor = 3.0"),
        ("trainer.by_several", "trainer.several.append(Config())"),
        ("trainer.by_class", "Config.shared = 3.0"),
        ("trainer.by_function", "settings.rate = 3.0"),
        ("trainer", "trainer.rate = 3.0"),
        ("functools.partial(Trainer.by_rate, trainer)", "trainer.rate = 3.0"),
        ("lambda x: trainer.by_rate(x)", "trainer.rate = 3.0"),
        ("lambda x: settings.rate", "settings.rate = 3.0"),
        ("lambda x, config=trainer.config: config.factor", "trainer.config.factor = 3.0"),
        ("lambda x: {'a': [trainer]}['a'][0].rate", "trainer.rate = 3.0"),
    ],
)
def test_attributes_that_the_code_names_count(step: str, change: str):
    names = cell(READS)
    names.functools, names.settings = functools, types.ModuleType("settings")
    names.settings.rate = 1.0
    made = eval(step, vars(names))
    before = Identity(made)
    reading = before.reader(made, [])
    assert (Identity(made), before.reader(made, [])) == (before, reading)
    # A new name needs an object of the class in place of the one that is set.
    names.trainer.unread = names.trainer.new = 3.0
    assert (Identity(made) == before) is ("any_name" not in step)
    before = Identity(made)
    reading = before.reader(made, [])
    exec(change, vars(names))
    assert Identity(made) != before
    assert before.reader(made, []) != reading


def test_attributes_of_arguments_count():
    class Config:
        factor, unread = 1.0, 1.0

    config = Config()

    def step(config):
        return config.factor

    before = Identity(step, [config])
    config.unread = 2.0
    assert Identity(step, [config]) == before
    config.factor = 2.0
    assert Identity(step, [config]) != before


def test_slots_and_attributes_of_another_name_count():
    names = cell("""
class Slotted: __slots__ = ("rate",)
class Open:
    def __getattr__(self, name): return self.__dict__["items"][name]
slotted, opened = Slotted(), Open()
slotted.rate, opened.items = 1.0, {"rate": 1.0}
def by_slot(): return slotted.rate
def by_open(): return opened.rate
""")
    slotted, opened = Identity(names.by_slot), Identity(names.by_open)
    names.slotted.rate, names.opened.items["rate"] = 2.0, 2.0
    assert (Identity(names.by_slot) != slotted, Identity(names.by_open) != opened) == (True, True)


@pytest.mark.parametrize(
    ("read", "change"),
    [
        ("Counted.rate", "Counted.hidden = 3.0"),
        ("reference().rate", "one.rate = 3.0"),
        ("helper.rate", "helper.rate = 3.0"),
        ("array.sum()", "array[0] = 3.0"),
        ("view['rate']", "base['rate'] = 3.0"),
        ("one.rate", "one.__class__ = Other"),
    ],
)
def test_other_ways_to_hold_a_value_count(read: str, change: str):
    names = cell(f"""
import types, weakref, numpy as np
class Meta(type):
    @property
    def rate(cls): return cls.hidden
class Counted(metaclass=Meta): hidden = 1.0
class One: pass
class Other: pass
one, base, array = One(), {{"rate": 1.0}}, np.ones(3)
one.rate, reference, view = 1.0, weakref.ref(one), types.MappingProxyType(base)
def helper(): pass
helper.rate = 1.0
def step(): return {read}
""")
    before = Identity(names.step)
    assert Identity(names.step) == before
    exec(change, vars(names))
    assert Identity(names.step) != before


def test_settings_of_layers_of_a_library_count():
    dropout = keras.layers.Dropout(0.5)
    model = keras.Sequential([keras.layers.Identity(), dropout])

    def step(x):
        return model(x)

    before = Identity(step)
    dropout.rate = 0.25
    assert Identity(step) != before


def test_layers_of_the_user_within_a_model_count():
    class Scaled(keras.layers.Layer):
        factor = 1.0

        def call(self, x):
            return x * self.factor

    scaled, rate = Scaled(), [1.0]
    model = keras.Sequential([keras.layers.Identity(), scaled, keras.layers.Lambda(lambda x: x * rate[0])])
    before = Identity(lambda x: model(x))
    scaled.factor = 2.0
    assert Identity(lambda x: model(x)) != before

    def step(x):
        return model(x)

    before = Identity(step)
    rate[0] = 2.0
    assert Identity(step) != before


def test_objects_that_refer_to_each_other():
    names = cell("""
class Node: pass
one, other = Node(), Node()
one.next, other.next, other.rate = other, one, 1.0
def step(): return one.next.next.next.rate
""")
    before = Identity(names.step)
    assert Identity(names.step) == before
    names.other.rate = 2.0
    assert Identity(names.step) != before
