from __future__ import annotations

import functools
import gc
import os
import signal
import weakref
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import ReplicaError, SettingError, StrategyError
from anytpu.strategy import compiled_steps


@pytest.fixture
def strategy():
    return tpu.connect("virtual", cores=2)


def test_a_step_made_anew_in_each_call_is_compiled_once(strategy):
    total = keras.Variable(0.0)

    def train_step(x):
        def step_fn(x):
            total.assign_add(x)

        strategy.run(step_fn, args=(x,))

    for number in range(5):
        train_step(float(number))
    assert strategy.compilations == 1
    assert float(total) == 10.0


CELL = "def step():\n    model.assign_add(rate)\n    return model.value"


def test_a_new_global_model_is_the_one_that_trains(strategy):
    names = {"model": keras.Variable(0.0), "rate": 1.0}
    exec(CELL, names)
    first = names["model"]
    strategy.run(names["step"])
    names["model"] = keras.Variable(10.0)
    strategy.run(names["step"])
    assert (float(first), float(names["model"])) == (1.0, 11.0)
    assert strategy.compilations == 2
    names["model"] = first
    strategy.run(names["step"])
    assert (float(first), strategy.compilations) == (2.0, 2)


def test_a_changed_global_number_compiles_again(strategy):
    names = {"model": keras.Variable(0.0), "rate": 1.0}
    exec(CELL, names)
    for rate, compilations in ((1.0, 1), (2.0, 2), (1.0, 2)):
        names["rate"] = rate
        strategy.run(names["step"])
        assert strategy.compilations == compilations
    assert float(names["model"]) == 4.0


def test_a_changed_attribute_compiles_again(strategy):
    class Trainer:
        rate, unread = 1.0, 0

        def step(self, x):
            self.traces = getattr(self, "traces", 0) + 1
            return x * self.rate

    trainer = Trainer()
    for rate in (1.0, 2.0, 1.0):
        trainer.rate, trainer.unread = rate, trainer.unread + 1
        for _ in range(2):
            assert strategy.run(trainer.step, args=(3.0,)).values[0] == 3.0 * rate
    assert strategy.compilations <= 3


def test_what_the_trace_itself_makes_is_no_change(strategy):
    class Trainer:
        total = None

        def step(self, x):
            if self.total is None:
                self.total = keras.Variable(0.0)
            self.total.assign_add(x)

    trainer = Trainer()
    for _ in range(3):
        strategy.run(trainer.step, args=(2.0,))
    assert (float(trainer.total), strategy.compilations) == (6.0, 1)


def test_other_shapes_compile_again(strategy):
    for rows, compilations in ((3, 1), (4, 2), (3, 2)):
        strategy.run(jnp.sum, args=(np.ones(rows, "float32"),))
        assert strategy.compilations == compilations


def test_models_in_arguments_count_by_identity(strategy):
    for _ in range(5):  # Else a new layer might get the address of one that is gone.
        layer = keras.layers.Dense(1, kernel_initializer="zeros")
        layer.build((None, 1))
        out = strategy.run(lambda layer: layer(np.ones((1, 1), "float32")) + layer.bias, args=(layer,))
        assert out.values[0].tolist() == [[0.0]]
        layer.bias.assign([2.0])
        del layer
        gc.collect()


def test_the_number_of_steps_that_are_kept(strategy, monkeypatch):
    monkeypatch.setattr(compiled_steps, "MAX_STEPS", 3)
    names = {"rate": 0}
    exec("def step(): return rate", names)
    for rate in range(5):
        names["rate"] = rate
        strategy.run(names["step"])
    assert len(strategy._steps) == 3
    assert strategy.compilations == 5
    strategy.run(names["step"])
    assert strategy.compilations == 5


def test_a_strategy_that_is_dropped_frees_its_steps_and_their_models(strategy):
    def used() -> list[weakref.ref]:
        own = tpu.TPUStrategy(strategy.cluster_resolver)
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1)])

        def step(x):
            return tpu.value_and_grad(lambda: model(x).sum(), model.trainable_variables)()[0]

        own.run(step, args=(np.ones((2, 2), "float32"),))
        return [weakref.ref(owner) for owner in (own, model, step)]

    gone = used()
    gc.collect()
    assert [ref() for ref in gone] == [None, None, None]


