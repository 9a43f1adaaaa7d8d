from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import anytpu as tpu
from anytpu.errors import DataError, ReplicaError, SettingError
from anytpu.program.program import REPLICATED, ROWS
from anytpu.strategy.arguments import split_arguments


def form_of(*args, **kwargs):
    return split_arguments(args, kwargs, replicas=2)[0]


def test_arrays_numbers_and_per_replicas_travel_and_all_else_is_fixed():
    model = object()
    pair = tpu.PerReplica([np.zeros(3, "uint8")] * 2)
    args = {"x": pair, "y": np.float64(1)}, 2, True, "sum", model
    form, arrays = split_arguments(args, {"scale": 0.5, "none": None}, 2)
    assert [type(argument) for argument in arrays] == [tpu.PerReplica, np.float64, int, float]
    assert [(spec.shape, str(spec.dtype)) for spec in form.specs()] == [
        ((2, 3), "uint8"),
        ((), "float32"),
        ((), "int32"),
        ((), "float32"),
    ]
    assert form.layouts() == [ROWS, REPLICATED, REPLICATED, REPLICATED]
    args, kwargs = form.rebuilt(["a", "b", "c", "d"])
    assert args == ({"x": "a", "y": "b"}, "c", True, "sum", model)
    assert kwargs == {"scale": "d", "none": None}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1, 2.0), (7, 3.0)),
        ((np.zeros(3, "int64"),), (np.ones(3, "int32"),)),
        ((np.zeros(3, "float32"),), (jnp.ones(3),)),
        (("a", True, None), ("a", True, None)),
    ],
)
def test_the_same_form(one, other):
    assert form_of(*one) == form_of(*other)
    assert hash(form_of(*one)) == hash(form_of(*other))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ((1,), (1.0,)),
        ((True,), (1,)),
        ((True,), (False,)),
        (("a",), (b"a",)),
        ((object(),), (object(),)),
        (([1, 2],), ((1, 2),)),
        ((np.zeros(3),), (np.zeros(4),)),
        ((np.zeros((2, 3)),), (tpu.PerReplica([np.zeros(3)] * 2),)),
    ],
)
def test_another_form(one, other):
    assert form_of(*one) != form_of(*other)


def test_a_random_key_travels(strategy):
    drawn = strategy.run(lambda key: jax.random.uniform(key), args=(jax.random.key(0),))
    assert len(set(strategy.experimental_local_results(drawn))) == 1


def test_weak_types_are_those_of_jit(strategy):
    params = {"w": jnp.ones((3,), "bfloat16")}

    def scaled(params, rate, scale=2.0):
        return params["w"] * rate * scale, rate

    for rate in (0.5, 3, jnp.asarray(0.5), jnp.float32(0.5), np.float32(0.5), np.float64(0.5)):
        right, passed = jax.jit(scaled)(params, rate)
        found, again = strategy.run(scaled, args=(params, rate))
        assert found.values[0].dtype == right.dtype
        # A result of weak type has it again as an argument.
        assert strategy.run(scaled, args=(params, again))[0].values[0].dtype == jax.jit(scaled)(params, passed)[0].dtype
    for numbers, dtype in (([0.5, 0.5], "bfloat16"), ([np.float32(0.5)] * 2, "float32")):
        assert strategy.run(scaled, args=(params, tpu.PerReplica(numbers)))[0].values[0].dtype == dtype
    short = next(iter(strategy.distribute_dataset([np.ones((3, 2), "float32")])))
    found = strategy.run(lambda p, x, r: p["w"] * r * x.sum().astype("bfloat16"), args=(params, short, 0.5))
    assert found.values[0].dtype == "bfloat16"


def test_random_keys_in_and_out(strategy):
    keys = [jax.random.key(number) for number in range(2)]
    found = strategy.run(lambda key: {"own": jax.random.fold_in(key, 1)}, args=(tpu.PerReplica(keys),))["own"]
    right = [jax.random.fold_in(key, 1) for key in keys]
    assert [jax.random.key_data(key).tolist() for key in found.values] == [
        jax.random.key_data(key).tolist() for key in right
    ]
    assert str(found).startswith("PerReplica:{\n  0: Array((), dtype=key<fry>)")
    drawn = strategy.run(lambda key: jax.random.uniform(key), args=(found,))
    assert [float(value) for value in drawn.values] == [float(jax.random.uniform(key)) for key in right]
    rows = strategy.run(lambda key: jax.random.split(key, 2), args=(found,))
    assert strategy.gather(rows, axis=0).shape == (4,)
    text = (
        " was given random keys, which have no sum and no mean: take one of them with value.values[0], or all of them "
        "with strategy.gather; inside of a step fold the replica's index into a shared key, "
        "jax.random.fold_in(key, tpu.get_replica_context().replica_id_in_sync_group)"
    )
    for name, use in {
        "strategy.reduce": lambda: strategy.reduce("SUM", found, axis=None),
        "all_reduce": lambda: strategy.run(lambda k: tpu.get_replica_context().all_reduce("MEAN", k), args=(found,)),
        "cross_replica_sum": lambda: strategy.run(tpu.cross_replica_sum, args=(found,)),
    }.items():
        with pytest.raises(SettingError) as caught:
            use()
        assert str(caught.value) == name + text
    with pytest.raises(ReplicaError) as caught:
        strategy.run(lambda key: key, args=(tpu.PerReplica([keys[0], jax.random.key(0, impl="rbg")]),))
    assert str(caught.value) == (
        "the values of this PerReplica have different types, key<fry>, key<rbg>: random keys of one implementation "
        "cannot be mixed with those of another, or with numbers"
    )


