"""Kind: a value that a step reads through an attribute keeps what it was at the first `strategy.run`.

The right value: `strategy.run` runs the function as it is now: a factor of 3 in place of 1 gives three times the sum.
An attribute that the step does not read compiles nothing again.
"""

import dataclasses  # noqa: I001
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
        self.options, self.several, self.unread = {"factor": 1.0}, [Config()], 0
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
        return x.sum() * sum(config.factor for config in self.several)

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


config, slotted, opened, several, options = Config(), Slotted(), Open(), [Config()], {"a": {"b": Config()}}
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


def change(owner, name="factor"):
    return lambda value: setattr(owner, name, value)


def change_item(items):
    return lambda value: items.update(factor=value)


by_factor = ["step", "by_super", "by_property", "by_getattr", "by_computed_name"]
by_factor += ["by_vars", "by_nested", "by_jax", "by_grad", "by_several"]
KINDS = {}
for name in [*by_factor, "by_config", "by_alias", "by_helper", "by_getter", "by_deep"]:
    one = Trainer()
    owner = one.several[0] if name == "by_several" else one if name in by_factor else one.config
    KINDS[name] = getattr(one, name), change(one.deep.inner.config if name == "by_deep" else owner)
trainer, other = Trainer(), Trainer()
KINDS |= {
    "a callable object": (trainer, change(trainer)),
    "a partial": (functools.partial(Trainer.step, other), change(other)),
    "an array": (trainer.by_array, lambda value: setattr(trainer, "array", jnp.float32(value))),
    "an item of a dictionary": (trainer.by_options, change_item(trainer.options)),
    "an attribute that is a function": (trainer.by_function, change(settings)),
    "a class attribute": (trainer.by_class, change(Trainer, "shared")),
    "a class method": (trainer.of_class, change(Trainer, "shared")),
    "a global object": (lambda x: x.sum() * config.factor, change(config)),
    "a default": (by_default, change(config)),
    "a module": (lambda x: x.sum() * settings.factor, change(settings)),
    "an import from a module": (by_import, change(settings)),
    "an import of a module": (by_import_of_module, change(settings)),
    "slots": (lambda x: x.sum() * slotted.factor, change(slotted)),
    "attributes of another name": (lambda x: x.sum() * opened.factor, change(opened)),
    "an object in a global list": (lambda x: x.sum() * several[0].factor, change(several[0])),
    "an object in dictionaries": (lambda x: x.sum() * options["a"]["b"].factor, change(options["a"]["b"])),
    "a layer": (lambda x: noise(x).sum(), change(noise)),
    "a layer in a model": (lambda x: network(x).sum(), change(noise)),
}
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