CLOSURE = """
def made(model):
    def step(x):
        return model(x).sum()
    return step
"""


def dense() -> keras.Model:
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])


class Job:
    def __init__(self):
        self.model = dense()

    def step(self, x):
        return self.model(x).sum()


class Pair(NamedTuple):
    model: keras.Model
    rate: float


def in_closure(strategy, x) -> list:
    model, unused = dense(), np.ones((1000, 1000))
    strategy.run(lambda x: model(x).sum() * unused[0, 0], args=(x,))
    return [model, unused, *model.weights]


def in_globals(strategy, x) -> list:
    names = {"model": dense()}
    exec("def step(x): return model(x).sum()", names)
    strategy.run(names["step"], args=(x,))
    return [names["model"], names["step"].__code__]


def in_arguments(strategy, x) -> list:
    model = dense()
    strategy.run(lambda model, x: model(x).sum(), args=(model, x))
    return [model]


def in_keywords(strategy, x) -> list:
    model = dense()
    strategy.run(lambda x, made: made[0](x).sum(), args=(x,), kwargs={"made": [model]})
    return [model]


def in_a_method(strategy, x) -> list:
    job = Job()
    strategy.run(job.step, args=(x,))
    return [job, job.model]


def in_an_attribute(strategy, x) -> list:
    class Trainer:
        def step(self, x):
            return self.model(x).sum() * self.array

    trainer = Trainer()
    trainer.model, trainer.array, trainer.own = dense(), jnp.ones(()), trainer
    strategy.run(trainer.step, args=(x,))
    return [trainer, trainer.model]


def in_a_partial(strategy, x) -> list:
    model = dense()
    strategy.run(functools.partial(lambda model, x: model(x).sum(), model), args=(x,))
    return [model]


def in_a_default(strategy, x) -> list:
    model = dense()
    strategy.run(lambda x, model=model: model(x).sum(), args=(x,))
    return [model]


def in_a_named_tuple(strategy, x) -> list:
    pair = Pair(dense(), 0.5)
    strategy.run(lambda x: pair.model(x).sum() * pair.rate, args=(x,))
    return [pair.model]


def in_a_long_list(strategy, x) -> list:
    weights = [keras.Variable(float(number)) for number in range(65)]
    strategy.run(lambda: sum(weight.value for weight in weights))
    return weights


def in_a_loop(strategy, x) -> list:
    model = dense()
    strategy.run_steps(lambda x: model(x).sum(), iter(strategy.distribute_dataset([np.ones((2, 2), "float32")])), 1)
    return [model]


def in_a_state(strategy, x) -> list:
    model, state = dense(), jnp.ones((1000, 1000))
    batches = iter(strategy.distribute_dataset([np.ones((2, 2), "float32")]))
    strategy.run_steps(lambda state, x: (state + model(jnp.ones((1, 2))), None), batches, 1, state=state)
    return [model, state]


PLACES = [
    in_closure, in_globals, in_arguments, in_keywords, in_a_method, in_an_attribute, in_a_partial, in_a_default,
    in_a_named_tuple, in_a_long_list, in_a_loop, in_a_state,
]  # fmt: skip


@pytest.mark.parametrize("place", PLACES)
def test_a_model_that_is_dropped_is_freed_with_its_step(strategy, place):
    x = np.ones((2, 2), "float32")
    place(strategy, x)
    gc.collect()
    arrays, executables = len(jax.live_arrays()), live_executables()
    gone = [weakref.ref(owner) for owner in place(strategy, x)]
    gc.collect()
    assert [ref() for ref in gone] == [None] * len(gone)
    assert len(strategy._steps) == 0
    assert (len(jax.live_arrays()), live_executables()) == (arrays, executables)


def live_executables() -> int:
    return len(jax.devices()[0].client.live_executables())


