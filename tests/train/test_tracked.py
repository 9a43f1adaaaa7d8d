"""`Tracked`: each kind of value in the objects of a custom loop is restored as the uninterrupted loop had it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import keras
import numpy as np
import optax
import pytest
from flax import nnx

import anytpu as tpu
from anytpu.errors import NaNLossError, SettingError
from anytpu.train.checkpoint import Checkpoints


def continued(folder: Path, make: Any, body: Any, last: int = 4, stop: int = 2) -> tuple[Any, Any]:
    """Return the objects of an uninterrupted loop, and those of one that was ended and continued."""

    def loop(folder: Path, count: int) -> Any:
        objects = make()
        for step in tpu.Checkpointer(folder, every_steps=1).steps(count, **objects):
            body(step, **objects)
        return objects

    whole = loop(folder / "whole", last)
    loop(folder / "run", stop)
    return whole, loop(folder / "run", last)


def facts(value: Any) -> Any:
    """Return what decides how a value is traced, and its bits."""
    if not isinstance(value, jax.Array):
        return type(value), np.asarray(value).dtype, np.asarray(value).tobytes()
    if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return str(jax.random.key_impl(value)), np.asarray(jax.random.key_data(value)).tobytes()
    return value.aval, value.committed, value.sharding, np.asarray(value).tobytes()


def test_values_keep_their_types_weak_types_and_devices(tmp_path: Path):
    def make() -> dict[str, Any]:
        state = {
            "w": jnp.ones(4, "bfloat16"),
            "rate": jnp.asarray(0.125),
            "whole": jnp.asarray(3),
            "many": [jnp.broadcast_to(jnp.asarray(0.5), (3,)), jnp.asarray(0)],
            "placed": jax.device_put(jnp.ones(2), jax.devices()[0]),
            "key": jax.random.key(3),
            "keys": jax.random.split(jax.random.key(1, impl="rbg"), 2),
            "number": 1,
            "flag": False,
            "becomes": 0,
            "scalar": np.float32(2),
            "numbers": np.zeros(2, "int8"),
        }
        return {"state": state}

    def body(step: int, state: dict[str, Any]) -> None:
        state["w"] = state["w"] - state["rate"] * state["w"]
        state["rate"] = state["rate"] * 0.9
        state["whole"] = state["whole"] * 0.5
        state["many"] = [state["many"][0] * 2, state["many"][1] + 1]
        state["placed"] = state["placed"] * state["rate"]
        state["key"], key = jax.random.split(state["key"])
        state["w"] = state["w"] + jax.random.normal(key, (4,), "bfloat16")
        state["number"] = state["number"] / 3
        state["flag"] = not state["flag"]
        state["becomes"] = jnp.float32(step) + state["becomes"]
        state["scalar"] = state["scalar"] * np.float32(1.5)
        state["numbers"] = state["numbers"] + np.int8(step)

    whole, again = continued(tmp_path, make, body)
    assert again["state"].keys() == whole["state"].keys()
    for name, value in whole["state"].items():
        assert jax.tree.map(facts, again["state"][name]) == jax.tree.map(facts, value), name
    assert (whole["state"]["w"].dtype, whole["state"]["rate"].weak_type) == ("bfloat16", True)


class Net(nnx.Module):
    """A module with a shared weight, statistics, random keys, a weak value, a tree of arrays and attributes."""

    def __init__(self) -> None:
        self.first, self.second = nnx.Linear(2, 2, rngs=nnx.Rngs(0)), nnx.Linear(2, 2, rngs=nnx.Rngs(1))
        self.second.kernel = self.first.kernel
        self.norm, self.dropout = nnx.BatchNorm(2, rngs=nnx.Rngs(0)), nnx.Dropout(0.5, rngs=nnx.Rngs(7))
        self.scale, self.tree = nnx.Variable(jnp.asarray(0.5)), nnx.Variable({"a": jnp.ones(2), "b": 3})
        self.calls = 0

    def __call__(self, x: Any) -> Any:
        return self.dropout(self.norm(self.second(self.first(x)))) * self.scale[...]


@pytest.mark.parametrize("form", ["objects", "dict"])
def test_modules_of_nnx_continue(tmp_path: Path, form: str):
    def make() -> dict[str, Any]:
        model = Net()
        objects = {"model": model, "optimizer": nnx.Optimizer(model, optax.adam(0.1), wrt=nnx.Param)}
        return objects if form == "objects" else {"state": {**objects, "more": [nnx.Rngs(3), jnp.zeros(2)]}}

    def body(step: int, **objects: Any) -> None:
        objects = objects.get("state", objects)
        model, optimizer = objects["model"], objects["optimizer"]
        optimizer.update(model, nnx.grad(lambda model: (model(jnp.ones((3, 2))) ** 2).sum())(model))
        model.tree.set_value({"a": model.tree.get_value()["a"] * 2, "b": model.tree.get_value()["b"] + 1})
        model.calls += 1
        if step == 1:
            model.eval()
        if form == "dict":
            objects["more"][1] += jax.random.normal(objects["more"][0](), (2,))

    whole, again = continued(tmp_path, make, body)
    for objects in (whole, again):
        model = objects.get("state", objects)["model"]
        assert model.first.kernel is model.second.kernel
        assert (model.calls, model.dropout.deterministic, model.norm.use_running_average) == (4, True, True)
    assert list(map(facts, jax.tree.leaves(again))) == list(map(facts, jax.tree.leaves(whole)))
    prefix = "" if form == "objects" else "state/"
    assert {f"{prefix}model/first/kernel", f"{prefix}optimizer/opt_state/0/mu/norm/bias"} <= set(
        Checkpoints(tmp_path / "run").load(4).values
    )


def test_modules_of_equinox_continue(tmp_path: Path):
    optimizer = optax.adam(0.1)

    class Model(eqx.Module):
        mlp: eqx.nn.MLP
        norm: eqx.nn.BatchNorm
        dropout: eqx.nn.Dropout
        half: jax.Array

        def __init__(self) -> None:
            self.mlp = eqx.nn.MLP(2, 2, 4, 1, key=jax.random.key(0))
            self.norm = eqx.nn.BatchNorm(2, "rows", mode="batch")
            self.dropout, self.half = eqx.nn.Dropout(0.5), jnp.asarray(0.5)

        def __call__(self, x: Any, stats: Any, key: Any) -> Any:
            x, stats = self.norm(self.mlp(x), stats)
            return self.dropout(x, key=key) * self.half, stats

    def make() -> dict[str, Any]:
        net, stats = eqx.nn.make_with_state(Model)()
        slots = optimizer.init(eqx.filter(net, eqx.is_array))
        return {"state": {"net": net, "stats": stats, "slots": slots, "key": jax.random.key(5)}}

    @eqx.filter_jit
    def step_of(net: Any, stats: Any, slots: Any, key: Any) -> Any:
        def loss(net: Any) -> Any:
            keys = jax.random.split(key, 3)
            out, new = jax.vmap(net, (0, None, 0), (0, None), axis_name="rows")(
                jnp.arange(6.0).reshape(3, 2), stats, keys
            )
            return (out**2).sum(), new

        gradients, stats = eqx.filter_grad(loss, has_aux=True)(net)
        updates, slots = optimizer.update(gradients, slots)
        return eqx.apply_updates(net, updates), stats, slots, jax.random.split(key, 1)[0]

    def body(step: int, state: dict[str, Any]) -> None:
        names = ("net", "stats", "slots", "key")
        state.update(zip(names, step_of(*(state[name] for name in names)), strict=True))
        if step == 1:
            state["net"] = eqx.nn.inference_mode(state["net"])

    whole, again = continued(tmp_path, make, body)
    expected, found = ([leaf for leaf in jax.tree.leaves(each) if not callable(leaf)] for each in (whole, again))
    assert list(map(facts, found)) == list(map(facts, expected))
    assert again["state"]["net"].mlp.activation is whole["state"]["net"].mlp.activation
    assert again["state"]["net"].dropout.inference is True


class Values:
    """The values of a loop, one of which becomes a NaN."""

    def __init__(self) -> None:
        self.slots = keras.optimizers.SGD(momentum=0.9)
        self.slots.build([keras.Variable(np.zeros(2, "float32"), name="w")])
        self.norm: Any = keras.layers.BatchNormalization()
        self.metric = keras.metrics.Mean()
        self.norm.build((None, 2))
        self.state: dict[str, Any] = {"w": jnp.zeros(2), "worst": jnp.full(2, -jnp.inf), "net": Net()}
        self.state |= {"losses": np.zeros(3), "loss": 0.0, "last": jnp.zeros(())}

    def spoil(self, name: str) -> None:
        """Set a value to NaN."""
        if name == "slots/sgd/w_momentum":
            self.slots.variables[-1].assign([np.nan, 0])
        elif name == "norm/batch_normalization/moving_mean":
            self.norm.moving_mean.assign([0, np.nan])
        elif name == "state/net/norm/mean":
            self.state["net"].norm.mean[...] = jnp.array([jnp.nan, 0])
        elif name == "metric":
            self.metric.total.assign(np.nan)
        else:
            self.state[name] = self.state[name] + np.nan


@pytest.mark.parametrize(
    "name", ["slots/sgd/w_momentum", "norm/batch_normalization/moving_mean", "state/net/norm/mean", "w"]
)
def test_a_nan_on_a_device_is_not_saved(tmp_path: Path, name: str):
    values = Values()
    objects = {"slots": values.slots, "norm": values.norm, "metric": values.metric, "state": values.state}
    with pytest.raises(NaNLossError) as raised:
        for step in tpu.Checkpointer(tmp_path, every_steps=1).steps(4, **objects):
            if step == 1:
                for record in ("losses", "loss", "last", "metric"):  # A loss that is NaN may be on record.
                    values.spoil(record)
            if step == 2:
                values.spoil(name)
    full = f"state/{name}" if name == "w" else name
    assert str(raised.value) == (
        f"step 3 is not saved: {full!r} has a NaN or an infinity. The newest checkpoint is that of step 2. Lower the "
        'learning rate, clip the gradients, or pass on_nan="skip" to fit'
    )
    assert Checkpoints(tmp_path).latest() == 2


@pytest.mark.parametrize(
    ("objects", "message"),
    [
        (
            {"net": eqx.nn.Linear(2, 2, key=jax.random.key(0))},
            "net is a Linear, whose parts cannot be replaced. Put it into a dict, and assign each new one there: state "
            '= {"net": net}, steps(..., state=state), state["net"] = ...',
        ),
        (
            {"slots": optax.sgd(0.1, momentum=0.9).init(jnp.zeros(2))},
            "slots is a tuple, whose parts cannot be replaced. Put it into a dict, and assign each new one there: "
            'state = {"slots": slots}, steps(..., state=state), state["slots"] = ...',
        ),
        (
            {"state": {"net": {"w": jnp.zeros(2), "name": "digits"}}},
            "state/net/name is a str, whose state a checkpoint cannot hold. Pass a Keras model, an optimizer, a "
            "metric, a module of Flax NNX, an iterator with get_state and set_state, or a dict or a list of arrays, "
            "numbers and modules",
        ),
        (
            {"state": {"a/b": jnp.zeros(2), "a": {"b": jnp.ones(2)}}},
            "two entries have the name 'state/a/b' in a checkpoint: rename one of them",
        ),
    ],
)
def test_objects_that_cannot_be_saved_are_named(tmp_path: Path, objects: Any, message: str):
    with pytest.raises(SettingError) as raised:
        tpu.Checkpointer(tmp_path).steps(3, **objects)
    assert str(raised.value) == message
