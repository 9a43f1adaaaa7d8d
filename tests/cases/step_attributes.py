"""Kind: a value that a step reads through an attribute keeps what it was at the first `strategy.run`.

The right value: `strategy.run` runs the function as it is now, so a factor of 3 in place of 1 gives three times the sum.
An attribute that the step does not read compiles nothing again.
"""

import dataclasses
import functools
import operator
import sys
import types

import anytpu as tpu
import jax
import jax.numpy as jnp
import keras
import numpy as np
from case import check, check_equal, finish

strategy = tpu.connect("virtual", cores=4)
batch = next(iter(strategy.distribute_dataset([np.ones((8, 1), "float32")])))
settings = types.ModuleType("settings")
settings.factor = 1.0
sys.modules["settings"] = settings


def total(step, *args):
    return float(strategy.reduce("SUM", strategy.run(step, args=(batch, *args)), axis=None))


@dataclasses.dataclass
class Config:
    factor: float = 1.0
    unread: int = 0


class Slotted:
    __slots__ = ("factor",)


class Open:
    """As ConfigDict does, makes its attributes by itself."""

    def __init__(self):
        self.__dict__["fields"] = {"factor": 1.0}

    def __getattr__(self, name):
        return self.__dict__["fields"][name]

    def __setattr__(self, name, value):
        self.__dict__["fields"][name] = value


class Base:
    shared = 1.0

    def inherited(self, x):
        return x.sum() * self.factor


class Trainer(Base):
    def __init__(self):
        self.factor, self.array, self.config = 1.0, jnp.float32(1), Config()
        self.options, self.several, self.unread = {"factor": 1.0}, [Config(), Config()], 0
        self.loss = lambda x: x.sum() * settings.factor
        self.deep = types.SimpleNamespace(inner=types.SimpleNamespace(config=Config()))

    @property
    def scaled(self):
        return self.factor * 1.0

    @functools.cached_property
    def ignored(self):
        return 1.0

    @staticmethod
    def of_config(config, x):
        return x.sum() * config.factor

    @classmethod
    def of_class(cls, x):
        return x.sum() * cls.shared

    def __call__(self, x):
        return x.sum() * self.factor

    def step(self, x):
        return x.sum() * self.factor

    def by_array(self, x):
        return x.sum() * self.array

    def by_config(self, x):
        return x.sum() * self.config.factor

    def by_alias(self, x):
        config = self.config
        return x.sum() * config.factor

    def by_helper(self, x):
        return self.of_config(self.config, x)

    def by_super(self, x):
        return super().inherited(x)

    def by_options(self, x):
        return x.sum() * self.options["factor"]

    def by_several(self, x):
        return x.sum() * sum(config.factor for config in self.several) / 2

    def by_property(self, x):
        return x.sum() * self.scaled

    def by_getattr(self, x):
        return x.sum() * getattr(self, "factor")  # noqa: B009

    def by_computed_name(self, x, name="fac"):
        return x.sum() * getattr(self, name + "tor")

    def by_vars(self, x):
        return x.sum() * vars(self)["factor"]

    def by_getter(self, x):
        return x.sum() * operator.attrgetter("config.factor")(self)

    def by_nested(self, x):
        def inner(y):
            return y * self.factor

        return inner(x).sum()

    def by_deep(self, x):
        return x.sum() * self.deep.inner.config.factor

    def by_jax(self, x):
        return jax.vmap(lambda y: y * self.factor)(x).sum()

    def by_grad(self, x):
        return jax.grad(lambda y: (y * self.factor).sum())(x).sum()

    def by_function(self, x):
        return self.loss(x)

    def by_class(self, x):
        return x.sum() * self.shared


class Noise(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.factor = 1.0

    def call(self, x):
        return x * self.factor


config, slotted, opened, several, options = Config(), Slotted(), Open(), [Config()], {"inner": {"config": Config()}}
slotted.factor = 1.0
with strategy.scope():
    noise = Noise()
    network = keras.Sequential([keras.layers.Identity(), noise, keras.layers.Identity()])


def by_default(x, config=config):
    return x.sum() * config.factor


def by_import(x):
    from settings import factor

    return x.sum() * factor


def by_import_of_module(x):
    import settings as inside

    return x.sum() * inside.factor


def change(owner, name):
    return lambda value: setattr(owner, name, value)


one = {name: Trainer() for name in dir(Trainer)}
KINDS = {
    name: (getattr(trainer, name), change(trainer, "factor"))
    for name, trainer in one.items()
    if name
    in (
        "step",
        "by_super",
        "by_property",
        "by_getattr",
        "by_computed_name",
        "by_vars",
        "by_nested",
        "by_jax",
        "by_grad",
    )
}
for name in ("by_config", "by_alias", "by_helper", "by_getter"):
    KINDS[name] = getattr(one[name], name), change(one[name].config, "factor")
trainer = Trainer()
KINDS |= {
    "a callable object": (trainer, change(trainer, "factor")),
    "a partial": (functools.partial(Trainer.step, one["shared"]), change(one["shared"], "factor")),
    "an array": (one["by_array"].by_array, lambda value: setattr(one["by_array"], "array", jnp.float32(value))),
    "an item of a dictionary": (one["by_options"].by_options, lambda value: one["by_options"].options.update(factor=value)),
    "objects in a list": (one["by_several"].by_several, lambda value: [setattr(c, "factor", value) for c in one["by_several"].several]),
    "an object in an object": (one["by_deep"].by_deep, change(one["by_deep"].deep.inner.config, "factor")),
    "an attribute that is a function": (one["by_function"].by_function, change(settings, "factor")),
    "a class attribute": (one["by_class"].by_class, change(Trainer, "shared")),
    "a class method": (one["of_class"].of_class, lambda value: setattr(Trainer, "shared", value)),
    "a global object": (lambda x: x.sum() * config.factor, change(config, "factor")),
    "a default": (by_default, change(config, "factor")),
    "a module": (lambda x: x.sum() * settings.factor, change(settings, "factor")),
    "an import from a module": (by_import, change(settings, "factor")),
    "an import of a module": (by_import_of_module, change(settings, "factor")),
    "slots": (lambda x: x.sum() * slotted.factor, change(slotted, "factor")),
    "attributes of another name": (lambda x: x.sum() * opened.factor, change(opened, "factor")),
    "an object in a global list": (lambda x: x.sum() * several[0].factor, change(several[0], "factor")),
    "an object in dictionaries": (lambda x: x.sum() * options["inner"]["config"].factor, change(options["inner"]["config"], "factor")),
    "a layer": (lambda x: noise(x).sum(), change(noise, "factor")),
    "a layer in a model": (lambda x: network(x).sum(), change(noise, "factor")),
}  # fmt: skip
for name, (step, set_to) in KINDS.items():
    for value in (1.0, 3.0, 1.0):
        set_to(value)
        check(f"{name}: {value}", 8 * value, total(step))

argument = Config()
for value in (1.0, 3.0):
    argument.factor = value
    check(f"an argument: {value}", 8 * value, total(lambda x, c: x.sum() * c.factor, argument))

compilations = strategy.compilations
for step in range(3):
    config.unread = trainer.unread = step
    total(trainer.step)
    total(lambda x: x.sum() * config.factor)
check_equal("compilations for attributes that are not read", 2, strategy.compilations - compilations)
finish()