def test_a_dropped_model_takes_only_its_own_steps_along(strategy):
    names: dict[str, Any] = {}
    exec(CLOSURE, names)
    x, kept, dropped = np.ones((2, 2), "float32"), dense(), dense()
    for model in (kept, dropped):
        strategy.run(names["made"](model), args=(x,))
    del model, dropped
    gc.collect()
    strategy.run(names["made"](kept), args=(x,))
    assert (len(strategy._steps), strategy.compilations) == (1, 2)


def test_a_new_model_at_the_address_of_one_that_is_gone(strategy):
    names: dict[str, Any] = {}
    exec("def step(): return weight.value", names)
    addresses = set()
    for number in range(60):
        names["weight"] = keras.Variable(float(number))
        has_been_there = id(names["weight"]) in addresses
        addresses.add(id(names["weight"]))
        assert strategy.run(names["step"]).values[0] == number
        del names["weight"]
        gc.collect()
        if has_been_there:
            break  # Which address is given out again, and when, is the allocator's choice.


def test_a_variable_that_takes_the_place_of_another_in_an_object(strategy):
    class Holder:
        weight = keras.Variable(1.0)

    def step():
        return Holder.weight.value

    assert strategy.run(step).values[0] == 1.0
    Holder.weight = keras.Variable(2.0)
    gc.collect()
    assert len(strategy._steps) == 0
    assert strategy.run(step).values[0] == 2.0


def test_what_cannot_be_weakly_referenced_is_held_with_its_step(strategy, monkeypatch):
    class Slotted:
        __slots__ = ("model",)

    def used() -> weakref.ref:
        slotted = Slotted()
        slotted.model = dense()
        strategy.run(lambda x: slotted.model(x).sum(), args=(np.ones((2, 2), "float32"),))
        return weakref.ref(slotted.model)

    model = used()
    gc.collect()
    # The code of the lambda lives in `used`; the model is held until newer steps take the place of this one.
    assert model() is not None
    monkeypatch.setattr(compiled_steps, "MAX_STEPS", 1)
    strategy.run(lambda: 1.0)
    gc.collect()
    assert model() is None


def test_the_batch_of_the_first_run_is_not_kept(strategy):
    x = jnp.ones(1000)
    ref = weakref.ref(x)
    strategy.run(jnp.sum, args=(x,))
    del x
    gc.collect()
    assert ref() is None


def test_what_is_run_is_a_function(strategy):
    with pytest.raises(SettingError) as caught:
        strategy.run(3.0)
    assert str(caught.value) == "fn must be a function that one replica runs, not 3.0: strategy.run(fn, args=(x,))"


def test_what_a_step_returns(strategy):
    assert strategy.run(lambda: None) is None

    def step():
        return {"loss": 1.0, "name": "loss"}

    with pytest.raises(ReplicaError) as caught:
        strategy.run(step)
    assert str(caught.value) == (
        "step returns 'loss', and a function that strategy.run runs must return arrays, numbers or None, or "
        "lists, tuples and dictionaries of them. Return anything else from outside of it"
    )


def test_a_step_that_makes_a_new_layer_each_time(strategy):
    def step(x):
        return keras.layers.Dense(1, name="fresh")(x)

    with pytest.raises(ReplicaError) as caught:
        strategy.run(step, args=(np.ones((2, 2), "float32"),))
    assert str(caught.value) == (
        "step makes the variable 'fresh/kernel' anew each time it runs. Make layers, optimizers and metrics once, "
        "outside the function, and use them in it"
    )


def test_after_a_step_that_raises_the_next_one_runs(strategy):
    total = keras.Variable(0.0)

    def step(x, fails):
        total.assign_add(x)
        if fails:
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        strategy.run(step, args=(1.0, True))
    strategy.run(step, args=(1.0, False))
    assert float(total) == 1.0


def test_what_the_user_assigns_between_two_runs_counts(strategy):
    weight = keras.Variable(np.zeros(3, "float32"))
    for _ in range(2):
        strategy.run(lambda: weight.assign_add(jnp.ones(3)))
    held = np.array(weight.value)
    weight.assign([5.0, 6.0, 7.0])
    strategy.run(lambda: weight.assign_add(jnp.ones(3)))
    assert held.tolist() == [2.0, 2.0, 2.0]
    assert np.array(weight.value).tolist() == [6.0, 7.0, 8.0]