def test_random_keys_in_batches(strategy):
    with pytest.raises(DataError) as caught:
        next(iter(strategy.distribute_dataset([jax.random.split(jax.random.key(0), 4)])))
    assert str(caught.value) == (
        "a batch holds typed random keys, which NumPy does not have: yield their numbers, jax.random.key_data(keys), "
        "and make keys of them in the step, jax.random.wrap_key_data(rows)"
    )
    with pytest.raises(DataError) as caught:
        strategy.run_steps(lambda key: key, iter([tpu.PerReplica([jax.random.key(0)] * 2)]), 1)
    assert str(caught.value) == (
        "the iterator yields typed random keys, and run_steps stacks batches in NumPy, which does not have them: put "
        "the key into the state, which the step splits: strategy.run_steps(step, iterator, steps, state=key); or yield "
        "numbers, jax.random.key_data(key)"
    )


def test_args_are_a_tuple(strategy):
    with pytest.raises(SettingError) as caught:
        strategy.run(lambda x: x, args=np.ones(3))
    assert str(caught.value) == (
        "args must be a tuple with one value for each argument of the function, not an array of shape (3,): "
        "for one argument x type strategy.run(fn, args=(x,))"
    )
    with pytest.raises(SettingError) as caught:
        strategy.run(lambda x: x, args=3)
    assert str(caught.value) == (
        "args must be a tuple with one value for each argument of the function, not 3: "
        "for one argument x type strategy.run(fn, args=(x,))"
    )


def test_kwargs_are_a_dictionary(strategy):
    with pytest.raises(SettingError) as caught:
        strategy.run(lambda x: x, kwargs=[1])
    assert str(caught.value) == 'kwargs must be a dictionary such as {"training": True}, or None, not [1]'


def test_one_value_for_each_replica(strategy):
    with pytest.raises(ReplicaError) as caught:
        strategy.run(lambda batch: batch, args=({"x": tpu.PerReplica([1, 2, 3])},))
    assert str(caught.value) == (
        "args[0]['x'] is a PerReplica of 3 values, and the strategy has 2 replicas: pass one value for each of them, "
        "or a plain array, which goes to all"
    )


def test_parts_have_one_shape(strategy):
    with pytest.raises(ReplicaError) as caught:
        strategy.run(lambda x: x, args=(tpu.PerReplica([np.zeros(3), np.zeros((2, 3))]),))
    assert str(caught.value) == (
        "the values of this PerReplica have different shapes, (3,), (2, 3): every replica runs the same compiled step, "
        "so give each a value of the same shape. The values are in value.values: pad or cut them there"
    )


def test_parts_of_different_lengths(strategy):
    value = tpu.PerReplica([np.zeros((3, 2)), np.ones((5, 2))])
    with pytest.raises(ReplicaError) as caught:
        strategy.run(lambda x: x, args=(value,))
    assert str(caught.value) == (
        "the values of this PerReplica have different shapes, (3, 2), (5, 2): every replica runs the same compiled "
        "step, so give each a value of the same shape. Where only the rows differ, "
        "joined = strategy.gather(value, axis=0) is one array of all rows, and "
        "next(iter(strategy.distribute_dataset([joined]))) splits it evenly"
    )
    joined = strategy.gather(value, axis=0)
    sums = strategy.run(lambda x: x.sum(), args=(next(iter(strategy.distribute_dataset([joined]))),))
    assert [float(value) for value in sums.values] == [2.0, 8.0]


def test_a_keras_variable_is_not_an_argument(strategy):
    variable = keras.Variable(1.0, name="scale")
    with pytest.raises(SettingError) as caught:
        strategy.run(lambda x, scale: x, args=(1.0,), kwargs={"scale": variable})
    assert str(caught.value) == (
        "kwargs['scale'] is the Keras variable 'scale', and an argument is a value that a step cannot write back to. "
        "Let the function use the variable by its own name, or pass the model, the optimizer or the metric that has it"
    )


def test_strings_in_an_array_are_refused(strategy):
    with pytest.raises(SettingError) as caught:
        strategy.run(lambda x: x, args=(np.array(["a", "b"]),))
    assert str(caught.value) == (
        "args[0] holds <U1, which no TPU computes with. Turn its values into numbers first, for example strings with "
        "keras.layers.StringLookup or np.unique(..., return_inverse=True), and objects with np.stack"
    )


def test_an_array_that_is_changed_after_the_run_does_not_change_it(strategy):
    x = np.zeros(1_000_000, "float32")
    out = strategy.run(lambda x: x[:4], args=(x,))
    x[:] = 1
    assert strategy.reduce("SUM", out, axis=0) == 0