def test_arrays_taken_from_a_variable_stay_what_they_were(strategy):
    weight = keras.Variable(np.zeros(300, "float32"))
    strategy.run(lambda: weight.assign_add(jnp.ones(300)))
    seen = np.asarray(weight.value)
    for _ in range(3):
        strategy.run(lambda: weight.assign_add(jnp.ones(300)))
    assert set(seen.tolist()) == {1.0}


def test_an_interrupt_leaves_the_variables_whole(strategy, capsys):
    weight = keras.Variable(0.0)

    def step():
        weight.assign_add(1.0)

    strategy.run(step)
    executable = next(iter(strategy._steps._steps.values())).steps[0].executable

    class Interrupted(type(executable)):
        def step(self, state, batch):
            done = super().step(state, batch)
            os.kill(os.getpid(), signal.SIGINT)
            return done

    executable.__class__ = Interrupted
    with pytest.raises(KeyboardInterrupt):
        strategy.run(step)
    assert float(weight) == 2.0
    assert "stopping after the call that runs now" in capsys.readouterr().err


def test_variables_of_another_system(strategy):
    other = tpu.connect("virtual", cores=3)
    with other.scope():
        weight = keras.Variable(0.0, name="level")
    with pytest.raises(StrategyError) as caught:
        strategy.run(lambda: weight.assign_add(1.0))
    assert str(caught.value) == (
        "mixing different strategies: the variable 'level' was made in the scope of a strategy on another system than "
        "<TPUStrategy: 2 virtual cores>. Run the function with the strategy that the variable was "
        "made with, or make the model again in this one's scope"
    )


def test_a_model_makes_predictions_by_itself(strategy):
    with strategy.scope():
        model = keras.Sequential([keras.layers.Input((2,)), keras.layers.Dense(1, kernel_initializer="ones")])
    rows = strategy.run(model, args=(tpu.PerReplica([np.ones((1, 2), "float32"), np.zeros((1, 2), "float32")]),))
    assert strategy.gather(rows, axis=0).tolist() == [[2.0], [0.0]]
    assert strategy.compilations == 1
    assert isinstance(jax.tree.leaves(rows)[0], tpu.PerReplica)


def test_a_call_inside_of_a_trace(strategy):
    def squared(x):
        return strategy.run(lambda x: (x**2).sum(), args=(x,)).values[0]

    for transform in (jax.jit, jax.grad, jax.vmap, lambda fn: functools.partial(jax.eval_shape, fn)):
        with pytest.raises(StrategyError) as caught:
            transform(squared)(jnp.ones(3))
        assert str(caught.value) == (
            "strategy.run was called in a function that JAX traces, as for jax.jit, jax.grad, jax.vmap or "
            "jax.eval_shape: it compiles its function by itself, and returns values. Call it outside, and transform "
            "the function that it runs: strategy.run(jax.grad(fn), ...)"
        )


def test_without_jit(strategy):
    x = tpu.PerReplica([np.ones(2, "float32")] * 2)
    with jax.disable_jit():
        with pytest.warns(UserWarning) as caught:
            found = strategy.run(lambda x: x.sum(), args=(x,))
        assert [value.item() for value in found.values] == [2.0, 2.0]
        with pytest.warns(UserWarning, match="jax.disable_jit"):
            assert float(strategy.run_steps(lambda x: x.sum(), iter([x] * 3), 3).values[1]) == 2.0
    assert str(caught[0].message) == (
        "jax.disable_jit() has no effect on <lambda> on <TPUStrategy: 2 virtual cores>: a step of a strategy is always "
        "compiled. To see its values, print them with jax.debug.print, or call the function itself, outside of "
        "strategy.run"
    )


def test_options_of_tensorflow_have_no_effect(strategy):
    x = tpu.PerReplica([np.ones((1, 2), "float32")] * 2)

    def step(x):
        context = tpu.get_replica_context()
        return context.all_reduce("SUM", x, None).sum() + context.all_gather(x, 0, options=object()).sum()

    assert strategy.run(step, (x,), None, object()).values[0] == 8.0
